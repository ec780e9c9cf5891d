// The shared operator suite on the GPU: "gpu" runs what the device would run, "gpu_portable" the kernels of portable/ on the same card. Without a GPU
// every case is skipped with the reason, unless the program is started with --require=gpu: then that is a failure.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "backends/gpu/gpu_device.h"
#include "ops/testing/op_cases.h"

namespace dsv4 {
namespace {

bool require_gpu = false;

struct Devices {
  std::unique_ptr<Device> tested, reference;
};

// One device per suite, made when its first test runs.
Devices* devices(bool portable_only) {
  static Devices strips, portable;
  Devices& d = portable_only ? portable : strips;
  if (d.tested == nullptr) {
    auto made = make_gpu_device({.portable_only = portable_only});
    if (made.ok()) d.tested = std::move(made).value();
    d.reference = make_reference_device(0);
  }
  return d.tested == nullptr ? nullptr : &d;
}

class OpCaseTest : public testing::Test {
 public:
  OpCaseTest(OpCase op_case, bool portable_only) : case_(std::move(op_case)), portable_only_(portable_only) {}
  void TestBody() override {
    Devices* d = devices(portable_only_);
    if (d == nullptr) {
      ASSERT_FALSE(require_gpu) << gpu_unavailable_reason();
      GTEST_SKIP() << gpu_unavailable_reason();
    }
    const int32_t seed = testing::GTEST_FLAG(random_seed);
    const CaseReport report = run_op_case(case_, *d->tested, *d->reference, {.seed = seed == 0 ? 1u : static_cast<uint64_t>(seed)});
    std::string reasons;
    for (const std::string& r : report.reasons) reasons += "\n  " + r;
    if (report.outcome == CaseOutcome::kUnsupported) GTEST_SKIP() << "unsupported:" << reasons;
    EXPECT_EQ(report.outcome, CaseOutcome::kPassed) << case_.full_name() << " on " << d->tested->info().name << reasons
                                                    << "\n  replay with --gtest_random_seed=" << report.seed;
  }

 private:
  OpCase case_;
  bool portable_only_;
};

void register_suite(const char* backend, bool portable_only) {
  for (const OpCase& c : all_op_cases()) {
    const std::string suite = std::string(backend) + "/" + c.op;
    testing::RegisterTest(suite.c_str(), c.name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [c, portable_only]() -> testing::Test* { return new OpCaseTest(c, portable_only); });
  }
}

}  // namespace

bool gpu_is_required() { return require_gpu; }

}  // namespace dsv4

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) dsv4::require_gpu |= std::strcmp(argv[i], "--require=gpu") == 0;
  dsv4::register_suite("gpu", false);
  dsv4::register_suite("gpu_portable", true);
  return RUN_ALL_TESTS();
}

#include "ops/testing/op_suite.h"

#include <gtest/gtest.h>

#include <memory>

namespace dsv4 {
namespace {

// The devices of one suite, made when the first test needs them.
class SuiteDevices {
 public:
  explicit SuiteDevices(std::function<Device*()> factory) : factory_(std::move(factory)) {}

  Device* tested() {
    if (factory_) {
      tested_.reset(factory_());
      factory_ = nullptr;
    }
    return tested_.get();
  }
  Device& reference() {
    if (!reference_) reference_ = make_reference_device(0);
    return *reference_;
  }

 private:
  std::function<Device*()> factory_;
  std::unique_ptr<Device> tested_;
  std::unique_ptr<Device> reference_;
};

class OpCaseTest : public testing::Test {
 public:
  OpCaseTest(OpCase op_case, std::shared_ptr<SuiteDevices> devices, const RunOptions& options)
      : case_(std::move(op_case)), devices_(std::move(devices)), options_(options) {}

  void TestBody() override {
    Device* tested = devices_->tested();
    ASSERT_NE(tested, nullptr) << "the backend gave no device";
    if (const int32_t flag = testing::GTEST_FLAG(random_seed); flag != 0) options_.seed = static_cast<uint64_t>(flag);
    const CaseReport report = run_op_case(case_, *tested, devices_->reference(), options_);
    std::string reasons;
    for (const std::string& r : report.reasons) reasons += "\n  " + r;
    if (report.outcome == CaseOutcome::kUnsupported) GTEST_SKIP() << "unsupported:" << reasons;
    EXPECT_TRUE(report.outcome == CaseOutcome::kPassed) << case_.full_name() << " on " << tested->info().name << reasons << "\n  replay with --gtest_filter=*"
                                                        << case_.op << "." << case_.name << " --gtest_random_seed=" << report.seed;
  }

 private:
  OpCase case_;
  std::shared_ptr<SuiteDevices> devices_;
  RunOptions options_;
};

}  // namespace

void register_op_suite(const char* backend, std::function<Device*()> factory, const RunOptions& options) {
  auto devices = std::make_shared<SuiteDevices>(std::move(factory));
  for (const OpCase& c : all_op_cases()) {
    const std::string suite = std::string(backend) + "/" + c.op;
    testing::RegisterTest(suite.c_str(), c.name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [c, devices, options]() -> testing::Test* { return new OpCaseTest(c, devices, options); });
  }
}

}  // namespace dsv4

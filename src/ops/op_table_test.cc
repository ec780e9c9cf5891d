// What the operators share: the table, the observer, the reference device.
#include <string>

#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

TEST(OpTable, names_the_first_empty_slot) {
  EXPECT_EQ(first_missing_op(reference_ops()), nullptr);
  EXPECT_STREQ(first_missing_op(OpTable{}), "embed");
  OpTable t = reference_ops();
  t.sparse_attention = nullptr;
  EXPECT_STREQ(first_missing_op(t), "sparse_attention");
}

class Recorder : public OpObserver {
 public:
  void before(const char* op, const OpCost& cost) override { log += std::string("before ") + op + " " + std::to_string(cost.bytes) + "; "; }
  void after(const char* op) override { log += std::string("after ") + op + "; "; }
  std::string log;
};

TEST(RunOp, tells_the_observer_and_runs_only_what_the_contract_allows) {
  const std::unique_ptr<Device> device = make_reference_device(1);
  Recorder recorder;
  device->context().observer = &recorder;
  const std::vector<float> x = {1, 2};
  std::vector<float> out(2);
  const std::vector<uint16_t> w = bf16({1, 1});
  EXPECT_TRUE(run_op("norm", device->context(), device->ops().rms_norm, RmsNormArgs{matrix(x, 1, 2), w.data(), 0, matrix(out, 1, 2)}).ok());
  EXPECT_EQ(recorder.log, "before norm 20; after norm; ");  // x and out 8 each, the weight 4
  recorder.log.clear();
  EXPECT_FALSE(run_op("norm", device->context(), device->ops().rms_norm, RmsNormArgs{matrix(x, 1, 2), nullptr, 0, matrix(out, 1, 2)}).ok());
  EXPECT_EQ(recorder.log, "");
}

TEST(ReferenceDevice, memory_is_aligned_and_copied_in_order) {
  const std::unique_ptr<Device> device = make_reference_device(2);
  EXPECT_EQ(device->info().backend, "reference");
  EXPECT_TRUE(device->info().host_memory);
  Result<DeviceBuffer> a = device->allocate(100, "a"), empty = device->allocate(0, "nothing");
  ASSERT_TRUE(a.ok() && empty.ok());
  EXPECT_NE(empty->as<uint8_t>(), nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a->as<uint8_t>()) % 256, 0u);
  std::string text(100, 'x'), back(100, ' ');
  ASSERT_TRUE(device->upload(a->as<char>(), text.data(), 100).ok());
  ASSERT_TRUE(device->zero(a->as<char>() + 50, 50).ok());
  ASSERT_TRUE(device->copy(a->as<char>() + 90, a->as<char>(), 10).ok());
  ASSERT_TRUE(device->download(back.data(), a->as<char>(), 100).ok());
  EXPECT_EQ(back, std::string(50, 'x') + std::string(40, '\0') + std::string(10, 'x'));
}

}  // namespace
}  // namespace dsv4

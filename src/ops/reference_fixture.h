// What the reference's own tests share: a device, and exact messages of refused arguments. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "ops/device.h"
#include "tensor/dtype.h"

namespace dsv4 {

class ReferenceOps : public testing::Test {
 protected:
  // Runs a slot of the reference table as the model does: contract first.
  template <class Args>
  Status run(OpSlot<Args> slot, const Args& args) {
    return run_op("test", device_->context(), slot, args);
  }
  const OpTable& ops() const { return device_->ops(); }

 private:
  std::unique_ptr<Device> device_ = make_reference_device(2);
};

inline void expect_refused(const Status& s, const std::string& message) {
  EXPECT_EQ(static_cast<int>(s.code()), static_cast<int>(StatusCode::kInvalidArgument));
  EXPECT_EQ(s.message(), message);
}

template <class T>
Matrix<T> matrix(std::vector<T>& v, int64_t rows, int64_t cols) {
  return {v.data(), rows, cols};
}
template <class T>
Matrix<const T> matrix(const std::vector<T>& v, int64_t rows, int64_t cols) {
  return {v.data(), rows, cols};
}

inline std::vector<uint16_t> bf16(const std::vector<float>& v) {
  std::vector<uint16_t> out;
  for (const float x : v) out.push_back(float_to_bf16(x));
  return out;
}

inline WeightView f32_weight(const std::vector<float>& v, int64_t n, int64_t k) {
  return {WeightFormat::kF32, reinterpret_cast<const uint8_t*>(v.data()), nullptr, n, k};
}

}  // namespace dsv4

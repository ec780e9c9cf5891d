// For tests that need a card: skipped without one, failed when the program was told --require=gpu.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "backends/gpu/gpu_device.h"

namespace dsv4 {

bool gpu_is_required();  // gpu_ops_test.cc

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    auto made = make_gpu_device({});
    if (!made.ok()) {
      ASSERT_FALSE(gpu_is_required()) << made.status().message();
      GTEST_SKIP() << made.status().message();
    }
    device_ = std::move(made).value();
  }
  // Memory of the device with these contents, until the test ends.
  template <class T>
  T* put(const std::vector<T>& values) {
    const auto size_bytes = static_cast<int64_t>(values.size() * sizeof(T));
    buffers_.push_back(device_->allocate(size_bytes, "test").value());
    EXPECT_TRUE(device_->upload(buffers_.back().as<void>(), values.data(), size_bytes).ok());
    return buffers_.back().as<T>();
  }
  std::unique_ptr<Device> device_;
  std::vector<DeviceBuffer> buffers_;
};

}  // namespace dsv4

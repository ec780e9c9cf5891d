// For tests that need a card: skipped without one, failed when the program was told --require=gpu.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

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
  std::unique_ptr<Device> device_;
};

}  // namespace dsv4

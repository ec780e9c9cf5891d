// What the GPU bench programs share: device memory with random contents, timing of recorded graphs, the read ceiling, comparison.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/gpu/gpu_context.h"
#include "ops/device.h"

namespace dsv4::bench {

// Ends the program with the message when `status` is an error: a bench has nobody to report to.
void must(const Status& status);
template <class T>
T must(Result<T> result) {
  must(result.ok() ? ok_status() : result.status());
  return std::move(result).value();
}

// Owns everything a bench allocates.
class Arena {
 public:
  explicit Arena(Device& device) : device_(device) {}
  Device& device() { return device_; }
  gpu::GpuContext& gpu() { return static_cast<gpu::GpuContext&>(device_.context()); }

  void* bytes(int64_t size_bytes);
  template <class T>
  T* array(int64_t count) {
    return static_cast<T*>(bytes(count * static_cast<int64_t>(sizeof(T))));
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    T* p = array<T>(static_cast<int64_t>(values.size()));
    must(device_.upload(p, values.data(), static_cast<int64_t>(values.size() * sizeof(T))));
    return p;
  }
  // Normal floats of deviation `scale`.
  float* normal(int64_t count, float scale, uint32_t seed);
  uint16_t* norm_weight(int64_t count, uint32_t seed);
  // A weight in the device's layout (strips are only a permutation of random bytes) whose products with unit inputs are of order 1.
  WeightView weight(WeightFormat format, int64_t n, int64_t k, uint32_t seed);
  Matrix<float> matrix(int64_t rows, int64_t cols) { return {array<float>(rows * cols), rows, cols}; }

 private:
  Device& device_;
  std::vector<DeviceBuffer> buffers_;
};

template <class T>
std::vector<T> download(Device& device, const T* p, int64_t count) {
  std::vector<T> out(static_cast<size_t>(count));
  must(device.download(out.data(), p, count * static_cast<int64_t>(sizeof(T))));
  return out;
}

struct Timing {
  double min_us = 0, median_us = 0, max_us = 0;  // of one call
  double kernels = 0;                            // of one call
};

// Records `calls` calls (index 0 .. calls - 1) into one graph, warms up, replays it `replays` times between events.
Timing time_graph(Arena& arena, int calls, int replays, const std::function<Status(int)>& call);

// Bytes per second of reading `size_bytes` once with wide loads, the best of several.
double read_ceiling(Arena& arena, int64_t size_bytes);

// |a - b| / |b|; infinite when a holds a NaN that b does not.
double relative_l2(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace dsv4::bench

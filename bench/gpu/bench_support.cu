#include "bench_support.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "backends/gpu/runtime/kernel.h"
#include "backends/gpu/runtime/runtime.h"

namespace dsv4::bench {
namespace {

using namespace gpu;

constexpr int kThreads = 256;

__device__ uint32_t hash(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}
__device__ float unit_uniform(uint32_t x) { return (static_cast<float>(x >> 8) + 0.5f) * 0x1p-24f; }

enum class Fill { kNormal, kNormWeight, kE4M3, kNibbles, kBf16, kScale };

__global__ void fill(void* out, int64_t words, Fill kind, float scale, uint32_t seed) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= words) return;
  const uint32_t a = hash(static_cast<uint32_t>(i) * 2u + seed * 0x9e3779b9u + static_cast<uint32_t>(i >> 31)), b = hash(a + 0x68bc21ebu);
  uint32_t word = a;
  if (kind == Fill::kNormal) {
    reinterpret_cast<float*>(out)[i] = scale * sqrtf(-2.0f * logf(unit_uniform(a))) * cospif(2.0f * unit_uniform(b));
    return;
  }
  if (kind == Fill::kE4M3) {
    for (int s = 0; s < 32; s += 8) {
      if ((word >> s & 0x7fu) == 0x7fu) word ^= 1u << s;
    }
  } else if (kind == Fill::kBf16 || kind == Fill::kNormWeight) {
    const float base = kind == Fill::kBf16 ? 0.0f : 1.0f;
    const uint32_t low = __float_as_uint(base + scale * (unit_uniform(a) - 0.5f)) >> 16, high = __float_as_uint(base + scale * (unit_uniform(b) - 0.5f)) >> 16;
    word = low | high << 16;
  } else if (kind == Fill::kScale) {
    const uint32_t code = static_cast<uint32_t>(scale);
    word = (code + (a & 1u)) | (code + (a >> 8 & 1u)) << 8 | (code + (a >> 16 & 1u)) << 16 | (code + (a >> 24 & 1u)) << 24;
  }
  reinterpret_cast<uint32_t*>(out)[i] = word;
}

void run_fill(Arena& arena, void* p, int64_t size_bytes, Fill kind, float scale, uint32_t seed) {
  const int64_t words = (size_bytes + 3) / 4;
  must(launch(arena.gpu(), "fill", fill, {.blocks_x = ceil_div(words, kThreads), .threads = kThreads}, p, words, kind, scale, seed));
}

constexpr int kReadThreads = 512;

__global__ void __launch_bounds__(kReadThreads) read_all(const uint4* data, int64_t count, uint32_t* out) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kReadThreads;
  uint32_t sum = 0;
  int64_t i = static_cast<int64_t>(blockIdx.x) * kReadThreads + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = data[i + j * stride];
#pragma unroll
    for (int j = 0; j < 4; ++j) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 0x12345678u) *out = sum;
}

}  // namespace

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

void* Arena::bytes(int64_t size_bytes) {
  buffers_.push_back(must(device_.allocate((size_bytes + 255) / 256 * 256, "bench")));
  return buffers_.back().as<void>();
}

float* Arena::normal(int64_t count, float scale, uint32_t seed) {
  float* p = array<float>(count);
  run_fill(*this, p, 4 * count, Fill::kNormal, scale, seed);
  return p;
}

uint16_t* Arena::norm_weight(int64_t count, uint32_t seed) {
  uint16_t* p = array<uint16_t>(count);
  run_fill(*this, p, 2 * count, Fill::kNormWeight, 0.3f, seed);
  return p;
}

WeightView Arena::weight(WeightFormat format, int64_t n, int64_t k, uint32_t seed) {
  WeightView w{format, nullptr, nullptr, n, k};
  const int64_t data_bytes = n * w.row_bytes(), scale_bytes = w.total_bytes() - data_bytes;
  auto* data = static_cast<uint8_t*>(bytes(data_bytes));
  const float root = std::sqrt(static_cast<float>(k));
  // Root mean squares of random codes: E4M3 about 130, E2M1 about 2.9; uniform BF16 of width w: w / sqrt(12).
  const auto code = [&](float rms) { return std::floor(127.0f - std::log2(rms * root)); };
  if (format == WeightFormat::kF32) run_fill(*this, data, data_bytes, Fill::kNormal, 1 / root, seed);
  if (format == WeightFormat::kBF16) run_fill(*this, data, data_bytes, Fill::kBf16, 3.46f / root, seed);
  if (format == WeightFormat::kFp8Block) run_fill(*this, data, data_bytes, Fill::kE4M3, 0, seed);
  if (format == WeightFormat::kMxfp4) run_fill(*this, data, data_bytes, Fill::kNibbles, 0, seed);
  w.data = data;
  if (scale_bytes > 0) {
    auto* scale = static_cast<uint8_t*>(bytes(scale_bytes));
    run_fill(*this, scale, scale_bytes, Fill::kScale, code(format == WeightFormat::kFp8Block ? 130.0f : 2.9f), seed + 1);
    w.scale = scale;
  }
  return w;
}

Timing time_graph(Arena& arena, int calls, int replays, const std::function<Status(int)>& call) {
  GpuContext& gpu = arena.gpu();
  must(call(0));  // grows scratch outside the recording
  must(arena.device().synchronize());
  const int64_t before = gpu.launches;
  auto graph = must(arena.device().capture([&] {
    for (int i = 0; i < calls; ++i) DSV4_RETURN_IF_ERROR(call(i));
    return ok_status();
  }, CaptureMode::kWhole));
  Timing t;
  t.kernels = static_cast<double>(gpu.launches - before) / calls;
  const Event begin = must(create_event(true)), end = must(create_event(true));
  std::vector<double> us;
  for (int i = 0; i < replays + 2; ++i) {
    must(record_event(begin, gpu.stream));
    must(graph->launch());
    must(record_event(end, gpu.stream));
    must(wait_event(end));
    if (i >= 2) us.push_back(1e3 * must(elapsed_ms(begin, end)) / calls);
  }
  destroy_event(begin);
  destroy_event(end);
  std::sort(us.begin(), us.end());
  t.min_us = us.front();
  t.median_us = us[us.size() / 2];
  t.max_us = us.back();
  return t;
}

double read_ceiling(Arena& arena, int64_t size_bytes) {
  Arena own(arena.device());
  auto* data = static_cast<uint4*>(own.bytes(size_bytes));
  run_fill(own, data, size_bytes, Fill::kNibbles, 0, 1);
  uint32_t* out = own.array<uint32_t>(1);
  const Timing t = time_graph(own, 1, 8, [&](int) {
    return launch(own.gpu(), "read_all", read_all, {.blocks_x = 4 * own.gpu().properties.multiprocessors, .threads = kReadThreads}, static_cast<const uint4*>(data), size_bytes / 16, out);
  });
  return static_cast<double>(size_bytes) / (t.min_us * 1e-6);
}

double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    if (a[i] != a[i] && b[i] == b[i]) return std::numeric_limits<double>::infinity();
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return norm == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(difference / norm);
}

}  // namespace dsv4::bench

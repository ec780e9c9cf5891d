// One thread gathers 4 bytes of the strips: two pairs of fp8, one of bf16, four of mxfp4. Runs once per weight.
#include "backends/gpu/repack.h"

#include "backends/gpu/runtime/kernel.h"
#include "backends/gpu/weight_layout.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 256;

// Inverse of strip_pair for fp8 and bf16: which row and column the 4 bytes at `at` hold.
__global__ void gather_words(WeightView w, uint32_t* out, int64_t words) {
  wait_previous();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= words) return;
  const int chunk_bytes = w.format == WeightFormat::kFp8Block ? kFp8ChunkBytes : w.format == WeightFormat::kBF16 ? kBf16ChunkBytes : kMxfp4ChunkBytes;
  const int64_t chunk = i * 4 / chunk_bytes, chunks = w.k / kChunkColumns;
  const int inner = static_cast<int>(i * 4 % chunk_bytes), piece = inner / 512, lane = inner % 512 / 16, word = inner % 16 / 4;
  const int64_t row0 = chunk / chunks * kStripRows + lane / 4, column0 = chunk % chunks * kChunkColumns;
  const int t = lane % 4;
  if (w.format == WeightFormat::kFp8Block) {
    const int64_t n = row0 + word % 2 * 8, k = column0 + (2 * piece + word / 2) * 16 + 4 * t;
    out[i] = *reinterpret_cast<const uint32_t*>(w.data + n * w.k + k);
  } else if (w.format == WeightFormat::kBF16) {
    const int64_t n = row0 + word / 2 * 8, k = column0 + piece * 16 + 4 * t + word % 2 * 2;
    out[i] = *reinterpret_cast<const uint32_t*>(w.data + 2 * (n * w.k + k));
  } else {
    const int64_t n = row0 + word % 2 * 8, k = column0 + (2 * piece + word / 2) * 32 + 4 * t;
    uint32_t bits = 0;
    for (int pair = 0; pair < 4; ++pair) {
      const uint8_t byte = w.data[(n * w.k + k + pair / 2 * 16 + pair % 2 * 2) / 2];
      bits ^= strip_mxfp4_bits(pair, byte & 15u, byte >> 4);
    }
    out[i] = bits;
  }
}

__global__ void gather_scales(const uint8_t* scale, int64_t groups_per_row, uint8_t* out, int64_t bytes) {
  wait_previous();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= bytes) return;
  const int64_t chunks = groups_per_row / 4, chunk = i / kMxfp4ChunkScaleBytes;
  const int inner = static_cast<int>(i % kMxfp4ChunkScaleBytes);
  const int64_t n = chunk / chunks * kStripRows + inner / 8 + inner % 8 / 4 * 8;
  out[i] = scale[n * groups_per_row + chunk % chunks * 4 + inner % 4];
}

}  // namespace

Status repack_strips(GpuContext& context, const WeightView& source, uint8_t* data, uint8_t* scale) {
  const int64_t words = source.n * source.row_bytes() / 4;
  DSV4_RETURN_IF_ERROR(
      launch(context, "repack", gather_words, {.blocks_x = ceil_div(words, kThreads), .threads = kThreads}, source, reinterpret_cast<uint32_t*>(data), words));
  if (source.format != WeightFormat::kMxfp4) return ok_status();
  const int64_t groups = source.k / kMxfp4Group, bytes = source.n * groups;
  return launch(context, "repack", gather_scales, {.blocks_x = ceil_div(bytes, kThreads), .threads = kThreads}, source.scale, groups, scale, bytes);
}

}  // namespace dsv4::gpu

// Products of many rows (prefill) with FP8 weights in strips. As tile_product.cu, but for its inner loop: while a chunk's products run, each warp decodes
// its strip of the next chunk, and chunks are added one after another, without k groups: from 256 rows on a row's bits may depend on how many there are.
// A block of two warpgroups owns 128 rows of a weight and a pass of kTiles column tiles. Bound by the tensor cores.
// Shared memory: kDepth stages of 8 pieces of the weight and the tiles' operands and scales.
#include "backends/gpu/portable/codec.h"
#include "backends/gpu/sm90/products.h"
#include "backends/gpu/sm90/warpgroup.h"

namespace dsv4::gpu {
namespace {

constexpr int kTiles = 16;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kOperandBytes = kTiles * 8 * 256;
constexpr int kScaleBytes = kTiles * 8 * 4;
constexpr int kStageBytes = kWarps * kFp8ChunkBytes + kOperandBytes + kScaleBytes;
constexpr int kDepth = 4;
static_assert(kStageBytes % 128 == 0 && kDepth * kStageBytes <= 224 * 1024);

__global__ void __launch_bounds__(kThreads, 1) wide_product(const __grid_constant__ TileProductArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
  // The passes over one tile of the weight are neighbours: all but the first read it from the L2.
  const int passes = static_cast<int>(gridDim.x) / a.weight_tiles, pass = static_cast<int>(blockIdx.x) % passes, tile = static_cast<int>(blockIdx.x) / passes;
  int j = 0;
  while (j + 1 < a.num_jobs && tile >= a.jobs[j + 1].first_tile) ++j;
  const TileJob& job = a.jobs[j];
  const int group = (tile - job.first_tile) / job.tiles_per_group, in_group = (tile - job.first_tile) % job.tiles_per_group;
  const int strip_in_group = in_group * kWarps + warp;
  const bool works = strip_in_group < job.strips_per_group;
  const int64_t strip = static_cast<int64_t>(group) * job.strips_per_group + (works ? strip_in_group : 0);
  const uint8_t* data = job.data + strip * a.chunks * kFp8ChunkBytes;
  const uint8_t* block_scales = job.scale + strip / (kFp8WeightBlock / kStripRows) * a.chunks;
  const int64_t x_chunk = static_cast<int64_t>(pass) * a.x_chunks + static_cast<int64_t>(group) * a.chunks;
  const uint8_t* terms = a.x.terms + x_chunk * kOperandBytes;
  const float* scales = a.x.scales + x_chunk * kTiles * 8;
  const uint32_t ring = shared_address(shared);

  const auto copy_weights = [&](int chunk) {
    if (chunk < a.chunks)
      copy_piece<WeightFormat::kFp8Block>(ring + chunk % kDepth * kStageBytes + warp * kFp8ChunkBytes, data + static_cast<int64_t>(chunk) * kFp8ChunkBytes,
                                          nullptr, lane);
  };
  const auto copy_operands = [&](int chunk) {
    if (chunk < a.chunks) {
      const uint32_t to = ring + chunk % kDepth * kStageBytes + kWarps * kFp8ChunkBytes;
      const uint8_t* from = terms + static_cast<int64_t>(chunk) * kOperandBytes;
#pragma unroll
      for (int i = 0; i < kOperandBytes / 16 / kThreads; ++i) copy16_async(to + (i * kThreads + tid) * 16, from + (i * kThreads + tid) * 16);
      if (tid < kScaleBytes / 16) copy16_async(to + kOperandBytes + tid * 16, scales + static_cast<int64_t>(chunk) * kTiles * 8 + tid * 4);
    }
  };
#pragma unroll
  for (int i = 0; i < kDepth; ++i) copy_weights(i);
  wait_previous();
  allow_next();
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
    copy_operands(i);
    commit_copies();  // the first group holds all the weights so far
  }

  const auto decode = [&](int chunk, OperandA(&w)[8]) {
    const uint32_t piece = ring + chunk % kDepth * kStageBytes + warp * kFp8ChunkBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) fp8_operands(load_shared16(piece + i * 512 + lane * 16), w[2 * i], w[2 * i + 1]);
  };
  float sum[kTiles][4] = {}, acc[kTiles][4];
  OperandA w[2][8];
  float held_scales = 0;  // lane i: of the 32 chunks under way, chunk i's
  const auto step = [&](int chunk, OperandA(&now)[8], OperandA(&coming)[8]) {
    const uint32_t operands = ring + chunk % kDepth * kStageBytes + kWarps * kFp8ChunkBytes;
    const uint64_t b = operand_b(operands, 8 * 256);
    if (chunk % 32 == 0 && chunk + lane < a.chunks) held_scales = decode_e8m0(block_scales[chunk + lane]);
    const float weight_scale = shuffle_from(held_scales, chunk % 32);
    warpgroup_begin();
#pragma unroll
    for (int s = 0; s < 8; ++s) Warpgroup<false, kTiles>::product(acc, now[s], b + s * (256 >> 4), s > 0);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    // The next chunk is decoded while the products run.
    wait_copies<kDepth - 2>();
    if (chunk + 1 < a.chunks) decode(chunk + 1, coming);
    publish_copies();
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const uint2 v = load_shared8(operands + kOperandBytes + (i * 8 + 2 * t) * 4);
      const float f0 = __uint_as_float(v.x) * weight_scale, f1 = __uint_as_float(v.y) * weight_scale;
      sum[i][0] = __fmaf_rn(acc[i][0], f0, sum[i][0]);
      sum[i][1] = __fmaf_rn(acc[i][1], f1, sum[i][1]);
      sum[i][2] = __fmaf_rn(acc[i][2], f0, sum[i][2]);
      sum[i][3] = __fmaf_rn(acc[i][3], f1, sum[i][3]);
    }
    __syncthreads();
    copy_weights(chunk + kDepth);
    copy_operands(chunk + kDepth);
    commit_copies();
  };
  wait_copies<kDepth - 1>();
  publish_copies();
  __syncthreads();
  decode(0, w[0]);
  for (int chunk = 0; chunk < a.chunks; chunk += 2) {
    step(chunk, w[0], w[1]);
    if (chunk + 1 < a.chunks) step(chunk + 1, w[1], w[0]);
  }
  if (!works) return;
  const int64_t n = (static_cast<int64_t>(group) * job.strips_per_group + strip_in_group) * kStripRows + g;
  const auto put = [&](int row_tiles, auto value) {
    const int64_t first_row = static_cast<int64_t>(pass) * row_tiles * 8;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (i >= row_tiles) break;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int64_t row = first_row + i * 8 + 2 * t + c % 2;
        if (row < a.rows) job.y.row(row)[n + c / 2 * 8] = value(i, c);
      }
    }
  };
  if (a.terms == 1) {
    put(kTiles, [&](int i, int c) { return sum[i][c]; });
  } else {
    put(kTiles / 2, [&](int i, int c) { return __fadd_rn(sum[i][c], sum[(i + kTiles / 2) % kTiles][c]); });
  }
}

}  // namespace

Status launch_wide_product(GpuContext& gpu, const TileProductArgs& a) {
  const int64_t passes = ceil_div(a.rows, kTiles / a.terms * 8);
  return launch(gpu, "linear (wide_product)", wide_product,
                {.blocks_x = static_cast<int64_t>(a.weight_tiles) * passes, .threads = kThreads, .shared_bytes = kDepth * kStageBytes}, a);
}

}  // namespace dsv4::gpu

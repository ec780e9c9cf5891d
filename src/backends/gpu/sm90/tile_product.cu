// Products of a few to many rows (M >= 2) with weights in strips: linear and grouped_linear.
//
// pack_activations first turns x into operand form, once. Then a block of eight warps owns 128 rows of a weight (a warp one strip) and the column tiles
// of one pass; it streams pieces of both through a ring of stages. With k_split = 8 or 4, as many blocks of a cluster take one or two k groups each and
// add their sums in group order through each other's shared memory, so that small weights fill the device; with 1, the block adds its groups itself. The
// additions are those of row_product: a row's bits do not depend on how many rows there are.
// Shared memory: kDepth stages of 8 pieces of the weight plus the tiles' operands and scales; the ring is reused for the cluster's sums.
// Bound by reading the weights up to about 64 rows, beyond by reading operands and weights from L2.
#include <cooperative_groups.h>

#include "backends/gpu/sm90/activation.h"
#include "backends/gpu/sm90/products.h"
#include "backends/gpu/sm90/warpgroup.h"

namespace dsv4::gpu {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kStepBytes = 256;  // operand B of one tile and step

// One warp per (row, chunk) of the padded rows.
template <Operand kOperand>
__global__ void __launch_bounds__(kThreads)
    pack_rows(Rows<const float> x, int64_t rows, int64_t rows_per_pass, int64_t padded_rows, int64_t chunks, PackedActivations out) {
  wait_previous();
  allow_next();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= padded_rows * chunks) return;
  const int64_t row = item / chunks, chunk = item % chunks;
  const int lane = static_cast<int>(threadIdx.x) % 32, step = lane / 4, t = lane % 4;
  float4 v = {0, 0, 0, 0};
  if (row < rows) v = load_four(x.row(row) + chunk * kChunkColumns + 4 * lane);
  const ActivationBlock block = activation_block<kOperand>(v);
  const int terms = operand_terms(kOperand);
  const int row_tiles = out.tiles / terms, in_pass = static_cast<int>(row % rows_per_pass), column = in_pass % 8;
  const int64_t pass_chunk = row / rows_per_pass * chunks + chunk;
  const int half_steps = 8 / out.halves;
#pragma unroll
  for (int term = 0; term < terms; ++term) {
    const int tile = term * row_tiles + in_pass / 8;
    const int64_t at = ((pass_chunk * out.halves + step / half_steps) * out.tiles + tile) * half_steps + step % half_steps;
    uint32_t* to = reinterpret_cast<uint32_t*>(out.terms + at * kStepBytes) + 4 * column + t;
    to[0] = block.term[term].x;
    to[32] = block.term[term].y;  // the other core matrix
    if (lane == 0) out.scales[pass_chunk * out.tiles * 8 + tile * 8 + column] = block.scale;
  }
}

template <WeightFormat kFormat, int kTiles>
struct Stage {
  using Piece = PieceOf<kFormat>;
  static constexpr int kWeightBytes = Piece::kDataBytes + Piece::kScaleBytes;  // of one strip
  static constexpr int kOperandBytes = kTiles * Piece::kSteps * kStepBytes;
  static constexpr int kScaleBytes = kTiles * 8 * 4;
  static constexpr int kBytes = kWarps * kWeightBytes + kOperandBytes + kScaleBytes;
  static constexpr int kBlocksPerSm = tile_blocks_per_multiprocessor(kTiles);
  static constexpr int kDepth = kTiles > 16 ? 5 : kBytes > 40 * 1024 || kBlocksPerSm == 3 ? 3 : 4;  // 5: the cluster's sums want the room
  static_assert(kBytes % 16 == 0 && kBlocksPerSm * (kDepth * kBytes + 1024) <= 228 * 1024);
};

template <WeightFormat kFormat, int kTiles>
__global__ void __launch_bounds__(kThreads, Stage<kFormat, kTiles>::kBlocksPerSm) tile_product(const __grid_constant__ TileProductArgs a, int k_split) {
  using S = Stage<kFormat, kTiles>;
  using Piece = typename S::Piece;
  extern __shared__ __align__(128) uint8_t shared[];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int g = lane / 4, t = lane % 4;

  // Without a split, the passes over one tile of the weight are neighbours: all but the first read it from the L2.
  const int passes = static_cast<int>(gridDim.x) / a.weight_tiles;
  const int pass = k_split == 1 ? static_cast<int>(blockIdx.x) % passes : static_cast<int>(blockIdx.y);
  const int k_rank = static_cast<int>(blockIdx.x) % k_split;
  const int tile = static_cast<int>(blockIdx.x) / (k_split == 1 ? passes : k_split);
  int j = 0;
  while (j + 1 < a.num_jobs && tile >= a.jobs[j + 1].first_tile) ++j;
  const TileJob& job = a.jobs[j];
  const int group = (tile - job.first_tile) / job.tiles_per_group, in_group = (tile - job.first_tile) % job.tiles_per_group;
  const int strip_in_group = in_group * kWarps + warp;
  const bool works = strip_in_group < job.strips_per_group;
  const int64_t strip = static_cast<int64_t>(group) * job.strips_per_group + (works ? strip_in_group : 0);

  const int groups = kKGroups / k_split, first_group = k_rank * groups, last_group = first_group + groups;
  const int first_chunk = static_cast<int>(group_begin(first_group, a.chunks)), last_chunk = static_cast<int>(group_begin(last_group, a.chunks));
  const int pieces = (last_chunk - first_chunk) * Piece::kPerChunk;
  const uint8_t* data = job.data + (strip * a.chunks + first_chunk) * Piece::kPerChunk * Piece::kDataBytes;
  const uint8_t* scale = Piece::kScaleBytes == 0 ? nullptr : job.scale + (strip * a.chunks + first_chunk) * Piece::kScaleBytes;
  const int64_t x_chunk = static_cast<int64_t>(pass) * a.x_chunks + static_cast<int64_t>(group) * a.chunks + first_chunk;
  const uint8_t* terms = a.x.terms + x_chunk * Piece::kPerChunk * S::kOperandBytes;
  const float* scales = a.x.scales + x_chunk * kTiles * 8;
  const uint32_t ring = shared_address(shared);

  const auto copy_weights = [&](int piece) {
    if (works && piece < pieces) {
      const uint32_t at = ring + piece % S::kDepth * S::kBytes + warp * S::kWeightBytes;
      copy_piece<kFormat>(at, data + static_cast<int64_t>(piece) * Piece::kDataBytes, scale + static_cast<int64_t>(piece) * Piece::kScaleBytes, lane);
    }
  };
  const auto copy_operands = [&](int piece) {
    if (piece < pieces) {
      const uint32_t at = ring + piece % S::kDepth * S::kBytes + kWarps * S::kWeightBytes;
      for (int i = tid; i < S::kOperandBytes / 16; i += kThreads) copy16_async(at + i * 16, terms + static_cast<int64_t>(piece) * S::kOperandBytes + i * 16);
      const float* from = scales + piece / Piece::kPerChunk * kTiles * 8;
      if (tid < S::kScaleBytes / 16) copy16_async(at + S::kOperandBytes + tid * 16, from + tid * 4);
    }
  };
#pragma unroll
  for (int i = 0; i < S::kDepth - 1; ++i) copy_weights(i);
  wait_previous();
  allow_next();
#pragma unroll
  for (int i = 0; i < S::kDepth - 1; ++i) {
    copy_operands(i);
    commit_copies();  // the first group holds all the weights so far: a little more waiting, once
  }

  float total[kTiles][4] = {}, sum[kTiles][4] = {};
  int q = first_group;
  int64_t q_end = group_begin(q + 1, a.chunks);
  const uint8_t* block_scales = job.scale + strip / (kFp8WeightBlock / kStripRows) * a.chunks;
  float held_scales = 0;  // lane i: of the 32 chunks under way, chunk i's
  for (int piece = 0; piece < pieces; ++piece) {
    wait_copies<S::kDepth - 2>();
    publish_copies();
    __syncthreads();
    copy_weights(piece + S::kDepth - 1);
    copy_operands(piece + S::kDepth - 1);
    commit_copies();
    const int chunk = first_chunk + piece / Piece::kPerChunk;
    while (chunk >= q_end) {  // the next k group starts here
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          total[i][c] = __fadd_rn(total[i][c], sum[i][c]);
          sum[i][c] = 0;
        }
      }
      q_end = group_begin(++q + 1, a.chunks);
    }
    float weight_scale = 0;
    if constexpr (kFormat == WeightFormat::kFp8Block) {
      if ((chunk - first_chunk) % 32 == 0 && chunk + lane < last_chunk) held_scales = decode_e8m0(block_scales[chunk + lane]);
      weight_scale = shuffle_from(held_scales, (chunk - first_chunk) % 32);
    }
    const uint32_t stage = ring + piece % S::kDepth * S::kBytes;
    const uint32_t operands = stage + kWarps * S::kWeightBytes;
    float2 x_scale[kTiles];
    if constexpr (kFormat != WeightFormat::kBF16) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const uint2 v = load_shared8(operands + S::kOperandBytes + (i * 8 + 2 * t) * 4);
        x_scale[i] = {__uint_as_float(v.x), __uint_as_float(v.y)};
      }
    }
    // Warps beyond the last strip work on what lies there: a warpgroup's four warps go together.
    warpgroup_piece<kFormat, kTiles>(sum, stage + warp * S::kWeightBytes, lane, weight_scale, x_scale, operands);
  }
  // Two groups of a split stay apart: the first in `total`, the second in `sum`.
  const bool apart = groups == 2 && q != first_group;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int c = 0; c < 4; ++c) total[i][c] = apart ? total[i][c] : __fadd_rn(total[i][c], sum[i][c]);
  }

  const int row_tiles = kTiles / a.terms;
  const int64_t first_row = static_cast<int64_t>(pass) * row_tiles * 8;
  const int64_t tile_row = (static_cast<int64_t>(group) * job.strips_per_group + static_cast<int64_t>(in_group) * kWarps) * kStripRows;
  if (k_split == 1) {
    if (!works) return;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (i >= row_tiles) continue;
        float parts[3] = {total[i][c], 0, 0};
#pragma unroll
        for (int other = i + 1; other < kTiles; ++other) {
          if (other == i + row_tiles) parts[1] = total[other][c];
          if (other == i + 2 * row_tiles) parts[2] = total[other][c];
        }
        const int64_t row = first_row + i * 8 + 2 * t + c % 2;
        if (row < a.rows) job.y.row(row)[tile_row + warp * kStripRows + g + c / 2 * 8] = combine_terms(parts, a.terms);
      }
    }
    return;
  }

  // sums[group of the block][column of any term][128 rows] in each block of the cluster; block r finishes the strips r, r + k_split, ..
  wait_copies<0>();
  __syncthreads();
  float* sums = reinterpret_cast<float*>(shared);
  constexpr int kGroupFloats = kTiles * 8 * 128;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int at = (i * 8 + 2 * t + c % 2) * 128 + warp * kStripRows + g + c / 2 * 8;
      sums[at] = total[i][c];
      if (groups == 2) sums[kGroupFloats + at] = apart ? sum[i][c] : 0.0f;
    }
  }
  namespace cg = cooperative_groups;
  cg::cluster_group cluster = cg::this_cluster();
  cluster.sync();
  for (int i = tid; i < row_tiles * 8 * kStripRows * groups; i += kThreads) {
    const int column = i / (kStripRows * groups), in_column = i % (kStripRows * groups), own = k_rank + in_column / kStripRows * k_split;
    const int r = own * kStripRows + in_column % kStripRows;
    const int64_t row = first_row + column;
    if (row >= a.rows || in_group * kWarps + own >= job.strips_per_group) continue;
    float parts[3] = {0, 0, 0};
    for (int term = 0; term < a.terms; ++term) {
      const int at = (term * row_tiles * 8 + column) * 128 + r;
      float v = cluster.map_shared_rank(sums, 0)[at];
      for (int group = 1; group < kKGroups; ++group) v = __fadd_rn(v, cluster.map_shared_rank(sums, group / groups)[group % groups * kGroupFloats + at]);
      parts[term] = v;
    }
    job.y.row(row)[tile_row + r] = combine_terms(parts, a.terms);
  }
  // Nobody leaves while a peer may read its sums; nothing is handed over any more.
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

template <WeightFormat kFormat, int kTiles>
Status launch_tiles(GpuContext& gpu, const TileProductArgs& a, int k_split) {
  using S = Stage<kFormat, kTiles>;
  static_assert(2 * kTiles * 8 * 128 * 4 <= S::kDepth * S::kBytes, "the cluster's sums must fit the ring");
  const int64_t passes = ceil_div(a.rows, kTiles / a.terms * 8);
  return launch(gpu, "linear (tile_product)", tile_product<kFormat, kTiles>,
                {.blocks_x = static_cast<int64_t>(a.weight_tiles) * (k_split == 1 ? passes : k_split),
                 .blocks_y = k_split == 1 ? 1 : passes,
                 .threads = kThreads,
                 .shared_bytes = S::kDepth * S::kBytes,
                 .cluster = k_split},
                a, k_split);
}

}  // namespace

Status pack_activations(GpuContext& gpu, Rows<const float> x, int64_t rows, int64_t chunks, Operand operand, const PackedActivations& out) {
  const int64_t rows_per_pass = out.tiles / operand_terms(operand) * 8, padded = ceil_div(rows, rows_per_pass) * rows_per_pass;
  const auto kernel = operand == Operand::kE4M3    ? pack_rows<Operand::kE4M3>
                      : operand == Operand::kBf16  ? pack_rows<Operand::kBf16>
                      : operand == Operand::kF16x2 ? pack_rows<Operand::kF16x2>
                                                   : pack_rows<Operand::kBf16x3>;
  return launch(gpu, "pack_activations", kernel, {.blocks_x = ceil_div(padded * chunks, kWarps), .threads = kThreads}, x, rows, rows_per_pass, padded, chunks,
                out);
}

Status launch_tile_product(GpuContext& gpu, WeightFormat format, const TileProductArgs& a, int k_split) {
  const int tiles = a.x.tiles;
  if (format == WeightFormat::kFp8Block) {
    if (tiles == 1) return launch_tiles<WeightFormat::kFp8Block, 1>(gpu, a, k_split);
    if (tiles == 2) return launch_tiles<WeightFormat::kFp8Block, 2>(gpu, a, k_split);
    if (tiles == 4) return launch_tiles<WeightFormat::kFp8Block, 4>(gpu, a, k_split);
    if (tiles == 8) return launch_tiles<WeightFormat::kFp8Block, 8>(gpu, a, k_split);
  } else if (format == WeightFormat::kMxfp4) {
    if (tiles == 1) return launch_tiles<WeightFormat::kMxfp4, 1>(gpu, a, k_split);
    if (tiles == 2) return launch_tiles<WeightFormat::kMxfp4, 2>(gpu, a, k_split);
    if (tiles == 4) return launch_tiles<WeightFormat::kMxfp4, 4>(gpu, a, k_split);
    if (tiles == 8) return launch_tiles<WeightFormat::kMxfp4, 8>(gpu, a, k_split);
  } else if (format == WeightFormat::kBF16) {
    if (tiles == 3) return launch_tiles<WeightFormat::kBF16, 3>(gpu, a, k_split);
    if (tiles == 6) return launch_tiles<WeightFormat::kBF16, 6>(gpu, a, k_split);
    if (tiles == 12) return launch_tiles<WeightFormat::kBF16, 12>(gpu, a, k_split);
    if (tiles == 24) return launch_tiles<WeightFormat::kBF16, 24>(gpu, a, k_split);
  }
  DSV4_CHECK(false, "tile_product has no kernel for this number of tiles");
}

}  // namespace dsv4::gpu

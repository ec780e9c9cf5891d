// moe_experts for several rows, in six launches:
//   sort     (moe_sort.h) units of at most kRows pairs of one expert.
//   pack     x into operand form, row by row.
//   up       a block takes one unit and 64 rows f of w1 (warps 0-3) and of w3 (warps 4-7); columns are the unit's pairs, gathered. Then swiglu.
//   pack     activations into operand form.
//   down     a block takes one unit and 128 rows of w2; sums go to out[pair].
//   combine  y[t] += out of the token's choices, in order.
// Grids are sized for the most units there can be; blocks beyond the units there are leave at once. The additions are those of fragment.h, so bits
// do not depend on which rows share a unit. Bound by reading the active experts' weights once per unit.
#include <algorithm>

#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/sm90/moe.h"
#include "backends/gpu/sm90/moe_sort.h"
#include "backends/gpu/sm90/warpgroup.h"

namespace dsv4::gpu {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kChunkBytes = 256;  // one row, term and chunk in operand form

struct OperandRows {
  uint8_t* terms;  // [term][row][chunks][step][core matrix][16 bytes]: rows of operand B's core matrices (warpgroup.h)
  float* scales;   // [row][chunks]
};

template <Operand kOperand>
__device__ void pack_row_chunk(const float* x, int64_t row, int64_t rows, int64_t chunk, int64_t chunks, const OperandRows& out, int lane) {
  const ActivationBlock block = activation_block<kOperand>(load_four(x + chunk * kChunkColumns + 4 * lane));
#pragma unroll
  for (int term = 0; term < operand_terms(kOperand); ++term) {
    uint32_t* to = reinterpret_cast<uint32_t*>(out.terms + ((term * rows + row) * chunks + chunk) * kChunkBytes) + lane / 4 * 8 + lane % 4;
    to[0] = block.term[term].x;
    to[4] = block.term[term].y;
  }
  if (lane == 0) out.scales[row * chunks + chunk] = block.scale;
}

template <Operand kOperand>
__global__ void __launch_bounds__(kThreads) pack(Rows<const float> x, int64_t rows, int64_t chunks, OperandRows out) {
  wait_previous();
  allow_next();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= rows * chunks) return;
  pack_row_chunk<kOperand>(x.row(item / chunks), item / chunks, rows, item % chunks, chunks, out, static_cast<int>(threadIdx.x) % 32);
}

struct ExpertArgs {
  ExpertTable table;
  Units units;
  OperandRows x;
  int64_t x_rows;
  int pair_divisor;  // row of x of a pair: pair / pair_divisor (topk for x, 1 for activations)
  Rows<const float> weights;
  int topk;
  float limit;
  float* out;  // up: act [pairs][ffn]; down: out [pairs][hidden]
};

template <WeightFormat kFormat, int kTerms, int kRowTiles>
struct Stage {
  using Piece = PieceOf<kFormat>;
  static constexpr int kWeightBytes = Piece::kDataBytes + Piece::kScaleBytes;
  static constexpr int kColumns = kRowTiles * 8;
  static constexpr int kPieceColumnBytes = kChunkBytes / Piece::kPerChunk;
  static constexpr int kScaleBytes = kColumns * 4;                 // of the columns, this chunk
  static constexpr int kTermBytes = kColumns * kPieceColumnBytes;  // operand B of one term
  static constexpr int kOperandBytes = kTerms * kTermBytes + kScaleBytes;
  static constexpr int kBytes = kWarps * kWeightBytes + kOperandBytes;
  static constexpr int kDepth = kBytes > 36 * 1024 ? 3 : 4;
  static constexpr int kBlocksPerSm = kTerms * kRowTiles >= 8 ? 1 : kTerms * kRowTiles == 1 ? 3 : 2;
};

// The shared body of up and down: total[tile] of this warp's strip.
template <WeightFormat kFormat, int kTerms, int kRowTiles, bool kUp>
__global__ void __launch_bounds__(kThreads, Stage<kFormat, kTerms, kRowTiles>::kBlocksPerSm) expert_product(const __grid_constant__ ExpertArgs a) {
  using S = Stage<kFormat, kTerms, kRowTiles>;
  using Piece = typename S::Piece;
  constexpr int kTiles = kTerms * kRowTiles;
  constexpr int kBlockStrips = kUp ? 4 : 8;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ int32_t pairs[S::kColumns];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
  const int64_t n = kUp ? a.table.ffn_dim : a.table.hidden_dim, k = kUp ? a.table.hidden_dim : a.table.ffn_dim;
  const int chunks = static_cast<int>(k / kChunkColumns), strips = static_cast<int>(n / kStripRows);
  const int blocks_per_unit = (strips + kBlockStrips - 1) / kBlockStrips;
  const int unit = static_cast<int>(blockIdx.x) / blocks_per_unit, block = static_cast<int>(blockIdx.x) % blocks_per_unit;

  wait_previous();
  allow_next();
  if (unit >= *a.units.count) return;
  const int32_t e = a.units.expert[unit];
  const int rows = a.units.rows[unit];
  if (tid < rows) pairs[tid] = a.units.pairs[a.units.first[unit] + tid];
  const int strip = block * kBlockStrips + warp % kBlockStrips;
  const bool works = strip < strips, is_up = kUp && warp >= kBlockStrips;
  const uint8_t* weight = kUp ? (is_up ? a.table.w3[e] : a.table.w1[e]) : a.table.w2[e];
  const uint8_t* scale = kFormat == WeightFormat::kBF16 ? nullptr : kUp ? (is_up ? a.table.w3_scale[e] : a.table.w1_scale[e]) : a.table.w2_scale[e];
  const int pieces = chunks * Piece::kPerChunk;
  const int64_t first_piece = static_cast<int64_t>(works ? strip : 0) * pieces;
  const uint8_t* data = weight + first_piece * Piece::kDataBytes;
  const uint8_t* group_scales = kFormat == WeightFormat::kMxfp4 ? scale + first_piece * Piece::kScaleBytes : nullptr;
  const uint8_t* block_scales = kFormat == WeightFormat::kFp8Block ? scale + strip / (kFp8WeightBlock / kStripRows) * chunks : nullptr;
  const uint32_t ring = shared_address(shared);
  __syncthreads();

  // Columns beyond the unit's rows stay zero.
  for (int i = tid; i < S::kDepth * S::kOperandBytes / 16; i += kThreads) {
    const int stage = i / (S::kOperandBytes / 16);
    *reinterpret_cast<uint4*>(shared + stage * S::kBytes + kWarps * S::kWeightBytes + i % (S::kOperandBytes / 16) * 16) = {0, 0, 0, 0};
  }
  __syncthreads();

  const auto copy_stage = [&](int piece) {
    if (piece < pieces) {
      const uint32_t stage = ring + piece % S::kDepth * S::kBytes;
      if (works)
        copy_piece<kFormat>(stage + warp * S::kWeightBytes, data + static_cast<int64_t>(piece) * Piece::kDataBytes,
                            group_scales + static_cast<int64_t>(piece) * Piece::kScaleBytes, lane);
      constexpr int kPerColumn = S::kPieceColumnBytes / 16;
      for (int i = tid; i < kTerms * rows * kPerColumn; i += kThreads) {
        const int column = i / kPerColumn % rows, term = i / kPerColumn / rows;
        const int64_t row = pairs[column] / a.pair_divisor;
        const int step = i % kPerColumn / 2, core = i % 2;
        copy16_async(stage + kWarps * S::kWeightBytes + term * S::kTermBytes + (column / 8 * Piece::kSteps + step) * 256 + core * 128 + column % 8 * 16,
                     a.x.terms + ((term * a.x_rows + row) * pieces + piece) * S::kPieceColumnBytes + i % kPerColumn * 16);
      }
      if (kFormat != WeightFormat::kBF16 && tid < rows) {
        copy4_async(stage + kWarps * S::kWeightBytes + kTerms * S::kTermBytes + tid * 4,
                    a.x.scales + static_cast<int64_t>(pairs[tid] / a.pair_divisor) * chunks + piece);
      }
    }
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < S::kDepth - 1; ++i) copy_stage(i);

  float total[kTiles][4] = {}, sum[kTiles][4] = {};
  int q = 0;
  int64_t q_end = group_begin(1, chunks);
  for (int piece = 0; piece < pieces; ++piece) {
    const int chunk = piece / Piece::kPerChunk;
    const float weight_scale = kFormat == WeightFormat::kFp8Block && works ? decode_e8m0(block_scales[chunk]) : 0.0f;
    wait_copies<S::kDepth - 2>();
    publish_copies();
    __syncthreads();
    copy_stage(piece + S::kDepth - 1);
    while (chunk >= q_end) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          total[i][c] = __fadd_rn(total[i][c], sum[i][c]);
          sum[i][c] = 0;
        }
      }
      q_end = group_begin(++q + 1, chunks);
    }
    const uint32_t stage = ring + piece % S::kDepth * S::kBytes;
    float2 x_scale[kTiles];
    if constexpr (kFormat != WeightFormat::kBF16) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const uint2 v = load_shared8(stage + kWarps * S::kWeightBytes + kTerms * S::kTermBytes + (i % kRowTiles * 8 + 2 * t) * 4);
        x_scale[i] = {__uint_as_float(v.x), __uint_as_float(v.y)};
      }
    }
    warpgroup_piece<kFormat, kTiles>(sum, stage + warp * S::kWeightBytes, lane, weight_scale, x_scale, stage + kWarps * S::kWeightBytes);
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int c = 0; c < 4; ++c) total[i][c] = __fadd_rn(total[i][c], sum[i][c]);
  }
  float value[kRowTiles][4];
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float parts[3] = {total[i][c], 0, 0};
#pragma unroll
      for (int term = 1; term < kTerms; ++term) parts[term] = total[term * kRowTiles + i][c];
      value[i][c] = combine_terms(parts, kTerms);
    }
  }

  if constexpr (!kUp) {
    if (!works) return;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int column = i * 8 + 2 * t + c % 2;
        if (column < rows) a.out[pairs[column] * n + strip * kStripRows + g + c / 2 * 8] = value[i][c];
      }
    }
  } else {
    // w3's warps hand their values to w1's.
    wait_copies<0>();
    __syncthreads();
    float* exchange = reinterpret_cast<float*>(shared);  // [4 strips][lanes][values]
    const int at = ((warp % kBlockStrips) * 32 + lane) * kRowTiles * 4;
    if (is_up) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) exchange[at + i * 4 + c] = value[i][c];
      }
    }
    __syncthreads();
    if (is_up || !works) return;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int column = i * 8 + 2 * t + c % 2;
        if (column >= rows) continue;
        const int32_t pair = pairs[column];
        const float act = swiglu_value(value[i][c], exchange[at + i * 4 + c], a.limit);
        a.out[pair * n + strip * kStripRows + g + c / 2 * 8] = __fmul_rn(act, a.weights.row(pair / a.topk)[pair % a.topk]);
      }
    }
  }
}

template <WeightFormat kFormat, Operand kOperand, int kRowTiles>
Status run_tile(GpuContext& gpu, const MoeExpertsArgs& a) {
  constexpr int kTerms = operand_terms(kOperand);
  using S = Stage<kFormat, kTerms, kRowTiles>;
  const int64_t tokens = a.x.rows, topk = a.experts.cols, pairs = tokens * topk;
  const int64_t hidden_chunks = a.table.hidden_dim / kChunkColumns, ffn_chunks = a.table.ffn_dim / kChunkColumns;
  const int64_t experts = a.table.num_experts;
  const int64_t most_units = max_units(pairs, experts, S::kColumns);
  Units units{};
  OperandRows x{}, act_rows{};
  float *act = nullptr, *out = nullptr;
  const auto cut = [&](ScratchPlan plan) {
    units = {plan.take<int32_t>(1), plan.take<int32_t>(most_units), plan.take<int32_t>(most_units), plan.take<int32_t>(most_units), plan.take<int32_t>(pairs)};
    x = {plan.take<uint8_t>(kTerms * tokens * hidden_chunks * kChunkBytes), plan.take<float>(tokens * hidden_chunks)};
    act_rows = {plan.take<uint8_t>(kTerms * pairs * ffn_chunks * kChunkBytes), plan.take<float>(pairs * ffn_chunks)};
    act = plan.take<float>(pairs * a.table.ffn_dim);
    out = plan.take<float>(pairs * a.table.hidden_dim);
    return plan.used_bytes();
  };
  DSV4_ASSIGN_OR_RETURN(uint8_t * scratch, gpu.scratch(cut(ScratchPlan())));
  cut(ScratchPlan(scratch));

  DSV4_RETURN_IF_ERROR(sort_pairs(gpu, rows_of(a.experts), tokens, topk, experts, S::kColumns, units));
  DSV4_RETURN_IF_ERROR(launch(gpu, "moe_experts (pack)", pack<kOperand>, {.blocks_x = ceil_div(tokens * hidden_chunks, kWarps), .threads = kThreads},
                              rows_of(a.x), tokens, hidden_chunks, x));
  const int shared = S::kDepth * S::kBytes;
  const ExpertArgs up = {a.table, units, x, tokens, static_cast<int>(topk), rows_of(a.weights), static_cast<int>(topk), a.limit, act};
  DSV4_RETURN_IF_ERROR(launch(gpu, "moe_experts (up)", expert_product<kFormat, kTerms, kRowTiles, true>,
                              {.blocks_x = most_units * ceil_div(a.table.ffn_dim / kStripRows, 4), .threads = kThreads, .shared_bytes = shared}, up));
  DSV4_RETURN_IF_ERROR(launch(gpu, "moe_experts (pack)", pack<kOperand>, {.blocks_x = ceil_div(pairs * ffn_chunks, kWarps), .threads = kThreads},
                              Rows<const float>{act, a.table.ffn_dim}, pairs, ffn_chunks, act_rows));
  const ExpertArgs down = {a.table, units, act_rows, pairs, 1, rows_of(a.weights), static_cast<int>(topk), a.limit, out};
  DSV4_RETURN_IF_ERROR(launch(gpu, "moe_experts (down)", expert_product<kFormat, kTerms, kRowTiles, false>,
                              {.blocks_x = most_units * ceil_div(a.table.hidden_dim / kStripRows, 8), .threads = kThreads, .shared_bytes = shared}, down));
  return combine_pairs(gpu, out, a);
}

// Many pairs per expert fill wide tiles; few would only waste operand columns.
template <WeightFormat kFormat, Operand kOperand, int kWideTiles>
Status pick_tile(GpuContext& gpu, const MoeExpertsArgs& a) {
  const bool wide = a.experts.rows * a.experts.cols > 12 * a.table.num_experts;
  return wide ? run_tile<kFormat, kOperand, kWideTiles>(gpu, a) : run_tile<kFormat, kOperand, 1>(gpu, a);
}

}  // namespace

Status moe_experts_tile(GpuContext& gpu, const MoeExpertsArgs& a) {
  switch (expert_operand(a)) {
    case Operand::kE4M3:
      return a.table.format == WeightFormat::kMxfp4 ? pick_tile<WeightFormat::kMxfp4, Operand::kE4M3, 4>(gpu, a)
                                                    : pick_tile<WeightFormat::kFp8Block, Operand::kE4M3, 4>(gpu, a);
    case Operand::kBf16:
      return a.table.format == WeightFormat::kMxfp4 ? pick_tile<WeightFormat::kMxfp4, Operand::kBf16, 4>(gpu, a)
                                                    : pick_tile<WeightFormat::kFp8Block, Operand::kBf16, 4>(gpu, a);
    case Operand::kF16x2:
      return a.table.format == WeightFormat::kMxfp4 ? pick_tile<WeightFormat::kMxfp4, Operand::kF16x2, 2>(gpu, a)
                                                    : pick_tile<WeightFormat::kFp8Block, Operand::kF16x2, 2>(gpu, a);
    case Operand::kBf16x3: return pick_tile<WeightFormat::kBF16, Operand::kBf16x3, 2>(gpu, a);
  }
  return ok_status();
}

Status moe_experts_strips(OpContext& context, const MoeExpertsArgs& a) {
  if (a.x.rows == 0) return ok_status();
  GpuContext& gpu = gpu_context(context);
  const ExpertTable& e = a.table;
  const bool strips = fits_strips(e.format, e.ffn_dim, e.hidden_dim) && fits_strips(e.format, e.hidden_dim, e.ffn_dim);
  if (!strips || a.experts.cols > kMaxTopk || std::max(e.hidden_dim, e.ffn_dim) > kMaxK) return moe_experts_portable(context, a);
  if (moe_stream_fits(a)) return moe_experts_stream(gpu, a);
  if (moe_wide_fits(a)) return moe_experts_wide(gpu, a);
  return a.x.rows == 1 ? moe_experts_row(gpu, a) : moe_experts_tile(gpu, a);
}

}  // namespace dsv4::gpu

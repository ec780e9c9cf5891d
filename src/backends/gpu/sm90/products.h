// Arguments of the sm90 product kernels. Sizes are checked by the callers in linear.cc.
#pragma once

#include "backends/gpu/kernel_plan.h"
#include "backends/gpu/portable/hc_pre.h"
#include "backends/gpu/runtime/kernel.h"
#include "ops/linear.h"

namespace dsv4::gpu {

inline constexpr int kMaxOperands = 2;  // forms of x that one call needs

struct RowJob {
  const uint8_t* data;
  const uint8_t* scale;
  float* y;
  int first_strip;  // among the strips of all jobs
  int operand;      // index into operands
  WeightFormat format;
};

// post and comb of one token, from the sums of the mixes: what a product of one row does beside its own work (GpuContext::beside).
struct CombWork {
  const float* mixes;  // 24, and f.f
  HcApplyArgs apply;
};
// By one lane group of the block. Ends with none of the others waiting.
__device__ inline void make_comb(const CombWork& work) {
  constexpr int kMixes = 24;
  __shared__ float mix[kMixes + 1];
  if (group_index() != 0) return;
  if (group_lane() <= kMixes) mix[group_lane()] = work.mixes[group_lane()];
  group_sync();
  post_and_comb(work.apply, 0, mix);
}

// y_j = x W_j^T for one row. All weights have `chunks` chunks per strip.
struct RowProductArgs {
  RowJob jobs[kMaxLinearJobs];
  int num_jobs;
  int strips;  // of all jobs
  int chunks;
  int strips_per_group;  // grouped_linear: strips that share a slice of x; 0 = all share x
  const float* x;
  const uint16_t* norm;  // x passes through rms_norm with this weight first; null: it does not. Only where row_takes_norm()
  float norm_eps;
  const int32_t* positions;  // not null: strips from sure_strips on are left out if the token sees at most all_of compressed rows; where row_takes_norm()
  int sure_strips, ratio, all_of;
  MemoryRange soon;
  CombWork comb;  // for the grid's last block, which has no strips, if the launcher says so
  Operand operands[kMaxOperands];
  int num_operands;
  int first_term[kMaxOperands];  // filled by the launcher, as are the offsets
  int x_terms_offset;
  int ring_offset;
  int blocks;  // with strips
};

Status launch_row_product(GpuContext& gpu, RowProductArgs args, int blocks);
bool row_takes_norm(const RowProductArgs& args);

// Operand B of many rows, in global memory: for each pass of rows, chunk, piece half and tile, the 256 bytes of each step (warpgroup.h); tiles are
// term-major. Scales per pass, chunk and column. Rows beyond the last are zeros.
struct PackedActivations {
  uint8_t* terms;  // [passes][chunks][halves][tiles][8 / halves steps][256 bytes]
  float* scales;   // [passes][chunks][tiles * 8]
  int tiles;       // column tiles of one pass, all terms
  int halves;      // 2 for bf16 weights, whose pieces are half chunks
};
inline int64_t packed_terms_bytes(int64_t passes, int64_t chunks, int tiles) { return passes * chunks * tiles * 2048; }
inline int64_t packed_scales_floats(int64_t passes, int64_t chunks, int tiles) { return passes * chunks * tiles * 8; }

// x [rows, chunks * 128] into `out`, rows_per_pass = tiles / terms * 8 rows in a pass.
Status pack_activations(GpuContext& gpu, Rows<const float> x, int64_t rows, int64_t chunks, Operand operand, const PackedActivations& out);

struct TileJob {
  const uint8_t* data;
  const uint8_t* scale;
  Rows<float> y;
  int64_t n;
  int first_tile;       // among the tiles of all jobs
  int tiles_per_group;  // tiles of 128 rows of one group (grouped_linear); all of the job's tiles otherwise
  int strips_per_group;
};

// y_j = x W_j^T for `rows` rows, weights of one format. A pass takes tiles / terms * 8 rows; passes lie along the grid's y.
struct TileProductArgs {
  TileJob jobs[kMaxLinearJobs];
  int num_jobs;
  int weight_tiles;  // of all jobs
  int chunks;        // of a weight's strip
  int x_chunks;      // of packed x: chunks, times the groups
  int terms;
  int64_t rows;
  PackedActivations x;
};

// Many rows, FP8 or BF16 weights (folded_product.cu). Activations: one term of E4M3, or three of bfloat16.
inline constexpr int kFoldedTileStrips = 16;
struct FoldedJob {
  const uint8_t* data;
  const uint8_t* scale;
  Rows<float> y;
  int first_tile;       // among the tiles of all jobs
  int tiles_per_group;  // tiles of kFoldedTileStrips of one group (grouped_linear); all of the job's tiles otherwise
  int strips_per_group;
};
struct FoldedArgs {
  FoldedJob jobs[kMaxLinearJobs];
  int num_jobs;
  int weight_tiles;  // of all jobs
  int chunks;        // of a weight's strip
  int x_chunks;      // of x: chunks, times the groups
  Operand operand;
  int terms;  // of it
  int passes;
  int64_t rows;
  const uint8_t* x;  // operand form: scratch of folded_bytes()
};
inline int64_t folded_bytes(int64_t passes, int64_t x_chunks, int terms) { return passes * x_chunks * folded_pass_rows(terms) * terms * 256; }
Status launch_folded_product(GpuContext& gpu, WeightFormat format, Rows<const float> x, const FoldedArgs& args);

Status launch_tile_product(GpuContext& gpu, WeightFormat format, const TileProductArgs& args, int k_split);

}  // namespace dsv4::gpu

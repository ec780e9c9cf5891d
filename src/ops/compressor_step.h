// Feeds a step's tokens to the compressors of one layer and writes each compressed row whose window the step completes.
//
// Ratio 128: row j = sum_t softmax_t(gate_t + ape[t mod 128]) * kv_t over tokens 128j .. 128j+127, per channel.
// Ratio 4: kv and gate have two halves of head_dim; row j softmaxes over the FIRST halves of window j-1 and then the SECOND halves of window j
// (window 0 has no predecessor). Then RMSNorm(norm), rotate the last rope_dim by cos_sin (angle of the window's first token), and for
// indexer rows the normalized Walsh-Hadamard transform; round; write at compressed row j of the slot.
//
// State per slot: running softmax accumulators (max m, sum l, weighted sum a), each [head_dim], fed strictly token by token:
//   m' = max(m, g); l = l e^(m-m') + e^(g-m'); a = a e^(m-m') + c e^(g-m')
// Ratio 4 keeps two (the row in hand, and the next row's first-half part), ratio 128 one: state is [slots][2 or 1][3][head_dim] floats. The
// order of feeding is the token order, so chunking never changes a bit. Position 0 (ratio 128: every window start) resets it,
// so a slot needs no clearing. Source: model.md 6, 7.
#pragma once

#include "cache/paged_rows.h"
#include "ops/op.h"

namespace dsv4 {

struct CompressorStepArgs {
  Matrix<const float> kv;          // [T, W]; W = 2*head_dim for ratio 4, head_dim for ratio 128
  Matrix<const float> gate;        // [T, W]
  const float* ape = nullptr;      // [ratio, W]
  const uint16_t* norm = nullptr;  // [head_dim] BF16
  float eps = 1e-6f;
  int32_t ratio = 0;            // 4 or 128
  int64_t head_dim = 0;         // 512, or 128 for the indexer
  Matrix<const float> cos_sin;  // [T, rope_dim] at position p + 1 - ratio; read only for rows that complete a window
  bool hadamard = false;        // indexer rows
  SequenceRows rows;
  float* state = nullptr;  // [slots][ratio == 4 ? 2 : 1][3][head_dim]
  // Rounding of an F32 cache: main rows E4M3 per 64 of the first head_dim - rope_dim; indexer rows (hadamard) E2M1 per 32.
  // kNone only with an F32 cache; the packed formats round by themselves.
  CacheRounding rounding = CacheRounding::kE4M3;
  PagedRows out;
  BlockTable table;
};

inline int64_t compressor_state_floats(int32_t ratio, int64_t head_dim) { return (ratio == 4 ? 2 : 1) * 3 * head_dim; }

Status check(const CompressorStepArgs& args);
OpCost cost(const CompressorStepArgs& args);
Status compressor_step_reference(OpContext& context, const CompressorStepArgs& args);

}  // namespace dsv4

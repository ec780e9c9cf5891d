// Indexer queries, in place: rotate the last rope_dim of each head, normalized Walsh-Hadamard transform (x head_dim^-0.5), and with
// kE4M3 ("qat") E2M1 rounding per 32 values. Source: model.md 7, 9.
#pragma once

#include "ops/op.h"

namespace dsv4 {

struct IndexerQueryArgs {
  Matrix<float> q;  // [T, heads * head_dim], updated; head_dim a power of two
  int64_t heads = 0;
  Matrix<const float> cos_sin;  // [T, rope_dim]
  bool round_e2m1 = true;
};

// x[n] <- H x * n^-0.5, n a power of two: butterflies from stride 1 up, then the scale.
void hadamard_transform(float* x, int64_t n);

Status check(const IndexerQueryArgs& args);
OpCost cost(const IndexerQueryArgs& args);
Status indexer_query_reference(OpContext& context, const IndexerQueryArgs& args);

}  // namespace dsv4

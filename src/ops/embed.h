// h[t][i][d] = table[token_ids[t]][d] for every stream i. Padding rows (token id < 0) give zeros. Source: model.md 2.
#pragma once

#include "ops/op.h"

namespace dsv4 {

struct EmbedArgs {
  Matrix<const uint16_t> table;     // [vocab, D] BF16
  Vector<const int32_t> token_ids;  // [T]; below vocab
  int64_t streams = 4;              // hc_mult
  Matrix<float> h;                  // [T, streams * D]
};

Status check(const EmbedArgs& args);
OpCost cost(const EmbedArgs& args);
Status embed_reference(OpContext& context, const EmbedArgs& args);

}  // namespace dsv4

#include "ops/embed.h"

#include <algorithm>

#include "ops/host.h"

namespace dsv4 {

Status check(const EmbedArgs& a) {
  const char* op = "embed";
  DSV4_RETURN_IF_ERROR(check_present(op, "table", a.table.data));
  DSV4_RETURN_IF_ERROR(check_size(op, "token_ids", a.token_ids.size, a.h.rows));
  return check_shape(op, "h", a.h.rows, a.h.cols, a.h.rows, a.streams * a.table.cols);
}

OpCost cost(const EmbedArgs& a) { return {a.h.rows * (2 * a.table.cols + 4 * a.h.cols + 4), 0}; }

Status embed_reference(OpContext& context, const EmbedArgs& a) {
  reference::for_each_row(context, a.h.rows, [&](int64_t t) {
    const int32_t id = a.token_ids.data[t];
    for (int64_t s = 0; s < a.streams; ++s) {
      float* out = a.h.row(t) + s * a.table.cols;
      for (int64_t d = 0; d < a.table.cols; ++d) out[d] = id < 0 ? 0.0f : bf16_to_float(a.table.row(id)[d]);
    }
  });
  return ok_status();
}

}  // namespace dsv4

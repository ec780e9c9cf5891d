#include "cache/kv_layout.h"

namespace dsv4 {

KvLayout plan_kv_layout(const KvLayoutInput& in) {
  KvLayout out;
  out.format = in.format;
  out.index_format = in.format == RowFormat::kF32 ? RowFormat::kF32 : RowFormat::kMxfp4;
  out.head_dim = in.head_dim;
  out.index_head_dim = in.index_head_dim;
  const int64_t row_block = block_bytes(in.format, kCacheBlockRows, in.head_dim);
  const int64_t index_block = block_bytes(out.index_format, kCacheBlockRows, in.index_head_dim);
  for (const int32_t ratio : in.compress_ratios) {
    LayerCachePlace place;
    place.ratio = ratio;
    place.window_offset = out.window_block_bytes;
    out.window_block_bytes += row_block;
    if (ratio == 4) {
      place.compressed_offset = out.ratio4_block_bytes;
      place.index_offset = out.ratio4_block_bytes + row_block;
      out.ratio4_block_bytes += row_block + index_block;
    } else if (ratio == 128) {
      place.compressed_offset = out.ratio128_block_bytes;
      out.ratio128_block_bytes += row_block;
    }
    // Running-softmax accumulators (ops/compressor_step.h): 3 planes per row in hand, two rows for the overlapping ratio 4.
    place.state_floats_before = out.state_floats_per_slot;
    if (ratio != 0) out.state_floats_per_slot += (ratio == 4 ? 6 : 3) * in.head_dim;
    place.index_state_floats_before = out.state_floats_per_slot;
    if (ratio == 4) out.state_floats_per_slot += 6 * in.index_head_dim;
    out.layers.push_back(place);
  }
  return out;
}

}  // namespace dsv4

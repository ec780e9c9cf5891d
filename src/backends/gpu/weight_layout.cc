#include "backends/gpu/weight_layout.h"

#include <cstring>

namespace dsv4::gpu {

void pack_strips(const WeightView& w, uint8_t* data, uint8_t* scale) {
  const int64_t row_bytes = w.row_bytes();
  if (w.format == WeightFormat::kMxfp4) std::memset(data, 0, static_cast<size_t>(w.n * row_bytes));
  for (int64_t n = 0; n < w.n; ++n) {
    const uint8_t* row = w.data + n * row_bytes;
    for (int64_t k = 0; k < w.k; k += 2) {
      const PairPlace place = strip_pair(w.format, n, k, w.k);
      if (w.format == WeightFormat::kMxfp4) {
        uint32_t word;
        std::memcpy(&word, data + place.byte, 4);
        word ^= strip_mxfp4_bits(place.pair, row[k / 2] & 15u, row[k / 2] >> 4);
        std::memcpy(data + place.byte, &word, 4);
      } else {
        const size_t pair_bytes = w.format == WeightFormat::kBF16 ? 4 : 2;
        std::memcpy(data + place.byte, row + k * row_bytes / w.k, pair_bytes);
      }
    }
    if (w.format == WeightFormat::kMxfp4) {
      for (int64_t k = 0; k < w.k; k += kMxfp4Group) scale[strip_mxfp4_scale(n, k, w.k)] = w.scale[n * (w.k / kMxfp4Group) + k / kMxfp4Group];
    }
  }
  if (w.format == WeightFormat::kFp8Block) {
    std::memcpy(scale, w.scale, static_cast<size_t>((w.n + kFp8WeightBlock - 1) / kFp8WeightBlock * ((w.k + kFp8WeightBlock - 1) / kFp8WeightBlock)));
  }
}

}  // namespace dsv4::gpu

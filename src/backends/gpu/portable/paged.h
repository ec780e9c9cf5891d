// Cache rows on the device: where they lie, reading one value, writing one row. Layouts: cache/paged_rows.h.
#pragma once

#include "backends/gpu/portable/codec.h"
#include "cache/paged_rows.h"

namespace dsv4::gpu {

struct RowPlace {
  uint8_t* data;
  uint8_t* scale;
};

// Row r of a slot, below 2^31: a division of 64 bits would take longer than the load behind it. Loads the block id.
__device__ inline RowPlace row_place(const PagedRows& rows, const BlockTable& table, int64_t slot, int64_t r) {
  const uint32_t row = static_cast<uint32_t>(r), per = static_cast<uint32_t>(rows.block_rows), at = row / per;
  uint8_t* block = rows.base + table.ids[slot * table.stride + at] * rows.block_stride_bytes;
  const int64_t offset = row - at * per;
  switch (rows.format) {
    case RowFormat::kF32: return {block + offset * 4 * rows.row_dim, nullptr};
    case RowFormat::kFp8DsMla: return {block + offset * kMlaDataBytes, block + rows.block_rows * kMlaDataBytes + offset * kMlaScaleBytes};
    case RowFormat::kMxfp4:
      return {block + offset * (rows.row_dim / 2), block + static_cast<int64_t>(rows.block_rows) * (rows.row_dim / 2) + offset * (rows.row_dim / 32)};
  }
  return {nullptr, nullptr};
}

__device__ inline float row_value(RowFormat format, const RowPlace& p, int i) {
  switch (format) {
    case RowFormat::kF32: return reinterpret_cast<const float*>(p.data)[i];
    case RowFormat::kFp8DsMla:
      if (i < kMlaNopeDim) return decode_e4m3(p.data[i]) * decode_e8m0(p.scale[i / kMlaScaleGroup]);
      return decode_bf16(reinterpret_cast<const uint16_t*>(p.data + kMlaNopeDim)[i - kMlaNopeDim]);
    case RowFormat::kMxfp4: return decode_e2m1(i % 2 == 0 ? p.data[i / 2] & 15u : p.data[i / 2] >> 4) * decode_e8m0(p.scale[i / 32]);
  }
  return 0;
}

enum class RowRounding : uint8_t { kNone, kE4M3, kE2M1 };

// Rounds `row` (shared memory, row_dim floats) in groups of kGroupLanes-lane work: E4M3 per 64 of the first `nope` values, or E2M1 per 32 of all.
// All threads of the block call, after a barrier; a barrier follows.
__device__ inline void round_row(float* row, int dim, int nope, RowRounding rounding) {
  const int groups = static_cast<int>(blockDim.x) / kGroupLanes, lane = group_lane();
  if (rounding == RowRounding::kE4M3) {
    for (int b = group_index(); b < nope / kMlaScaleGroup; b += groups) {
      float* x = row + b * kMlaScaleGroup;
      const float s = decode_e8m0(e4m3_scale_of(group_max(fmaxf(fabsf(x[lane]), fabsf(x[lane + kGroupLanes])))));
      x[lane] = round_e4m3_by(x[lane], s);
      x[lane + kGroupLanes] = round_e4m3_by(x[lane + kGroupLanes], s);
    }
  } else if (rounding == RowRounding::kE2M1) {
    for (int b = group_index(); b < dim / 32; b += groups) {
      float* x = row + b * 32;
      const float s = decode_e8m0(e2m1_scale_of(group_max(fabsf(x[lane]))));
      x[lane] = round_e2m1_by(x[lane], s);
    }
  }
  __syncthreads();
}

// Encodes `row` (shared memory) to its place. All threads of the block call, after a barrier.
__device__ inline void write_row(RowFormat format, const RowPlace& p, const float* row, int dim) {
  const int groups = static_cast<int>(blockDim.x) / kGroupLanes, lane = group_lane();
  switch (format) {
    case RowFormat::kF32:
      for (int i = static_cast<int>(threadIdx.x); i < dim; i += static_cast<int>(blockDim.x)) reinterpret_cast<float*>(p.data)[i] = row[i];
      return;
    case RowFormat::kFp8DsMla:
      for (int b = group_index(); b < kMlaNopeDim / kMlaScaleGroup; b += groups) {
        const float* x = row + b * kMlaScaleGroup;
        const uint8_t code = e4m3_scale_of(group_max(fmaxf(fabsf(x[lane]), fabsf(x[lane + kGroupLanes]))));
        const float s = decode_e8m0(code);
        p.data[b * kMlaScaleGroup + lane] = encode_e4m3(x[lane] / s);
        p.data[b * kMlaScaleGroup + lane + kGroupLanes] = encode_e4m3(x[lane + kGroupLanes] / s);
        if (lane == 0) p.scale[b] = code;
      }
      if (threadIdx.x == 0) p.scale[kMlaScaleBytes - 1] = 0;
      for (int i = static_cast<int>(threadIdx.x); i < kMlaRopeDim; i += static_cast<int>(blockDim.x)) {
        reinterpret_cast<uint16_t*>(p.data + kMlaNopeDim)[i] = encode_bf16(row[kMlaNopeDim + i]);
      }
      return;
    case RowFormat::kMxfp4:
      for (int b = group_index(); b < dim / 32; b += groups) {
        const float x = row[b * 32 + lane];
        const uint8_t code = e2m1_scale_of(group_max(fabsf(x)));
        const uint32_t mine = encode_e2m1(x / decode_e8m0(code));
        const uint32_t other = shuffle_xor(mine, 1);
        if (lane % 2 == 0) p.data[b * 16 + lane / 2] = static_cast<uint8_t>(mine | other << 4);
        if (lane == 0) p.scale[b] = code;
      }
      return;
  }
}

}  // namespace dsv4::gpu

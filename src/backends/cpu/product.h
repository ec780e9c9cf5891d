// One product as the kernels take it, and how products are cut into tasks.
#pragma once

#include <cstdint>

#include "backends/cpu/packed_rows.h"
#include "tensor/weight.h"

namespace dsv4 {

struct CpuContext;

// Products are cut in steps of outputs that all kernels take whole; outputs of a tile and rows of a panel (product_tile-inl.h).
inline constexpr int64_t kOutputStep = 12;
inline constexpr int64_t kTileOutputs = 6 * kOutputStep;
inline constexpr int64_t kPanelRows = 64;

// y[r][n] = sum_k weight[n][k] x[row(r)][k]
struct Product {
  WeightView weight;
  int64_t weight_row_bytes = 0;  // from one row of the weight to the next
  int64_t first = 0;             // outputs [first, last); last 0 = all of them
  int64_t last = 0;
  PackedRows x;
  const int32_t* row_index = nullptr;  // rows of x to take; null = 0, 1, ..
  int64_t rows = 0;
  float* y = nullptr;  // output n of row r goes to y[r * y_stride + n - y_first]
  int64_t y_stride = 0;
  int64_t y_first = 0;

  int64_t end() const { return last == 0 ? weight.n : last; }
  int64_t outputs() const { return end() - first; }
  int64_t row(int64_t r) const { return row_index == nullptr ? r : row_index[r]; }
};

// Runs all products on the pool as one list of tasks. Where a product is cut never changes a result.
void run_products(CpuContext& context, const Product* products, int64_t count);

}  // namespace dsv4

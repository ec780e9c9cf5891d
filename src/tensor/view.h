// Strided views: plain data, no ownership. The pointer may be device memory; only the backend that owns it dereferences it.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "base/status.h"

namespace dsv4 {

// rows x cols elements of T; element (r, c) at data[r * row_stride + c]. row_stride >= cols, in elements.
template <class T>
struct Matrix {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;

  Matrix() = default;
  Matrix(T* d, int64_t r, int64_t c) : data(d), rows(r), cols(c), row_stride(c) {}
  Matrix(T* d, int64_t r, int64_t c, int64_t stride) : data(d), rows(r), cols(c), row_stride(stride) {}

  T* row(int64_t r) const { return data + r * row_stride; }
  Matrix first_rows(int64_t n) const { return {data, n, cols, row_stride}; }
  operator Matrix<const T>() const requires(!std::is_const_v<T>) { return {data, rows, cols, row_stride}; }
};

// n contiguous elements of T.
template <class T>
struct Vector {
  T* data = nullptr;
  int64_t size = 0;

  operator Vector<const T>() const requires(!std::is_const_v<T>) { return {data, size}; }
};

// "name is [a, b], the rule wants [c, d]" as a Status; ok when equal.
Status check_shape(const char* op, const char* name, int64_t rows, int64_t cols, int64_t want_rows, int64_t want_cols);
Status check_size(const char* op, const char* name, int64_t size, int64_t want);

}  // namespace dsv4

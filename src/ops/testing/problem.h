// One operator call as data: host images of every tensor, the weights, how to call the operator on rows [begin, end) of the batch,
// and how to judge what it wrote. The executor (executor.h) places it on a device; nothing here knows which.
//
// Memory that must not be read holds kPoisonWord: NaN as float32, BF16 and E4M3, an absurd index as int32 or int64.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/device.h"
#include "ops/testing/rng.h"
#include "ops/testing/verdict.h"

namespace dsv4::optest {

inline constexpr uint32_t kPoisonWord = 0x7fffffffu;

enum class Elem : uint8_t { kF32, kBF16, kI32, kI64, kU8 };
int64_t elem_bytes(Elem e);

template <class T>
constexpr Elem elem_of() {
  if constexpr (std::is_same_v<T, float>) return Elem::kF32;
  if constexpr (std::is_same_v<T, uint16_t>) return Elem::kBF16;
  if constexpr (std::is_same_v<T, int32_t>) return Elem::kI32;
  if constexpr (std::is_same_v<T, int64_t>) return Elem::kI64;
  return Elem::kU8;
}

enum class Role : uint8_t {
  kInput,    // must be the same bytes afterwards
  kOutput,   // contents before the call mean nothing
  kUpdated,  // read and written: in-place rows, caches, state
};

using Bytes = std::vector<uint8_t>;
using Images = std::vector<Bytes>;  // one per tensor of a problem, for the whole batch

// n bytes of repeated little-endian `word`.
Bytes filled(int64_t n, uint32_t word);

struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

struct Tensor {
  std::string name;
  Elem elem = Elem::kF32;
  Role role = Role::kInput;
  bool per_row = false;  // its rows are the batch's rows: a part of the batch gets a part of it
  int64_t rows = 1;
  int64_t cols = 0;
  int64_t stride = 0;                     // elements
  Bytes image;                            // rows * stride elements, padding poisoned
  std::function<Bytes(RowRange)> derive;  // set: contents for a part of the batch (cu_rows)

  int64_t row_bytes() const { return stride * elem_bytes(elem); }
};

struct Span {
  int64_t begin = 0;  // bytes of the tensor's image
  int64_t end = 0;
};

// One row of results: bytes the call may write, and the judge looks at unless `judged` is false (state nobody reads again).
struct Unit {
  int tensor = 0;
  Elem elem = Elem::kF32;
  std::vector<Span> spans;
  bool judged = true;
};

struct HostWeight {
  std::string name;
  Bytes storage;  // guard, data, scales, guard
  WeightView view;
};

// Pointers of one run: everything where the device wants it.
class Bound {
 public:
  RowRange range;
  std::vector<uint8_t*> pointers;   // per tensor
  std::vector<WeightView> weights;  // per weight, as placed
  const std::vector<Tensor>* tensors = nullptr;

  template <class T>
  T* pointer(int t) const {
    return reinterpret_cast<T*>(pointers[static_cast<size_t>(t)]);
  }
  template <class T>
  Matrix<T> matrix(int t) const {
    const Tensor& x = (*tensors)[static_cast<size_t>(t)];
    return {pointer<T>(t), x.per_row ? range.size() : x.rows, x.cols, x.stride};
  }
  template <class T>
  Vector<T> vector(int t) const {
    const Tensor& x = (*tensors)[static_cast<size_t>(t)];
    return {pointer<T>(t), x.per_row ? range.size() : x.cols};
  }
};

class Problem {
 public:
  explicit Problem(uint64_t seed) : rng(seed) {}

  Rng rng;
  int64_t num_rows = 0;  // of the batch
  // Rows must be fed in order and the memory written by one part is read by the next (caches, state).
  bool ordered = false;
  // Rows whose result alone is compared with the batch, next to a cut in two; -1 = a few. Ordered problems feed all parts instead.
  std::vector<Tensor> tensors;
  std::vector<std::unique_ptr<HostWeight>> weights;

  std::function<Status(Device&, const Bound&)> call;
  // Results in tensors that are not per row: what rows [range) may write.
  std::function<std::vector<Unit>(RowRange)> state_units;
  // Judges the outputs of the whole batch. `reference` is the reference's output, null when that is what is judged.
  std::function<void(const Images& actual, const Images* reference, Verdict&)> judge;
  // Sets tensor contents that hold device addresses (expert tables).
  std::function<void(const std::vector<WeightView>& placed, Images&)> fill_addresses;

  // rows x cols values, dense, into a new tensor with `pad` poisoned elements behind each row. Returns its index.
  template <class T>
  int add(std::string name, Role role, bool per_row, int64_t rows, int64_t cols, int64_t pad, const std::vector<T>& values) {
    const int t = add_poisoned(std::move(name), elem_of<T>(), role, per_row, rows, cols, pad);
    for (int64_t r = 0; r < rows && cols > 0; ++r) {
      std::memcpy(tensors.back().image.data() + r * tensors.back().row_bytes(), values.data() + r * cols, sizeof(T) * static_cast<size_t>(cols));
    }
    return t;
  }
  template <class T>
  int add_rows(std::string name, int64_t cols, int64_t pad, const std::vector<T>& values) {
    return add(std::move(name), Role::kInput, true, num_rows, cols, pad, values);
  }
  template <class T>
  int add_vector(std::string name, const std::vector<T>& values) {
    return add(std::move(name), Role::kInput, false, 1, static_cast<int64_t>(values.size()), 0, values);
  }
  template <class T>
  int add_output(std::string name, int64_t cols, int64_t pad) {
    return add_poisoned(std::move(name), elem_of<T>(), Role::kOutput, true, num_rows, cols, pad);
  }
  int add_poisoned(std::string name, Elem elem, Role role, bool per_row, int64_t rows, int64_t cols, int64_t pad);

  // A weight with values of deviation about k^-0.5. `misalign` bytes push data and scales off every alignment.
  int add_weight(std::string name, WeightFormat format, int64_t n, int64_t k, int64_t misalign = 0);
  // The same shape with every value NaN (E8M0 255, NaN elements): memory of an expert nobody chose.
  int add_poisoned_weight(std::string name, WeightFormat format, int64_t n, int64_t k);

  // Every result row of rows [range), per-row tensors first.
  std::vector<Unit> units(RowRange range) const;
  RowRange all_rows() const { return {0, num_rows}; }
  Images images() const;

 private:
  HostWeight& new_weight(std::string name, WeightFormat format, int64_t n, int64_t k, int64_t misalign);
};

// Row r of a tensor's image as T.
template <class T>
const T* image_row(const Problem& p, const Images& images, int tensor, int64_t r) {
  return reinterpret_cast<const T*>(images[static_cast<size_t>(tensor)].data() + r * p.tensors[static_cast<size_t>(tensor)].row_bytes());
}

}  // namespace dsv4::optest

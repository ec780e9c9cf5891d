#include "ops/testing/problem.h"

#include <algorithm>

#include "tensor/dtype.h"

namespace dsv4::optest {
namespace {

constexpr int64_t kWeightGuardBytes = 64;

int64_t scale_bytes(WeightFormat format, int64_t n, int64_t k) {
  if (format == WeightFormat::kFp8Block) return (n + kFp8WeightBlock - 1) / kFp8WeightBlock * ((k + kFp8WeightBlock - 1) / kFp8WeightBlock);
  return format == WeightFormat::kMxfp4 ? n * (k / kMxfp4Group) : 0;
}

}  // namespace

int64_t elem_bytes(Elem e) {
  switch (e) {
    case Elem::kF32:
    case Elem::kI32: return 4;
    case Elem::kBF16: return 2;
    case Elem::kI64: return 8;
    case Elem::kU8: return 1;
  }
  return 1;
}

Bytes filled(int64_t n, uint32_t word) {
  Bytes out(static_cast<size_t>(n));
  size_t i = 0;
  for (; i + 4 <= out.size(); i += 4) std::memcpy(out.data() + i, &word, 4);
  for (; i < out.size(); ++i) out[i] = static_cast<uint8_t>(word >> (8 * (i % 4)));
  return out;
}

int Problem::add_poisoned(std::string name, Elem elem, Role role, bool per_row, int64_t rows, int64_t cols, int64_t pad) {
  Tensor t;
  t.name = std::move(name);
  t.elem = elem;
  t.role = role;
  t.per_row = per_row;
  t.rows = rows;
  t.cols = cols;
  t.stride = cols + pad;
  t.image = filled(rows * t.row_bytes(), kPoisonWord);
  tensors.push_back(std::move(t));
  return static_cast<int>(tensors.size()) - 1;
}

HostWeight& Problem::new_weight(std::string name, WeightFormat format, int64_t n, int64_t k, int64_t misalign) {
  auto w = std::make_unique<HostWeight>();
  w->name = std::move(name);
  w->view = {format, nullptr, nullptr, n, k};
  const int64_t data = n * w->view.row_bytes(), scales = scale_bytes(format, n, k);
  w->storage = filled(3 * kWeightGuardBytes + 2 * misalign + data + scales, kPoisonWord);
  uint8_t* begin = w->storage.data() + kWeightGuardBytes + misalign;
  w->view.data = begin;
  if (scales > 0) w->view.scale = begin + data + kWeightGuardBytes + misalign;
  weights.push_back(std::move(w));
  return *weights.back();
}

int Problem::add_weight(std::string name, WeightFormat format, int64_t n, int64_t k, int64_t misalign) {
  HostWeight& w = new_weight(std::move(name), format, n, k, misalign);
  uint8_t* data = const_cast<uint8_t*>(w.view.data);
  uint8_t* scale = const_cast<uint8_t*>(w.view.scale);
  const double deviation = 1.0 / std::sqrt(static_cast<double>(k));
  const int exponent = static_cast<int>(std::lround(std::log2(deviation)));
  switch (format) {
    case WeightFormat::kF32:
      for (int64_t i = 0; i < n * k; ++i) {
        const float v = static_cast<float>(rng.normal() * deviation);
        std::memcpy(data + 4 * i, &v, 4);
      }
      break;
    case WeightFormat::kBF16:
      for (int64_t i = 0; i < n * k; ++i) {
        const uint16_t v = float_to_bf16(static_cast<float>(rng.normal() * deviation));
        std::memcpy(data + 2 * i, &v, 2);
      }
      break;
    case WeightFormat::kFp8Block:  // codes of deviation 64 = 2^6, scales around deviation / 2^6
      for (int64_t i = 0; i < n * k; ++i) data[i] = float_to_e4m3(static_cast<float>(rng.normal() * 64));
      for (int64_t i = 0; i < scale_bytes(format, n, k); ++i) scale[i] = static_cast<uint8_t>(127 + exponent - 7 + rng.below(3));
      break;
    case WeightFormat::kMxfp4:  // uniform codes have a deviation of about 2.8
      for (int64_t i = 0; i < n * k / 2; ++i) data[i] = static_cast<uint8_t>(rng.next());
      for (int64_t i = 0; i < scale_bytes(format, n, k); ++i) scale[i] = static_cast<uint8_t>(127 + exponent - 2 + rng.below(3));
      break;
  }
  return static_cast<int>(weights.size()) - 1;
}

int Problem::add_poisoned_weight(std::string name, WeightFormat format, int64_t n, int64_t k) {
  HostWeight& w = new_weight(std::move(name), format, n, k, 0);
  std::fill(const_cast<uint8_t*>(w.view.scale), const_cast<uint8_t*>(w.view.scale) + scale_bytes(format, n, k), uint8_t{255});
  return static_cast<int>(weights.size()) - 1;
}

std::vector<Unit> Problem::units(RowRange range) const {
  std::vector<Unit> out;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const Tensor& x = tensors[t];
    if (!x.per_row || x.role == Role::kInput) continue;
    for (int64_t r = range.begin; r < range.end; ++r) {
      out.push_back({static_cast<int>(t), x.elem, {{r * x.row_bytes(), r * x.row_bytes() + x.cols * elem_bytes(x.elem)}}, true});
    }
  }
  if (state_units) {
    for (Unit& u : state_units(range)) out.push_back(std::move(u));
  }
  return out;
}

Images Problem::images() const {
  Images out;
  for (const Tensor& t : tensors) out.push_back(t.image);
  return out;
}

}  // namespace dsv4::optest

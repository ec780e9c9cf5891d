#include "ops/testing/controls.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dsv4::optest {
namespace {

int64_t unit_bytes(const Unit& u) {
  int64_t n = 0;
  for (const Span& s : u.spans) n += s.end - s.begin;
  return n;
}

Bytes take(const Unit& u, const Bytes& image) {
  Bytes out;
  for (const Span& s : u.spans) out.insert(out.end(), image.begin() + s.begin, image.begin() + s.end);
  return out;
}

void put(const Unit& u, const Bytes& bytes, Bytes& image) {
  auto from = bytes.begin();
  for (const Span& s : u.spans) {
    std::copy(from, from + (s.end - s.begin), image.begin() + s.begin);
    from += s.end - s.begin;
  }
}

template <class T>
T load(const Bytes& b, int64_t element) {
  T v;
  std::memcpy(&v, b.data() + element * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return v;
}

template <class T>
void store(Bytes& b, int64_t element, T v) {
  std::memcpy(b.data() + element * static_cast<int64_t>(sizeof(T)), &v, sizeof(T));
}

// Off by 1/64 of the value or of the tensor's root mean square, whichever is larger: an error a careless kernel makes (BF16 sums, a lost
// term), which every bound must be below. Bytes of a packed row change by two steps of a code, or by a factor in a scale.
void push_off(Elem elem, double rms, Bytes& row, int64_t i) {
  switch (elem) {
    case Elem::kF32: {
      const float x = load<float>(row, i);
      store(row, i, std::isfinite(x) ? static_cast<float>(x + std::max(std::fabs(double{x}), rms) / 64) : 0.0f);
      return;
    }
    case Elem::kI32: store(row, i, load<int32_t>(row, i) + 1); return;
    case Elem::kI64: store(row, i, load<int64_t>(row, i) + 1); return;
    case Elem::kBF16: store(row, i, static_cast<uint16_t>(load<uint16_t>(row, i) + 4)); return;
    case Elem::kU8: row[static_cast<size_t>(i)] ^= 0x22; return;
  }
}

void put_nan(Elem elem, Bytes& row, int64_t i) {
  switch (elem) {
    case Elem::kF32: store(row, i, std::numeric_limits<float>::quiet_NaN()); return;
    case Elem::kI32: store(row, i, static_cast<int32_t>(kPoisonWord)); return;
    case Elem::kI64: store(row, i, static_cast<int64_t>(kPoisonWord) << 32); return;
    case Elem::kBF16: store(row, i, uint16_t{0x7fff}); return;
    case Elem::kU8: row[static_cast<size_t>(i)] = 0xff; return;
  }
}

double root_mean_square(const std::vector<const Unit*>& units, const Bytes& image) {
  double sum = 0;
  int64_t n = 0;
  for (const Unit* u : units) {
    const Bytes row = take(*u, image);
    for (int64_t i = 0; i < static_cast<int64_t>(row.size()) / 4; ++i) {
      const float x = load<float>(row, i);
      if (!std::isfinite(x)) continue;
      sum += double{x} * x;
      ++n;
    }
  }
  return n == 0 ? 1.0 : std::sqrt(sum / static_cast<double>(n));
}

// The two rows of equal size that differ in the most bytes.
void swap_rows(const std::vector<const Unit*>& units, Bytes& image) {
  const Bytes first = take(*units.front(), image);
  const Unit* best = nullptr;
  Bytes best_row;
  int64_t best_count = 0;
  for (const Unit* u : units) {
    if (unit_bytes(*u) != static_cast<int64_t>(first.size())) continue;
    Bytes row = take(*u, image);
    int64_t count = 0;
    for (size_t i = 0; i < row.size(); ++i) count += row[i] != first[i];
    if (count <= best_count) continue;
    best_count = count;
    best = u;
    best_row = std::move(row);
  }
  if (best == nullptr) return;
  put(*units.front(), best_row, image);
  put(*best, first, image);
}

void damage_image(Damage damage, const std::vector<const Unit*>& units, const Bytes& before, Rng& rng, Bytes& image) {
  switch (damage) {
    case Damage::kZeroed:
      for (const Unit* u : units) put(*u, Bytes(static_cast<size_t>(unit_bytes(*u)), 0), image);
      return;
    case Damage::kSwappedRows: swap_rows(units, image); return;
    case Damage::kOneElementOff:
    case Damage::kOneNan: {
      const Unit& u = *units[static_cast<size_t>(rng.below(static_cast<int64_t>(units.size())))];
      Bytes row = take(u, image);
      const int64_t i = rng.below(static_cast<int64_t>(row.size()) / elem_bytes(u.elem));
      if (damage == Damage::kOneNan) {
        put_nan(u.elem, row, i);
      } else {
        push_off(u.elem, u.elem == Elem::kF32 ? root_mean_square(units, image) : 0, row, i);
      }
      put(u, row, image);
      return;
    }
    case Damage::kLastRowMissing: put(*units.back(), take(*units.back(), before), image); return;
  }
}

// Whether the damage changed a value: zeros of either sign are one.
bool changed(Elem elem, const Bytes& good, const Bytes& damaged) {
  if (elem != Elem::kF32) return good != damaged;
  for (int64_t i = 0; i < static_cast<int64_t>(good.size()) / 4; ++i) {
    const float a = load<float>(good, i), b = load<float>(damaged, i);
    if (std::memcmp(&a, &b, sizeof(a)) != 0 && !(a == 0 && b == 0)) return true;
  }
  return false;
}

}  // namespace

const char* damage_name(Damage d) {
  switch (d) {
    case Damage::kZeroed: return "zeroed output";
    case Damage::kSwappedRows: return "swapped rows";
    case Damage::kOneElementOff: return "one element off";
    case Damage::kOneNan: return "one NaN";
    case Damage::kLastRowMissing: return "last row missing";
  }
  return "?";
}

std::vector<ControlResult> run_controls(const Problem& p, const Images& before, const Images& good, uint64_t seed) {
  std::vector<ControlResult> results;
  Rng rng(seed);
  const std::vector<Unit> all = p.units(p.all_rows());
  for (size_t t = 0; t < p.tensors.size(); ++t) {
    std::vector<const Unit*> units;
    for (const Unit& u : all) {
      if (u.tensor == static_cast<int>(t) && u.judged && unit_bytes(u) > 0) units.push_back(&u);
    }
    if (units.empty()) continue;
    for (const Damage damage : kAllDamages) {
      Images damaged = good;
      damage_image(damage, units, before[t], rng, damaged[t]);
      ControlResult result{damage, p.tensors[t].name, changed(p.tensors[t].elem, good[t], damaged[t]), false};
      if (result.applicable) {
        Verdict verdict;
        p.judge(damaged, nullptr, verdict);
        result.refused = !verdict.ok();
      }
      results.push_back(result);
    }
  }
  return results;
}

}  // namespace dsv4::optest

// Negative controls: damages a good result in the ways a wrong kernel does, and asks whether the judge refuses each.
#pragma once

#include <string>
#include <vector>

#include "ops/testing/problem.h"

namespace dsv4::optest {

enum class Damage : uint8_t { kZeroed, kSwappedRows, kOneElementOff, kOneNan, kLastRowMissing };
inline constexpr Damage kAllDamages[] = {Damage::kZeroed, Damage::kSwappedRows, Damage::kOneElementOff, Damage::kOneNan, Damage::kLastRowMissing};
const char* damage_name(Damage d);

struct ControlResult {
  Damage damage = Damage::kZeroed;
  std::string tensor;
  bool applicable = false;  // false when the damage leaves every value as it was (one row to swap, an output that is zero)
  bool refused = false;
};

// `before` = the images before the call (a missing row still holds them).
std::vector<ControlResult> run_controls(const Problem& p, const Images& before, const Images& good, uint64_t seed);

}  // namespace dsv4::optest

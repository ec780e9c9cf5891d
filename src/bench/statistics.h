// What a comparison of two sets of measurements says. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dsv4 {

struct RatioInterval {
  double ratio = 0;          // geometric mean of b[i] / a[i]
  double low = 0, high = 0;  // 95 % interval of the paired bootstrap: pairs drawn with replacement
};

// a and b hold positive values of the same things, pair by pair, at least 2. The draws are a pure function of the seed.
RatioInterval paired_bootstrap(const std::vector<double>& a, const std::vector<double>& b, uint64_t seed = 1, int64_t resamples = 10000);

// "promote" when the whole interval lies above 1 + margin, "reject" when all of it lies below 1, else "undecided". Values are speeds: more
// is better.
std::string verdict_of(const RatioInterval& interval, double margin = 0.005);

}  // namespace dsv4

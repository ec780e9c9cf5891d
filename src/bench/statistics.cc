#include "bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/check.h"

namespace dsv4 {

RatioInterval paired_bootstrap(const std::vector<double>& a, const std::vector<double>& b, uint64_t seed, int64_t resamples) {
  DSV4_CHECK(a.size() == b.size() && a.size() >= 2, "a paired bootstrap needs at least two pairs");
  std::vector<double> logs;
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    logs.push_back(std::log(b[i] / a[i]));
    sum += logs.back();
  }
  const double n = static_cast<double>(logs.size());
  std::mt19937_64 random(seed);
  std::vector<double> means;
  for (int64_t r = 0; r < resamples; ++r) {
    double total = 0;
    for (size_t i = 0; i < logs.size(); ++i) total += logs[random() % logs.size()];
    means.push_back(total / n);
  }
  std::sort(means.begin(), means.end());
  const auto at = [&](double share) { return std::exp(means[static_cast<size_t>(share * static_cast<double>(means.size() - 1))]); };
  return {std::exp(sum / n), at(0.025), at(0.975)};
}

std::string verdict_of(const RatioInterval& i, double margin) {
  if (i.low > 1 + margin) return "promote";
  if (i.high < 1) return "reject";
  return "undecided";
}

}  // namespace dsv4

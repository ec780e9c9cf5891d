// Seeded random numbers for test inputs: splitmix64, so that a case is the same on every machine and library.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

namespace dsv4::optest {

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  double uniform(double low, double high) { return low + (high - low) * uniform(); }

  // Near enough to normal, mean 0, deviation 1, never beyond 3.5: the sum of four 16-bit uniforms of one draw.
  double normal() {
    const uint64_t z = next();
    const int64_t sum = static_cast<int64_t>((z & 0xffff) + ((z >> 16) & 0xffff) + ((z >> 32) & 0xffff) + (z >> 48));
    return static_cast<double>(sum - 2 * 65535) * (1.7320508 / 65536);
  }

  // n values, mean 0, deviation `scale`; one in 64 is up to 8 times larger, as activations have it.
  std::vector<float> activations(int64_t n, double scale) {
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) {
      const double outlier = below(64) == 0 ? uniform(1, 8) : 1.0;
      x = static_cast<float>(normal() * scale * outlier);
    }
    return v;
  }

  // 0 .. n-1 in random order.
  std::vector<int32_t> permutation(int64_t n) {
    std::vector<int32_t> v(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      const int64_t j = below(i + 1);
      v[static_cast<size_t>(i)] = v[static_cast<size_t>(j)];
      v[static_cast<size_t>(j)] = static_cast<int32_t>(i);
    }
    return v;
  }

 private:
  uint64_t state_;
};

// FNV-1a, to give every case its own stream under one seed.
inline uint64_t hash_name(std::string_view s) {
  uint64_t h = 0xcbf29ce484222325u;
  for (const char c : s) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return h;
}

}  // namespace dsv4::optest

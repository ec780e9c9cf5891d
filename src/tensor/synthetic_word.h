// The formula of synthetic weights, free of everything else so that device code can include it. The bytes of a tensor are a pure
// function of (seed, tensor name, word index):
//
//   word i (bytes 8i .. 8i+7, little-endian; the last word may be cut) =
//     (mix(base + i * kSyntheticStep) & mask) + offset          mod 2^64, base = synthetic_base(seed, name)
//
// mask and offset repeat one pattern in each element of the word, and no element's sum carries into the next:
//   MXFP4 weights   all bits random: all 16 E2M1 codes, mean square 8.5625
//   FP8 weights     sign, 2 low exponent bits, 3 mantissa bits random: +-[2^-3, 2), mean square 0.713; no zero, no NaN
//   their scales    2^e or 2^(e+1), e such that the weight's standard deviation is within a factor sqrt(2) of 1/sqrt(fan_in)
//   BF16, F32       sign, 2 low exponent bits, mantissa random: four octaves up to a power of two chosen by the kind
//   norms           BF16 0.875 .. 1.24; mix scales: F32 0.5 .. 1
// The hash table (token id -> top_k expert ids, I64, element i = row * top_k + slot) draws one id per slot from that slot's own
// share of the experts, so that a row's ids differ: lo = slot * E / top_k, hi = (slot + 1) * E / top_k (integer divisions),
//   id = lo + ((mix(base + i * kSyntheticStep) >> 32) * (hi - lo) >> 32).
// mix is the finalizer of splitmix64 (Steele, Lea, Flood 2014).
#pragma once

#include <cstdint>
#include <string_view>

#include "tensor/host_device.h"

namespace dsv4 {

inline constexpr uint64_t kSyntheticStep = 0x9e3779b97f4a7c15ull;

DSV4_HOST_DEVICE constexpr uint64_t synthetic_mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// FNV-1a of the name, then mixed with the seed: neighbouring seeds and similar names share nothing.
constexpr uint64_t synthetic_base(uint64_t seed, std::string_view name) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return synthetic_mix(h ^ synthetic_mix(seed + kSyntheticStep));
}

// All a generator needs to know about one tensor.
struct SyntheticRule {
  uint64_t base = 0;
  uint64_t mask = 0;
  uint64_t offset = 0;
  int64_t num_experts = 0;  // hash tables only: above 0 selects their rule
  int64_t top_k = 0;
};

DSV4_HOST_DEVICE constexpr uint64_t synthetic_word(const SyntheticRule& r, int64_t i) {
  const uint64_t random = synthetic_mix(r.base + static_cast<uint64_t>(i) * kSyntheticStep);
  if (r.num_experts == 0) return (random & r.mask) + r.offset;
  const int64_t slot = i % r.top_k;
  const int64_t low = slot * r.num_experts / r.top_k, high = (slot + 1) * r.num_experts / r.top_k;
  return static_cast<uint64_t>(low) + ((random >> 32) * static_cast<uint64_t>(high - low) >> 32);
}

}  // namespace dsv4

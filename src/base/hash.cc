#include "base/hash.h"

#include <cstring>

namespace dsv4 {
namespace {

// Steele and Vigna's multiplier for 64-bit congruential generators; odd, so the product can be undone.
constexpr uint64_t kMultiplier = 0xd1342543de82ef95u;

uint64_t mixed(uint64_t h, uint64_t word) {
  h = (h ^ word) * kMultiplier;
  return h ^ (h >> 29);
}

}  // namespace

uint64_t hash_bytes(std::string_view bytes, uint64_t seed) {
  uint64_t h = mixed(seed, bytes.size());
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    h = mixed(h, word);
  }
  uint64_t rest = 0;
  if (at < bytes.size()) std::memcpy(&rest, bytes.data() + at, bytes.size() - at);
  return mixed(mixed(h, rest), 0);
}

}  // namespace dsv4

#include "engine/state_identity.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/hash.h"

namespace dsv4 {
namespace {

// Goes up with every change of operators or model that moves a bit of any state.
constexpr int kNumericsVersion = 5;

constexpr size_t kSampledTensors = 512;
constexpr int64_t kSampleBytes = 256;

// Training changes every tensor, so some bytes of many tell models apart without reading all of a large one.
uint64_t weights_hash(const Checkpoint& checkpoint) {
  const auto& tensors = checkpoint.tensors();
  uint64_t hash = 0;
  const size_t step = std::max<size_t>(1, tensors.size() / kSampledTensors);
  for (size_t i = 0; i < tensors.size(); i += step) {
    const TensorEntry& t = tensors[i];
    if (t.data == nullptr) continue;
    const int64_t size = std::min(t.size_bytes, kSampleBytes);
    for (const int64_t at : {int64_t{0}, (t.size_bytes - size) / 2}) {
      hash = hash_bytes({reinterpret_cast<const char*>(t.data + at), static_cast<size_t>(size)}, hash);
    }
  }
  return hash;
}

}  // namespace

std::string state_identity(const Checkpoint& checkpoint, const Device& device, Arithmetic arithmetic, const KvCache& cache) {
  return fmt::format("model {} {:016x}; numerics {} {} {}; {}", checkpoint.identity(), weights_hash(checkpoint), kNumericsVersion, arithmetic_name(arithmetic),
                     device.info().backend, cache.layout_text());
}

}  // namespace dsv4

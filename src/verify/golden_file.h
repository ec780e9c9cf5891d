// A golden file: what the forward pass gives, recorded by independent implementations. Keys (N = tokens of the case):
//   tokens/N                            I32 [N] input ids
//   exact/logits/N, qat/..., served/... F32 [vocab], logits after the last token
//   exact/argmax/N                      I32 [N], arg max at every position
//   hidden/positions; exact/hidden/i    I32 [P]; F32 [P, 4, D] (i < layers: the streams before layer i; i = layers: [P, D] after the last
//                                       norm), of the first 300 tokens of tokens/384
//   prompt/k; exact/greedy/k, qat/...   I32: prompt ids; their greedy continuation, which stops after id 1 or at its length
//   decode/tokens, decode/prefill, decode/steps, qat/decode_logits
//                                       prefill the first decode/prefill tokens, then one token a step: F32 [steps, vocab], the
//                                       logits after feeding token index decode/steps[i]
// exact: no rounding, float32 cache. qat: the trained roundings over a float32 cache. served: qat over the packed cache.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/safetensors.h"

namespace dsv4 {

enum class GoldenKind : uint8_t { kExact, kQat, kServed };
const char* golden_kind_name(GoldenKind kind);  // "exact", "qat", "served"

class GoldenFile {
 public:
  // Errors: those of the container; kInvalidData when it holds no tokens/N.
  static Result<GoldenFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<int64_t>& lengths() const { return lengths_; }  // N of tokens/N, ascending
  const std::vector<int64_t>& prompts() const { return prompts_; }  // k of prompt/k, ascending
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  bool has_kind(GoldenKind kind) const;  // any KIND/logits/N

  // The whole tensor, flat. kInvalidData when it is absent or of another type.
  Result<std::vector<int32_t>> ints(const std::string& name) const;
  Result<std::vector<float>> floats(const std::string& name) const;

 private:
  std::string path_;
  SafetensorsFile file_;
  std::vector<int64_t> lengths_, prompts_;
};

}  // namespace dsv4

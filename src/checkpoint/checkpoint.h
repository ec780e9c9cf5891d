// A checkpoint as the engine sees it: a validated configuration and named tensors that lie in memory (mapped files, or
// generated). Opening checks everything; there is never a partial load. The files are mapped, not copied: they must not be
// changed or cut while the checkpoint is open (a page that is no longer there ends the process).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "base/status.h"
#include "checkpoint/draft.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_entry.h"
#include "tensor/synthetic_word.h"
#include "tensor/weight.h"

namespace dsv4 {

struct CheckpointOptions {
  int64_t num_layers = -1;  // use only the first layers (synthetic: models and experiments); -1 = all
  bool prefault = false;    // read every page at open, with progress in bytes, and check values: NaN codes in scales and FP8 weights,
                            // non-finite F32 and BF16 numbers are faults
  bool mlock = false;       // pin the weights in memory
  // Names, shapes and configuration only: no tensor byte is read or generated, `data` is null. For the inspector. A model this
  // engine would not run opens too; see unsupported().
  bool headers_only = false;
  // Synthetic models: tensors above kHostSyntheticBytes are left to a device that generates them itself; their `data` is null.
  bool generate_on_device = false;
  uint64_t seed = 1;                // synthetic weights
  ProgressSink progress = nullptr;  // task "load" or "generate", unit "bytes"
};

inline constexpr int64_t kHostSyntheticBytes = int64_t{1} << 16;  // norms, sinks, biases: what checks read on the host

// A handle: copies share the same tensors, which nobody writes, and the last one lets go of them.
class Checkpoint {
 public:
  // `model` is a directory in the published layout, or "synthetic:flash", "synthetic:k160", "synthetic:tiny" (real shapes,
  // seeded weights in memory). On faults the Status lists all of them (at most 50, the rest counted), a line each: file, tensor,
  // expected, found. Tensors the configuration does not call for are no fault: they are listed as warnings and left out.
  static Result<Checkpoint> open(const std::string& model, const CheckpointOptions& options);

  const ModelConfig& config() const;
  const std::string& model() const;      // as given to open
  const std::string& directory() const;  // empty for synthetic models: no tokenizer, no encoding file
  // A hash of config and all tensor headers (names, dtypes, shapes, offsets, file sizes), 16 hex digits: the identity in manifests.
  const std::string& identity() const;

  // What is odd but harmless, a line each (at most 50, the rest counted): tensors nobody asked for, files no index names.
  const std::vector<std::string>& warnings() const;
  // Why this engine would not run the model; empty but after a headers_only open.
  const std::vector<std::string>& unsupported() const;
  const DraftInfo& draft() const;

  // Null when absent. Names are the checkpoint's own, e.g. "layers.3.attn.wq_a.weight".
  const TensorEntry* find(std::string_view name) const;
  const std::vector<TensorEntry>& tensors() const;  // sorted by name

  // The rule of a synthetic model's tensor; null when there is no such tensor, or its model lies in files.
  const SyntheticRule* generator(std::string_view name) const;

  // `prefix`.weight (and .scale) as a matrix for products, e.g. weight("layers.0.attn.wq_a"); expert weights are MXFP4, wq_a.. FP8,
  // others BF16. `prefix` itself when it names an F32 or BF16 tensor without ".weight". Open has verified presence and shapes,
  // so a miss here is kNotFound naming the tensor (a bug in the caller or a pruned layer).
  Result<WeightView> weight(const std::string& prefix) const;
  // Flat float data of an F32 tensor such as "layers.0.attn.attn_sink"; `size` elements are required.
  Result<const float*> f32(const std::string& name, int64_t size) const;
  // Flat BF16 data (raw 16-bit) of a norm weight; `size` elements are required.
  Result<const uint16_t*> bf16(const std::string& name, int64_t size) const;

 private:
  struct Impl;
  explicit Checkpoint(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace dsv4

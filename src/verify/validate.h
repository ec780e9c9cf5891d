// --validate: looks at every tensor of every step and stops a request at the first value that cannot be right. Order within a layer:
// streams, Q, indices, scale bytes, decoded K, attention logits, probabilities, attention output, router, experts; at the end the
// logits and the token. A row depends on nothing but its own request, so other requests go on.
//
//   Validator validator(*engine, {.dump_dir = "dumps"});     // watches from here on, until it is destroyed
//   ... submit and step as ever: a faulty request ends with FinishReason::kError and a kNumerical Status that names
//       request, position, layer, operator, rank and value ...
//
// What is checked, beyond being finite: queries have at most unit mean square; chosen rows exist, come in order, once each, and as
// many as there must be; scale bytes are codes that the rounding can give and their pad byte is zero; probabilities lie in [0, 1]; the
// attention of a sequence's last row equals softmax(QK)V computed again from the cache (up to 8 heads); routing weights add up to
// routed_scaling_factor; experts exist, once each; the token exists.
//
// It reads caches and tensors back and computes on the host: for finding faults, not for serving. When no validator exists the engine
// pays one null comparison a step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace dsv4 {

struct ValidateOptions {
  std::string dump_dir;           // where the first failure leaves its tensors (safetensors); empty = no dump
  int rank = 0;                   // named in messages
  float value_limit = 1e6f;       // |value| of streams and activations beyond which something is broken
  double attention_bound = 2e-2;  // relative error of attention against the host's; room for reduced-precision devices
  int64_t heads_per_row = 8;      // of that comparison; the heads rotate with the position
};

struct ValidateFailure {
  uint64_t request = 0;
  int64_t position = 0;
  int64_t layer = 0;  // num_layers: after the last
  std::string check;  // "Q", "indices", "scale bytes", "decoded K", "logits", "probabilities", "attention", "streams", "routing", "token"
  std::string op;     // the operator that made the value
  std::string value;  // "head 1 channel 33 is nan"
  int rank = 0;

  std::string message() const;  // one sentence with all of it
};

class Validator {
 public:
  // `engine` outlives the validator, which becomes its judge.
  Validator(Engine& engine, ValidateOptions options);
  ~Validator();
  Validator(const Validator&) = delete;
  Validator& operator=(const Validator&) = delete;

  // Between these, failures end requests as ever, but use up nothing: no dump is written, nothing is counted or remembered.
  void begin_warmup();
  void end_warmup();

  int64_t num_failures() const;
  const std::optional<ValidateFailure>& first_failure() const;
  int64_t values_checked() const;
  const std::string& dump_path() const;  // of the dump; empty = none yet

 private:
  class Judge;
  std::unique_ptr<Judge> judge_;
};

}  // namespace dsv4

// How far is an engine from a reference, layer by layer? Both run the same tokens; the report has, from the inside out:
//
//   cache round trip     what the cache gives back against the row that went in, computed again from the row's projection
//   one-token attention  attention of single positions against softmax(QK)V over the same cache, in double
//   layers               attention output, experts' output and streams of each layer: relative error and cosine, median over positions
//   top-k logits         share of the reference's k best tokens among ours; arg max agreement; KL divergence
//   greedy prefix        tokens that greedy decoding has in common from the start
//   perplexity           of the text, ours over the reference's
//
// Against "exact": the reference backend without roundings over a float32 cache: how much the arithmetic costs. Against "qat": the
// reference backend with the trained roundings over a float32 cache: what is left is the packed cache and the device. The first two
// parts need no reference: they hold the engine against its own definition, and point at a layout or length fault exactly.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "verify/manifest.h"
#include "verify/runs.h"

namespace dsv4 {

struct AccuracyOptions {
  std::vector<int32_t> tokens;                // the text, at least 8 tokens
  std::vector<std::vector<int32_t>> prompts;  // for the greedy prefix; may be empty
  int64_t greedy_tokens = 48;
  int64_t num_positions = 48;  // positions whose tensors are compared, spread over the text
  int64_t top_k = 10;
};

// Bounds by what is compared; measured on the shipped model and doubled (docs/proof.md).
struct AccuracyBounds {
  double cache = 4e-2;  // relative error of a row: E4M3 has 3 mantissa bits, rms error 2.6 %; float32 rows without rounding 1e-5
  double attention = 1e-3;
  double layer_error = 0;   // median relative error of a layer's streams
  double layer_cosine = 0;  // least median cosine of a layer's streams
  double argmax = 0;        // share of positions
  double kl = 0;            // mean, nats
  double greedy = 0;        // share of the reference's greedy tokens before the first difference, mean over prompts
  double perplexity = 0;    // |ratio - 1|
};
AccuracyBounds bounds_against_exact();
AccuracyBounds bounds_against_qat();

struct AccuracyLayer {
  int64_t layer = 0;                                 // num_layers: the hidden state after the last norm
  int32_t ratio = -1;                                // compress_ratios[layer]; -1 after the last
  double attention_error = 0, attention_cosine = 1;  // attn.y
  double experts_error = 0, experts_cosine = 1;      // ffn.y
  double hidden_error = 0, hidden_cosine = 1;        // streams before the layer
  double cache_error = 0;                            // worst row
  double one_token_error = 0;                        // worst head
};

struct AccuracyCheck {
  std::string name;  // "cache round trip", ...
  double value = 0;
  double bound = 0;
  bool passed = false;
  std::string detail;  // where the worst is
};

struct AccuracyReport {
  Manifest manifest, reference_manifest;  // the latter empty without a reference
  std::string model, against, device, reference_device;
  int64_t num_tokens = 0, num_positions = 0;
  std::vector<AccuracyLayer> layers;
  std::vector<AccuracyCheck> checks;
  double perplexity = 0, reference_perplexity = 0;
  bool passed = false;
};

// `make_engine` gives the engine under test, `make_reference` the reference; without one (empty) only the first two parts are measured.
// The first half of the text is prefilled, the second half decoded token by token. When the engine under test stops at a value that is not
// finite, what was seen until then is judged, and a failed check "run" says where it stopped. Other errors: those of the runs.
Result<AccuracyReport> measure_accuracy(const std::function<Result<std::unique_ptr<Engine>>()>& make_engine,
                                        const std::function<Result<std::unique_ptr<Engine>>()>& make_reference, const AccuracyOptions& options,
                                        const AccuracyBounds& bounds);

std::string to_text(const AccuracyReport& report);
std::string to_json(const AccuracyReport& report);
std::string to_svg(const AccuracyReport& report);

}  // namespace dsv4

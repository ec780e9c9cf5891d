// Why is a case past its golden? In "qat" arithmetic a value that stands within a few ulp of a rounding tie falls to one E4M3 code in one
// implementation and to its neighbour in another; everything after it differs by 1e-4 to 1e-2 and neither is wrong. A trace proves that
// this, and nothing else, is what happened: it finds the values near a tie in our run, lets one of them fall to the other side, and
// looks whether the case then agrees with the golden. The flips it keeps are the explanation; the earliest of them is the first
// differing tensor.
//
// Rounding points that are tried (E4M3 per 128 values before a product, per 64 in the cache):
//   attn.x, attn.qr, attn.o_low, ffn.x, ffn.shared_act    as the model shows them
//   attn.kv          the no-rope part of a window row, computed again from attn.kv_raw; moved through attn.kv_raw
//   ffn.expert_act   silu(w1 x) * (w3 x) * weight of a chosen expert, computed again from ffn.x; moved through the routing weight
// A greedy sequence that leaves its golden is traced at the first token that differs: there the goal is that the golden's token leads.
// Not tried: compressed rows, indexer rows (E2M1) and the BF16 rounding of rotary values. A case that only those explain stays unexplained.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "verify/golden.h"

namespace dsv4 {

struct RoundingPoint {
  std::string tensor;
  int64_t layer = 0;
  int64_t position = 0;
  int64_t channel = 0;
  int64_t expert = -1;  // ffn.expert_act: the expert; its place among the row's choices is `choice`
  int64_t choice = -1;
  float value = 0;          // as computed
  float scale = 0;          // of its block; value / scale is what rounds
  float low = 0, high = 0;  // the neighbouring codes' values, scaled; the tie is their mean
  double distance = 0;      // |value / scale - tie| / |tie|

  double scaled() const { return static_cast<double>(value) / scale; }
  double tie() const { return (static_cast<double>(low) + high) / 2; }
  // Which of the two this run rounds to; the tie itself goes to the even code.
  float rounded() const;
};

struct GoldenTrace {
  std::string name;                    // of the case
  double error_before = 0;             // relative error against the golden; greedy: by how much our token's logit leads the golden's
  double error_after = 0;              // with all of `flips` turned over
  double goal = 0;                     // error_after that explains the case: kGoldenExplainAbove; greedy: 0, the golden's token leads
  int64_t token_index = -1;            // greedy: of the sequence, the first that differs; -1 = another case, or none differs
  int32_t want = -1, got = -1;         // greedy: the golden's token there, and ours
  std::vector<RoundingPoint> flips;    // in the order of the computation; empty = unexplained
  std::vector<RoundingPoint> nearest;  // the values closest to a tie, nearest first (at most 8), whether or not they matter
  int64_t points_near = 0;             // values within the distance searched
  int64_t points_tried = 0;
  bool explained = false;  // error_after <= goal
};

struct TraceOptions {
  double max_distance = 4e-6;  // relative: about 64 ulp, what float32 sums of these lengths differ by
  int64_t max_tries = 400;     // runs
  int64_t prefill_chunk = 256;
  std::function<void(int64_t tried, int64_t total)> progress;
};

// `name` as GoldenLine gives it: "qat/logits/N", "served/logits/N", "qat/decode/P", "qat/greedy/K". Errors: another kind of case (exact arithmetic does
// not round), a device whose memory the host cannot write through upload.
Result<GoldenTrace> trace_golden(const GoldenFile& golden, const EngineFactory& make_engine, const std::string& name, const TraceOptions& options);

std::string to_text(const RoundingPoint& point);
std::string to_text(const GoldenTrace& trace);

// Neighbouring E4M3 values around |x| <= 448 with x's sign: low <= x <= high. Equal when x is a code or beyond the last.
void e4m3_neighbours(float x, float* low, float* high);

}  // namespace dsv4

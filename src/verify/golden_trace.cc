#include "verify/golden_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "tensor/rounding.h"
#include "verify/numbers.h"

namespace dsv4 {
namespace {

constexpr size_t kShown = 8;

struct TraceCase {
  GoldenKind kind = GoldenKind::kQat;
  std::vector<int32_t> tokens;
  std::vector<float> want;  // logits behind the last token; empty for a greedy case,
  int64_t prompt_size = 0;  // which has its prompt and the golden's answer as tokens
  int32_t want_token = -1;  // that is to lead behind the last token, once find_difference has cut the case
};

Result<TraceCase> read_case(const GoldenFile& golden, const std::string& name) {
  const size_t a = name.find('/'), b = name.rfind('/');
  const std::string kind = name.substr(0, a), group = a == b ? "" : name.substr(a + 1, b - a - 1), number = name.substr(b + 1);
  int64_t n = 0;
  const auto parsed = std::from_chars(number.data(), number.data() + number.size(), n);
  if (parsed.ec != std::errc() || parsed.ptr != number.data() + number.size() || (group != "logits" && group != "decode" && group != "greedy")) {
    return invalid_argument("trace: case \"" + name + "\" is not of the form KIND/logits/N, KIND/decode/P or KIND/greedy/K");
  }
  TraceCase c;
  if (kind == "exact") return invalid_argument("trace: " + name + ": exact arithmetic has no roundings, there is no tie to find");
  if (kind != "qat" && kind != "served") return invalid_argument("trace: case \"" + name + "\" is neither qat nor served");
  c.kind = kind == "qat" ? GoldenKind::kQat : GoldenKind::kServed;
  if (group == "logits") {
    DSV4_ASSIGN_OR_RETURN(c.tokens, golden.ints("tokens/" + number));
    DSV4_ASSIGN_OR_RETURN(c.want, golden.floats(name));
    return c;
  }
  if (group == "greedy") {
    DSV4_ASSIGN_OR_RETURN(c.tokens, golden.ints("prompt/" + number));
    DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> answer, golden.ints(name));
    c.prompt_size = static_cast<int64_t>(c.tokens.size());
    c.tokens.insert(c.tokens.end(), answer.begin(), answer.end());
    return c;
  }
  DSV4_ASSIGN_OR_RETURN(c.tokens, golden.ints("decode/tokens"));
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> steps, golden.ints("decode/steps"));
  DSV4_ASSIGN_OR_RETURN(const std::vector<float> all, golden.floats(kind + "/decode_logits"));
  const auto found = std::find(steps.begin(), steps.end(), n);
  const size_t vocab = steps.empty() ? 0 : all.size() / steps.size(), index = static_cast<size_t>(found - steps.begin());
  if (found == steps.end() || n >= static_cast<int64_t>(c.tokens.size())) return invalid_argument("trace: " + golden.path() + " has no decode step " + number);
  c.tokens.resize(static_cast<size_t>(n + 1));
  c.want.assign(all.begin() + static_cast<int64_t>(index * vocab), all.begin() + static_cast<int64_t>((index + 1) * vocab));
  return c;
}

// Points of one block of values that share a scale.
void find_in_block(const float* x, int64_t n, double max_distance, const RoundingPoint& where, std::vector<RoundingPoint>* out) {
  const float scale = e8m0_to_float(e4m3_scale_code(x, n));
  for (int64_t i = 0; i < n; ++i) {
    const float scaled = x[i] / scale;
    RoundingPoint p = where;
    e4m3_neighbours(scaled, &p.low, &p.high);
    if (p.low == p.high) continue;
    p.distance = std::fabs(scaled - p.tie()) / std::fabs(p.tie());
    if (!(p.distance <= max_distance)) continue;
    p.channel = where.channel + i;
    p.value = x[i];
    p.scale = scale;
    out->push_back(p);
  }
}

// A run that looks for points, or moves some; both need to know which positions a step's tensors hold.
class TraceObserver : public StepObserver {
 public:
  explicit TraceObserver(Engine& engine) : engine_(engine), config_(engine.config()) {}

  Status tensor(const char* name, int64_t layer, Matrix<const float> values) final {
    const std::string tensor = name;
    if (tensor == "streams" && layer == 0) {
      first_ = next_;
      next_ += values.rows;
    }
    return tensor == "final.x" || tensor == "logits" ? ok_status() : on_tensor(tensor, layer, values);
  }
  Status indices(const char* name, int64_t, Matrix<const int32_t> values) final {
    if (std::string(name) != "ffn.experts") return ok_status();
    experts_.resize(static_cast<size_t>(values.rows * values.cols));
    for (int64_t r = 0; r < values.rows; ++r)
      DSV4_RETURN_IF_ERROR(engine_.device().download(experts_.data() + r * values.cols, values.row(r), 4 * values.cols));
    return ok_status();
  }

 protected:
  virtual Status on_tensor(const std::string& tensor, int64_t layer, Matrix<const float> values) = 0;

  Result<std::vector<float>> row(const Matrix<const float>& m, int64_t r) {
    std::vector<float> out(static_cast<size_t>(m.cols));
    DSV4_RETURN_IF_ERROR(engine_.device().download(out.data(), m.row(r), 4 * m.cols));
    return out;
  }

  Engine& engine_;
  const ModelConfig& config_;
  std::vector<int32_t> experts_;  // [rows * top_k] of the layer in hand
  int64_t first_ = 0, next_ = 0;  // positions of the step's rows
};

bool is_plain_point(const std::string& tensor) {
  return tensor == "attn.x" || tensor == "attn.qr" || tensor == "attn.o_low" || tensor == "ffn.x" || tensor == "ffn.shared_act";
}

class PointFinder final : public TraceObserver {
 public:
  PointFinder(Engine& engine, double max_distance) : TraceObserver(engine), max_distance_(max_distance) {}

  std::vector<RoundingPoint> points;  // in the order of the computation

 private:
  Status on_tensor(const std::string& tensor, int64_t layer, Matrix<const float> values) override {
    if (tensor == "ffn.x") ffn_x_.assign(static_cast<size_t>(values.rows), {});
    const bool plain = is_plain_point(tensor);
    if (!plain && tensor != "attn.kv_raw" && tensor != "ffn.weights") return ok_status();
    for (int64_t r = 0; r < values.rows; ++r) {
      DSV4_ASSIGN_OR_RETURN(const std::vector<float> x, row(values, r));
      RoundingPoint where;
      where.tensor = tensor;
      where.layer = layer;
      where.position = first_ + r;
      if (tensor == "ffn.x") ffn_x_[static_cast<size_t>(r)] = x;
      if (plain) {
        blocks(x, kActivationGroup, where);
      } else if (tensor == "attn.kv_raw") {
        where.tensor = "attn.kv";
        DSV4_RETURN_IF_ERROR(window_row(x, where));
      } else {
        where.tensor = "ffn.expert_act";
        DSV4_RETURN_IF_ERROR(expert_rows(r, x, where));
      }
    }
    return ok_status();
  }

  void blocks(const std::vector<float>& x, int64_t group, RoundingPoint where) {
    for (int64_t begin = 0; begin + group <= static_cast<int64_t>(x.size()); begin += group) {
      where.channel = begin;
      find_in_block(x.data() + begin, group, max_distance_, where, &points);
    }
  }

  // RMSNorm(kv_raw, kv_norm) without its rotated tail (model.md 5, 9).
  Status window_row(const std::vector<float>& raw, const RoundingPoint& where) {
    DSV4_ASSIGN_OR_RETURN(const uint16_t* norm, engine_.checkpoint().bf16(fmt::format("layers.{}.attn.kv_norm.weight", where.layer), config_.head_dim));
    double sum = 0;
    for (const float v : raw) sum += static_cast<double>(v) * v;
    const double scale = 1 / std::sqrt(sum / static_cast<double>(raw.size()) + static_cast<double>(config_.rms_norm_eps));
    std::vector<float> kv(static_cast<size_t>(config_.head_dim - config_.rope_head_dim));
    for (size_t i = 0; i < kv.size(); ++i) kv[i] = static_cast<float>(static_cast<double>(bf16_to_float(norm[i])) * raw[i] * scale);
    blocks(kv, kMlaScaleGroup, where);
    return ok_status();
  }

  // The values that w2 of each chosen expert rounds (model.md 8, 9), in double.
  Status expert_rows(int64_t r, const std::vector<float>& weights, RoundingPoint where) {
    std::vector<float> x = ffn_x_[static_cast<size_t>(r)];
    round_e4m3(x.data(), static_cast<int64_t>(x.size()), kActivationGroup, x.data());
    const size_t top_k = weights.size();
    for (size_t k = 0; k < top_k; ++k) {
      const int32_t expert = experts_[static_cast<size_t>(r) * top_k + k];
      if (expert < 0) continue;
      DSV4_ASSIGN_OR_RETURN(const std::vector<double> gate, product(where.layer, expert, "w1", x));
      DSV4_ASSIGN_OR_RETURN(const std::vector<double> up, product(where.layer, expert, "w3", x));
      const double limit = config_.swiglu_limit;
      std::vector<float> act(gate.size());
      for (size_t i = 0; i < act.size(); ++i) {
        const double g = std::min(gate[i], limit), u = std::clamp(up[i], -limit, limit);
        act[i] = static_cast<float>(g / (1 + std::exp(-g)) * u * weights[k]);
      }
      where.expert = expert;
      where.choice = static_cast<int64_t>(k);
      blocks(act, kActivationGroup, where);
    }
    return ok_status();
  }

  Result<std::vector<double>> product(int64_t layer, int32_t expert, const char* name, const std::vector<float>& x) {
    std::vector<float>& w = dense_[fmt::format("layers.{}.ffn.experts.{}.{}", layer, expert, name)];
    if (w.empty()) {
      DSV4_ASSIGN_OR_RETURN(const WeightView view, engine_.checkpoint().weight(fmt::format("layers.{}.ffn.experts.{}.{}", layer, expert, name)));
      w.resize(static_cast<size_t>(view.n * view.k));
      for (int64_t i = 0; i < view.n; ++i) decode_weight_row(view, i, w.data() + i * view.k);
    }
    std::vector<double> out(w.size() / x.size());
    for (size_t i = 0; i < out.size(); ++i) {
      double sum = 0;
      for (size_t k = 0; k < x.size(); ++k) sum += static_cast<double>(w[i * x.size() + k]) * x[k];
      out[i] = sum;
    }
    return out;
  }

  double max_distance_;
  std::vector<std::vector<float>> ffn_x_;
  std::map<std::string, std::vector<float>> dense_;
};

// Moves some points past their ties, through the device's own memory.
class PointMover final : public TraceObserver {
 public:
  PointMover(Engine& engine, const std::vector<RoundingPoint>& points) : TraceObserver(engine), points_(points) {}

 private:
  // The observed tensor through which a point moves, and its column there.
  static std::string carrier(const RoundingPoint& p) { return p.tensor == "attn.kv" ? "attn.kv_raw" : p.tensor == "ffn.expert_act" ? "ffn.weights" : p.tensor; }

  Status on_tensor(const std::string& tensor, int64_t layer, Matrix<const float> values) override {
    for (const RoundingPoint& p : points_) {
      const int64_t r = p.position - first_;
      if (p.layer != layer || carrier(p) != tensor || r < 0 || r >= values.rows) continue;
      const int64_t column = p.tensor == "ffn.expert_act" ? p.choice : p.channel;
      float value = 0;
      const float* place = values.row(r) + column;
      DSV4_RETURN_IF_ERROR(engine_.device().download(&value, place, 4));
      value = moved(p, value);
      DSV4_RETURN_IF_ERROR(engine_.device().upload(const_cast<float*>(place), &value, 4));
    }
    return ok_status();
  }

  // As far beyond the tie as it was before it, and at least two ulp: what the carrier is multiplied with moves the point as much.
  static float moved(const RoundingPoint& p, float value) {
    const double side = p.scaled() == p.tie() ? (p.rounded() == p.low ? -1 : 1) : (p.scaled() < p.tie() ? -1 : 1);
    const double target = p.tie() - side * std::max(std::fabs(p.scaled() - p.tie()), 2.5e-7 * std::fabs(p.tie()));
    return static_cast<float>(value * (target / p.scaled()));
  }

  const std::vector<RoundingPoint>& points_;
};

Result<double> run_case(Engine& engine, const TraceCase& c, StepObserver* observer) {
  double error = 0;
  const int64_t last = static_cast<int64_t>(c.tokens.size()) - 1;
  const ScopedObserver observe(engine, observer);
  DSV4_RETURN_IF_ERROR(prefill_logits(engine, c.tokens, [&](int64_t position, std::span<const float> row) {
    if (position != last) return;
    error = c.want.empty() ? row[static_cast<size_t>(argmax_of(row))] - row[static_cast<size_t>(c.want_token)] : relative_error(row, c.want);
  }));
  return error;
}

// Cuts a greedy case before the first token of the answer that this engine does not choose; false when it chooses all of them.
Result<bool> find_difference(Engine& engine, TraceCase* c, GoldenTrace* trace) {
  DSV4_RETURN_IF_ERROR(prefill_logits(engine, c->tokens, [&](int64_t position, std::span<const float> row) {
    const int64_t next = position + 1;
    if (c->want_token >= 0 || next < c->prompt_size || next >= static_cast<int64_t>(c->tokens.size())) return;
    const int32_t want = c->tokens[static_cast<size_t>(next)], got = argmax_of(row);
    if (want == got || got < 0) return;
    c->want_token = want;
    trace->token_index = next - c->prompt_size;
    trace->want = want;
    trace->got = got;
  }));
  if (c->want_token < 0) return false;
  c->tokens.resize(static_cast<size_t>(c->prompt_size + trace->token_index));
  return true;
}

}  // namespace

void e4m3_neighbours(float x, float* low, float* high) {
  const float a = std::fabs(x);
  *low = *high = x;
  if (!(a < 448)) return;
  int exponent = 0;
  std::frexp(a, &exponent);
  const float step = std::ldexp(1.0f, std::max(exponent - 1, -6) - 3);
  const float below = std::floor(a / step) * step;
  if (below == a) return;
  *low = x < 0 ? -(below + step) : below;
  *high = x < 0 ? -below : below + step;
}

float RoundingPoint::rounded() const { return e4m3_to_float(float_to_e4m3(static_cast<float>(scaled()))); }

Result<GoldenTrace> trace_golden(const GoldenFile& golden, const EngineFactory& make_engine, const std::string& name, const TraceOptions& options) {
  DSV4_ASSIGN_OR_RETURN(TraceCase c, read_case(golden, name));
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine(golden_engine_options(c.kind, options.prefill_chunk)));
  GoldenTrace trace;
  trace.name = name;
  trace.goal = c.want.empty() ? 0 : kGoldenExplainAbove;
  if (c.want.empty()) {
    DSV4_ASSIGN_OR_RETURN(const bool differs, find_difference(*engine, &c, &trace));
    if (!differs) {
      trace.explained = true;
      return trace;
    }
  }
  PointFinder finder(*engine, options.max_distance);
  DSV4_ASSIGN_OR_RETURN(trace.error_before, run_case(*engine, c, &finder));
  trace.error_after = trace.error_before;
  trace.points_near = static_cast<int64_t>(finder.points.size());
  std::vector<size_t> order(finder.points.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return finder.points[a].distance < finder.points[b].distance; });
  for (size_t i = 0; i < std::min(order.size(), kShown); ++i) trace.nearest.push_back(finder.points[order[i]]);

  std::set<size_t> kept;  // indices into finder.points: in the order of the computation
  const int64_t tries = std::min<int64_t>(options.max_tries, trace.points_near);
  for (const size_t candidate : order) {
    if (trace.error_after <= trace.goal || trace.points_tried >= tries) break;
    std::vector<RoundingPoint> moved;
    for (const size_t i : kept) moved.push_back(finder.points[i]);
    moved.push_back(finder.points[candidate]);
    PointMover mover(*engine, moved);
    DSV4_ASSIGN_OR_RETURN(const double error, run_case(*engine, c, &mover));
    ++trace.points_tried;
    if (options.progress) options.progress(trace.points_tried, tries);
    // Half the error is far more than chance: an unrelated flip moves the case in a direction of its own and adds to it.
    if (error > trace.error_after / 2) continue;
    trace.error_after = error;
    kept.insert(candidate);
  }
  for (const size_t i : kept) trace.flips.push_back(finder.points[i]);
  trace.explained = trace.error_after <= trace.goal;
  return trace;
}

std::string to_text(const RoundingPoint& p) {
  const double ulp = std::ldexp(1.0, std::ilogb(p.tie()) - 23);
  return fmt::format(
      "{}{}, layer {}, position {}, channel {}: {:.9g} = {:.9g} x scale {:g}; between the codes {:g} and {:g}, tie {:g}, {:.1f} ulp away; falls to {:g} here",
      p.tensor, p.expert >= 0 ? fmt::format(" of expert {}", p.expert) : "", p.layer, p.position, p.channel, p.value, p.scaled(), p.scale, p.low, p.high,
      p.tie(), std::fabs(p.scaled() - p.tie()) / ulp, p.rounded());
}

std::string to_text(const GoldenTrace& t) {
  const bool greedy = t.token_index >= 0;
  if (t.goal == 0 && !greedy) return fmt::format("trace {}: no token differs: nothing to explain\n", t.name);
  std::string out =
      greedy ? fmt::format("trace {}: token {} is {} instead of {}, which it leads by {:.2e}\n", t.name, t.token_index, t.got, t.want, t.error_before)
             : fmt::format("trace {}: relative error {:.2e}\n", t.name, t.error_before);
  if (t.error_before <= t.goal) return out + fmt::format("  within {:g}: nothing to explain\n", t.goal);
  for (size_t i = 0; i < t.flips.size(); ++i) out += fmt::format("  {} {}\n", i == 0 ? "first differing tensor:" : "and:", to_text(t.flips[i]));
  if (t.explained) {
    out += fmt::format("  with {} on the other side of its tie {}: explained ({} of {} values near a tie tried)\n", t.flips.size() == 1 ? "it" : "them",
                       greedy ? fmt::format("{} leads", t.want) : fmt::format("the error is {:.2e}", t.error_after), t.points_tried, t.points_near);
  } else {
    out += fmt::format("  UNEXPLAINED: {} of {} values near a tie tried, the {} stays at {:.2e}; nearest:\n", t.points_tried, t.points_near,
                       greedy ? "lead" : "error", t.error_after);
    for (const RoundingPoint& p : t.nearest) out += fmt::format("    {}\n", to_text(p));
  }
  return out;
}

}  // namespace dsv4

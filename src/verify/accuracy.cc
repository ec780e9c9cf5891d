#include "verify/accuracy.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "verify/accuracy_tap.h"
#include "verify/numbers.h"

namespace dsv4 {
namespace {

// What one engine gives for the text.
struct Side {
  std::string device;
  std::map<AccuracyTap::Key, std::vector<std::vector<float>>> tensors;
  std::vector<AccuracyTap::Worst> cache, attention;
  std::vector<std::vector<float>> logits;  // of every position
  std::vector<std::vector<int32_t>> greedy;
  std::vector<int32_t> ratios;
  double perplexity = 0;
  Manifest manifest;
  std::string stopped;  // the run ended early: why
};

std::vector<int64_t> spread(int64_t count, int64_t of) {
  std::vector<int64_t> out;
  const int64_t n = std::min(count, of);
  for (int64_t i = 0; i < n; ++i) out.push_back(n == 1 ? of - 1 : i * (of - 1) / (n - 1));
  return out;
}

Result<Side> run_side(Engine& engine, const AccuracyOptions& options, bool check_self) {
  Side side;
  side.device = engine.device().info().backend + ", " + engine.device().info().name;
  side.ratios = engine.config().compress_ratios;
  side.manifest = make_manifest(engine, "verify accuracy");
  double sum = 0;
  {
    AccuracyTap tap(engine, spread(options.num_positions, static_cast<int64_t>(options.tokens.size())), check_self);
    const int64_t prefill = static_cast<int64_t>(options.tokens.size() / 2);
    const Status run = forced_decode(engine, options.tokens, prefill, [&](int64_t position, std::span<const float> row) {
      side.logits.emplace_back(row.begin(), row.end());
      const size_t next = static_cast<size_t>(position) + 1;
      if (next < options.tokens.size()) sum += log_sum_exp(row) - row[static_cast<size_t>(options.tokens[next])];
    });
    if (!run.ok() && run.code() != StatusCode::kNumerical) return run;
    side.stopped = run.message();
    side.tensors = tap.tensors();
    side.cache = tap.cache_errors();
    side.attention = tap.attention_errors();
  }
  if (!side.stopped.empty()) return side;
  side.perplexity = std::exp(sum / static_cast<double>(options.tokens.size() - 1));
  for (const auto& prompt : options.prompts) {
    DSV4_ASSIGN_OR_RETURN(Generation run, generate(engine, greedy_request(prompt, options.greedy_tokens)));
    side.greedy.push_back(std::move(run.tokens));
  }
  return side;
}

// Median error and cosine of one tensor over the positions.
void compare(const Side& a, const Side& b, const AccuracyTap::Key& key, double* error, double* cos) {
  const auto x = a.tensors.find(key), y = b.tensors.find(key);
  if (x == a.tensors.end() || y == b.tensors.end() || x->second.size() != y->second.size()) {
    *error = INFINITY;
    *cos = 0;
    return;
  }
  std::vector<double> errors, cosines;
  for (size_t i = 0; i < x->second.size(); ++i) {
    errors.push_back(relative_error(x->second[i], y->second[i]));
    cosines.push_back(cosine(x->second[i], y->second[i]));
  }
  *error = median(errors);
  *cos = median(cosines);
}

double top_k_overlap(std::span<const float> a, std::span<const float> b, int64_t k) {
  const auto best = [k](std::span<const float> row) {
    std::vector<int32_t> ids(row.size());
    std::iota(ids.begin(), ids.end(), 0);
    const auto middle = ids.begin() + std::min<int64_t>(k, static_cast<int64_t>(ids.size()));
    std::partial_sort(ids.begin(), middle, ids.end(), [&](int32_t x, int32_t y) { return row[static_cast<size_t>(x)] > row[static_cast<size_t>(y)]; });
    ids.erase(middle, ids.end());
    std::sort(ids.begin(), ids.end());
    return ids;
  };
  const auto x = best(a), y = best(b);
  std::vector<int32_t> both;
  std::set_intersection(x.begin(), x.end(), y.begin(), y.end(), std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(std::max<size_t>(1, y.size()));
}

// Values that must stay below, or above, their bound. A NaN does neither.
AccuracyCheck below(std::string name, double value, double bound, std::string detail) {
  return {std::move(name), value, bound, value <= bound, std::move(detail)};
}
AccuracyCheck above(std::string name, double value, double bound, std::string detail) {
  return {std::move(name), value, bound, value >= bound, std::move(detail)};
}

AccuracyCheck worst_of(const std::string& name, const std::vector<AccuracyTap::Worst>& layers, double bound, const char* what) {
  AccuracyCheck check{name, 0, bound, true, ""};
  std::string first;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const AccuracyTap::Worst& w = layers[layer];
    if (w.position >= 0 && !(w.error <= bound) && first.empty()) first = "; first past the bound: layer " + std::to_string(layer);
    if (w.position < 0 || (w.error <= check.value && !check.detail.empty())) continue;
    if (std::isnan(check.value)) continue;
    check.value = w.error;
    check.detail =
        "worst at layer " + std::to_string(layer) + ", position " + std::to_string(w.position) + (what[0] != '\0' ? what + std::to_string(w.index) : "");
  }
  if (check.detail.empty()) return {name, 0, bound, false, "nothing was compared"};
  check.passed = check.value <= bound;
  check.detail += first;
  return check;
}

void add_logit_checks(const Side& a, const Side& b, const AccuracyOptions& options, const AccuracyBounds& bounds, std::vector<AccuracyCheck>* checks) {
  double same = 0, overlap = 0, kl = 0, worst_kl = 0;
  size_t worst_at = 0;
  const size_t n = std::min(a.logits.size(), b.logits.size());
  for (size_t i = 0; i < n; ++i) {
    same += argmax_of(a.logits[i]) == argmax_of(b.logits[i]) ? 1 : 0;
    overlap += top_k_overlap(a.logits[i], b.logits[i], options.top_k);
    const double k = kl_divergence(b.logits[i], a.logits[i]);
    kl += k;
    if (!(k <= worst_kl)) {
      worst_kl = k;
      worst_at = i;
    }
  }
  const double count = static_cast<double>(std::max<size_t>(1, n));
  checks->push_back(above("top-" + std::to_string(options.top_k) + " logits", overlap / count, bounds.argmax, "share of the reference's best"));
  checks->push_back(above("arg max", same / count, bounds.argmax, std::to_string(static_cast<int64_t>(same)) + " of " + std::to_string(n) + " positions"));
  checks->push_back(
      below("KL divergence", kl / count, bounds.kl, "mean in nats; worst " + std::to_string(worst_kl) + " at position " + std::to_string(worst_at)));
}

void add_greedy_check(const Side& a, const Side& b, const AccuracyBounds& bounds, std::vector<AccuracyCheck>* checks) {
  if (b.greedy.empty()) return;
  double share = 0;
  int64_t common = 0, total = 0;
  for (size_t i = 0; i < b.greedy.size(); ++i) {
    const auto [x, y] = std::mismatch(b.greedy[i].begin(), b.greedy[i].end(), a.greedy[i].begin(), a.greedy[i].end());
    const int64_t prefix = x - b.greedy[i].begin();
    common += prefix;
    total += static_cast<int64_t>(b.greedy[i].size());
    share += b.greedy[i].empty() ? 1 : static_cast<double>(prefix) / static_cast<double>(b.greedy[i].size());
  }
  checks->push_back(above("greedy prefix", share / static_cast<double>(b.greedy.size()), bounds.greedy,
                          std::to_string(common) + " of " + std::to_string(total) + " tokens of " + std::to_string(b.greedy.size()) + " answers"));
}

void add_reference_checks(const Side& ours, const Side& theirs, const AccuracyOptions& options, const AccuracyBounds& bounds, AccuracyReport* report) {
  const auto worst = std::max_element(report->layers.begin(), report->layers.end(), [](const AccuracyLayer& a, const AccuracyLayer& b) {
    return !std::isnan(a.hidden_error) && !(a.hidden_error >= b.hidden_error);
  });
  const auto least = std::min_element(report->layers.begin(), report->layers.end(), [](const AccuracyLayer& a, const AccuracyLayer& b) {
    return std::isnan(a.hidden_cosine) || a.hidden_cosine < b.hidden_cosine;
  });
  report->checks.push_back(
      below("layer error", worst->hidden_error, bounds.layer_error, "median of positions; worst before layer " + std::to_string(worst->layer)));
  report->checks.push_back(
      above("layer cosine", least->hidden_cosine, bounds.layer_cosine, "median of positions; least before layer " + std::to_string(least->layer)));
  add_logit_checks(ours, theirs, options, bounds, &report->checks);
  add_greedy_check(ours, theirs, bounds, &report->checks);
  report->checks.push_back(below("perplexity", std::fabs(ours.perplexity / theirs.perplexity - 1), bounds.perplexity,
                                 "|ratio - 1|; ours " + std::to_string(ours.perplexity) + ", reference " + std::to_string(theirs.perplexity)));
}

}  // namespace

// Measured on dsv4-tiny with the CPU backend, then doubled; see docs/proof.md.
AccuracyBounds bounds_against_exact() {
  AccuracyBounds b;
  b.layer_error = 0.12;
  b.layer_cosine = 0.99;
  b.argmax = 0.9;
  b.kl = 0.05;
  b.greedy = 0.8;
  b.perplexity = 0.05;
  return b;
}

AccuracyBounds bounds_against_qat() {
  AccuracyBounds b;
  b.layer_error = 0.02;
  b.layer_cosine = 0.999;
  b.argmax = 0.97;
  b.kl = 0.01;
  b.greedy = 0.9;
  b.perplexity = 0.01;
  return b;
}

Result<AccuracyReport> measure_accuracy(const std::function<Result<std::unique_ptr<Engine>>()>& make_engine,
                                        const std::function<Result<std::unique_ptr<Engine>>()>& make_reference, const AccuracyOptions& options,
                                        const AccuracyBounds& given) {
  if (options.tokens.size() < 8) return invalid_argument("accuracy: the text has " + std::to_string(options.tokens.size()) + " tokens, at least 8 are needed");
  AccuracyReport report;
  Side ours, theirs;
  AccuracyBounds bounds = given;
  {
    DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine());
    report.model = engine->checkpoint().model();
    if (engine->options().arithmetic == Arithmetic::kExact) bounds.cache = 1e-5;  // nothing rounds
    DSV4_ASSIGN_OR_RETURN(ours, run_side(*engine, options, true));
  }
  if (make_reference) {
    DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_reference());
    report.against = engine->options().arithmetic == Arithmetic::kExact ? "exact" : "qat";
    DSV4_ASSIGN_OR_RETURN(theirs, run_side(*engine, options, false));
    if (!theirs.stopped.empty()) return numerical_error("accuracy: the reference stopped: " + theirs.stopped);
  }
  report.device = ours.device;
  report.manifest = ours.manifest;
  report.reference_manifest = theirs.manifest;
  report.reference_device = theirs.device;
  report.num_tokens = static_cast<int64_t>(options.tokens.size());
  report.num_positions = std::min(options.num_positions, report.num_tokens);
  report.perplexity = ours.perplexity;
  report.reference_perplexity = theirs.perplexity;

  const int64_t layers = static_cast<int64_t>(ours.ratios.size());
  for (int64_t i = 0; i <= (make_reference ? layers : layers - 1); ++i) {
    AccuracyLayer layer;
    layer.layer = i;
    if (make_reference) compare(ours, theirs, {i < layers ? "streams" : "final.x", i}, &layer.hidden_error, &layer.hidden_cosine);
    if (i < layers) {
      layer.ratio = ours.ratios[static_cast<size_t>(i)];
      if (make_reference) {
        compare(ours, theirs, {"attn.y", i}, &layer.attention_error, &layer.attention_cosine);
        compare(ours, theirs, {"ffn.y", i}, &layer.experts_error, &layer.experts_cosine);
      }
      layer.cache_error = ours.cache[static_cast<size_t>(i)].error;
      layer.one_token_error = ours.attention[static_cast<size_t>(i)].error;
    }
    report.layers.push_back(layer);
  }
  report.checks.push_back(worst_of("cache round trip", ours.cache, bounds.cache, ""));
  report.checks.push_back(worst_of("one-token attention", ours.attention, bounds.attention, ", head "));
  if (!ours.stopped.empty()) {
    report.checks.push_back({"run", 1, 0, false, ours.stopped});
  } else if (make_reference) {
    add_reference_checks(ours, theirs, options, bounds, &report);
  }
  report.passed = std::all_of(report.checks.begin(), report.checks.end(), [](const AccuracyCheck& c) { return c.passed; });
  return report;
}

}  // namespace dsv4

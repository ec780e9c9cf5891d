// An accuracy report as text, JSON and plots.
#include <fmt/format.h>

#include "base/json.h"
#include "verify/accuracy.h"
#include "verify/svg_plot.h"

namespace dsv4 {
namespace {

std::string layer_name(const AccuracyLayer& l) { return l.ratio < 0 ? "final" : std::to_string(l.layer); }

}  // namespace

std::string to_text(const AccuracyReport& r) {
  std::string out = fmt::format("{} on {}\n", r.model, r.device);
  if (!r.against.empty()) out += fmt::format("against {} on {}\n", r.against, r.reference_device);
  out += fmt::format("{} tokens, tensors at {} positions (medians)\n\n", r.num_tokens, r.num_positions);
  out += fmt::format("{:<6} {:>5}  {:>10} {:>10}  {:>10} {:>10}  {:>10} {:>10}  {:>10} {:>10}\n", "layer", "ratio", "attn err", "cosine", "ffn err", "cosine",
                     "hidden err", "cosine", "cache", "1-token");
  for (const AccuracyLayer& l : r.layers) {
    if (l.ratio < 0) {
      out +=
          fmt::format("{:<6} {:>5}  {:>10} {:>10}  {:>10} {:>10}  {:>10.2e} {:>10.7f}\n", layer_name(l), "", "", "", "", "", l.hidden_error, l.hidden_cosine);
    } else {
      out += fmt::format("{:<6} {:>5}  {:>10.2e} {:>10.7f}  {:>10.2e} {:>10.7f}  {:>10.2e} {:>10.7f}  {:>10.2e} {:>10.2e}\n", layer_name(l), l.ratio,
                         l.attention_error, l.attention_cosine, l.experts_error, l.experts_cosine, l.hidden_error, l.hidden_cosine, l.cache_error,
                         l.one_token_error);
    }
  }
  out += "\n";
  for (const AccuracyCheck& c : r.checks)
    out += fmt::format("{:<20} {:<10.4g} bound {:<8.4g} {:<7} {}\n", c.name, c.value, c.bound, c.passed ? "ok" : "FAILED", c.detail);
  return out + (r.passed ? "PASSED\n" : "FAILED\n");
}

std::string to_json(const AccuracyReport& r) {
  Json layers = Json::array(), checks = Json::array();
  for (const AccuracyLayer& l : r.layers) {
    layers.push_back({{"layer", l.layer},
                      {"ratio", l.ratio},
                      {"attention_error", l.attention_error},
                      {"attention_cosine", l.attention_cosine},
                      {"experts_error", l.experts_error},
                      {"experts_cosine", l.experts_cosine},
                      {"hidden_error", l.hidden_error},
                      {"hidden_cosine", l.hidden_cosine},
                      {"cache_error", l.cache_error},
                      {"one_token_error", l.one_token_error}});
  }
  for (const AccuracyCheck& c : r.checks)
    checks.push_back({{"name", c.name}, {"value", c.value}, {"bound", c.bound}, {"passed", c.passed}, {"detail", c.detail}});
  return Json{{"manifest", to_json_value(r.manifest)},
              {"reference_manifest", to_json_value(r.reference_manifest)},
              {"model", r.model},
              {"against", r.against},
              {"device", r.device},
              {"reference_device", r.reference_device},
              {"tokens", r.num_tokens},
              {"positions", r.num_positions},
              {"perplexity", r.perplexity},
              {"reference_perplexity", r.reference_perplexity},
              {"passed", r.passed},
              {"checks", std::move(checks)},
              {"layers", std::move(layers)}}
             .dump(1, ' ', false, Json::error_handler_t::replace) +
         "\n";
}

std::string to_svg(const AccuracyReport& r) {
  LinePlot errors, self;
  errors.title = "Relative error per layer against " + r.against + " (" + r.device.substr(0, r.device.find(',')) + ")";
  errors.x_label = "layer";
  errors.y_label = "median relative error";
  errors.log_y = true;
  self.title = "Engine against its own definition";
  self.x_label = "layer";
  self.y_label = "worst relative error";
  self.log_y = true;
  PlotSeries hidden{"streams before", {}}, attention{"attention output", {}}, experts{"experts output", {}}, cache{"cache round trip", {}},
      one_token{"1-token attn", {}};
  for (const AccuracyLayer& l : r.layers) {
    errors.x_names.push_back(layer_name(l));
    hidden.values.push_back(l.hidden_error);
    if (l.ratio < 0) continue;
    attention.values.push_back(l.attention_error);
    experts.values.push_back(l.experts_error);
    self.x_names.push_back(layer_name(l));
    cache.values.push_back(l.cache_error);
    one_token.values.push_back(l.one_token_error);
  }
  for (const AccuracyCheck& c : r.checks) {
    if (c.name == "layer error") {
      errors.bound = c.bound;
      errors.bound_name = "bound of streams";
    } else if (c.name == "cache round trip") {
      self.bound = c.bound;
      self.bound_name = "bound of cache";
    }
  }
  errors.series = {hidden, attention, experts};
  self.series = {cache, one_token};
  return to_svg({errors, self});
}

}  // namespace dsv4

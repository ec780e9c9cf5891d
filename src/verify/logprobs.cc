#include "verify/logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "engine/sampler.h"

namespace dsv4 {
namespace {

// KL of q from p over p's listed tokens and one event for all others. A token that q does not list has at most q's least listed
// probability; that bound is used, so the result is a lower bound of the true divergence over these events.
double kl_of_tops(const LogprobRowRecord& p, const LogprobRowRecord& q) {
  const double floor = q.top.empty() ? 0 : q.top.back().logprob;
  double kl = 0, p_sum = 0, q_sum = 0;
  for (const TokenLogprob& t : p.top) {
    const auto found = std::find_if(q.top.begin(), q.top.end(), [&](const TokenLogprob& o) { return o.token == t.token; });
    const double log_q = found != q.top.end() ? found->logprob : floor, prob = std::exp(static_cast<double>(t.logprob));
    kl += prob * (t.logprob - log_q);
    p_sum += prob;
    q_sum += std::exp(log_q);
  }
  const double p_rest = std::max(0.0, 1 - p_sum), q_rest = std::max(1e-12, 1 - q_sum);
  if (p_rest > 0) kl += p_rest * std::log(std::max(p_rest, 1e-300) / q_rest);
  return kl < 0 ? 0 : kl;  // a NaN stays one
}

double logprob_of(const LogprobRowRecord& row, int32_t token) {
  double sum = 0;
  for (const TokenLogprob& t : row.top) {
    if (t.token == token) return t.logprob;
    sum += std::exp(static_cast<double>(t.logprob));
  }
  return std::log(std::max(1e-12, 1 - sum));
}

int32_t best_of(const LogprobRowRecord& row) { return row.top.empty() ? -1 : row.top[0].token; }

}  // namespace

Result<LogprobRecord> record_logprobs(Engine& engine, std::vector<int32_t> tokens, const std::string& configuration, int64_t num_positions) {
  if (tokens.size() < 2) return invalid_argument("logprobs: the text has " + std::to_string(tokens.size()) + " tokens, at least 2 are needed");
  LogprobRecord record;
  record.model = engine.checkpoint().model();
  record.identity = engine.checkpoint().identity();
  record.manifest = make_manifest(engine, "verify logprobs");
  record.configuration = configuration;
  record.device = engine.device().info().backend + ", " + engine.device().info().name;
  const int64_t predictions = static_cast<int64_t>(tokens.size()) - 1, first = std::max<int64_t>(0, predictions - num_positions);
  DSV4_RETURN_IF_ERROR(prefill_logits(engine, tokens, [&](int64_t position, std::span<const float> row) {
    if (position >= first && position < predictions) record.rows.push_back({logprobs_of(row, 0, kLogprobTop).top});
  }));
  record.tokens = std::move(tokens);
  return record;
}

std::string to_json(const LogprobRecord& record) {
  Json rows = Json::array();
  for (const LogprobRowRecord& row : record.rows) {
    Json top = Json::array();
    for (const TokenLogprob& t : row.top) top.push_back({t.token, t.logprob});
    rows.push_back(std::move(top));
  }
  return Json{{"kind", "dsv4-logprobs"},     {"model", record.model},
              {"identity", record.identity}, {"configuration", record.configuration},
              {"device", record.device},     {"manifest", to_json_value(record.manifest)},
              {"tokens", record.tokens},     {"rows", std::move(rows)}}
             .dump() +
         "\n";
}

Result<LogprobRecord> parse_logprobs(std::string_view json_text, const std::string& name) {
  DSV4_ASSIGN_OR_RETURN(const Json json, parse_json(json_text, name));
  const auto wrong = [&](const char* what) { return invalid_data(name + ": not a logprobs record: " + what); };
  if (!json.is_object() || !json.contains("kind") || json["kind"] != "dsv4-logprobs") return wrong("\"kind\" is not \"dsv4-logprobs\"");
  LogprobRecord record;
  for (const auto& [key, field] : {std::pair{"model", &record.model}, std::pair{"identity", &record.identity},
                                   std::pair{"configuration", &record.configuration}, std::pair{"device", &record.device}}) {
    if (!json.contains(key) || !json[key].is_string()) return wrong("a name is missing");
    *field = json[key].get<std::string>();
  }
  if (json.contains("manifest")) {
    DSV4_ASSIGN_OR_RETURN(record.manifest, manifest_from_json(json["manifest"], name));
  }
  if (!json.contains("tokens") || !json["tokens"].is_array() || !json.contains("rows") || !json["rows"].is_array()) return wrong("tokens or rows are missing");
  for (const Json& t : json["tokens"]) {
    if (!t.is_number_integer()) return wrong("a token is no integer");
    record.tokens.push_back(t.get<int32_t>());
  }
  for (const Json& row : json["rows"]) {
    LogprobRowRecord parsed;
    if (!row.is_array() || row.empty()) return wrong("a row is no array of entries");
    for (const Json& entry : row) {
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_number_integer() || !entry[1].is_number()) return wrong("an entry is not [token, logprob]");
      parsed.top.push_back({entry[0].get<int32_t>(), entry[1].get<float>()});
    }
    record.rows.push_back(std::move(parsed));
  }
  if (record.rows.size() + 1 > record.tokens.size()) return wrong("more rows than the text has predictions");
  return record;
}

Result<LogprobComparison> compare_logprobs(const LogprobRecord& a, const LogprobRecord& b, const LogprobBounds& bounds) {
  if (a.tokens != b.tokens || a.rows.size() != b.rows.size())
    return invalid_argument("logprobs: the two records are of different texts or positions, they cannot be compared");
  LogprobComparison c;
  c.positions = static_cast<int64_t>(a.rows.size());
  double nll_a = 0, nll_b = 0;
  for (size_t i = 0; i < a.rows.size(); ++i) {
    const size_t predicted = a.tokens.size() - a.rows.size() + i;
    if (best_of(a.rows[i]) == best_of(b.rows[i])) ++c.agree;
    const double kl = kl_of_tops(a.rows[i], b.rows[i]);
    c.mean_kl += kl / static_cast<double>(a.rows.size());
    if (c.worst_position < 0 || !(kl <= c.worst_kl)) {
      c.worst_kl = kl;
      c.worst_position = static_cast<int64_t>(predicted);
      c.worst_a = best_of(a.rows[i]);
      c.worst_b = best_of(b.rows[i]);
    }
    nll_a -= logprob_of(a.rows[i], a.tokens[predicted]);
    nll_b -= logprob_of(b.rows[i], a.tokens[predicted]);
  }
  const double n = static_cast<double>(std::max<size_t>(1, a.rows.size()));
  c.perplexity_a = std::exp(nll_a / n);
  c.perplexity_b = std::exp(nll_b / n);
  c.passed = c.positions > 0 && c.agreement() >= bounds.agreement && c.mean_kl <= bounds.mean_kl;
  return c;
}

std::string to_text(const LogprobComparison& c, const LogprobRecord& a, const LogprobRecord& b, const LogprobBounds& bounds) {
  std::string out =
      fmt::format("A: {} ({}) {} on {}\nB: {} ({}) {} on {}\n", a.model, a.identity, a.configuration, a.device, b.model, b.identity, b.configuration, b.device);
  out += fmt::format("greedy agreement  {}/{} = {:.1f} %  (at least {:.1f} %)\n", c.agree, c.positions, 100 * c.agreement(), 100 * bounds.agreement);
  out += fmt::format("KL divergence     mean {:.3g}, worst {:.3g} nats  (mean at most {:g})\n", c.mean_kl, c.worst_kl, bounds.mean_kl);
  out += fmt::format("worst position    token {} of the text: A's best is {}, B's {}\n", c.worst_position, c.worst_a, c.worst_b);
  out += fmt::format("perplexity        A {:.4f}, B {:.4f}\n", c.perplexity_a, c.perplexity_b);
  return out + (c.passed ? "PASSED\n" : "FAILED\n");
}

std::string to_json(const LogprobComparison& c, const LogprobRecord& a, const LogprobRecord& b) {
  const auto side = [](const LogprobRecord& r) {
    return Json{
        {"model", r.model}, {"identity", r.identity}, {"configuration", r.configuration}, {"device", r.device}, {"manifest", to_json_value(r.manifest)}};
  };
  return Json{{"a", side(a)},
              {"b", side(b)},
              {"positions", c.positions},
              {"agree", c.agree},
              {"agreement", c.agreement()},
              {"mean_kl", c.mean_kl},
              {"worst_kl", c.worst_kl},
              {"worst_position", c.worst_position},
              {"worst_a", c.worst_a},
              {"worst_b", c.worst_b},
              {"perplexity_a", c.perplexity_a},
              {"perplexity_b", c.perplexity_b},
              {"passed", c.passed}}
             .dump(1) +
         "\n";
}

}  // namespace dsv4

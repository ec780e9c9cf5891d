#include "server/load/load_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "server/json_text.h"

namespace dsv4 {
namespace {

bool completed(const LoadResult& r) { return r.finish == "length" || r.finish == "stop"; }

double per_token(const LoadResult& r) {
  return (r.chunk_seconds.back() - r.chunk_seconds.front()) / static_cast<double>(std::max<int64_t>(1, r.answer_tokens - 1));
}

std::vector<double> gaps_of(const LoadResult& r) {
  std::vector<double> out;
  for (size_t i = 1; i < r.chunk_seconds.size(); ++i) out.push_back(r.chunk_seconds[i] - r.chunk_seconds[i - 1]);
  return out;
}

Json quantiles_json(const Quantiles& q) { return {{"p50", q.p50}, {"p95", q.p95}, {"p99", q.p99}, {"max", q.max}, {"count", q.count}}; }

Json mix_json(const LengthMix& mix) {
  Json out = Json::array();
  for (const LengthMix::Part& p : mix.parts) out.push_back({{"low", p.low}, {"high", p.high}, {"share", p.share}});
  return out;
}

}  // namespace

Quantiles quantiles_of(std::vector<double> values) {
  Quantiles out;
  out.count = values.size();
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  // The smallest value that at least the share of all values does not exceed.
  const auto at = [&](double share) { return values[static_cast<size_t>(std::max(0.0, std::ceil(share * static_cast<double>(values.size())) - 1))]; };
  out.p50 = at(0.50);
  out.p95 = at(0.95);
  out.p99 = at(0.99);
  out.max = values.back();
  return out;
}

LoadSummary summarize(const std::vector<LoadResult>& results, const LoadGoals& goals) {
  LoadSummary out;
  out.requests = results.size();
  std::vector<double> first, each, gaps, whole;
  double begin = 1e300, end = 0;
  int64_t prompt_tokens = 0, answer_tokens = 0;
  for (const LoadResult& r : results) {
    begin = std::min(begin, r.sent_seconds);
    end = std::max(end, r.sent_seconds + r.end_seconds);
    out.cancelled += r.finish == "cancelled";
    if (r.finish == "error") {
      ++out.failed;
      const std::string text = fmt::format("{}: {}", r.status, r.error);
      if (out.errors.size() < 10 && std::find(out.errors.begin(), out.errors.end(), text) == out.errors.end()) out.errors.push_back(text);
    }
    if (!completed(r)) continue;
    ++out.completed;
    prompt_tokens += r.prompt_tokens;
    answer_tokens += r.answer_tokens;
    out.cached_tokens += r.cached_tokens;
    whole.push_back(r.end_seconds);
    if (r.chunk_seconds.empty()) continue;
    first.push_back(r.chunk_seconds.front());
    bool good = goals.first_token_seconds <= 0 || r.chunk_seconds.front() <= goals.first_token_seconds;
    if (r.answer_tokens > 1) {
      each.push_back(per_token(r));
      good &= goals.per_token_seconds <= 0 || each.back() <= goals.per_token_seconds;
    }
    out.good += good;
    for (const double gap : gaps_of(r)) gaps.push_back(gap);
  }
  out.seconds = results.empty() ? 0 : end - begin;
  if (out.seconds > 0) {
    out.prompt_tokens_per_second = static_cast<double>(prompt_tokens) / out.seconds;
    out.answer_tokens_per_second = static_cast<double>(answer_tokens) / out.seconds;
    out.requests_per_second = static_cast<double>(out.completed) / out.seconds;
    out.good_per_second = static_cast<double>(out.good) / out.seconds;
  }
  out.first_token = quantiles_of(std::move(first));
  out.per_token = quantiles_of(std::move(each));
  out.gap = quantiles_of(std::move(gaps));
  out.request = quantiles_of(std::move(whole));
  return out;
}

std::string report_json(const LoadSummary& s, const LoadOptions& o, const LoadTarget& target, const ServerFacts& facts) {
  Json out;
  out["what"] = "dsv4 bench serve";
  out["url"] = target.url;
  out["model"] = facts.model;
  out["load"] = {{"loop", o.rate > 0 ? "open" : "closed"},
                 {"requests", o.num_requests},
                 {"concurrency", o.concurrency},
                 {"rate", o.rate},
                 {"prompt_tokens", mix_json(o.prompt_tokens)},
                 {"answer_tokens", mix_json(o.answer_tokens)},
                 {"shared_prefix_tokens", o.shared_prefix_tokens},
                 {"cancel_share", o.cancel_share},
                 {"seed", o.seed}};
  out["requests"] = {{"completed", s.completed}, {"cancelled", s.cancelled}, {"failed", s.failed}, {"good", s.good}};
  out["seconds"] = s.seconds;
  out["per_second"] = {{"prompt_tokens", s.prompt_tokens_per_second},
                       {"answer_tokens", s.answer_tokens_per_second},
                       {"requests", s.requests_per_second},
                       {"good_requests", s.good_per_second}};
  out["cached_tokens"] = s.cached_tokens;
  out["first_token_seconds"] = quantiles_json(s.first_token);
  out["per_token_seconds"] = quantiles_json(s.per_token);
  out["gap_seconds"] = quantiles_json(s.gap);
  out["request_seconds"] = quantiles_json(s.request);
  out["errors"] = s.errors;
  return out.dump(1) + "\n";
}

std::string report_text(const LoadSummary& s) {
  std::string out = fmt::format(
      "{} requests in {:.2f} s: {} completed, {} cancelled, {} failed; {:.1f} answer tokens/s, {:.1f} prompt tokens/s, {:.2f} requests/s, {:.2f} good/s\n",
      s.requests, s.seconds, s.completed, s.cancelled, s.failed, s.answer_tokens_per_second, s.prompt_tokens_per_second, s.requests_per_second,
      s.good_per_second);
  out += fmt::format("{:<24}{:>10}{:>10}{:>10}{:>10}\n", "milliseconds", "p50", "p95", "p99", "max");
  const auto row = [&](const char* name, const Quantiles& q) {
    out += fmt::format("{:<24}{:>10.1f}{:>10.1f}{:>10.1f}{:>10.1f}\n", name, q.p50 * 1e3, q.p95 * 1e3, q.p99 * 1e3, q.max * 1e3);
  };
  row("to the first token", s.first_token);
  row("per token after it", s.per_token);
  row("between two tokens", s.gap);
  row("whole request", s.request);
  for (const std::string& error : s.errors) out += "error: " + error + "\n";
  return out;
}

std::string report_svg(const std::vector<LoadResult>& results) {
  struct Curve {
    const char* name;
    const char* colour;
    std::vector<double> values;
  };
  Curve curves[] = {{"to the first token", "#2357c5", {}}, {"between two tokens", "#b3261e", {}}, {"whole request", "#2e7d32", {}}};
  for (const LoadResult& r : results) {
    if (!completed(r)) continue;
    if (!r.chunk_seconds.empty()) curves[0].values.push_back(r.chunk_seconds.front());
    for (const double gap : gaps_of(r)) curves[1].values.push_back(gap);
    curves[2].values.push_back(r.end_seconds);
  }
  double low = 1e300, high = 0;
  for (Curve& c : curves) {
    std::sort(c.values.begin(), c.values.end());
    for (double& v : c.values) v = std::max(v, 1e-5);
    if (!c.values.empty()) {
      low = std::min(low, c.values.front());
      high = std::max(high, c.values.back());
    }
  }
  if (high == 0) low = high = 1;
  const double from = std::floor(std::log10(low)), to = std::max(from + 1, std::ceil(std::log10(high)));
  constexpr double kLeft = 50, kTop = 20, kWidth = 620, kHeight = 300;
  const auto x = [&](double v) { return kLeft + kWidth * (std::log10(v) - from) / (to - from); };
  const auto y = [&](double share) { return kTop + kHeight * (1 - share); };
  std::string out =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 700 400\" font-family=\"sans-serif\" font-size=\"12\"><rect width=\"700\" height=\"400\" fill=\"white\"/>\n";
  for (double e = from; e <= to; ++e) {
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#ddd\"/><text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:g} s</text>\n",
        x(std::pow(10, e)), kTop, kTop + kHeight, kTop + kHeight + 18, std::pow(10, e));
  }
  for (const double share : {0.0, 0.5, 0.95, 1.0}) {
    out += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:g} %</text>\n",
                       kLeft, kLeft + kWidth, y(share), y(share), kLeft - 6, y(share) + 4, share * 100);
  }
  double legend = kLeft;
  for (const Curve& c : curves) {
    if (c.values.empty()) continue;
    out += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"", c.colour);
    const size_t n = c.values.size(), step = std::max<size_t>(1, n / 500);
    for (size_t i = 0; i < n; i += step) out += fmt::format("{:.1f},{:.1f} ", x(c.values[i]), y(static_cast<double>(i + 1) / static_cast<double>(n)));
    out += fmt::format("{:.1f},{:.1f}\"/><text x=\"{}\" y=\"380\" fill=\"{}\">{}</text>\n", x(c.values.back()), y(1), legend, c.colour, c.name);
    legend += 200;
  }
  return out + "</svg>\n";
}

}  // namespace dsv4

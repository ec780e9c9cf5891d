// A roofline run as text and JSON, back from JSON, and two of them compared.
#include <fmt/format.h>

#include "base/json.h"
#include "bench/roofline.h"

namespace dsv4 {
namespace {

double share(const Peaks& peaks, const OpCost& cost, double seconds) { return seconds > 0 ? peaks.floor_seconds(cost) / seconds : 0; }
double share(const StepTiming& t) { return share(t.peaks, t.cost(), t.median); }

Json peaks_json(const Peaks& p) { return {{"read_bytes_per_second", p.bytes_per_second}, {"flops_per_second", p.flops_per_second}}; }

bool read_peaks(const Json& json, const char* key, Peaks* out) {
  if (!json.contains(key) || !json[key].is_object()) return false;
  const Json& p = json[key];
  const auto positive = [&](const char* name, double* value) {
    if (!p.contains(name) || !p[name].is_number()) return false;
    *value = p[name].get<double>();
    return *value > 0;
  };
  return positive("read_bytes_per_second", &out->bytes_per_second) && positive("flops_per_second", &out->flops_per_second);
}

}  // namespace

std::string to_text(const RooflineReport& r) {
  std::string out;
  if (r.reference_error >= 0) out += fmt::format("logits against the reference backend: relative error {:.2e}\n", r.reference_error);
  out += fmt::format("\n{:<18} {:>9} {:>9} {:>9} {:>10} {:>8} {:>6} {:>9} {:>6} {:>9} {:>8} {:>9}\n", "step", "min ms", "median", "max ms", "tok/s", "GB/s",
                     "% bw", "GFLOP/s", "% fma", "% floor", "bw peak", "fma peak");
  for (const StepTiming& t : r.timings) {
    const OpCost cost = t.cost();
    const double bytes = static_cast<double>(cost.bytes) / t.median, flops = static_cast<double>(cost.flops) / t.median;
    out += fmt::format("{:<18} {:>9.3f} {:>9.3f} {:>9.3f} {:>10.1f} {:>8.2f} {:>5.0f}% {:>9.1f} {:>5.0f}% {:>8.0f}% {:>8.2f} {:>9.1f}\n", t.shape.name(),
                       1e3 * t.min, 1e3 * t.median, 1e3 * t.max, t.tokens_per_second(), 1e-9 * bytes, 100 * bytes / t.peaks.bytes_per_second, 1e-9 * flops,
                       100 * flops / t.peaks.flops_per_second, 100 * share(t), 1e-9 * t.peaks.bytes_per_second, 1e-9 * t.peaks.flops_per_second);
  }
  for (const RooflineReport::BatchGain& g : r.batch_gains()) {
    out += fmt::format("{} sequences against one at {} tokens: {:.2f} times the tokens a second, {:.2f} without the extra experts' bytes; roofline {:.2f}\n",
                       g.sequences, g.context, g.plain, g.without_extra_experts, g.roofline);
  }
  for (const StepTiming& t : r.timings) {
    out += fmt::format("\n{:<22} {:>6} {:>10} {:>6} {:>8} {:>6} {:>9} {:>6}\n", t.shape.name(), "calls", "us", "share", "GB/s", "% bw", "GFLOP/s", "% fma");
    double all = 0;
    for (const StepOp& op : t.ops) all += op.seconds;
    for (const StepOp& op : t.ops) {
      const double bytes = static_cast<double>(op.bytes) / op.seconds, flops = static_cast<double>(op.flops) / op.seconds;
      out += fmt::format("  {:<20} {:>6} {:>10.1f} {:>5.1f}% {:>8.2f} {:>5.0f}% {:>9.1f} {:>5.0f}%\n", op.op, op.calls, 1e6 * op.seconds,
                         100 * op.seconds / all, 1e-9 * bytes, 100 * bytes / t.peaks.bytes_per_second, 1e-9 * flops, 100 * flops / t.peaks.flops_per_second);
    }
  }
  return out;
}

std::string to_json(const RooflineReport& r) {
  Json timings = Json::array();
  for (const StepTiming& t : r.timings) {
    Json ops = Json::array();
    for (const StepOp& op : t.ops) ops.push_back({{"op", op.op}, {"calls", op.calls}, {"seconds", op.seconds}, {"bytes", op.bytes}, {"flops", op.flops}});
    timings.push_back({{"kind", t.shape.kind},
                       {"sequences", t.shape.sequences},
                       {"context", t.shape.context},
                       {"rows", t.shape.rows},
                       {"steps", t.steps},
                       {"min_seconds", t.min},
                       {"median_seconds", t.median},
                       {"max_seconds", t.max},
                       {"tokens_per_second", t.tokens_per_second()},
                       {"share_of_floor", share(t)},
                       {"peaks", peaks_json(t.peaks)},
                       {"ops", std::move(ops)}});
  }
  Json gains = Json::array();
  for (const RooflineReport::BatchGain& g : r.batch_gains()) {
    gains.push_back(
        {{"sequences", g.sequences}, {"context", g.context}, {"plain", g.plain}, {"without_extra_experts", g.without_extra_experts}, {"roofline", g.roofline}});
  }
  return Json{{"kind", "dsv4-roofline"},
              {"manifest", to_json_value(r.manifest)},
              {"reference_error", r.reference_error},
              {"timings", std::move(timings)},
              {"batch_gains", std::move(gains)}}
             .dump(1, ' ', false, Json::error_handler_t::replace) +
         "\n";
}

Result<RooflineReport> parse_roofline(std::string_view json_text, const std::string& name) {
  DSV4_ASSIGN_OR_RETURN(const Json json, parse_json(json_text, name));
  const auto wrong = [&](const std::string& what) { return invalid_data(name + ": not a roofline run: " + what); };
  if (!json.is_object() || !json.contains("kind") || json["kind"] != "dsv4-roofline") return wrong("\"kind\" is not \"dsv4-roofline\"");
  if (!json.contains("manifest")) return wrong("\"manifest\" is missing");
  RooflineReport report;
  DSV4_ASSIGN_OR_RETURN(report.manifest, manifest_from_json(json["manifest"], name));
  if (!json.contains("timings") || !json["timings"].is_array()) return wrong("\"timings\" is missing");
  try {
    for (const Json& entry : json["timings"]) {
      StepTiming t;
      t.shape = {entry.at("kind").get<std::string>(), entry.at("sequences").get<int64_t>(), entry.at("context").get<int64_t>(),
                 entry.at("rows").get<int64_t>()};
      if (!read_peaks(entry, "peaks", &t.peaks)) return wrong("the peaks of " + t.shape.name() + " are missing or not positive");
      t.steps = entry.at("steps").get<int64_t>();
      t.min = entry.at("min_seconds").get<double>();
      t.median = entry.at("median_seconds").get<double>();
      t.max = entry.at("max_seconds").get<double>();
      for (const Json& op : entry.at("ops")) {
        t.ops.push_back({op.at("op").get<std::string>(), op.at("calls").get<int64_t>(), op.at("seconds").get<double>(), op.at("bytes").get<int64_t>(),
                         op.at("flops").get<int64_t>()});
      }
      report.timings.push_back(std::move(t));
    }
  } catch (const Json::exception& error) {
    return wrong(error.what());
  }
  return report;
}

Result<std::string> compare_rooflines(const RooflineReport& a, const RooflineReport& b, const std::vector<std::string>& vary, double tolerance) {
  const std::vector<std::string> differences = identity_differences(a.manifest, b.manifest, vary);
  if (!differences.empty()) {
    std::string message = "compare: the runs have different identities, so their numbers are of different things (--vary names what is meant to differ):";
    for (const std::string& d : differences) message += "\n  " + d;
    return invalid_argument(message);
  }
  if (a.timings.size() != b.timings.size()) return invalid_argument(fmt::format("compare: {} shapes against {}", a.timings.size(), b.timings.size()));
  std::string out = fmt::format("{:<24} {:>9} {:>9} {:>9}\n", "share of the floor", "A", "B", "ratio");
  bool fell = false, rose = false;
  for (size_t i = 0; i < a.timings.size(); ++i) {
    const StepTiming &x = a.timings[i], &y = b.timings[i];
    if (x.shape.name() != y.shape.name()) return invalid_argument("compare: " + x.shape.name() + " against " + y.shape.name());
    const double sx = share(x), sy = share(y);
    if (!(sx > 0) || !(sy > 0)) return invalid_argument("compare: " + x.shape.name() + " has no speed");
    fell |= sy / sx < 1 - tolerance;
    rose |= sy / sx > 1 + tolerance;
    out += fmt::format("{:<24} {:>8.1f}% {:>8.1f}% {:>9.3f}\n", x.shape.name(), 100 * sx, 100 * sy, sy / sx);
    for (const StepOp& p : x.ops) {
      for (const StepOp& q : y.ops) {
        const double sp = share(x.peaks, {p.bytes, p.flops}, p.seconds), sq = share(y.peaks, {q.bytes, q.flops}, q.seconds);
        if (p.op == q.op && sp > 0) out += fmt::format("  {:<22} {:>8.1f}% {:>8.1f}% {:>9.3f}\n", p.op, 100 * sp, 100 * sq, sq / sp);
      }
    }
  }
  return out + (fell ? "reject\n" : rose ? "promote\n" : "undecided\n");
}

}  // namespace dsv4

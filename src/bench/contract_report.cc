// A contract run as text and JSON, back from JSON, and two of them compared.
#include <fmt/format.h>

#include "base/json.h"
#include "bench/contract.h"
#include "bench/statistics.h"

namespace dsv4 {

std::string to_text(const ContractRow& r) {
  return fmt::format("{:<9} prompt {:>2}: {} -> {} tokens, first after {:8.2f} ms, then {:9.2f} tok/s", r.kind, r.prompt, r.prompt_tokens, r.new_tokens,
                     1e3 * r.first_token_seconds, r.tokens_per_second());
}

std::string to_text(const ContractReport& r) {
  std::string out;
  if (r.is_void()) {
    out += "VOID: these are not numbers\n";
    for (const std::string& reason : r.void_reasons) out += "  " + reason + "\n";
  }
  if (!r.rows.empty())
    out += fmt::format("headline   {:.2f} tok/s (row 0; first token after {:.2f} ms)\n", r.rows[0].tokens_per_second(), 1e3 * r.rows[0].first_token_seconds);
  const std::vector<double> speeds = r.suite_speeds();
  if (!speeds.empty()) out += fmt::format("suite      median {:.2f}, p10 {:.2f} tok/s over {} prompts\n", r.median(), r.p10(), speeds.size());
  out += "canaries   " + r.canary + "\n";
  for (const auto& [name, value] : r.manifest.fields) out += fmt::format("  {:<26} {}\n", name, value);
  return out;
}

std::string to_json(const ContractReport& r) {
  Json rows = Json::array();
  for (const ContractRow& row : r.rows) {
    rows.push_back({{"kind", row.kind},
                    {"prompt", row.prompt},
                    {"prompt_tokens", row.prompt_tokens},
                    {"new_tokens", row.new_tokens},
                    {"cached_tokens", row.cached_tokens},
                    {"first_token_seconds", row.first_token_seconds},
                    {"decode_seconds", row.decode_seconds},
                    {"total_seconds", row.total_seconds},
                    {"tokens_per_second", row.tokens_per_second()},
                    {"finish", row.finish},
                    {"tokens", row.tokens}});
  }
  Json out = {
      {"kind", "dsv4-contract"}, {"manifest", to_json_value(r.manifest)}, {"void", r.is_void()}, {"void_reasons", r.void_reasons}, {"canary", r.canary}};
  if (!r.rows.empty()) {
    out["headline_tokens_per_second"] = r.rows[0].tokens_per_second();
    out["suite_median"] = r.median();
    out["suite_p10"] = r.p10();
  }
  out["rows"] = std::move(rows);
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<ContractReport> parse_contract(std::string_view json_text, const std::string& name) {
  DSV4_ASSIGN_OR_RETURN(const Json json, parse_json(json_text, name));
  const auto wrong = [&](const std::string& what) { return invalid_data(name + ": not a contract run: " + what); };
  if (!json.is_object() || !json.contains("kind") || json["kind"] != "dsv4-contract") return wrong("\"kind\" is not \"dsv4-contract\"");
  ContractReport report;
  if (!json.contains("manifest")) return wrong("\"manifest\" is missing");
  DSV4_ASSIGN_OR_RETURN(report.manifest, manifest_from_json(json["manifest"], name));
  if (!json.contains("rows") || !json["rows"].is_array()) return wrong("\"rows\" is missing");
  for (const Json& entry : json["rows"]) {
    ContractRow row;
    if (!entry.is_object()) return wrong("a row is no object");
    const auto text = [&](const char* key, std::string* out) {
      if (!entry.contains(key) || !entry[key].is_string()) return false;
      *out = entry[key].get<std::string>();
      return true;
    };
    const auto number = [&](const char* key, auto* out) {
      if (!entry.contains(key) || !entry[key].is_number()) return false;
      *out = entry[key].get<std::remove_pointer_t<decltype(out)>>();
      return true;
    };
    if (!text("kind", &row.kind) || !text("finish", &row.finish) || !number("prompt", &row.prompt) || !number("prompt_tokens", &row.prompt_tokens) ||
        !number("new_tokens", &row.new_tokens) || !number("cached_tokens", &row.cached_tokens) || !number("first_token_seconds", &row.first_token_seconds) ||
        !number("decode_seconds", &row.decode_seconds) || !number("total_seconds", &row.total_seconds)) {
      return wrong("a row lacks a member");
    }
    report.rows.push_back(std::move(row));
  }
  if (json.contains("void_reasons") && json["void_reasons"].is_array()) {
    for (const Json& reason : json["void_reasons"]) report.void_reasons.push_back(reason.is_string() ? reason.get<std::string>() : reason.dump());
  }
  if (json.contains("canary") && json["canary"].is_string()) report.canary = json["canary"].get<std::string>();
  return report;
}

Result<std::string> compare_contracts(const ContractReport& a, const ContractReport& b, const std::vector<std::string>& vary) {
  for (const auto& [side, report] : {std::pair{"A", &a}, std::pair{"B", &b}}) {
    if (report->is_void()) return invalid_argument(std::string("compare: ") + side + " is void: " + report->void_reasons[0]);
  }
  const std::vector<std::string> differences = identity_differences(a.manifest, b.manifest, vary);
  if (!differences.empty()) {
    std::string message = "compare: the runs have different identities, so their numbers are of different things (--vary names what is meant to differ):";
    for (const std::string& d : differences) message += "\n  " + d;
    return invalid_argument(message);
  }
  const std::vector<double> x = a.suite_speeds(), y = b.suite_speeds();
  if (x.size() != y.size() || x.size() < 2) return invalid_argument(fmt::format("compare: {} rows against {}", x.size(), y.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    if (!(x[i] > 0) || !(y[i] > 0)) return invalid_argument(fmt::format("compare: row {} has no speed", i));
  }
  const RatioInterval ratio = paired_bootstrap(x, y);
  std::string out = fmt::format("{:<10} {:>12} {:>12}\n{:<10} {:>12.2f} {:>12.2f}\n{:<10} {:>12.2f} {:>12.2f}\n{:<10} {:>12.2f} {:>12.2f}\n", "tok/s", "A", "B",
                                "headline", x[0], y[0], "median", a.median(), b.median(), "p10", a.p10(), b.p10());
  out += fmt::format("ratio B/A  {:.4f}, 95 % interval {:.4f} to {:.4f} (paired bootstrap over {} prompts)\n", ratio.ratio, ratio.low, ratio.high, x.size());
  return out + verdict_of(ratio) + "\n";
}

}  // namespace dsv4

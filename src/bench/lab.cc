#include "bench/lab.h"

#include <fmt/format.h>
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <algorithm>
#include <chrono>

#include "base/file.h"
#include "base/json.h"
#include "bench/contract.h"
#include "verify/canary.h"
#include "verify/numbers.h"
#include "verify/runs.h"

namespace dsv4 {
namespace {

constexpr const char* kSettings[] = {"arithmetic", "cache", "graph", "chunk", "context", "backend", "threads", "isa"};

// Any scalar as the text the command line would have.
std::optional<std::string> scalar_text(const toml::node& node) {
  if (const auto s = node.value_exact<std::string>()) return *s;
  if (const auto i = node.value_exact<int64_t>()) return std::to_string(*i);
  if (const auto b = node.value_exact<bool>()) return *b ? "true" : "false";
  return std::nullopt;
}

Status read_settings(const toml::table& table, const std::string& where, LabSettings* out) {
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (std::find(std::begin(kSettings), std::end(kSettings), name) == std::end(kSettings)) return invalid_data(where + ": unknown setting \"" + name + "\"");
    const auto text = scalar_text(node);
    if (!text) return invalid_data(where + "." + name + " must be a text, an integer or a boolean");
    (*out)[name] = *text;
  }
  return ok_status();
}

// tok/s after the first token.
Result<double> speed_of(Engine& engine, const std::vector<int32_t>& prompt, int64_t new_tokens) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point first, last;
  int64_t tokens = 0;
  Status error;
  bool ended = false;
  Request request = greedy_request(prompt, new_tokens);
  request.ignore_eos = true;
  DSV4_RETURN_IF_ERROR(engine
                           .submit(std::move(request),
                                   [&](const TokenOutput& o) {
                                     if (o.token >= 0) {
                                       last = Clock::now();
                                       if (tokens++ == 0) first = last;
                                     }
                                     ended |= o.finish != FinishReason::kNone;
                                     error = o.error;
                                   })
                           .status());
  while (!ended) DSV4_RETURN_IF_ERROR(engine.step());
  DSV4_RETURN_IF_ERROR(error);
  return static_cast<double>(tokens - 1) / std::chrono::duration<double>(last - first).count();
}

Result<std::string> canary_gate(Engine& engine, const char* side) {
  const auto file = engine.tokenizer() == nullptr ? Result<CanaryFile>(not_found("no tokenizer")) : load_model_canaries(engine.checkpoint().directory());
  if (file.status().code() == StatusCode::kNotFound) return std::string();
  DSV4_RETURN_IF_ERROR(file.status());
  DSV4_ASSIGN_OR_RETURN(const CanaryReport report, run_canaries(engine, *file));
  for (const CanaryLine& line : report.lines) {
    if (!line.passed) return fmt::format("canary {} of {}: {}", line.canary, side, line.fault);
  }
  return std::string();
}

// The gates in their order; sets outcome->gate at the first that fails.
Status run_gates(Engine& a, Engine& b, const std::vector<std::vector<int32_t>>& prompts, LabOutcome* outcome) {
  DSV4_ASSIGN_OR_RETURN(outcome->gate, canary_gate(a, "A"));
  if (!outcome->gate.empty()) return ok_status();
  DSV4_ASSIGN_OR_RETURN(outcome->gate, canary_gate(b, "B"));
  if (!outcome->gate.empty()) return ok_status();
  std::vector<int32_t> text;
  for (size_t i = 0; i < prompts.size() && text.size() < static_cast<size_t>(kLogprobPositions) + 1; ++i)
    text.insert(text.end(), prompts[i].begin(), prompts[i].end());
  DSV4_ASSIGN_OR_RETURN(const LogprobRecord x, record_logprobs(a, text, "A"));
  DSV4_ASSIGN_OR_RETURN(const LogprobRecord y, record_logprobs(b, text, "B"));
  const LogprobBounds bounds{outcome->experiment.min_agreement, outcome->experiment.max_kl};
  DSV4_ASSIGN_OR_RETURN(outcome->logprobs, compare_logprobs(x, y, bounds));
  if (!outcome->logprobs.passed) {
    outcome->gate =
        fmt::format("logprobs: {} of {} positions agree, mean KL {:.3g}", outcome->logprobs.agree, outcome->logprobs.positions, outcome->logprobs.mean_kl);
  }
  return ok_status();
}

}  // namespace

Result<Experiment> parse_experiment(std::string_view toml_text, const std::string& name) {
  const toml::parse_result parsed = toml::parse(toml_text);
  if (!parsed) return invalid_data(fmt::format("{}: line {}: {}", name, parsed.error().source().begin.line, std::string(parsed.error().description())));
  const toml::table& table = parsed.table();
  Experiment e;
  for (const auto& [key, node] : table) {
    const std::string k(key.str());
    const std::string where = name + ": " + k;
    if (k == "name" || k == "change" || k == "hypothesis" || k == "model") {
      const auto text = node.value_exact<std::string>();
      if (!text) return invalid_data(where + " must be a text");
      (k == "name" ? e.name : k == "change" ? e.change : k == "hypothesis" ? e.hypothesis : e.model) = *text;
    } else if (k == "rounds" || k == "new_tokens") {
      const auto number = node.value_exact<int64_t>();
      const int64_t least = k == "rounds" ? 1 : 2;
      if (!number || *number < least || *number > 100000) return invalid_data(fmt::format("{} must be an integer from {} to 100000", where, least));
      (k == "rounds" ? e.rounds : e.new_tokens) = *number;
    } else if (k == "min_agreement" || k == "max_kl" || k == "min_gain") {
      const auto number = node.value<double>();
      if (!number || !(*number >= 0)) return invalid_data(where + " must be a number of at least 0");
      (k == "min_agreement" ? e.min_agreement : k == "max_kl" ? e.max_kl : e.min_gain) = *number;
    } else if (k == "a" || k == "b") {
      if (!node.is_table()) return invalid_data(where + " must be a table");
      DSV4_RETURN_IF_ERROR(read_settings(*node.as_table(), where, k == "a" ? &e.a : &e.b));
    } else {
      return invalid_data(name + ": unknown key \"" + k + "\"");
    }
  }
  if (e.name.empty() || e.change.empty()) return invalid_data(name + ": name and change are needed");
  if (e.name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != std::string::npos)
    return invalid_data(name + ": name may have letters, digits, dashes, dots");
  std::vector<std::string> differing;
  for (const char* key : kSettings) {
    const auto x = e.a.find(key), y = e.b.find(key);
    const std::string left = x == e.a.end() ? "" : x->second, right = y == e.b.end() ? "" : y->second;
    if (left != right) differing.push_back(key);
  }
  if (differing.size() != 1) return invalid_data(fmt::format("{}: [a] and [b] differ in {} settings, an experiment is one change", name, differing.size()));
  e.varied = differing[0];
  return e;
}

Result<LabOutcome> run_lab(const Experiment& experiment, const LabFactory& make_engine, const std::function<void(double a, double b)>& on_pair) {
  LabOutcome outcome;
  outcome.experiment = experiment;
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> a, make_engine(experiment.a));
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> b, make_engine(experiment.b));
  outcome.a = make_manifest(*a, "lab " + experiment.name);
  outcome.b = make_manifest(*b, "lab " + experiment.name);
  DSV4_ASSIGN_OR_RETURN(const auto prompts, contract_prompts(*a));
  DSV4_RETURN_IF_ERROR(run_gates(*a, *b, prompts, &outcome));
  if (!outcome.gate.empty()) {
    outcome.verdict = "gate failed";
    return outcome;
  }
  for (Engine* engine : {a.get(), b.get()}) DSV4_RETURN_IF_ERROR(speed_of(*engine, prompts.back(), 16).status());
  for (int64_t round = 0; round < experiment.rounds; ++round) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      double x = 0, y = 0;
      const bool b_first = (round + static_cast<int64_t>(i)) % 2 == 1;  // neither side always runs on what the other left warm
      for (const bool second : {false, true}) {
        if (second == b_first) {
          DSV4_ASSIGN_OR_RETURN(x, speed_of(*a, prompts[i], experiment.new_tokens));
        } else {
          DSV4_ASSIGN_OR_RETURN(y, speed_of(*b, prompts[i], experiment.new_tokens));
        }
      }
      if (on_pair) on_pair(x, y);
      outcome.speeds_a.push_back(x);
      outcome.speeds_b.push_back(y);
    }
  }
  outcome.ratio = paired_bootstrap(outcome.speeds_a, outcome.speeds_b);
  outcome.verdict = verdict_of(outcome.ratio, experiment.min_gain);
  return outcome;
}

std::string to_text(const LabOutcome& o) {
  const auto value_of = [&](const LabSettings& side) { return side.count(o.experiment.varied) > 0 ? side.at(o.experiment.varied) : std::string("default"); };
  std::string out = fmt::format("experiment {}: {}\n  varied: {} ({} -> {})\n", o.experiment.name, o.experiment.change, o.experiment.varied,
                                value_of(o.experiment.a), value_of(o.experiment.b));
  if (!o.gate.empty()) return out + "  gate failed: " + o.gate + "\n" + o.verdict + "\n";
  out += fmt::format("  gates: canaries, logprobs ({} of {} positions agree, mean KL {:.3g})\n", o.logprobs.agree, o.logprobs.positions, o.logprobs.mean_kl);
  out += fmt::format("  A median {:.2f} tok/s, p10 {:.2f}\n  B median {:.2f} tok/s, p10 {:.2f}\n", median(o.speeds_a), quantile(o.speeds_a, 0.1),
                     median(o.speeds_b), quantile(o.speeds_b, 0.1));
  return out + fmt::format("  ratio B/A {:.4f}, 95 % interval {:.4f} to {:.4f}, {} pairs\n{}\n", o.ratio.ratio, o.ratio.low, o.ratio.high, o.speeds_a.size(),
                           o.verdict);
}

std::string ledger_line(const LabOutcome& o) {
  Json line = {{"time", o.b.time},
               {"name", o.experiment.name},
               {"change", o.experiment.change},
               {"hypothesis", o.experiment.hypothesis},
               {"varied", o.experiment.varied}};
  line["a"] = o.experiment.a;
  line["b"] = o.experiment.b;
  for (const char* field : {"commit", "dirty", "backend", "device", "model_identity"}) {
    const std::string* value = o.b.find(field);
    line[field] = value == nullptr ? "" : *value;
  }
  line["model"] = o.b.model;
  line["gate"] = o.gate;
  if (o.gate.empty()) {
    line["median_a"] = median(o.speeds_a);
    line["median_b"] = median(o.speeds_b);
    line["ratio"] = o.ratio.ratio;
    line["low"] = o.ratio.low;
    line["high"] = o.ratio.high;
    line["pairs"] = o.speeds_a.size();
  }
  line["outcome"] = o.verdict;
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Status append_to_ledger(const std::string& path, const LabOutcome& outcome) {
  std::string text;
  if (auto old = read_file(path); old.ok()) {
    text = std::move(*old);
  } else if (old.status().code() != StatusCode::kNotFound) {
    return old.status();
  }
  if (!text.empty() && text.back() != '\n') return invalid_data(path + ": the last line has no end; nothing was appended");
  return write_file_atomic(path, text + ledger_line(outcome) + "\n");
}

Result<std::string> render_ledger(std::string_view jsonl, const std::string& name) {
  std::string out =
      "# Experiments\n\nOne change each, A and B interleaved in one process, correctness first. Written by `dsv4 bench lab` from `ledger.jsonl`; negative results stay.\n\n"
      "| time | experiment | change | device | A tok/s | B tok/s | ratio (95 %) | outcome |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n";
  int64_t number = 0;
  while (!jsonl.empty()) {
    const size_t end = jsonl.find('\n');
    const std::string_view line = jsonl.substr(0, end);
    jsonl.remove_prefix(end == std::string_view::npos ? jsonl.size() : end + 1);
    ++number;
    if (line.empty()) continue;
    DSV4_ASSIGN_OR_RETURN(const Json entry, parse_json(line, fmt::format("{}:{}", name, number)));
    const auto text = [&](const char* key) {
      std::string value = entry.is_object() && entry.contains(key) && entry[key].is_string() ? entry[key].get<std::string>() : "";
      std::replace(value.begin(), value.end(), '|', '/');
      return value;
    };
    const auto number_of = [&](const char* key) { return entry.contains(key) && entry[key].is_number() ? entry[key].get<double>() : 0; };
    if (text("name").empty() || text("outcome").empty()) return invalid_data(fmt::format("{}:{}: no experiment: name and outcome are needed", name, number));
    const bool gated = !text("gate").empty();
    out += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {}{} |\n", text("time"), text("name"), text("change"), text("device"),
                       gated ? "" : fmt::format("{:.2f}", number_of("median_a")), gated ? "" : fmt::format("{:.2f}", number_of("median_b")),
                       gated ? "" : fmt::format("{:.4f} ({:.4f} to {:.4f})", number_of("ratio"), number_of("low"), number_of("high")), text("outcome"),
                       gated ? ": " + text("gate") : "");
  }
  return out;
}

}  // namespace dsv4

#include "verify/canary.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/file.h"
#include "base/json.h"
#include "text/completion_parser.h"
#include "verify/prompts.h"
#include "verify/runs.h"

namespace dsv4 {
namespace {

std::string_view trim(std::string_view s) {
  const auto blank = [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; };
  while (!s.empty() && blank(s.front())) s.remove_prefix(1);
  while (!s.empty() && blank(s.back())) s.remove_suffix(1);
  return s;
}

// Equal values, whatever the order of members.
bool same_json(const Json& a, const Json& b) { return SortedJson::parse(a.dump()) == SortedJson::parse(b.dump()); }

Status wrong(const std::string& path, const std::string& where, const std::string& rule) { return invalid_data(path + ": " + where + ": " + rule); }

Result<CanaryStep> parse_step(const Json& json, const std::string& path, const std::string& where) {
  if (!json.is_object()) return wrong(path, where, "a step must be an object");
  CanaryStep step;
  int kinds = 0;
  for (const auto& [key, value] : json.items()) {
    if (key == "message") {
      if (!value.is_string()) return wrong(path, where, "message must be a string");
      step.message = value.get<std::string>();
    } else if (key == "answer" || key == "contains") {
      if (!value.is_string()) return wrong(path, where, key + " must be a string");
      step.kind = key == "answer" ? CanaryKind::kAnswer : CanaryKind::kContains;
      step.want = value.get<std::string>();
      ++kinds;
    } else if (key == "json" || key == "call") {
      step.kind = key == "json" ? CanaryKind::kJson : CanaryKind::kCall;
      if (key == "call" && (!value.is_object() || !value.contains("name") || !value.contains("arguments")))
        return wrong(path, where, "call must have name and arguments");
      step.want = value.dump();
      ++kinds;
    } else if (key == "tools") {
      if (!value.is_array()) return wrong(path, where, "tools must be an array of functions");
      const auto parsed = read_json(value.dump(), where);
      DSV4_RETURN_IF_ERROR(parsed.status().with_context(path));
      DSV4_ASSIGN_OR_RETURN(step.tool_schemas, parse_tools(*parsed, path + ": " + where + ": tools"));
    } else if (key == "max_tokens") {
      if (!value.is_number_integer() || value.get<int64_t>() < 1) return wrong(path, where, "max_tokens must be a positive integer");
      step.max_tokens = value.get<int64_t>();
    } else {
      return wrong(path, where, "unknown member \"" + key + "\"");
    }
  }
  if (step.message.empty()) return wrong(path, where, "message is missing");
  if (kinds != 1) return wrong(path, where, "exactly one of answer, contains, json and call is needed");
  return step;
}

}  // namespace

Result<CanaryFile> parse_canaries(std::string_view json_text, const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(const Json json, parse_json(json_text, path));
  CanaryFile file;
  file.path = path;
  if (!json.is_object()) return wrong(path, "top", "an object is expected");
  const auto text = [&](const char* key) { return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : std::string(); };
  file.model = text("model");
  file.probe_message = text("probe");
  file.verified = json.contains("verified") && json["verified"].is_boolean() && json["verified"].get<bool>();
  if (!json.contains("canaries") || !json["canaries"].is_array() || json["canaries"].empty()) return wrong(path, "canaries", "a nonempty array is expected");
  for (const Json& entry : json["canaries"]) {
    const std::string where = fmt::format("canaries[{}]", file.canaries.size());
    if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string()) return wrong(path, where, "name must be a string");
    if (!entry.contains("steps") || !entry["steps"].is_array() || entry["steps"].empty()) return wrong(path, where, "steps must be a nonempty array");
    Canary canary;
    canary.name = entry["name"].get<std::string>();
    for (const Json& step : entry["steps"]) {
      DSV4_ASSIGN_OR_RETURN(CanaryStep parsed, parse_step(step, path, fmt::format("{}.steps[{}]", where, canary.steps.size())));
      canary.steps.push_back(std::move(parsed));
    }
    file.canaries.push_back(std::move(canary));
  }
  return file;
}

Result<CanaryFile> load_canaries(const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(const std::string text, read_file(path, uint64_t{1} << 24));
  return parse_canaries(text, path);
}

Result<CanaryFile> load_model_canaries(const std::string& model_dir) { return load_canaries(model_dir + "/canaries.json"); }

std::string canary_fault(const CanaryStep& step, const std::string& answer, const ChatMarkup& markup) {
  const std::string_view text = trim(answer);
  switch (step.kind) {
    case CanaryKind::kAnswer: return text == trim(step.want) ? "" : fmt::format("answered \"{}\" instead of \"{}\"", text, step.want);
    case CanaryKind::kContains: return text.find(step.want) != std::string_view::npos ? "" : fmt::format("answered \"{}\", without \"{}\"", text, step.want);
    case CanaryKind::kJson: {
      const auto json = parse_json(text, "the answer");
      if (!json.ok()) return fmt::format("answered \"{}\": no strict JSON: {}", text, json.status().message());
      return same_json(*json, Json::parse(step.want)) ? "" : fmt::format("answered {} instead of {}", text, step.want);
    }
    case CanaryKind::kCall: {
      const auto parsed = parse_completion_strict(answer, ThinkingMode::kChat, markup);
      if (!parsed.ok()) return fmt::format("answered \"{}\": not in the strict form: {}", text, parsed.status().message());
      if (parsed->tool_calls.size() != 1) return fmt::format("made {} tool calls instead of one: \"{}\"", parsed->tool_calls.size(), text);
      const Json want = Json::parse(step.want);
      const ParsedToolCall& call = parsed->tool_calls[0];
      const auto arguments = parse_json(call.arguments, "arguments");
      if (call.name == want["name"].get<std::string>() && arguments.ok() && same_json(*arguments, want["arguments"])) return "";
      return fmt::format("called {} with {} instead of {}", call.name, call.arguments, step.want);
    }
  }
  return "unknown kind";
}

namespace {

std::string answer_fault(const CanaryStep& step, const Generation& run, const ChatMarkup& markup) {
  if (run.finish != FinishReason::kEos) return fmt::format("no end after {} tokens: \"{}\"", run.tokens.size(), run.text);
  // The strict form of a tool call includes the end token, which the text leaves out.
  return canary_fault(step, step.kind == CanaryKind::kCall ? run.text + markup.eos : run.text, markup);
}

}  // namespace

Result<CanaryReport> run_canaries(Engine& engine, const CanaryFile& file, const std::function<void(const CanaryLine&)>& on_line) {
  CanaryReport report;
  report.manifest = make_manifest(engine, "canary");
  ChatMarkup markup;
  if (const auto encoder = PromptEncoder::load(engine.checkpoint().directory()); encoder.ok()) markup = encoder->markup();
  for (const Canary& canary : file.canaries) {
    for (size_t i = 0; i < canary.steps.size(); ++i) {
      const CanaryStep& step = canary.steps[i];
      DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, encode_prompt(engine, {step.message, step.tool_schemas}));
      const Result<Generation> generated = generate(engine, greedy_request(std::move(prompt), step.max_tokens));
      if (!generated.ok() && generated.status().code() != StatusCode::kNumerical) return generated.status();
      CanaryLine line;
      line.canary = canary.name;
      line.step = static_cast<int64_t>(i);
      line.num_steps = static_cast<int64_t>(canary.steps.size());
      line.message = step.message;
      line.want = step.want;
      if (generated.ok()) {
        line.got = generated->text;
        line.fault = answer_fault(step, *generated, markup);
      } else {
        line.fault = generated.status().message();
      }
      line.passed = line.fault.empty();
      if (on_line) on_line(line);
      report.lines.push_back(std::move(line));
    }
  }
  report.passed = std::all_of(report.lines.begin(), report.lines.end(), [](const CanaryLine& l) { return l.passed; });
  return report;
}

std::string to_text(const CanaryLine& l) {
  const std::string name = l.num_steps > 1 ? fmt::format("{} {}/{}", l.canary, l.step + 1, l.num_steps) : l.canary;
  return fmt::format("{:<18} {} {}", name, l.passed ? "ok    " : "FAILED", l.passed ? python_repr(l.got) : l.fault);
}

std::string to_json(const CanaryReport& report, const CanaryFile& file) {
  Json lines = Json::array();
  for (const CanaryLine& l : report.lines) {
    lines.push_back(
        {{"canary", l.canary}, {"step", l.step}, {"message", l.message}, {"want", l.want}, {"got", l.got}, {"passed", l.passed}, {"fault", l.fault}});
  }
  return Json{{"file", file.path},       {"model", file.model},      {"verified", file.verified}, {"manifest", to_json_value(report.manifest)},
              {"passed", report.passed}, {"steps", std::move(lines)}}
             .dump(1, ' ', false, Json::error_handler_t::replace) +
         "\n";
}

}  // namespace dsv4

#include "server/thinking_fields.h"

#include <algorithm>

namespace dsv4 {

std::optional<ThinkingChoice> effort_choice(const std::string& word, const ThinkingRules& rules) {
  const auto& names = rules.effort_names;
  if (word == "none" || word == "minimal") return ThinkingChoice{false, ""};
  if (std::find(names.begin(), names.end(), word) != names.end()) return ThinkingChoice{true, word};
  if (word == "low" || word == "medium" || word == "high") return ThinkingChoice{true, ""};
  if (word == "max" || word == "xhigh") return ThinkingChoice{true, names.empty() ? "" : names.back()};
  return std::nullopt;
}

ThinkingChoice read_thinking(FieldReader& f, const ThinkingRules& rules) {
  std::optional<bool> said;
  std::string said_by;
  const auto say = [&](std::optional<bool> value, const std::string& by) {
    if (!value) return;
    if (said && *said != *value) f.fail(by, "contradicts " + said_by);
    said = value;
    said_by = by;
  };
  std::optional<std::string> effort = f.string("reasoning_effort");
  if (const JsonValue* kwargs = f.object("chat_template_kwargs")) {
    FieldReader k(*kwargs, "chat_template_kwargs");
    say(k.boolean("thinking"), "chat_template_kwargs.thinking");
    say(k.boolean("enable_thinking"), "chat_template_kwargs.enable_thinking");
    if (const auto word = k.string("reasoning_effort"); word && !effort) effort = word;
    k.finish();
    if (!k.ok()) f.fail(k.error());
  }
  say(f.boolean("enable_thinking"), "enable_thinking");
  if (const JsonValue* thinking = f.object("thinking")) {
    FieldReader t(*thinking, "thinking");
    const auto type = t.string("type");
    t.ignore({"budget_tokens", "keep"});
    if (t.ok() && (!type || (*type != "enabled" && *type != "disabled" && *type != "adaptive" && *type != "auto"))) {
      t.fail("type", "must be \"enabled\" or \"disabled\"");
    }
    t.finish();
    if (!t.ok()) {
      f.fail(t.error());
    } else {
      say(*type != "disabled", "thinking.type");
    }
  }
  ThinkingChoice out{rules.by_default, ""};
  if (effort) {
    const auto choice = effort_choice(*effort, rules);
    if (!choice) {
      std::string names = "none";
      for (const std::string& name : rules.effort_names) names += ", " + name;
      f.fail("reasoning_effort", "is \"" + *effort + "\"; known are " + names);
    } else {
      out = *choice;
    }
  }
  if (said) out.thinking = *said;
  if (!out.thinking) out.effort.clear();
  return out;
}

}  // namespace dsv4

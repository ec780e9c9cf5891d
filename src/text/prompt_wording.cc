#include "text/prompt_wording.h"

#include <fmt/format.h>

#include "text/python_constants.h"

namespace dsv4 {
namespace {

class WordingReader {
 public:
  WordingReader(const PythonConstants& constants, const std::string& name) : constants_(constants), name_(name) {}

  Result<PromptWording> read() {
    PromptWording wording;
    ChatMarkup& markup = wording.markup;
    const std::pair<const char*, std::string*> strings[] = {
        {"bos_token", &markup.bos},
        {"eos_token", &markup.eos},
        {"thinking_start_token", &markup.thinking_start},
        {"thinking_end_token", &markup.thinking_end},
        {"dsml_token", &markup.dsml},
        {"tool_calls_block_name", &markup.tool_calls_block_name},
        {"USER_SP_TOKEN", &wording.user_token},
        {"ASSISTANT_SP_TOKEN", &wording.assistant_token},
        {"LATEST_REMINDER_SP_TOKEN", &wording.latest_reminder_token},
    };
    for (const auto& [constant, place] : strings) {
      DSV4_ASSIGN_OR_RETURN(*place, string(constant));
      if (place->empty()) return bad(constant, "must not be empty");
    }
    DSV4_ASSIGN_OR_RETURN(wording.task_tokens, dict("DS_TASK_SP_TOKENS"));

    struct Template {
      const char* constant;
      FormatTemplate* place;
      std::vector<std::string_view> fields;
      const char* needed;  // the field whose absence would lose text
    };
    const Template templates[] = {
        {"system_msg_template", &wording.system_message, {"content"}, "content"},
        {"user_msg_template", &wording.user_message, {"content"}, "content"},
        {"latest_reminder_msg_template", &wording.latest_reminder, {"content"}, "content"},
        {"assistant_msg_template", &wording.assistant_message, {"reasoning", "content", "tool_calls"}, "content"},
        {"assistant_msg_wo_eos_template", &wording.assistant_message_without_eos, {"reasoning", "content", "tool_calls"}, "content"},
        {"thinking_template", &wording.thinking, {"reasoning_content", "reasoning"}, nullptr},
        {"response_format_template", &wording.response_format, {"schema"}, "schema"},
        {"tool_call_template", &wording.tool_call, {"dsml_token", "name", "arguments"}, "arguments"},
        {"tool_calls_template", &wording.tool_calls, {"dsml_token", "tc_block_name", "tool_calls"}, "tool_calls"},
        {"tool_output_template", &wording.tool_output, {"content"}, "content"},
        {"TOOLS_TEMPLATE", &wording.tools, {"tool_schemas", "dsml_token", "thinking_start_token", "thinking_end_token"}, "tool_schemas"},
    };
    for (const auto& [constant, place, fields, needed] : templates) {
      DSV4_ASSIGN_OR_RETURN(const std::string text, string(constant));
      Result<FormatTemplate> compiled = FormatTemplate::compile(text, fields);
      if (!compiled.ok()) return compiled.status().with_context(name_ + ": " + constant);
      if (needed != nullptr && !compiled->has_field(needed)) return bad(constant, fmt::format("must hold the field {{{}}}", needed));
      *place = std::move(compiled).value();
    }
    DSV4_RETURN_IF_ERROR(read_efforts(&wording));
    return wording;
  }

 private:
  Status bad(const std::string& constant, const std::string& rule) const { return invalid_data(name_ + ": " + constant + " " + rule); }

  Status lacks(const std::string& constant) const {
    const auto why = constants_.unreadable.find(constant);
    return bad(constant, why == constants_.unreadable.end() ? "is missing or of the wrong type" : "cannot be read: " + why->second);
  }

  Result<std::string> string(const std::string& constant) const {
    const auto found = constants_.strings.find(constant);
    if (found == constants_.strings.end()) return lacks(constant);
    return found->second;
  }

  Result<PythonConstants::Dict> dict(const std::string& constant) const {
    const auto found = constants_.dicts.find(constant);
    if (found == constants_.dicts.end()) return lacks(constant);
    return found->second;
  }

  bool assigns(const std::string& constant) const {
    return constants_.strings.count(constant) + constants_.dicts.count(constant) + constants_.unreadable.count(constant) > 0;
  }

  Status read_efforts(PromptWording* wording) const {
    if (!assigns("REASONING_EFFORT_PROMPTS") && assigns("REASONING_EFFORT_MAX")) {
      DSV4_ASSIGN_OR_RETURN(const std::string max, string("REASONING_EFFORT_MAX"));
      wording->efforts = {{"none", ""}, {"high", ""}, {"max", max}};
      wording->default_effort = "none";
      return ok_status();
    }
    DSV4_ASSIGN_OR_RETURN(wording->efforts, dict("REASONING_EFFORT_PROMPTS"));
    DSV4_ASSIGN_OR_RETURN(wording->default_effort, string("DEFAULT_REASONING_EFFORT"));
    for (const auto& effort : wording->efforts) {
      if (effort.first == wording->default_effort) return ok_status();
    }
    return bad("DEFAULT_REASONING_EFFORT", fmt::format("is \"{}\", which REASONING_EFFORT_PROMPTS lacks", wording->default_effort));
  }

  const PythonConstants& constants_;
  const std::string& name_;
};

}  // namespace

Result<PromptWording> read_prompt_wording(std::string_view source, const std::string& name) {
  DSV4_ASSIGN_OR_RETURN(const PythonConstants constants, read_python_constants(source, name));
  return WordingReader(constants, name).read();
}

}  // namespace dsv4

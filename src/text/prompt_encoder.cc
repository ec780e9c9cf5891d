#include "text/prompt_encoder.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/file.h"
#include "text/prompt_wording.h"
#include "text/python_json.h"

namespace dsv4 {
namespace {

// A user message is a list of blocks: texts, and results of tools.
struct Block {
  bool is_tool_result = false;
  std::string text;
  std::string tool_call_id;
};

// A message after tool results have been folded into user messages.
struct Turn {
  const ChatMessage* message = nullptr;  // null: a user message made of tool results alone
  ChatRole role = ChatRole::kUser;
  std::vector<Block> blocks;  // user
  std::optional<std::string> task;
  bool shows_reasoning = true;  // assistant

  bool asks() const { return role == ChatRole::kUser || role == ChatRole::kDeveloper; }
};

// Rule 1: a tool message becomes a block of the user message before it (or of a new one); a user message joins a user message
// before it unless that one has a task. A task of a message that joins is not kept.
std::vector<Turn> fold_tool_results(const std::vector<ChatMessage>& messages) {
  std::vector<Turn> turns;
  for (const ChatMessage& message : messages) {
    const bool follows_user = !turns.empty() && turns.back().role == ChatRole::kUser;
    if (message.role == ChatRole::kTool) {
      if (!follows_user) turns.emplace_back();
      turns.back().blocks.push_back({true, message.content, message.tool_call_id});
    } else if (message.role == ChatRole::kUser && follows_user && !turns.back().task) {
      turns.back().blocks.push_back({false, message.content, ""});
    } else {
      Turn turn;
      turn.message = &message;
      turn.role = message.role;
      turn.task = message.task;
      if (message.role == ChatRole::kUser) turn.blocks.push_back({false, message.content, ""});
      turns.push_back(std::move(turn));
    }
  }
  return turns;
}

// Rule 2: tool results stand in the order of the calls they answer, at the places where results stood. A result whose call is
// unknown counts as an answer to the first.
void order_tool_results(std::vector<Turn>* turns) {
  std::map<std::string, size_t> order;  // of the last assistant message with calls
  for (Turn& turn : *turns) {
    if (turn.role == ChatRole::kAssistant && !turn.message->tool_calls.empty()) {
      order.clear();
      for (size_t i = 0; i < turn.message->tool_calls.size(); ++i) {
        const std::string& id = turn.message->tool_calls[i].id;
        if (!id.empty()) order[id] = i;
      }
    }
    std::vector<Block> results;
    for (const Block& block : turn.blocks) {
      if (block.is_tool_result) results.push_back(block);
    }
    const auto place = [&](const Block& block) {
      const auto found = order.find(block.tool_call_id);
      return found == order.end() ? size_t{0} : found->second;
    };
    std::stable_sort(results.begin(), results.end(), [&](const Block& a, const Block& b) { return place(a) < place(b); });
    auto next = results.begin();
    for (Block& block : turn.blocks) {
      if (block.is_tool_result) block = *next++;
    }
  }
}

// Index of the last user or developer message; -1 without any.
ptrdiff_t find_last_user(const std::vector<Turn>& turns) {
  for (size_t i = turns.size(); i > 0; --i) {
    if (turns[i - 1].asks()) return static_cast<ptrdiff_t>(i) - 1;
  }
  return -1;
}

// Rule 3: before the last user message, reasoning is left out and developer messages go.
void drop_old_thinking(std::vector<Turn>* turns) {
  const ptrdiff_t last_user = find_last_user(*turns);
  std::vector<Turn> kept;
  for (size_t i = 0; i < turns->size(); ++i) {
    Turn& turn = (*turns)[i];
    const bool old = static_cast<ptrdiff_t>(i) < last_user;
    if (old && turn.role == ChatRole::kDeveloper) continue;
    if (old) turn.shows_reasoning = false;
    kept.push_back(std::move(turn));
  }
  *turns = std::move(kept);
}

// Rules 4 and 5.
class Renderer {
 public:
  Renderer(const PromptWording& wording, const std::vector<Turn>& turns, bool thinking, bool drop_thinking)
      : wording_(wording), turns_(turns), thinking_(thinking), drop_thinking_(drop_thinking), last_user_(find_last_user(turns)) {}

  std::string render(const std::string& effort_text) {
    out_ = wording_.markup.bos;
    if (thinking_) out_ += effort_text;
    for (size_t i = 0; i < turns_.size(); ++i) {
      message(i);
      transition(i);
    }
    return std::move(out_);
  }

 private:
  void message(size_t i) {
    const Turn& turn = turns_[i];
    switch (turn.role) {
      case ChatRole::kSystem: out_ += wording_.system_message.render({{"content", turn.message->content}}) + attachments(*turn.message); return;
      case ChatRole::kDeveloper: {
        const std::string content = wording_.user_token + turn.message->content + attachments(*turn.message);
        out_ += wording_.user_message.render({{"content", content}});
        return;
      }
      case ChatRole::kLatestReminder: out_ += wording_.latest_reminder_token + wording_.latest_reminder.render({{"content", turn.message->content}}); return;
      case ChatRole::kUser: return user(turn);
      case ChatRole::kAssistant: return assistant(i);
      case ChatRole::kTool: DSV4_CHECK(false, "tool messages have been folded into user messages");
    }
  }

  // Tools and response format, each after an empty line.
  std::string attachments(const ChatMessage& message) const {
    std::string out;
    if (!message.tool_schemas.empty()) {
      std::string schemas;
      for (const std::string& schema : message.tool_schemas) schemas += (schemas.empty() ? "" : "\n") + schema;
      out += "\n\n" + wording_.tools.render({{"tool_schemas", schemas},
                                             {"dsml_token", wording_.markup.dsml},
                                             {"thinking_start_token", wording_.markup.thinking_start},
                                             {"thinking_end_token", wording_.markup.thinking_end}});
    }
    if (!message.response_format.empty()) out += "\n\n" + wording_.response_format.render({{"schema", message.response_format}});
    return out;
  }

  void user(const Turn& turn) {
    out_ += wording_.user_token;
    for (size_t i = 0; i < turn.blocks.size(); ++i) {
      if (i > 0) out_ += "\n\n";
      const Block& block = turn.blocks[i];
      out_ += block.is_tool_result ? wording_.tool_output.render({{"content", block.text}}) : block.text;
    }
  }

  void assistant(size_t i) {
    const Turn& turn = turns_[i];
    const bool after_task = i > 0 && turns_[i - 1].task.has_value();
    std::string reasoning;
    if (thinking_ && !after_task && (!drop_thinking_ || static_cast<ptrdiff_t>(i) > last_user_)) {
      const std::string text = turn.shows_reasoning ? turn.message->reasoning_content : "";
      reasoning = wording_.thinking.render({{"reasoning_content", text}, {"reasoning", text}}) + wording_.markup.thinking_end;
    }
    const FormatTemplate& form = turn.message->without_eos ? wording_.assistant_message_without_eos : wording_.assistant_message;
    out_ += form.render({{"reasoning", reasoning}, {"content", turn.message->content}, {"tool_calls", tool_calls(*turn.message)}});
  }

  std::string tool_calls(const ChatMessage& message) const {
    if (message.tool_calls.empty()) return "";
    std::string calls;
    for (const ToolCall& call : message.tool_calls) {
      if (!calls.empty()) calls += "\n";
      calls += wording_.tool_call.render({{"dsml_token", wording_.markup.dsml}, {"name", call.name}, {"arguments", parameters(call.arguments)}});
    }
    return "\n\n" +
           wording_.tool_calls.render({{"dsml_token", wording_.markup.dsml}, {"tc_block_name", wording_.markup.tool_calls_block_name}, {"tool_calls", calls}});
  }

  // One tag a member of the arguments object; a text that is no JSON object is one member "arguments".
  std::string parameters(const std::string& arguments) const {
    const Result<JsonValue> json = read_json(arguments, "arguments", kPythonJson);
    if (!json.ok() || !json->is(JsonKind::kObject)) return parameter("arguments", true, arguments);
    std::string out;
    for (size_t i = 0; i < json->items.size(); ++i) {
      const JsonValue& value = json->items[i];
      const bool is_string = value.is(JsonKind::kString);
      if (i > 0) out += "\n";
      out += parameter(json->names[i], is_string, is_string ? value.text : to_python_json(value));
    }
    return out;
  }

  std::string parameter(const std::string& name, bool is_string, const std::string& value) const {
    const std::string& dsml = wording_.markup.dsml;
    return fmt::format("<{}parameter name=\"{}\" string=\"{}\">{}</{}parameter>", dsml, name, is_string, value, dsml);
  }

  // Rule 5: what stands between a message and the answer that follows it.
  void transition(size_t i) {
    const Turn& turn = turns_[i];
    if (i + 1 < turns_.size()) {
      const ChatRole next = turns_[i + 1].role;
      if (next != ChatRole::kAssistant && next != ChatRole::kLatestReminder) return;
    }
    const ChatMarkup& markup = wording_.markup;
    if (turn.task) {
      for (const auto& [name, token] : wording_.task_tokens) {
        if (name != *turn.task) continue;
        if (name == "action") out_ += wording_.assistant_token + (thinking_ ? markup.thinking_start : markup.thinking_end);
        out_ += token;
        return;
      }
      DSV4_CHECK(false, "tasks have been checked");
    }
    if (turn.asks()) {
      const bool thinks = thinking_ && (!drop_thinking_ || static_cast<ptrdiff_t>(i) >= last_user_);
      out_ += wording_.assistant_token + (thinks ? markup.thinking_start : markup.thinking_end);
    }
  }

  const PromptWording& wording_;
  const std::vector<Turn>& turns_;
  const bool thinking_;
  const bool drop_thinking_;
  const ptrdiff_t last_user_;
  std::string out_;
};

std::string join_names(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string out;
  for (const auto& entry : entries) out += (out.empty() ? "" : ", ") + entry.first;
  return out;
}

}  // namespace

Result<PromptEncoder> PromptEncoder::load(const std::string& model_dir) {
  const std::string path = model_dir + "/encoding/encoding_dsv4.py";
  const Result<std::string> source = read_file(path, 16 << 20);
  if (!source.ok() && source.status().code() == StatusCode::kNotFound) {
    return not_found(path + " does not exist: without its prompt wording this model completes raw text but cannot chat");
  }
  if (!source.ok()) return source.status();
  return from_source(*source, path);
}

Result<PromptEncoder> PromptEncoder::from_source(std::string_view source, const std::string& name) {
  DSV4_ASSIGN_OR_RETURN(PromptWording wording, read_prompt_wording(source, name));
  return PromptEncoder(std::make_shared<const PromptWording>(std::move(wording)));
}

Result<std::string> PromptEncoder::render(const std::vector<ChatMessage>& messages, const RenderOptions& options) const {
  if (messages.empty()) return invalid_argument("messages must not be empty");
  const std::string& effort = options.reasoning_effort.empty() ? wording_->default_effort : options.reasoning_effort;
  const auto wanted = std::find_if(wording_->efforts.begin(), wording_->efforts.end(), [&](const auto& e) { return e.first == effort; });
  if (wanted == wording_->efforts.end()) {
    return invalid_argument(fmt::format("reasoning_effort must be one of {}, is \"{}\"", join_names(wording_->efforts), effort));
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto& task = messages[i].task;
    const auto known = [&](const auto& entry) { return entry.first == *task; };
    if (task && std::none_of(wording_->task_tokens.begin(), wording_->task_tokens.end(), known)) {
      return invalid_argument(fmt::format("messages[{}].task must be one of {}, is \"{}\"", i, join_names(wording_->task_tokens), *task));
    }
  }
  const bool has_tools = std::any_of(messages.begin(), messages.end(), [](const ChatMessage& m) { return !m.tool_schemas.empty(); });
  const bool thinking = options.thinking_mode == ThinkingMode::kThinking;
  const bool drop_thinking = options.drop_thinking && !has_tools;
  std::vector<Turn> turns = fold_tool_results(messages);
  order_tool_results(&turns);
  if (thinking && drop_thinking) drop_old_thinking(&turns);
  return Renderer(*wording_, turns, thinking, drop_thinking).render(wanted->second);
}

const ChatMarkup& PromptEncoder::markup() const { return wording_->markup; }
const std::string& PromptEncoder::default_effort() const { return wording_->default_effort; }

std::vector<std::string> PromptEncoder::effort_names() const {
  std::vector<std::string> names;
  for (const auto& effort : wording_->efforts) names.push_back(effort.first);
  return names;
}

}  // namespace dsv4

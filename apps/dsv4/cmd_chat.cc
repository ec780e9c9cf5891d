// dsv4 chat: a streaming conversation on the terminal, or one answer with --message.
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <atomic>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <memory>

#include <editline/readline.h>
#include <fmt/format.h>

#include "base/file.h"
#include "chat_session.h"
#include "engine_flags.h"
#include "sampling_flags.h"
#include "text/json_value.h"

namespace dsv4 {
namespace {

struct ChatFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string message, system, effort, tools_file;
  bool message_given = false;
  bool thinking = false;
  bool stats = false;
};

// Set by Ctrl-C: stops the answer, not the program.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// Prints events as they come: reasoning dimmed on a terminal, tool calls as one line each.
class Printer {
 public:
  Printer() : color_(isatty(STDOUT_FILENO) == 1) {}

  void operator()(const CompletionEvent& e) {
    if (e.kind == CompletionEvent::Kind::kToolCallStart) {
      style(false);
      fmt::print("{}[tool call] {} ", last_newline_ ? "" : "\n", e.text);
    } else if (e.kind == CompletionEvent::Kind::kToolCallEnd) {
      put("\n");
    } else {
      if (e.kind == CompletionEvent::Kind::kContent && reasoned_ && !e.text.empty()) {
        reasoned_ = false;
        style(false);
        if (!last_newline_) put("\n");
      }
      if (e.kind == CompletionEvent::Kind::kReasoning) {
        reasoned_ = true;
        style(true);
      }
      put(e.text);
    }
    std::fflush(stdout);
  }

  void end() {
    style(false);
    if (!last_newline_) put("\n");
    reasoned_ = false;
    std::fflush(stdout);
  }

 private:
  void style(bool dim) {
    if (color_ && dim != dim_) fmt::print("{}", dim ? "\033[2m" : "\033[0m");
    dim_ = dim;
  }
  void put(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    if (!text.empty()) last_newline_ = text.back() == '\n';
  }

  bool color_, dim_ = false, reasoned_ = false, last_newline_ = true;
};

Result<ChatOptions> chat_options(const ChatFlags& flags) {
  ChatOptions o;
  o.system = flags.system;
  o.render.thinking_mode = flags.thinking ? ThinkingMode::kThinking : ThinkingMode::kChat;
  o.render.reasoning_effort = flags.effort;
  if (!flags.tools_file.empty()) {
    DSV4_ASSIGN_OR_RETURN(const std::string text, read_file(flags.tools_file));
    DSV4_ASSIGN_OR_RETURN(const JsonValue tools, read_json(text, flags.tools_file));
    DSV4_ASSIGN_OR_RETURN(o.tool_schemas, parse_tools(tools, flags.tools_file));
  }
  return o;
}

void print_stats(const ChatTurn& t) {
  const double decode_seconds = t.seconds - t.first_token_seconds;
  fmt::print(stderr, "[{} prompt tokens, first token after {:.0f} ms; {} tokens, {:.1f} tok/s; {}]\n", t.prompt_tokens, t.first_token_seconds * 1e3,
             t.answer_tokens, t.answer_tokens > 1 && decode_seconds > 0 ? static_cast<double>(t.answer_tokens - 1) / decode_seconds : 0.0,
             finish_reason_name(t.finish));
}

Status answer(ChatSession& session, const std::string& message, const Request& settings, bool stats) {
  Printer printer;
  interrupted = false;
  const auto turn = session.ask(
      message, settings, [&](const CompletionEvent& e) { printer(e); }, interrupted);
  printer.end();
  DSV4_RETURN_IF_ERROR(turn.status());
  if (turn->finish == FinishReason::kCancelled) fmt::print(stderr, "[stopped]\n");
  if (stats) print_stats(*turn);
  return ok_status();
}

// A line from the terminal with editing and history, or from a pipe. False at the end of input.
bool read_line(bool terminal, std::string* line) {
  if (terminal) {
    char* text = readline("> ");
    if (text == nullptr) return false;
    *line = text;
    if (!line->empty()) add_history(text);
    std::free(text);
    return true;
  }
  line->clear();
  int c;
  while ((c = std::getchar()) != EOF && c != '\n') line->push_back(static_cast<char>(c));
  return c != EOF || !line->empty();
}

Status converse(const ChatFlags& flags) {
  DSV4_ASSIGN_OR_RETURN(const Request settings, make_request(flags.sampling));
  DSV4_ASSIGN_OR_RETURN(ChatOptions options, chat_options(flags));
  DSV4_ASSIGN_OR_RETURN(PromptEncoder encoder, PromptEncoder::load(flags.engine.model));
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, make_engine(flags.engine));
  const std::unique_ptr<Validator> validator = make_validator(flags.engine, *engine);
  ChatSession session(*engine, std::move(encoder), std::move(options));
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  sigaction(SIGINT, &action, nullptr);
  if (flags.message_given) return answer(session, flags.message, settings, flags.stats);

  const bool terminal = isatty(STDIN_FILENO) == 1;
  if (terminal) {
    std::setlocale(LC_CTYPE, "");
    fmt::print("{} on {}. /clear forgets, /exit or Ctrl-D leaves, Ctrl-C stops an answer.\n", flags.engine.model, engine->device().info().name);
  }
  std::string line;
  while (read_line(terminal, &line)) {
    if (line == "/exit" || line == "/quit") break;
    if (line == "/clear") {
      session.clear();
      continue;
    }
    if (line.empty()) continue;
    // A refused message (too long, not UTF-8) leaves the conversation as it was; on a pipe it ends the run.
    if (Status status = answer(session, line, settings, flags.stats); !status.ok()) {
      if (!terminal) return status;
      fmt::print(stderr, "dsv4 chat: {}\n", status.message());
    }
  }
  return ok_status();
}

}  // namespace

void add_chat_command(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = app.add_subcommand("chat", "Talk to a model");
  add_engine_flags(*command, context, &flags->engine);
  add_validate_flags(*command, &flags->engine);
  add_sampling_flags(*command, &flags->sampling);
  command->add_option_function<std::string>(
      "--message",
      [flags](const std::string& text) {
        flags->message = text;
        flags->message_given = true;
      },
      "answer this one message and leave");
  command->add_option("--system", flags->system, "system message");
  command->add_flag("--thinking", flags->thinking, "let the model reason first");
  command->add_option("--effort", flags->effort, "reasoning effort; the model's encoding file names them");
  command->add_option("--tools", flags->tools_file, "JSON file with a tools array");
  command->add_flag("--stats", flags->stats, "print tokens and times after each answer");
  command->callback([flags, &context] {
    if (Status status = converse(*flags); !status.ok()) report_error(context, "chat", status);
  });
}

}  // namespace dsv4

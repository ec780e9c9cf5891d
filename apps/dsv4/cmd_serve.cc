// dsv4 serve: the model behind HTTP.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include <pthread.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/file.h"
#include "base/log.h"
#include "engine_flags.h"
#include "server/server.h"
#include "verify/probe.h"

namespace dsv4 {
namespace {

struct Flags {
  EngineFlags engine;
  ServerOptions server;
  std::string api_key_file;
  std::string probe = "auto";  // auto, coherent, tokens
  double grace_seconds = 30;
  bool quiet_log = false;
};

Status read_api_keys(const std::string& path, std::vector<std::string>* keys) {
  DSV4_ASSIGN_OR_RETURN(const std::string text, read_file(path, 1 << 20));
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string key = text.substr(at, end - at);
    while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
    if (!key.empty()) keys->push_back(std::move(key));
    at = end + 1;
  }
  return keys->empty() ? invalid_argument("--api-key-file " + path + " holds no key") : ok_status();
}

// SIGINT and SIGTERM: while the model loads they end the program; once it serves, the first one is what wait() returns, the second ends
// the program.
class Signals {
 public:
  // Before any other thread starts, so that all inherit the mask and the signals come to this one's alone.
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    std::thread([state = state_, set = set_] {
      int signal = 0;
      sigwait(&set, &signal);
      if (!state->serving) std::_Exit(128 + signal);
      state->first.set_value();
    }).detach();  // it may wait for as long as the program runs
  }
  void wait() {
    state_->serving = true;
    state_->first.get_future().get();
    pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
  }

 private:
  struct State {
    std::atomic<bool> serving{false};
    std::promise<void> first;
  };
  sigset_t set_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

Status run(Flags& flags) {
  if (!flags.api_key_file.empty()) DSV4_RETURN_IF_ERROR(read_api_keys(flags.api_key_file, &flags.server.api_keys));
  Signals signals;
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, make_engine(flags.engine));
  const std::unique_ptr<Validator> validator = make_validator(flags.engine, *engine);
  if (!flags.quiet_log) {
    flags.server.log = [mutex = std::make_shared<std::mutex>()](const std::string& line) {
      std::lock_guard lock(*mutex);
      fmt::print(stderr, "{}\n", line);
    };
  }
  // A model that reads and writes text must say something coherent; of one without a tokenizer only tokens can be asked.
  if (flags.probe == "coherent" || (flags.probe == "auto" && engine->tokenizer() != nullptr)) {
    flags.server.probe = [](Engine& e) { return check_generates(e, {}); };
  }
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Server> server, Server::start(*engine, flags.server));
  fmt::print("dsv4: listening on http://{}:{}\n", flags.server.host, server->port());
  std::fflush(stdout);
  signals.wait();
  server->stop(flags.grace_seconds);
  return ok_status();
}

}  // namespace

void add_serve_command(CLI::App& app, CommandContext& context) {
  const auto flags = std::make_shared<Flags>();
  ServerOptions& s = flags->server;
  CLI::App* command = app.add_subcommand("serve", "Serve the model over HTTP: OpenAI and Anthropic APIs, and a web page");
  add_engine_flags(*command, context, &flags->engine);
  add_validate_flags(*command, &flags->engine);
  EngineOptions& engine = flags->engine.engine;
  command->add_option("--prefix-states", engine.prefix_states, "states of earlier prompts and answers kept in memory; 0 = no prefix cache")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--cache-tokens", engine.cache_tokens, "tokens whose compressed rows all requests share; 0 = all that could be asked for")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--cache-dir", engine.cache_directory, "keep states on disk in this directory, also for later runs");
  command->add_option("--cache-bytes", engine.cache_bytes, "most bytes of these; the least recently used go (units as in 500MB, 8GiB)")
      ->capture_default_str()
      ->transform(CLI::AsSizeValue(false));
  command->add_option("MODEL", flags->engine.model, "the model, as --model");
  command->add_option("--host", s.host, "address to listen on")->capture_default_str();
  command->add_option("--port,-p", s.port, "0 = any free port")->capture_default_str()->check(CLI::Range(0, 65535));
  command->add_option("--model-name", s.model_names, "what clients call the model; more than one may be given (default: the directory's name)");
  command->add_flag("--any-model-name", s.any_model_name, "take requests for models of any name");
  command->add_option("--api-key", s.api_keys, "clients must show this key; more than one may be given");
  command->add_option("--api-key-file", flags->api_key_file, "file with a key a line");
  command->add_option("--cors-origin", s.cors_origin, "let pages of this origin call (or *); off by default");
  command->add_option("--max-queue", s.max_queue, "requests waiting beyond those that run; more get 429")->capture_default_str()->check(CLI::NonNegativeNumber);
  command->add_option("--max-connections", s.max_connections, "connections served at once")->capture_default_str()->check(CLI::Range(1, 900));
  command->add_option("--max-body-bytes", s.max_body_bytes, "longest request body")->capture_default_str()->check(CLI::PositiveNumber);
  command->add_option("--request-timeout", s.request_seconds, "seconds a request may take, waiting included; 0 = no limit")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--idle-timeout", s.idle_seconds, "seconds a connection may be idle, or a client may not read")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--receive-timeout", s.receive_seconds, "seconds in which a request must arrive")->capture_default_str()->check(CLI::PositiveNumber);
  command->add_option("--drain-timeout", flags->grace_seconds, "seconds that requests in flight have after SIGTERM")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--temperature", s.temperature, "for requests that do not say")->capture_default_str()->check(CLI::Range(0.0, 2.0));
  command->add_option("--top-p", s.top_p, "for requests that do not say")->capture_default_str()->check(CLI::Range(0.0, 1.0));
  command->add_flag("--thinking", s.thinking, "think first when a request does not say");
  command->add_option("--probe", flags->probe, "what the engine must do before requests are taken: coherent text, or tokens of any kind")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "coherent", "tokens"}));
  command->add_flag("--log-prompts", s.log_prompts, "request bodies in the log; without it no text of theirs is ever logged");
  command->add_flag("--no-log", flags->quiet_log, "no log lines");
  command->callback([flags, &context] {
    if (const Status status = run(*flags); !status.ok()) report_error(context, "serve", status);
  });
}

}  // namespace dsv4

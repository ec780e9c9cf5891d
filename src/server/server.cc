#include "server/server.h"

#include <ctime>
#include <filesystem>
#include <set>

#include "base/log.h"
#include "server/endpoints.h"
#include "server/http_server.h"
#include "server/json_text.h"
#include "server/startup_probe.h"

namespace dsv4 {

class ServerParts {
 public:
  ServerParts(Engine& engine, const ServerOptions& options) : options_(options), step_engine_(make_step_engine(engine)) {}

  Status open(Engine& engine) {
    std::optional<PromptEncoder> encoder;
    const std::string& directory = engine.checkpoint().directory();
    if (!directory.empty()) {
      auto loaded = PromptEncoder::load(directory);
      if (!loaded.ok() && loaded.status().code() != StatusCode::kNotFound) return loaded.status();
      if (loaded.ok()) encoder = std::move(*loaded);
    }
    ServiceOptions service;
    service.rules.model_names = options_.model_names;
    if (service.rules.model_names.empty()) service.rules.model_names = {model_name_of(engine.checkpoint().model())};
    service.rules.any_model_name = options_.any_model_name;
    service.rules.vocab_size = engine.config().vocab_size;
    service.rules.sampling = {options_.temperature, options_.top_p};
    service.rules.thinking.by_default = options_.thinking;
    if (encoder) {
      service.rules.thinking.effort_names = encoder->effort_names();
      service.rules.thinking.default_effort = encoder->default_effort();
    }
    service.context_tokens = engine.options().max_context_tokens;
    service.begin_token = engine.config().bos_token_id;
    service.eos_token = engine.config().eos_token_id;
    service.fingerprint = "fp_" + engine.checkpoint().identity();
    service.created = static_cast<int64_t>(std::time(nullptr));

    LoopOptions loop;
    loop.max_outstanding = engine.options().max_seqs + options_.max_queue;
    loop.request_seconds = options_.request_seconds;
    loop.probe = [this, &engine, probe = make_startup_probe(engine, encoder)](StepEngine& step_engine) {
      const Status verdict = options_.probe ? options_.probe(engine) : probe(step_engine);
      metrics_.on_verdict(verdict.ok());
      Json line;
      line["event"] = "probe";
      line["passed"] = verdict.ok();
      if (!verdict.ok()) line["message"] = verdict.message();
      write_log(std::move(line));
      return verdict;
    };
    loop_ = std::make_unique<EngineLoop>(*step_engine_, std::move(loop), &metrics_);
    service_ = std::make_unique<Service>(*loop_, engine.tokenizer(), std::move(encoder), std::move(service));

    HttpOptions http;
    http.host = options_.host;
    http.port = options_.port;
    http.max_connections = options_.max_connections;
    http.max_body_bytes = options_.max_body_bytes;
    http.receive_seconds = options_.receive_seconds;
    http.idle_seconds = options_.idle_seconds;
    http.api_keys = options_.api_keys;
    http.cors_origin = options_.cors_origin;
    http.error_body = refusal_body;
    http.log = [this](const HttpLogEntry& entry) { on_http(entry); };
    std::vector<HttpRoute> routes = make_routes(*service_, metrics_);
    for (const HttpRoute& route : routes) known_paths_.insert(route.path);
    auto started = HttpServer::start(std::move(http), std::move(routes));
    if (!started.ok()) return started.status();
    http_ = std::move(*started);
    return ok_status();
  }

  int port() const { return http_->port(); }
  bool ready() const { return loop_->state() == LoopState::kReady; }

  void stop(double grace_seconds) {
    if (http_ == nullptr) return;
    loop_->begin_drain();
    write_log({{"event", "drain"}, {"outstanding", loop_->outstanding()}});
    loop_->stop(grace_seconds);
    http_->stop(5);  // replies whose last token has come
    http_.reset();
    write_log({{"event", "stopped"}});
  }

 private:
  static std::string model_name_of(const std::string& model) {
    std::filesystem::path path(model);
    if (path.filename().empty()) path = path.parent_path();
    return path.filename().empty() ? model : path.filename().string();
  }

  void on_http(const HttpLogEntry& e) {
    metrics_.on_http(known_paths_.count(e.request.path) != 0 ? e.request.path : "other", e.status, e.seconds);
    Json line;
    line["event"] = "request";
    line["id"] = e.request.id;
    line["remote"] = e.request.remote;
    line["method"] = e.request.method;
    line["path"] = e.request.path;
    line["status"] = e.status;
    line["seconds"] = e.seconds;
    if (e.peer_gone) line["peer_gone"] = true;
    if (options_.log_prompts && !e.request.body.empty()) line["body"] = e.request.body;
    write_log(std::move(line));
  }

  void write_log(Json line) {
    if (!options_.log) return;
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    char text[40];
    tm parts{};
    gmtime_r(&now.tv_sec, &parts);
    const size_t n = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
    std::snprintf(text + n, sizeof(text) - n, ".%03ldZ", now.tv_nsec / 1000000);
    Json out;
    out["time"] = text;
    for (auto& [name, value] : line.items()) out[name] = std::move(value);
    options_.log(to_text(out));
  }

  const ServerOptions options_;
  std::unique_ptr<StepEngine> step_engine_;
  Metrics metrics_;
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<Service> service_;
  std::set<std::string> known_paths_;
  std::unique_ptr<HttpServer> http_;
};

Server::Server(std::unique_ptr<ServerParts> parts) : parts_(std::move(parts)) {}

Server::~Server() { parts_->stop(0); }

Result<std::unique_ptr<Server>> Server::start(Engine& engine, const ServerOptions& options) {
  auto parts = std::make_unique<ServerParts>(engine, options);
  DSV4_RETURN_IF_ERROR(parts->open(engine));
  return std::unique_ptr<Server>(new Server(std::move(parts)));
}

int Server::port() const { return parts_->port(); }
bool Server::ready() const { return parts_->ready(); }
void Server::stop(double grace_seconds) { parts_->stop(grace_seconds); }

}  // namespace dsv4

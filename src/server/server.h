// `dsv4 serve`: an engine behind HTTP.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace dsv4 {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                       // 0 = any free one
  std::vector<std::string> model_names;  // what clients may call the model; the first is shown. Empty = the directory's name
  bool any_model_name = false;           // take requests for models of any name
  std::vector<std::string> api_keys;
  std::string cors_origin;
  int64_t max_queue = 64;  // requests waiting beyond those that run
  int max_connections = 256;
  int64_t max_body_bytes = int64_t{32} << 20;
  double request_seconds = 600;  // 0 = no limit
  double idle_seconds = 30;
  double receive_seconds = 30;
  double temperature = 1, top_p = 1;  // for requests that do not say
  bool thinking = false;              // think when a request does not say
  bool log_prompts = false;           // request bodies in the log
  // Whether the engine generates; runs on its thread before requests are taken, and after a device fault. Empty = make_startup_probe's.
  std::function<Status(Engine&)> probe = nullptr;
  std::function<void(const std::string& json_line)> log = nullptr;  // one line per request and per change of state; from many threads
};

// Everything a running server is made of.
class ServerParts;

class Server {
 public:
  // Listens at once; /health says "starting" until the probe's tokens came. `engine` must outlive it and belongs to its thread from
  // now on. Errors: kIo (address), what the encoding file says.
  static Result<std::unique_ptr<Server>> start(Engine& engine, const ServerOptions& options);
  ~Server();

  int port() const;
  bool ready() const;

  // Refuses new requests, lets those in flight end for at most `grace_seconds`, then closes everything.
  void stop(double grace_seconds);

 private:
  explicit Server(std::unique_ptr<ServerParts> parts);
  std::unique_ptr<ServerParts> parts_;
};

}  // namespace dsv4

// The HTTP side: sockets, threads, limits, authorization, routing. Everything behind it sees HttpRequest and HttpReply.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/http_types.h"

namespace dsv4 {

struct HttpLogEntry {
  const HttpRequest& request;
  int status = 0;
  double seconds = 0;
  bool peer_gone = false;  // it left before the reply was complete
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;            // 0 = any free one
  int max_connections = 256;  // served at once; more wait in the accept queue
  int64_t max_body_bytes = int64_t{32} << 20;
  int64_t max_head_bytes = 64 << 10;  // request line and headers; a line is at most 8 KiB
  double receive_seconds = 30;        // a request's head and body must arrive within this
  double idle_seconds = 30;           // a connection without a request, or a peer that does not read its reply, is closed
  std::vector<std::string> api_keys;  // empty = anyone; else "Authorization: Bearer KEY" or "x-api-key: KEY"
  std::string cors_origin;            // empty = no CORS headers; "*" or one origin
  // The body of a refusal that no endpoint made: bad HTTP, unknown path, wrong key.
  std::function<std::string(const std::string& path, int status, const std::string& message)> error_body = nullptr;
  std::function<void(const HttpLogEntry&)> log = nullptr;  // after each reply; from many threads
};

class HttpServer {
 public:
  // Listens and serves. Error: kIo when the address cannot be bound.
  static Result<std::unique_ptr<HttpServer>> start(HttpOptions options, std::vector<HttpRoute> routes);
  ~HttpServer();  // stop(0)

  int port() const;

  // Replies in flight may end for `grace_seconds`, idle connections close at once, then everything does. Returns when all threads
  // have ended.
  void stop(double grace_seconds);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Whether `given` is one of `keys`, in time that depends on lengths alone.
bool is_api_key(const std::vector<std::string>& keys, const std::string& given);

}  // namespace dsv4

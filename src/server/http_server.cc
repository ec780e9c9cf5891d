#include "server/http_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include <fmt/format.h>

#include "base/ascii.h"
#include "base/log.h"
#include "server/http_connection.h"
#include "server/worker_pool.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxPathBytes = 512;
constexpr int kMaxRequestsPerConnection = 10000;

std::string new_request_id() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("req-{:016x}", random());
}

// The rules for a body that the library does not keep: its framing must be one thing only, and short enough. Returns a status and the
// reason, or 0.
std::pair<int, std::string> body_fault(const httplib::Request& req, int64_t max_body_bytes) {
  const size_t lengths = req.get_header_value_count("Content-Length"), encodings = req.get_header_value_count("Transfer-Encoding");
  if (lengths + encodings > 1) return {400, "the body's length is given more than once"};
  if (encodings == 1) {
    if (ascii_lower(req.get_header_value("Transfer-Encoding")) != "chunked") return {400, "Transfer-Encoding must be chunked"};
  } else if (lengths == 1) {
    const std::string text = req.get_header_value("Content-Length");
    if (text.empty() || text.size() > 18 || text.find_first_not_of("0123456789") != std::string::npos) return {400, "Content-Length is not a number"};
    if (std::stoll(text) > max_body_bytes) return {413, fmt::format("the body has {} bytes, the limit is {}", text, max_body_bytes)};
  } else if (req.method == "POST") {
    return {411, "a POST needs Content-Length or Transfer-Encoding: chunked"};
  }
  return {0, ""};
}

class Workers : public httplib::TaskQueue {
 public:
  explicit Workers(WorkerPool& pool) : pool_(pool) {}
  void enqueue(std::function<void()> fn) override { pool_.enqueue(std::move(fn)); }
  void shutdown() override { pool_.shutdown(); }

 private:
  WorkerPool& pool_;
};

}  // namespace

bool is_api_key(const std::vector<std::string>& keys, const std::string& given) {
  bool found = false;
  for (const std::string& key : keys) {
    unsigned difference = key.size() != given.size() ? 1 : 0;
    for (size_t i = 0; i < given.size(); ++i)
      difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[key.empty() ? 0 : i % key.size()]);
    found |= difference == 0 && !key.empty();
  }
  return found;
}

class HttpServer::Impl : public httplib::Server {
 public:
  Impl(HttpOptions options, std::vector<HttpRoute> routes) : options_(std::move(options)), pool_(options_.max_connections) {
    for (HttpRoute& route : routes) routes_[route.path][route.method] = std::move(route);
    new_task_queue = [this] { return new Workers(pool_); };
    set_keep_alive_timeout(static_cast<time_t>(options_.idle_seconds));
    set_keep_alive_max_count(kMaxRequestsPerConnection);
    set_socket_options([](socket_t sock) {  // not SO_REUSEPORT, the library's choice: two servers would share a port unnoticed
      const int on = 1;
      setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    });
    set_pre_routing_handler([this](const httplib::Request& req, httplib::Response& res) { return before_body(req, res); });
    Post(".*", [this](const httplib::Request& req, httplib::Response& res, const httplib::ContentReader& reader) { post(req, res, reader); });
    set_error_handler([this](const httplib::Request& req, httplib::Response& res) { library_refused(req, res); });
    set_post_routing_handler([this](const httplib::Request&, httplib::Response& res) {
      if (!current().must_close) return;
      res.headers.erase("Keep-Alive");
      res.headers.erase("Connection");
      res.set_header("Connection", "close");
    });
  }

  Status open() {
    if (options_.port == 0) {
      port_ = bind_to_any_port(options_.host);
    } else {
      port_ = bind_to_port(options_.host, options_.port) ? options_.port : -1;
    }
    if (port_ < 0) return io_error(fmt::format("cannot listen on {}:{}: the address is in use, or not this machine's", options_.host, options_.port));
    ::listen(svr_sock_, 512);  // the library's backlog of 5 makes a burst of clients wait for a second
    accepting_ = std::thread([this] { listen_after_bind(); });
    while (!is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return ok_status();
  }

  void close_down(double grace_seconds) {
    if (!accepting_.joinable()) return;
    closing_ = true;
    const auto until = HttpConnection::Clock::now() + std::chrono::duration<double>(grace_seconds);
    for (;;) {
      bool busy = false;
      {
        std::lock_guard lock(mutex_);
        for (auto& [thread, slot] : connections_) {
          if (!slot.busy) slot.connection->wake_idle();
          busy |= slot.busy;
        }
      }
      if (!busy || HttpConnection::Clock::now() >= until) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    httplib::Server::stop();
    {
      std::lock_guard lock(mutex_);
      for (auto& [thread, slot] : connections_) slot.connection->wake_idle();  // busy ones see their peer gone
    }
    accepting_.join();
  }

  int port() const { return port_; }

 private:
  struct Slot {
    HttpConnection* connection = nullptr;
    bool busy = false;
  };

  // What the library does with an accepted socket, with our own stream in place of its own.
  bool process_and_close_socket(socket_t sock) override {
    HttpConnection connection(sock, {options_.max_head_bytes, options_.receive_seconds, options_.idle_seconds});
    set_slot(&connection, false);
    for (int count = 1; count <= kMaxRequestsPerConnection; ++count) {
      if (!connection.wait_request([&] { return closing_ || pool_.crowded(); })) break;
      set_slot(&connection, true);
      connection.begin_request();
      bool closed = false;
      const bool last = closing_ || count == kMaxRequestsPerConnection || pool_.crowded();
      const bool ok = process_request(connection, last, closed, [&](httplib::Request& req) {
        connection.head_done();
        req.ranges.clear();                    // no reply of ours has parts
        req.headers.erase("Accept-Encoding");  // nor is compressed: events must not wait for a compressor
      });
      if (!ok && !connection.sent_any() && connection.received_any() && !connection.peer_gone()) answer_broken_head(connection);
      if (!ok || closed || last || connection.must_close || connection.in_head() || connection.peer_gone()) break;
      set_slot(&connection, false);
    }
    std::lock_guard lock(mutex_);
    connections_.erase(std::this_thread::get_id());
    return true;
  }

  void set_slot(HttpConnection* connection, bool busy) {
    std::lock_guard lock(mutex_);
    connections_[std::this_thread::get_id()] = {connection, busy};
  }

  // The connection that this thread serves: the library runs every handler on its connection's thread.
  HttpConnection& current() {
    std::lock_guard lock(mutex_);
    return *connections_.at(std::this_thread::get_id()).connection;
  }

  // A request line that never ended: the library gives up without a word.
  void answer_broken_head(HttpConnection& connection) {
    const int status = connection.timed_out() ? 408 : connection.head_too_long() ? 431 : 400;
    const char* name = status == 408 ? "Request Timeout" : status == 431 ? "Request Header Fields Too Large" : "Bad Request";
    const std::string body = refusal("", status, head_message(status));
    connection.write_all(
        fmt::format("HTTP/1.1 {} {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", status, name, body.size(), body));
  }

  std::string head_message(int status) const {
    switch (status) {
      case 408: return fmt::format("the request did not arrive within {:g} s", options_.receive_seconds);
      case 414: return "the request's target is too long";
      case 416: return "ranges are not supported";
      case 431: return fmt::format("the request's head is longer than {} bytes", options_.max_head_bytes);
      default: return "the request is not valid HTTP/1.1";
    }
  }

  std::string refusal(const std::string& path, int status, const std::string& message) const {
    return options_.error_body ? options_.error_body(path, status, message) : message;
  }

  void refuse(const httplib::Request& req, httplib::Response& res, int status, const std::string& message) {
    res.status = status;
    res.set_content(refusal(req.path, status, message), "application/json");
    if (status == 401) res.set_header("WWW-Authenticate", "Bearer");
    add_cors(res);
    current().must_close = true;  // its body, if any, was not read: where the next request begins is unknown
    if (options_.log) {
      HttpRequest shown;
      shown.id = new_request_id();
      shown.method = req.method;
      shown.path = req.path.substr(0, kMaxPathBytes);
      shown.remote = req.remote_addr;
      res.set_header("x-request-id", shown.id);
      options_.log({shown, status, 0, false});
    }
  }

  // Replies of the library's own: their status is set, their body is empty.
  void library_refused(const httplib::Request& req, httplib::Response& res) {
    if (!res.body.empty() || res.content_provider_) return;
    int status = res.status;
    if (current().timed_out()) status = 408;
    if (current().head_too_long()) status = 431;
    refuse(req, res, status, head_message(status));
  }

  void add_cors(httplib::Response& res) const {
    if (options_.cors_origin.empty()) return;
    res.set_header("Access-Control-Allow-Origin", options_.cors_origin);
    res.set_header("Access-Control-Expose-Headers", "x-request-id");
    if (options_.cors_origin != "*") res.set_header("Vary", "Origin");
  }

  // Everything that can be said before a body is read; requests without one are answered here.
  HandlerResponse before_body(const httplib::Request& req, httplib::Response& res) {
    const auto handled = HandlerResponse::Handled;
    const auto [fault, reason] = body_fault(req, options_.max_body_bytes);
    if (fault != 0) return refuse(req, res, fault, reason), handled;
    if (req.method == "OPTIONS" && !options_.cors_origin.empty()) {
      res.status = 204;
      add_cors(res);
      res.set_header("Access-Control-Allow-Methods", "GET, POST");
      res.set_header("Access-Control-Allow-Headers", "*, Authorization");
      res.set_header("Access-Control-Max-Age", "600");
      return handled;
    }
    const std::string method = req.method == "HEAD" ? "GET" : req.method;
    const auto path = req.path.size() <= kMaxPathBytes ? routes_.find(req.path) : routes_.end();
    if (path == routes_.end()) return refuse(req, res, 404, fmt::format("there is nothing at {}", req.path.substr(0, 100))), handled;
    const auto route = path->second.find(method);
    if (route == path->second.end()) {
      std::string allowed;
      for (const auto& [name, unused] : path->second) allowed += (allowed.empty() ? "" : ", ") + name;
      res.set_header("Allow", allowed);
      return refuse(req, res, 405, fmt::format("{} takes {}, not {}", req.path, allowed, req.method)), handled;
    }
    if (route->second.needs_key && !options_.api_keys.empty()) {
      std::string key = req.get_header_value("x-api-key");
      const std::string authorization = req.get_header_value("Authorization");
      if (ascii_lower(authorization.substr(0, 7)) == "bearer ") key = authorization.substr(7);
      if (!is_api_key(options_.api_keys, key)) return refuse(req, res, 401, "the API key is missing or wrong"), handled;
    }
    if (method == "POST") {
      if (!req.get_header_value("Content-Encoding").empty()) return refuse(req, res, 415, "compressed bodies are not taken"), handled;
      // Also what keeps other sites' pages from posting here: a browser asks before it sends this type.
      if (ascii_lower(req.get_header_value("Content-Type")).rfind("application/json", 0) != 0) {
        return refuse(req, res, 415, "Content-Type must be application/json"), handled;
      }
      return HandlerResponse::Unhandled;
    }
    if (req.get_header_value_count("Content-Length") + req.get_header_value_count("Transfer-Encoding") > 0) current().must_close = true;
    answer(req, res, route->second, "");
    return handled;
  }

  void post(const httplib::Request& req, httplib::Response& res, const httplib::ContentReader& reader) {
    std::string body;
    bool too_long = false;
    const bool complete = reader([&](const char* bytes, size_t size) {
      too_long = static_cast<int64_t>(body.size() + size) > options_.max_body_bytes;
      if (!too_long) body.append(bytes, size);
      return !too_long;
    });
    if (complete) return answer(req, res, routes_.at(req.path).at("POST"), std::move(body));
    if (too_long) return refuse(req, res, 413, fmt::format("the body has more than {} bytes", options_.max_body_bytes));
    const bool late = current().timed_out();
    refuse(req, res, late ? 408 : 400, late ? head_message(408) : "the body ended early or its chunks are malformed");
  }

  void answer(const httplib::Request& req, httplib::Response& res, const HttpRoute& route, std::string body) {
    HttpConnection& connection = current();
    auto request = std::make_shared<HttpRequest>();
    request->id = new_request_id();
    request->method = route.method;
    request->path = req.path;
    for (const auto& [name, value] : req.params) request->query.emplace(name, value);
    for (const auto& [name, value] : req.headers) request->headers.emplace(ascii_lower(name), value);
    request->body = std::move(body);
    request->remote = req.remote_addr;
    request->peer_gone = [&connection] { return connection.peer_gone(); };

    const auto start = HttpConnection::Clock::now();
    HttpReply reply;
    try {
      reply = route.handler(*request);
    } catch (const std::exception& error) {  // out of memory, or our bug: this request fails, the others go on
      log_error(fmt::format("{}: {}", req.path, error.what()));
      reply = {};
      reply.status = 500;
      reply.body = refusal(req.path, 500, "internal error");
    }
    const auto log = [this, request, start, status = reply.status](bool gone) {
      if (options_.log) options_.log({*request, status, std::chrono::duration<double>(HttpConnection::Clock::now() - start).count(), gone});
    };
    res.status = reply.status;
    res.set_header("x-request-id", request->id);
    for (const auto& [name, value] : reply.headers) res.set_header(name, value);
    add_cors(res);
    if (!reply.stream || req.method == "HEAD") {
      res.set_content(reply.body, reply.content_type);
      log(connection.peer_gone());
      return;
    }
    res.set_header("Cache-Control", "no-store");
    res.set_header("X-Accel-Buffering", "no");  // proxies: pass events on at once
    const auto provider = [&connection, stream = std::move(reply.stream), log](size_t, httplib::DataSink& sink) {
      class Writer : public StreamWriter {
       public:
        Writer(httplib::DataSink& sink, HttpConnection& connection) : sink_(sink), connection_(connection) {}
        bool write(std::string_view bytes) override { return bytes.empty() || (ok_ && (ok_ = sink_.write(bytes.data(), bytes.size()))); }
        bool gone() override { return !ok_ || connection_.peer_gone(); }
        bool ready() override { return ok_ && connection_.ready(); }
        void set_waiting(bool waits) override { connection_.set_waiting(waits); }

       private:
        httplib::DataSink& sink_;
        HttpConnection& connection_;
        bool ok_ = true;
      } writer(sink, connection);
      try {
        stream(writer);
      } catch (const std::exception& error) {
        log_error(fmt::format("stream: {}", error.what()));
        log(true);
        return false;
      }
      log(writer.gone());
      sink.done();
      return true;
    };
    if (req.version == "HTTP/1.0") {  // knows no chunks: the body ends with the connection
      res.set_header("Connection", "close");
      connection.must_close = true;
      res.set_content_provider(reply.content_type, provider);
    } else {
      res.set_chunked_content_provider(reply.content_type, provider);
    }
  }

  HttpOptions options_;
  WorkerPool pool_;
  std::map<std::string, std::map<std::string, HttpRoute>> routes_;  // path, method
  int port_ = -1;
  std::thread accepting_;
  std::atomic<bool> closing_{false};
  std::mutex mutex_;
  std::map<std::thread::id, Slot> connections_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() { stop(0); }

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpOptions options, std::vector<HttpRoute> routes) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(routes));
  DSV4_RETURN_IF_ERROR(impl->open());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

int HttpServer::port() const { return impl_->port(); }

void HttpServer::stop(double grace_seconds) { impl_->close_down(grace_seconds); }

}  // namespace dsv4

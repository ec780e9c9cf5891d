// A request and its reply as the endpoints see them: no HTTP library in sight.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dsv4 {

struct HttpRequest {
  std::string id;      // ours, unique: "req-..."
  std::string method;  // "GET", "POST"; a HEAD request arrives as GET
  std::string path;    // decoded, without the query
  std::map<std::string, std::string> query;
  std::map<std::string, std::string> headers;  // names in lower case; the first of several
  std::string body;
  std::string remote;               // the peer's address
  std::function<bool()> peer_gone;  // asks the socket; cheap
};

// The body of a reply that is written piece by piece.
class StreamWriter {
 public:
  virtual ~StreamWriter() = default;
  // False once the peer is gone or does not read; later pieces are dropped.
  virtual bool write(std::string_view bytes) = 0;
  virtual bool gone() = 0;
  // The peer is there, has read what came before, and takes more at once.
  virtual bool ready() = 0;
  // Whether a write waits for a peer that does not read (as it does at first), or keeps what the peer does not take for the next one that waits.
  virtual void set_waiting(bool waits) = 0;
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::function<void(StreamWriter&)> stream;  // set: called once, instead of `body`; returns when the body is complete
};

using HttpHandler = std::function<HttpReply(const HttpRequest&)>;

struct HttpRoute {
  std::string method;  // "GET" or "POST"
  std::string path;    // exact
  bool needs_key = true;
  HttpHandler handler;
};

}  // namespace dsv4

// An HTTP/1.1 client connection that never waits. One thread serves hundreds of them, and so takes little from a server that shares its
// machine: with a blocking client and a thread for each stream, every token woke two threads.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4 {

// Where an "http://host:port" is.
struct HttpAddress {
  std::string host;  // as the Host header says it
  struct Place {
    sockaddr_storage address{};
    socklen_t length = 0;
  };
  std::vector<Place> places;  // tried in this order: "localhost" has one of each family
};
Result<HttpAddress> resolve_http(const std::string& url);

class LoadConnection {
 public:
  // Takes the body as it comes, chunks put together; false ends the exchange and closes the connection.
  using Receiver = std::function<bool(int status, std::string_view bytes)>;
  enum class End : uint8_t { kNone, kComplete, kCancelled, kFailed };

  explicit LoadConnection(const HttpAddress& address) : address_(address) {}
  ~LoadConnection() { close(); }
  LoadConnection(const LoadConnection&) = delete;
  LoadConnection& operator=(const LoadConnection&) = delete;

  // Begins an exchange, on the connection that the last reply left open or on a new one. `request`: head and body.
  void send(std::string request, Receiver receiver);

  // What to poll for while end() is kNone, and what to do with the answer (0: nothing came, look at the time).
  pollfd wanted() const;
  void turn(short events);

  End end() const { return end_; }
  int status() const { return status_; }  // 0 before the reply's head
  const std::string& error() const { return error_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Reading : uint8_t { kHead, kLength, kToTheEnd, kChunkSize, kChunk, kChunkEnd, kTrailer };

  void open();  // to the place in hand, or the next one that can be had
  void close();
  void fail(std::string why);
  void write_some();
  void read_some();
  bool take(std::string_view bytes);  // false: the exchange is over
  bool take_line(std::string_view* bytes);
  bool read_head();
  void complete();

  const HttpAddress address_;
  size_t place_ = 0;
  int fd_ = -1;
  bool connecting_ = false, used_before_ = false, keep_ = false;
  std::string request_;
  size_t sent_ = 0;
  Receiver receiver_;
  Reading reading_ = Reading::kHead;
  std::string line_;  // the head, or a line of the chunks' framing, as far as it came
  int64_t left_ = 0;  // bytes of the body or chunk
  bool received_any_ = false;
  Clock::time_point deadline_;
  End end_ = End::kComplete;
  int status_ = 0;
  std::string error_;
};

}  // namespace dsv4

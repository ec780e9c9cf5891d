// A blocking HTTP client over a raw socket, for tests: it sends what it is told, also what no client should.
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

namespace dsv4 {

struct RawReply {
  int status = 0;  // 0 = none came
  std::map<std::string, std::string> headers;
  std::string body;  // chunks joined
};

class RawClient {
 public:
  explicit RawClient(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return connected_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  void post(const std::string& path, const std::string& body, const std::string& more_headers = "") {
    send("POST " + path + " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         more_headers + "\r\n" + body);
  }
  void get(const std::string& path, const std::string& more_headers = "") { send("GET " + path + " HTTP/1.1\r\nHost: test\r\n" + more_headers + "\r\n"); }

  // More bytes into the buffer; false at the end of the stream or after `ms`.
  bool receive(int ms) {
    pollfd p{fd_, POLLIN, 0};
    if (poll(&p, 1, ms) <= 0) return false;
    char bytes[4096];
    const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
    if (n <= 0) return false;
    buffer_.append(bytes, static_cast<size_t>(n));
    return true;
  }
  // Waits until `text` has come; for streams.
  bool wait_for(std::string_view text, int ms = 5000) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
    while (buffer_.find(text) == std::string::npos) {
      if (std::chrono::steady_clock::now() > until || !receive(100)) {
        if (std::chrono::steady_clock::now() > until) return false;
        if (ended()) return buffer_.find(text) != std::string::npos;
      }
    }
    return true;
  }
  bool ended() {
    char byte;
    return recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
  }

  // One reply, its body read by Content-Length, by chunks, or to the end.
  RawReply reply(int ms = 10000) {
    RawReply out;
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
    const auto more = [&] {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
      return left > 0 && receive(static_cast<int>(left));
    };
    size_t head_end;
    while ((head_end = buffer_.find("\r\n\r\n")) == std::string::npos) {
      if (!more()) return out;
    }
    const std::string head = buffer_.substr(0, head_end + 2);
    buffer_.erase(0, head_end + 4);
    out.status = std::atoi(head.c_str() + 9);
    for (size_t at = head.find("\r\n") + 2; at < head.size();) {
      const size_t end = head.find("\r\n", at), colon = head.find(':', at);
      std::string name = head.substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      out.headers[name] = head.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    if (out.headers.count("content-length") != 0) {
      const size_t size = std::stoul(out.headers["content-length"]);
      while (buffer_.size() < size && more()) {
      }
      out.body = buffer_.substr(0, size);
      buffer_.erase(0, size);
    } else if (out.headers["transfer-encoding"] == "chunked") {
      for (;;) {
        size_t line;
        while ((line = buffer_.find("\r\n")) == std::string::npos) {
          if (!more()) return out;
        }
        const size_t size = std::strtoul(buffer_.c_str(), nullptr, 16);
        while (buffer_.size() < line + 2 + size + 2) {
          if (!more()) return out;
        }
        out.body += buffer_.substr(line + 2, size);
        buffer_.erase(0, line + 2 + size + 2);
        if (size == 0) break;
      }
    } else {
      while (more()) {
      }
      out.body = std::exchange(buffer_, {});
    }
    return out;
  }

  std::string& buffer() { return buffer_; }

 private:
  int fd_ = -1;
  bool connected_ = false;
  std::string buffer_;
};

}  // namespace dsv4

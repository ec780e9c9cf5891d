#include "server/http_connection.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>

#include <algorithm>

namespace dsv4 {
namespace {

HttpConnection::Clock::time_point after(double seconds) {
  return HttpConnection::Clock::now() + std::chrono::duration_cast<HttpConnection::Clock::duration>(std::chrono::duration<double>(seconds));
}

std::string peer_address(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return "?";
  char text[INET6_ADDRSTRLEN] = "?";
  if (storage.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(&storage)->sin_addr, text, sizeof(text));
  } else if (storage.ss_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(&storage)->sin6_addr, text, sizeof(text));
  }
  return text;
}

// A reply's last bytes are lost if the socket closes while unread input lies in it: the kernel then resets the connection. So what a
// refused peer still sends is taken in, up to these bounds.
constexpr int64_t kLingerBytes = int64_t{64} << 20;
constexpr double kLingerSeconds = 2;

constexpr short kGone = POLLRDHUP | POLLHUP | POLLERR | POLLNVAL;

}  // namespace

HttpConnection::HttpConnection(int fd, const Limits& limits) : fd_(fd), limits_(limits), remote_(peer_address(fd)) {
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // a token's event must not wait for the next one
}

HttpConnection::~HttpConnection() {
  ::shutdown(fd_, SHUT_WR);
  if (sent_any_ && !broken_) {
    const auto until = after(must_close ? kLingerSeconds : 0);
    int64_t taken = 0;
    while (taken < kLingerBytes && wait_socket(POLLIN, until)) {
      const ssize_t n = recv(fd_, buffer_, sizeof(buffer_), MSG_DONTWAIT);
      if (n <= 0) break;
      taken += n;
    }
  }
  ::close(fd_);
}

bool HttpConnection::wait_socket(short events, Clock::time_point until) const {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left < 0) return false;
    pollfd p{fd_, events, 0};
    const int ready = poll(&p, 1, static_cast<int>(std::min<int64_t>(left + 1, 60000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

// Reads at least one byte into the empty buffer.
bool HttpConnection::fill(Clock::time_point until) {
  begin_ = end_ = 0;
  if (!wait_socket(POLLIN, until)) {
    timed_out_ = true;
    return false;
  }
  const ssize_t n = recv(fd_, buffer_, sizeof(buffer_), 0);
  if (n <= 0) {
    broken_ = n < 0;
    return false;
  }
  end_ = static_cast<size_t>(n);
  return true;
}

bool HttpConnection::wait_request(const std::function<bool()>& give_up) {
  if (begin_ < end_) return true;
  const auto until = after(limits_.idle_seconds);
  for (;;) {
    if (wait_socket(POLLIN, std::min(until, after(0.25)))) return fill(until);
    if (Clock::now() >= until || give_up()) return false;
  }
}

void HttpConnection::begin_request() {
  deadline_ = after(limits_.receive_seconds);
  received_ = 0;
  in_head_ = waits_ = true;
  timed_out_ = head_too_long_ = sent_any_ = false;
}

bool HttpConnection::peer_gone() const {
  if (broken_) return true;
  pollfd p{fd_, POLLRDHUP, 0};
  return poll(&p, 1, 0) > 0 && (p.revents & kGone) != 0;
}

bool HttpConnection::ready() const {
  if (broken_ || !kept_.empty()) return false;
  pollfd p{fd_, POLLRDHUP | POLLOUT, 0};
  return poll(&p, 1, 0) > 0 && (p.revents & kGone) == 0 && (p.revents & POLLOUT) != 0;
}

void HttpConnection::wake_idle() { ::shutdown(fd_, SHUT_RD); }

ssize_t HttpConnection::read(char* out, size_t size) {
  if (begin_ == end_ && !fill(deadline_)) return timed_out_ || broken_ ? -1 : 0;
  size = std::min(size, end_ - begin_);
  if (in_head_ && received_ + static_cast<int64_t>(size) > limits_.head_bytes) {
    head_too_long_ = true;
    return -1;
  }
  std::memcpy(out, buffer_ + begin_, size);
  begin_ += size;
  received_ += static_cast<int64_t>(size);
  return static_cast<ssize_t>(size);
}

// The bytes the peer takes; 0 when it takes none and nobody waits for it; -1 when it is gone or does not read.
ssize_t HttpConnection::send_some(const char* bytes, size_t size, bool waits) {
  for (;;) {
    const ssize_t n = send(fd_, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) return n;
    if (errno == EINTR) continue;
    const bool full = errno == EAGAIN || errno == EWOULDBLOCK;
    if (full && !waits) return 0;
    if (!full || !wait_socket(POLLOUT, after(limits_.idle_seconds))) {
      broken_ = true;
      return -1;
    }
  }
}

ssize_t HttpConnection::write(const char* bytes, size_t size) {
  if (broken_) return -1;
  sent_any_ = true;
  while (!kept_.empty()) {
    const ssize_t n = send_some(kept_.data(), kept_.size(), waits_);
    if (n < 0) return -1;
    if (n == 0) break;
    kept_.erase(0, static_cast<size_t>(n));
  }
  const ssize_t n = kept_.empty() ? send_some(bytes, size, waits_) : 0;
  if (n < 0 || waits_) return n;
  kept_.append(bytes + n, size - static_cast<size_t>(n));
  return static_cast<ssize_t>(size);
}

void HttpConnection::write_all(const std::string& bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = write(bytes.data() + done, bytes.size() - done);
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

void HttpConnection::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip = remote_;
  port = 0;
}

void HttpConnection::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

}  // namespace dsv4

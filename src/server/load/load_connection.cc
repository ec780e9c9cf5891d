#include "server/load/load_connection.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/ascii.h"
#include "server/load/read_number.h"

namespace dsv4 {
namespace {

constexpr std::chrono::seconds kConnectTime{10}, kSilence{3600};
constexpr size_t kMaxLine = 65536;
constexpr std::string_view kScheme = "http://";

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

}  // namespace

Result<HttpAddress> resolve_http(const std::string& url) {
  if (url.rfind(kScheme, 0) != 0) return invalid_argument("the server's address must begin with http://, it is " + url);
  HttpAddress out;
  out.host = url.substr(kScheme.size());
  out.host.resize(std::min(out.host.size(), out.host.find('/')));
  std::string name = out.host, port = "80";
  const size_t colon = name.rfind(':');
  if (colon != std::string::npos && name.find(']', colon) == std::string::npos) {
    port = name.substr(colon + 1);
    name.resize(colon);
  }
  if (name.size() > 1 && name.front() == '[' && name.back() == ']') name = name.substr(1, name.size() - 2);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = getaddrinfo(name.c_str(), port.c_str(), &hints, &found); error != 0) return io_error(url + ": " + gai_strerror(error));
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    HttpAddress::Place& place = out.places.emplace_back();
    std::memcpy(&place.address, at->ai_addr, at->ai_addrlen);
    place.length = at->ai_addrlen;
  }
  freeaddrinfo(found);
  return out;
}

void LoadConnection::send(std::string request, Receiver receiver) {
  request_ = std::move(request);
  receiver_ = std::move(receiver);
  end_ = End::kNone;
  status_ = 0;
  error_.clear();
  received_any_ = false;
  used_before_ = fd_ >= 0;
  if (fd_ < 0) {
    open();
  } else {
    deadline_ = Clock::now() + kSilence;
  }
  sent_ = 0;
  reading_ = Reading::kHead;
  line_.clear();
  if (end_ == End::kNone && !connecting_) write_some();
}

void LoadConnection::open() {
  for (; place_ < address_.places.size(); ++place_) {
    const HttpAddress::Place& place = address_.places[place_];
    fd_ = socket(place.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd_ >= 0) {
      const int on = 1;
      setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      deadline_ = Clock::now() + kConnectTime;
      connecting_ = connect(fd_, reinterpret_cast<const sockaddr*>(&place.address), place.length) != 0;
      if (!connecting_ || errno == EINPROGRESS) return;
    }
    error_ = std::string("connect: ") + std::strerror(errno);
    close();
  }
  place_ = 0;
  fail(error_);
}

void LoadConnection::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  connecting_ = false;
}

void LoadConnection::fail(std::string why) {
  close();
  end_ = End::kFailed;
  error_ = std::move(why);
}

pollfd LoadConnection::wanted() const { return {fd_, static_cast<short>(connecting_ || sent_ < request_.size() ? POLLIN | POLLOUT : POLLIN), 0}; }

void LoadConnection::turn(short events) {
  if (end_ != End::kNone) return;
  if (events == 0) {
    if (Clock::now() > deadline_) fail(connecting_ ? "no connection within 10 s" : "nothing came for an hour");
    return;
  }
  if (connecting_) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      error_ = std::string("connect: ") + std::strerror(error);
      close();
      ++place_;
      return open();
    }
    connecting_ = false;
    deadline_ = Clock::now() + kSilence;
  }
  if (sent_ < request_.size()) write_some();
  if (end_ == End::kNone && (events & ~POLLOUT) != 0) read_some();
}

void LoadConnection::write_some() {
  while (sent_ < request_.size()) {
    const ssize_t n = ::send(fd_, request_.data() + sent_, request_.size() - sent_, MSG_NOSIGNAL);
    if (n >= 0) {
      sent_ += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      sent_ = request_.size();  // a server that refuses early closes its side; its reply may still be read
      return;
    }
  }
}

void LoadConnection::read_some() {
  char buffer[16384];
  ssize_t n;
  do {
    n = recv(fd_, buffer, sizeof(buffer), 0);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return;
  if (n > 0) {
    received_any_ = true;
    deadline_ = Clock::now() + kSilence;
    (void)take({buffer, static_cast<size_t>(n)});
    return;
  }
  if (n == 0 && reading_ == Reading::kToTheEnd) return complete();
  const std::string why = n == 0 ? "the server closed the connection" : std::string("recv: ") + std::strerror(errno);
  if (!used_before_ || received_any_) return fail(why);
  // The server closed an idle connection just as the request went out: once more, on a new one.
  close();
  send(std::move(request_), std::move(receiver_));
}

// Moves bytes up to the next line feed into line_; true when it is complete.
bool LoadConnection::take_line(std::string_view* bytes) {
  const size_t at = bytes->find('\n');
  const size_t count = at == std::string_view::npos ? bytes->size() : at + 1;
  line_.append(bytes->substr(0, count));
  bytes->remove_prefix(count);
  if (line_.size() > kMaxLine) fail("a line of the reply's framing is longer than 64 KiB");
  return at != std::string_view::npos && end_ == End::kNone;
}

// line_ holds a whole head. False: it is not HTTP.
bool LoadConnection::read_head() {
  const std::string head = std::exchange(line_, {});
  if (head.rfind("HTTP/1.", 0) != 0 || head.size() < 12 || !read_number(std::string_view(head).substr(9, 3), &status_)) return false;
  if (status_ < 200) return true;  // the real head follows
  keep_ = head[7] == '1';
  bool chunked = false;
  left_ = -1;
  for (size_t at = head.find('\n') + 1; at < head.size();) {
    const size_t end = std::min(head.find('\n', at), head.size());
    const std::string_view field = std::string_view(head).substr(at, end - at);
    at = end + 1;
    const size_t colon = std::min(field.find(':'), field.size());
    const std::string name = ascii_lower(field.substr(0, colon)), value = ascii_lower(trimmed(field.substr(std::min(colon + 1, field.size()))));
    if (name == "connection" && value == "close") keep_ = false;
    if (name == "transfer-encoding" && value == "chunked") chunked = true;
    if (name == "content-length" && (!read_number(value, &left_) || left_ < 0)) return false;
  }
  if (status_ == 204) left_ = 0;
  reading_ = chunked ? Reading::kChunkSize : left_ >= 0 ? Reading::kLength : Reading::kToTheEnd;
  keep_ = keep_ && reading_ != Reading::kToTheEnd;
  return true;
}

bool LoadConnection::take(std::string_view bytes) {
  for (;;) {
    if (reading_ == Reading::kLength && left_ == 0) return complete(), false;
    if (bytes.empty()) return true;
    switch (reading_) {
      case Reading::kHead:
        if (!take_line(&bytes)) return end_ == End::kNone;
        if (line_.size() < 4 || line_.compare(line_.size() - 4, 4, "\r\n\r\n") != 0) break;
        if (!read_head()) return fail("the reply is not HTTP/1.1"), false;
        break;
      case Reading::kLength:
      case Reading::kChunk:
      case Reading::kToTheEnd: {
        const size_t count = reading_ == Reading::kToTheEnd ? bytes.size() : static_cast<size_t>(std::min<int64_t>(left_, static_cast<int64_t>(bytes.size())));
        left_ -= static_cast<int64_t>(count);
        if (!receiver_(status_, bytes.substr(0, count))) {
          close();
          end_ = End::kCancelled;
          return false;
        }
        bytes.remove_prefix(count);
        if (reading_ == Reading::kChunk && left_ == 0) reading_ = Reading::kChunkEnd;
        break;
      }
      case Reading::kChunkSize:
        if (!take_line(&bytes)) return end_ == End::kNone;
        if (!read_number(trimmed(std::string_view(line_).substr(0, line_.find_first_of(";\r"))), &left_, 16) || left_ < 0)
          return fail("a chunk's size is not a number"), false;
        line_.clear();
        reading_ = left_ == 0 ? Reading::kTrailer : Reading::kChunk;
        break;
      case Reading::kChunkEnd:
        if (!take_line(&bytes)) return end_ == End::kNone;
        if (line_ != "\r\n") return fail("a chunk is longer than its size"), false;
        line_.clear();
        reading_ = Reading::kChunkSize;
        break;
      case Reading::kTrailer:
        if (!take_line(&bytes)) return end_ == End::kNone;
        if (std::exchange(line_, {}) == "\r\n") return complete(), false;
        break;
    }
  }
}

void LoadConnection::complete() {
  end_ = End::kComplete;
  if (!keep_) close();
}

}  // namespace dsv4

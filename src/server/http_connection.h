// One client connection: a buffered socket with deadlines and byte limits, as the HTTP library's stream.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <httplib.h>

namespace dsv4 {

class HttpConnection : public httplib::Stream {
 public:
  using Clock = std::chrono::steady_clock;
  struct Limits {
    int64_t head_bytes = 0;
    double receive_seconds = 0, idle_seconds = 0;
  };

  HttpConnection(int fd, const Limits& limits);  // owns the socket
  ~HttpConnection() override;                    // closes, after taking in what the peer still sends so that it can read the reply

  // Waits for the first byte of a request. False: the peer left, the time is over, or `give_up` says so (asked four times a second).
  bool wait_request(const std::function<bool()>& give_up);
  void begin_request();  // the head's limits count from here
  void head_done() { in_head_ = false; }
  bool in_head() const { return in_head_; }

  bool peer_gone() const;
  void wake_idle();  // ends wait_request from another thread

  bool timed_out() const { return timed_out_; }
  bool head_too_long() const { return head_too_long_; }
  bool received_any() const { return received_ > 0; }
  bool sent_any() const { return sent_any_; }
  const std::string& remote() const { return remote_; }
  void write_all(const std::string& bytes);

  // StreamWriter (http_types.h)
  bool ready() const;
  void set_waiting(bool waits) { waits_ = waits; }

  bool must_close = false;  // the connection's place in the stream of requests is lost, or the reply said so

  bool is_readable() const override { return true; }
  bool is_writable() const override { return !peer_gone(); }
  ssize_t read(char* out, size_t size) override;
  ssize_t write(const char* bytes, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return fd_; }

 private:
  bool wait_socket(short events, Clock::time_point until) const;
  bool fill(Clock::time_point until);
  ssize_t send_some(const char* bytes, size_t size, bool waits);

  const int fd_;
  const Limits limits_;
  std::string remote_;
  std::string kept_;  // written while nobody waits, not yet taken by the peer
  bool waits_ = true;
  char buffer_[16384];
  size_t begin_ = 0, end_ = 0;
  Clock::time_point deadline_;
  int64_t received_ = 0;  // of this request
  bool in_head_ = false, timed_out_ = false, head_too_long_ = false, sent_any_ = false, broken_ = false;
};

}  // namespace dsv4

#include "server/load/load_connection.h"

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <unistd.h>
#include <atomic>
#include <thread>
#include <vector>

namespace dsv4 {
namespace {

// A server that reads a request up to its body and answers with the next script, then closes where the script says so.
class ScriptedServer {
 public:
  struct Script {
    std::string reply;
    bool closes = false;
    size_t piece = 0;  // bytes sent at a time; 0 = all
  };

  explicit ScriptedServer(std::vector<Script> scripts) : listening_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(to);
    EXPECT_EQ(::bind(listening_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    EXPECT_EQ(::listen(listening_, 8), 0);
    getsockname(listening_, reinterpret_cast<sockaddr*>(&to), &size);
    url = "http://127.0.0.1:" + std::to_string(ntohs(to.sin_port));
    thread_ = std::thread([this, scripts = std::move(scripts)] { serve(scripts); });
  }
  ~ScriptedServer() {
    ::shutdown(listening_, SHUT_RDWR);
    thread_.join();
    ::close(listening_);
  }

  std::string url;
  std::atomic<int> connections{0};

 private:
  void serve(const std::vector<Script>& scripts) {
    int fd = -1;
    for (size_t i = 0; i < scripts.size();) {
      if (fd < 0) {
        if ((fd = ::accept(listening_, nullptr, nullptr)) < 0) return;
        ++connections;
      }
      std::string request;
      char bytes[4096];
      while (request.find("\r\n\r\n") == std::string::npos) {
        const ssize_t n = recv(fd, bytes, sizeof(bytes), 0);
        if (n <= 0) break;
        request.append(bytes, static_cast<size_t>(n));
      }
      if (request.empty()) {  // the client closed
        ::close(fd);
        fd = -1;
        continue;
      }
      const Script& s = scripts[i++];
      const size_t piece = s.piece == 0 ? s.reply.size() : s.piece;
      for (size_t at = 0; at < s.reply.size(); at += piece) {
        ::send(fd, s.reply.data() + at, std::min(piece, s.reply.size() - at), MSG_NOSIGNAL);
        if (s.piece != 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      if (!s.closes) continue;
      ::close(fd);
      fd = -1;
    }
    if (fd >= 0) ::close(fd);
  }

  const int listening_;
  std::thread thread_;
};

struct Exchange {
  LoadConnection::End end = LoadConnection::End::kNone;
  int status = 0;
  std::string body, error;
};

Exchange exchange(LoadConnection& connection, size_t cancel_after = std::string::npos) {
  Exchange out;
  connection.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", [&](int status, std::string_view bytes) {
    out.status = status;
    out.body += bytes;
    return out.body.size() < cancel_after;
  });
  while (connection.end() == LoadConnection::End::kNone) {
    pollfd p = connection.wanted();
    poll(&p, 1, 1000);
    connection.turn(p.revents);
  }
  out.end = connection.end();
  out.error = connection.error();
  return out;
}

constexpr const char* kChunked =
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;x=y\r\n \r\nA\r\nworld\n\r\n12\r\n0\r\nT: z\r\n\r\n";

TEST(LoadConnection, takes_chunks_apart_however_they_come) {
  for (const size_t piece : {size_t{0}, size_t{1}, size_t{7}}) {
    ScriptedServer server({{kChunked, false, piece}, {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", false, piece}});
    LoadConnection connection(resolve_http(server.url).value());
    const Exchange chunked = exchange(connection);
    EXPECT_EQ(chunked.end, LoadConnection::End::kComplete) << chunked.error;
    EXPECT_EQ(chunked.status, 200);
    EXPECT_EQ(chunked.body, "hello world\n\r\n12");
    EXPECT_EQ(exchange(connection).body, "abc");
    EXPECT_EQ(server.connections, 1);  // both over one
  }
}

TEST(LoadConnection, bodies_of_every_framing) {
  ScriptedServer server({{"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", false},
                         {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", true},
                         {"HTTP/1.1 200 OK\r\n\r\nto the end", true}});
  LoadConnection connection(resolve_http(server.url).value());
  Exchange e = exchange(connection);
  EXPECT_EQ(e.end, LoadConnection::End::kComplete) << e.error;
  EXPECT_EQ(connection.status(), 400);
  EXPECT_EQ(exchange(connection).body, "ok");
  e = exchange(connection);
  EXPECT_EQ(e.end, LoadConnection::End::kComplete) << e.error;
  EXPECT_EQ(e.body, "to the end");
}

TEST(LoadConnection, broken_replies_are_failures_with_a_reason) {
  for (const auto& [reply, reason] :
       std::vector<std::pair<std::string, std::string>>{{"nonsense\r\n\r\n", "not HTTP"},
                                                        {"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "not HTTP"},
                                                        {"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n", "not HTTP"},
                                                        {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "closed"},
                                                        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "size"},
                                                        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", "size"},
                                                        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", "longer"},
                                                        {"HTTP/1.1 200 OK\r\nX: " + std::string(70000, 'x'), "64 KiB"},
                                                        {"", "closed"}}) {
    ScriptedServer server({{reply, true}});
    LoadConnection connection(resolve_http(server.url).value());
    const Exchange e = exchange(connection);
    EXPECT_EQ(e.end, LoadConnection::End::kFailed) << reply.substr(0, 80);
    EXPECT_NE(e.error.find(reason), std::string::npos) << e.error << " for " << reply.substr(0, 80);
  }
}

TEST(LoadConnection, a_receiver_may_end_it) {
  ScriptedServer server({{kChunked}, {kChunked}});
  LoadConnection connection(resolve_http(server.url).value());
  EXPECT_EQ(exchange(connection, 3).end, LoadConnection::End::kCancelled);
  EXPECT_EQ(exchange(connection).body.size(), 16u);  // on a connection of its own
  EXPECT_EQ(server.connections, 2);
}

// A kept connection that the server has closed meanwhile is no failure of the next request.
TEST(LoadConnection, goes_on_after_the_server_closed_an_idle_connection) {
  ScriptedServer server({{"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", true}, {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb"}});
  LoadConnection connection(resolve_http(server.url).value());
  EXPECT_EQ(exchange(connection).body, "a");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const Exchange e = exchange(connection);
  EXPECT_EQ(e.body, "b") << e.error;
  EXPECT_EQ(server.connections, 2);
}

TEST(LoadConnection, addresses) {
  EXPECT_EQ(resolve_http("http://127.0.0.1:81/x").value().host, "127.0.0.1:81");
  EXPECT_EQ(ntohs(reinterpret_cast<const sockaddr_in&>(resolve_http("http://127.0.0.1").value().places[0].address).sin_port), 80);
  EXPECT_EQ(resolve_http("http://[::1]:82").value().places[0].address.ss_family, AF_INET6);
  EXPECT_FALSE(resolve_http("https://127.0.0.1").ok());
  EXPECT_FALSE(resolve_http("http://127.0.0.1:no-port").ok());
  LoadConnection nobody(resolve_http("http://127.0.0.1:1").value());
  EXPECT_EQ(exchange(nobody).end, LoadConnection::End::kFailed);
  EXPECT_NE(exchange(nobody).error.find("refused"), std::string::npos);
}

// As "localhost", whose first address is often not the one the server listens on.
TEST(LoadConnection, tries_all_places_of_a_name) {
  ScriptedServer server({{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"}});
  HttpAddress address = resolve_http(server.url).value();
  address.places.insert(address.places.begin(), resolve_http("http://127.0.0.1:1").value().places[0]);
  LoadConnection connection(address);
  const Exchange e = exchange(connection);
  EXPECT_EQ(e.body, "ok") << e.error;
}

}  // namespace
}  // namespace dsv4

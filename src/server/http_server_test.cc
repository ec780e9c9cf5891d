#include "server/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "server/http_test_client.h"

namespace dsv4 {
namespace {

class HttpServerTest : public testing::Test {
 protected:
  void start(HttpOptions options = {}) {
    options.port = 0;
    options.log = [this](const HttpLogEntry& e) {
      ++logged_;
      if (e.peer_gone) ++gone_;
    };
    options.error_body = [](const std::string&, int status, const std::string& message) {
      return "{\"error\":\"" + std::to_string(status) + " " + message + "\"}";
    };
    const auto echo = [](const HttpRequest& r) {
      HttpReply reply;
      reply.body = r.method + r.path + "|" + r.body;
      return reply;
    };
    const auto stream = [this](const HttpRequest&) {
      HttpReply reply;
      reply.content_type = "text/event-stream";
      reply.stream = [this](StreamWriter& w) {
        for (int i = 0; i < 1000 && (i < 3 || !stop_after_three_); ++i) {
          if (!w.write("data: " + std::to_string(i) + "\n\n")) break;
          for (int wait = 0; wait < 10 && !w.gone(); ++wait) std::this_thread::sleep_for(std::chrono::milliseconds(2));
          if (w.gone()) break;
        }
        ++streams_ended_;
      };
      return reply;
    };
    auto server = HttpServer::start(std::move(options), {{"GET", "/open", false, echo},
                                                         {"GET", "/closed", true, echo},
                                                         {"POST", "/echo", true, echo},
                                                         {"GET", "/stream", true, stream},
                                                         {"GET", "/throw", true, [](const HttpRequest&) -> HttpReply { throw std::bad_alloc(); }}});
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }
  RawReply ask(const std::string& bytes) {
    RawClient client(server_->port());
    client.send(bytes);
    return client.reply();
  }

  std::unique_ptr<HttpServer> server_;
  std::atomic<int> logged_{0}, gone_{0}, streams_ended_{0};
  std::atomic<bool> stop_after_three_{true};
};

TEST_F(HttpServerTest, answers_and_keeps_the_connection) {
  start();
  RawClient client(server_->port());
  client.post("/echo", "{}");
  RawReply reply = client.reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "POST/echo|{}");
  EXPECT_EQ(reply.headers["content-type"], "application/json");
  EXPECT_EQ(reply.headers["x-request-id"].substr(0, 4), "req-");
  EXPECT_EQ(reply.headers.count("access-control-allow-origin"), 0u);
  client.get("/open?a=b");
  EXPECT_EQ(client.reply().body, "GET/open|");
  client.send("POST /echo HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.reply().body, "POST/echo|abcde");
  EXPECT_EQ(logged_, 3);
}

TEST_F(HttpServerTest, a_burst_of_pipelined_requests_is_answered_in_order) {
  start();
  RawClient client(server_->port());
  client.send("GET /open HTTP/1.1\r\n\r\nGET /closed HTTP/1.1\r\n\r\nGET /open HTTP/1.1\r\n\r\n");
  EXPECT_EQ(client.reply().body, "GET/open|");
  EXPECT_EQ(client.reply().body, "GET/closed|");
  EXPECT_EQ(client.reply().body, "GET/open|");
}

TEST_F(HttpServerTest, head_gets_no_body) {
  start();
  RawClient client(server_->port());
  client.send("HEAD /open HTTP/1.1\r\nConnection: close\r\n\r\n");
  while (client.receive(2000)) {
  }
  EXPECT_NE(client.buffer().find("200 OK"), std::string::npos);
  EXPECT_EQ(client.buffer().find("GET/open"), std::string::npos);
}

TEST_F(HttpServerTest, refusals) {
  HttpOptions options;
  options.max_body_bytes = 100;
  options.max_head_bytes = 4000;
  start(options);
  const std::string type = "Content-Type: application/json\r\n";
  struct Case {
    const char* why;
    std::string bytes;
    int status;
  };
  const std::vector<Case> cases = {
      {"unknown_path", "GET /nothing HTTP/1.1\r\n\r\n", 404},
      {"dots", "GET /../../etc/passwd HTTP/1.1\r\n\r\n", 404},
      {"escaped_dots", "GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\n\r\n", 404},
      {"nul_in_path", "GET /open%00x HTTP/1.1\r\n\r\n", 404},
      {"long_path", "GET /" + std::string(2000, 'a') + " HTTP/1.1\r\n\r\n", 404},
      {"wrong_method", "GET /echo HTTP/1.1\r\n\r\n", 405},
      {"delete", "DELETE /open HTTP/1.1\r\n\r\n", 405},
      {"options_without_cors", "OPTIONS /open HTTP/1.1\r\n\r\n", 405},
      {"unknown_method", "BREW /open HTTP/1.1\r\n\r\n", 400},
      {"no_version", "GET /open\r\n\r\n", 400},
      {"version_2", "GET /open HTTP/2.0\r\n\r\n", 400},
      {"tls_hello", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + "\r\n\r\n", 400},
      {"empty_line", "\r\n\r\n", 400},
      {"no_length", "POST /echo HTTP/1.1\r\n" + type + "\r\n", 411},
      {"two_lengths", "POST /echo HTTP/1.1\r\n" + type + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400},
      {"length_and_chunks", "POST /echo HTTP/1.1\r\n" + type + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400},
      {"negative_length", "POST /echo HTTP/1.1\r\n" + type + "Content-Length: -1\r\n\r\n", 400},
      {"absurd_length", "POST /echo HTTP/1.1\r\n" + type + "Content-Length: 99999999999999999999\r\n\r\n", 400},
      {"gzip_chunks", "POST /echo HTTP/1.1\r\n" + type + "Transfer-Encoding: gzip, chunked\r\n\r\n", 400},
      {"too_long", "POST /echo HTTP/1.1\r\n" + type + "Content-Length: 101\r\n\r\n" + std::string(101, 'x'), 413},
      {"chunks_too_long", "POST /echo HTTP/1.1\r\n" + type + "Transfer-Encoding: chunked\r\n\r\n80\r\n" + std::string(128, 'x') + "\r\n0\r\n\r\n", 413},
      {"bad_chunk", "POST /echo HTTP/1.1\r\n" + type + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"form", "POST /echo HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 2\r\n\r\n{}", 415},
      {"multipart", "POST /echo HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=a\r\nContent-Length: 2\r\n\r\n{}", 415},
      {"compressed", "POST /echo HTTP/1.1\r\n" + type + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415},
      {"bad_range", "GET /open HTTP/1.1\r\nRange: pages=1\r\n\r\n", 416},
      {"long_head", "GET /open HTTP/1.1\r\nX: " + std::string(6000, 'a') + "\r\n\r\n", 431},
      {"endless_request_line", "GET /" + std::string(6000, 'a'), 431},
  };
  for (const Case& c : cases) {
    const RawReply reply = ask(c.bytes);
    EXPECT_EQ(reply.status, c.status) << c.why;
    EXPECT_EQ(reply.body.rfind("{\"error\":\"" + std::to_string(c.status), 0), 0u) << c.why << ": " << reply.body;
  }
  EXPECT_EQ(ask("GET /open HTTP/1.1\r\n\r\n").status, 200);
}

TEST_F(HttpServerTest, a_range_is_passed_over) {
  start();
  const RawReply reply = ask("GET /open HTTP/1.1\r\nRange: bytes=0-1\r\n\r\n");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "GET/open|");
}

TEST_F(HttpServerTest, a_get_s_body_is_not_taken_for_a_request) {
  start();
  RawClient client(server_->port());
  const std::string hidden = "GET /closed HTTP/1.1\r\n\r\n";
  client.send("GET /open HTTP/1.1\r\nContent-Length: " + std::to_string(hidden.size()) + "\r\n\r\n" + hidden);
  RawReply reply = client.reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers["connection"], "close");
  EXPECT_EQ(client.reply(3000).status, 0);
}

TEST_F(HttpServerTest, slow_senders_get_408) {
  HttpOptions options;
  options.receive_seconds = 0.3;
  start(options);
  for (const std::string begun :
       {"GET /op", "GET /open HTTP/1.1\r\nHost: x\r\n", "POST /echo HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{"}) {
    RawClient client(server_->port());
    client.send(begun);
    std::thread dripping([&] {
      for (int i = 0; i < 20 && client.send("a"); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    });
    EXPECT_EQ(client.reply(3000).status, 408) << begun;
    dripping.join();
  }
}

TEST_F(HttpServerTest, keys) {
  HttpOptions options;
  options.api_keys = {"sesame", "open"};
  start(options);
  EXPECT_EQ(ask("GET /open HTTP/1.1\r\n\r\n").status, 200);  // needs none
  EXPECT_EQ(ask("GET /closed HTTP/1.1\r\n\r\n").status, 401);
  EXPECT_EQ(ask("GET /closed HTTP/1.1\r\nAuthorization: Bearer sesam\r\n\r\n").status, 401);
  EXPECT_EQ(ask("GET /closed HTTP/1.1\r\nAuthorization: Bearer sesamesesame\r\n\r\n").status, 401);
  EXPECT_EQ(ask("GET /closed HTTP/1.1\r\nAuthorization: Basic sesame\r\n\r\n").status, 401);
  EXPECT_EQ(ask("GET /closed HTTP/1.1\r\nAuthorization: Bearer sesame\r\n\r\n").status, 200);
  EXPECT_EQ(ask("GET /closed HTTP/1.1\r\nauthorization: bearer open\r\n\r\n").status, 200);
  EXPECT_EQ(ask("GET /closed HTTP/1.1\r\nx-api-key: open\r\n\r\n").status, 200);
  EXPECT_FALSE(is_api_key({""}, ""));
}

TEST_F(HttpServerTest, cors_when_asked_for) {
  HttpOptions options;
  options.cors_origin = "https://example.org";
  start(options);
  RawReply reply = ask("OPTIONS /echo HTTP/1.1\r\nOrigin: https://example.org\r\nAccess-Control-Request-Method: POST\r\n\r\n");
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.headers["access-control-allow-origin"], "https://example.org");
  EXPECT_EQ(ask("GET /open HTTP/1.1\r\n\r\n").headers["access-control-allow-origin"], "https://example.org");
}

TEST_F(HttpServerTest, a_stream_comes_piece_by_piece) {
  start();
  RawClient client(server_->port());
  client.get("/stream");
  ASSERT_TRUE(client.wait_for("data: 0\n\n"));
  EXPECT_EQ(client.buffer().find("data: 2"), std::string::npos);  // the first was not kept until the end
  const RawReply reply = client.reply();
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream");
  EXPECT_EQ(reply.body, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
  client.get("/open");  // the connection lives on
  EXPECT_EQ(client.reply().status, 200);
}

TEST_F(HttpServerTest, old_clients_get_a_stream_without_chunks) {
  start();
  EXPECT_EQ(ask("GET /stream HTTP/1.0\r\n\r\n").body, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
}

TEST_F(HttpServerTest, a_peer_that_leaves_is_noticed_at_once) {
  stop_after_three_ = false;
  start();
  RawClient client(server_->port());
  client.get("/stream");
  ASSERT_TRUE(client.wait_for("data: 1\n\n"));
  client.close();
  for (int i = 0; i < 100 && streams_ended_ == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(streams_ended_, 1);
  for (int i = 0; i < 100 && gone_ == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(gone_, 1);
}

TEST_F(HttpServerTest, what_a_handler_throws_is_a_500) {
  start();
  EXPECT_EQ(ask("GET /throw HTTP/1.1\r\n\r\n").status, 500);
  EXPECT_EQ(ask("GET /open HTTP/1.1\r\n\r\n").status, 200);
}

TEST_F(HttpServerTest, more_clients_than_threads_are_all_served) {
  HttpOptions options;
  options.max_connections = 3;
  start(options);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(std::make_unique<RawClient>(server_->port()));  // idle ones hold no thread for long
  for (auto& client : clients) client->get("/open");
  for (auto& client : clients) EXPECT_EQ(client->reply().status, 200);
}

TEST_F(HttpServerTest, stop_lets_replies_end_and_closes_idle_connections) {
  start();
  RawClient idle(server_->port());
  idle.get("/open");
  EXPECT_EQ(idle.reply().status, 200);
  RawClient busy(server_->port());
  busy.get("/stream");
  ASSERT_TRUE(busy.wait_for("data: 0\n\n"));
  const auto begin = std::chrono::steady_clock::now();
  server_->stop(5);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
  EXPECT_EQ(busy.reply().body, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
  EXPECT_FALSE(idle.receive(1000));
  EXPECT_FALSE(RawClient(server_->port()).connected());
}

TEST_F(HttpServerTest, a_second_server_on_the_same_port_is_refused) {
  start();
  HttpOptions options;
  options.port = server_->port();
  const auto second = HttpServer::start(options, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kIo);
}

// Bytes changed, cut and repeated at random: whatever comes back is a refusal or an honest answer, and the server lives.
TEST_F(HttpServerTest, mutated_requests) {
  HttpOptions options;
  options.receive_seconds = 0.05;
  start(options);
  std::mt19937 random(7);
  const std::string good = "POST /echo HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{\"a\": [1,2]}";
  for (int i = 0; i < 300; ++i) {
    std::string bytes = good;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes.erase(at, 1 + random() % 5); break;
        case 2: bytes.insert(at, bytes.substr(random() % bytes.size(), 9)); break;
        default: bytes.resize(std::max<size_t>(1, at)); break;
      }
      if (bytes.empty()) bytes = "G";
    }
    RawClient client(server_->port());
    client.send(bytes);
    const int status = client.reply(2000).status;
    EXPECT_TRUE(status == 200 || (status >= 400 && status < 500)) << status << " for " << bytes;
  }
  EXPECT_EQ(ask("GET /open HTTP/1.1\r\n\r\n").status, 200);
}

}  // namespace
}  // namespace dsv4

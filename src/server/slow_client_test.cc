// Streams over real connections to a fake engine: a client that does not read its own is waited for by nobody else, and misses nothing.
#include <gtest/gtest.h>

#include <string>

#include "base/json.h"
#include "server/fake_server.h"
#include "server/http_test_client.h"

namespace dsv4 {
namespace {

constexpr size_t kPieceBytes = 50000, kPieces = 400;  // far more than sockets hold

TEST(SlowClient, holds_up_no_other_stream_and_misses_nothing) {
  FakeEngine engine;
  engine.step_us = 100;
  engine.script = [](const Request& r) {
    std::vector<FakeEngine::Piece> pieces(static_cast<size_t>(r.max_new_tokens));
    if (r.max_new_tokens != static_cast<int64_t>(kPieces)) return pieces;
    for (size_t i = 0; i < pieces.size(); ++i) pieces[i].text = std::string(kPieceBytes, static_cast<char>('a' + i % 26));
    return pieces;
  };
  FakeServer server(engine, 8, 2000);
  ASSERT_NE(server.http, nullptr);
  const auto body = [](size_t tokens) { return R"({"prompt": [5, 6], "stream": true, "ignore_eos": true, "max_tokens": )" + std::to_string(tokens) + "}"; };

  RawClient slow(server.http->port());
  slow.post("/v1/completions", body(kPieces));
  ASSERT_TRUE(slow.wait_for("aaa"));
  for (int i = 0; i < 3; ++i) {  // while the slow one's socket is full
    RawClient quick(server.http->port());
    quick.post("/v1/completions", body(20));
    EXPECT_TRUE(quick.wait_for("[DONE]", 5000));
  }
  const RawReply all = slow.reply();
  std::string text;
  for (size_t at = 0; (at = all.body.find("data: {", at)) != std::string::npos; ++at) {
    const Json event = Json::parse(all.body.substr(at + 6, all.body.find("\n\n", at) - at - 6));
    text += event["choices"][0]["text"].get<std::string>();
  }
  ASSERT_EQ(text.size(), kPieces * kPieceBytes);
  for (size_t i = 0; i < kPieces; ++i) {
    const std::string expected(kPieceBytes, static_cast<char>('a' + i % 26));
    ASSERT_EQ(text.compare(i * kPieceBytes, kPieceBytes, expected), 0) << "piece " << i;
  }
  EXPECT_NE(all.body.find("data: [DONE]"), std::string::npos);
}

}  // namespace
}  // namespace dsv4

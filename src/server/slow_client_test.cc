// Streams over real connections to a fake engine: a client that does not read its own is waited for by nobody else, and misses nothing.
#include <gtest/gtest.h>

#include <string>

#include "base/json.h"
#include "server/endpoints.h"
#include "server/fake_engine.h"
#include "server/http_server.h"
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
  EngineLoop loop(engine, {.max_outstanding = 8});
  const Tokenizer tokenizer = Tokenizer::load("models/dsv4-tiny/tokenizer.json").value();
  ServiceOptions options;
  options.rules.model_names = {"fake"};
  options.rules.vocab_size = 2000;
  options.context_tokens = 2000;
  Service service(loop, &tokenizer, std::nullopt, options);
  Metrics metrics;
  auto server = HttpServer::start({.port = 0}, make_routes(service, metrics));
  ASSERT_TRUE(server.ok()) << server.status().message();
  const auto body = [](size_t tokens) { return R"({"prompt": [5, 6], "stream": true, "ignore_eos": true, "max_tokens": )" + std::to_string(tokens) + "}"; };

  RawClient slow((*server)->port());
  slow.post("/v1/completions", body(kPieces));
  ASSERT_TRUE(slow.wait_for("aaa"));
  for (int i = 0; i < 3; ++i) {  // while the slow one's socket is full
    RawClient quick((*server)->port());
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
  (*server)->stop(1);
}

}  // namespace
}  // namespace dsv4

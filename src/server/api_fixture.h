// The endpoints over a FakeEngine, with the shipped tiny model's tokenizer and wording: requests in, replies out, no sockets.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "server/endpoints.h"
#include "server/fake_engine.h"
#include "text/utf8_stream.h"

namespace dsv4 {

class ApiTest : public testing::Test {
 protected:
  static constexpr int64_t kContext = 600;

  void SetUp() override { start({}); }

  void start(LoopOptions options) {
    routes_.clear();
    service_.reset();
    loop_.reset();
    const std::string model = "models/dsv4-tiny";
    if (!tokenizer_) tokenizer_ = std::make_unique<Tokenizer>(Tokenizer::load(model + "/tokenizer.json").value());
    PromptEncoder encoder = PromptEncoder::load(model).value();
    engine_.max_prompt = kContext;
    loop_ = std::make_unique<EngineLoop>(engine_, std::move(options), &metrics_);
    ServiceOptions service;
    service.rules.model_names = {"tiny", "alias"};
    service.rules.vocab_size = 2560;
    service.rules.thinking.effort_names = encoder.effort_names();
    service.rules.thinking.default_effort = encoder.default_effort();
    service.context_tokens = kContext;
    service.begin_token = 0;
    service.fingerprint = "fp_test";
    service_ = std::make_unique<Service>(*loop_, tokenizer_.get(), std::move(encoder), std::move(service));
    routes_ = make_routes(*service_, metrics_);
    for (int i = 0; i < 500 && loop_->state() == LoopState::kStarting; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  // The engine will answer with this text, token by token, whatever is asked.
  void answer_with(const std::string& text) {
    const std::vector<int32_t> ids = tokenizer_->encode(text).value();
    engine_.script = [this, ids](const Request& request) {
      last_request_ = request;
      std::vector<FakeEngine::Piece> pieces;
      Utf8Stream utf8;
      for (const int32_t id : ids) pieces.push_back({id, utf8.feed(tokenizer_->token_bytes(id))});
      return pieces;
    };
  }

  HttpReply call(const std::string& path, const std::string& body, const std::string& method = "POST") {
    HttpRequest request;
    request.id = "req-test";
    request.method = method;
    request.path = path;
    request.body = body;
    request.peer_gone = [this] { return peer_gone_.load(); };
    for (const HttpRoute& route : routes_) {
      if (route.path == path && route.method == method) return route.handler(request);
    }
    ADD_FAILURE() << "no route " << path;
    return {};
  }

  Json json(const HttpReply& reply) {
    EXPECT_EQ(reply.content_type, "application/json");
    auto parsed = parse_json(reply.body, "reply");
    EXPECT_TRUE(parsed.ok()) << reply.body;
    return parsed.ok() ? *parsed : Json();
  }

  Json post(const std::string& path, const std::string& body) {
    const HttpReply reply = call(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json(reply);
  }

  // The error's message, after checking the status.
  std::string refusal(const std::string& path, const std::string& body, int status = 400) {
    const HttpReply reply = call(path, body);
    EXPECT_EQ(reply.status, status) << body << " -> " << reply.body;
    const Json j = json(reply);
    return j.contains("error") ? j["error"]["message"].get<std::string>() : "";
  }

  class Collecting : public StreamWriter {
   public:
    explicit Collecting(std::atomic<bool>& gone) : gone_(gone) {}
    bool write(std::string_view bytes) override {
      text += bytes;
      writers.insert(std::this_thread::get_id());
      return !gone_;
    }
    bool gone() override { return gone_; }
    bool ready() override { return !gone_; }
    void set_waiting(bool) override {}
    std::string text;
    std::set<std::thread::id> writers;

   private:
    std::atomic<bool>& gone_;
  };

  // The raw text of a stream.
  std::string stream(const std::string& path, const std::string& body) {
    const HttpReply reply = call(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.content_type, "text/event-stream");
    Collecting writer(peer_gone_);
    if (reply.stream) reply.stream(writer);
    writers_ = writer.writers;
    return writer.text;
  }

  // The JSON of each "data:" line; "[DONE]" becomes a string.
  std::vector<Json> events(const std::string& text) {
    std::vector<Json> out;
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find("\n\n", at);
      EXPECT_NE(end, std::string::npos) << "unfinished event: " << text.substr(at);
      if (end == std::string::npos) break;
      std::string block = text.substr(at, end - at);
      at = end + 2;
      if (block[0] == ':') continue;
      std::string name;
      if (block.rfind("event: ", 0) == 0) {
        name = block.substr(7, block.find('\n') - 7);
        block.erase(0, block.find('\n') + 1);
      }
      EXPECT_EQ(block.rfind("data: ", 0), 0u) << block;
      const std::string data = block.substr(6);
      if (data == "[DONE]") {
        out.push_back(data);
        continue;
      }
      auto parsed = parse_json(data, "event");
      EXPECT_TRUE(parsed.ok()) << data;
      if (!parsed.ok()) continue;
      if (!name.empty()) EXPECT_EQ((*parsed)["type"], name);
      out.push_back(*parsed);
    }
    return out;
  }

  FakeEngine engine_;
  Metrics metrics_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<Service> service_;
  std::vector<HttpRoute> routes_;
  std::atomic<bool> peer_gone_{false};
  std::set<std::thread::id> writers_;  // threads that wrote to the last stream
  Request last_request_;               // read it only after the reply
};

}  // namespace dsv4

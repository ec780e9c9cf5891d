// The real endpoints on a socket, over a FakeEngine and the shipped tiny model's tokenizer: for tests of what connections see.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/endpoints.h"
#include "server/fake_engine.h"
#include "server/http_server.h"

namespace dsv4 {

struct FakeServer {
  // `engine` must outlive it.
  FakeServer(FakeEngine& engine, int64_t max_outstanding, int64_t context_tokens)
      : loop(engine, {.max_outstanding = max_outstanding}), service(loop, &tokenizer, std::nullopt, options(context_tokens)) {
    auto started = HttpServer::start({.port = 0}, make_routes(service, metrics));
    EXPECT_TRUE(started.ok()) << started.status().message();
    if (started.ok()) http = std::move(*started);
  }
  ~FakeServer() {
    if (http) http->stop(1);
  }

  static ServiceOptions options(int64_t context_tokens) {
    ServiceOptions out;
    out.rules.model_names = {"fake"};
    out.rules.vocab_size = 2000;
    out.context_tokens = context_tokens;
    return out;
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(http->port()); }

  EngineLoop loop;
  const Tokenizer tokenizer = Tokenizer::load("models/dsv4-tiny/tokenizer.json").value();
  Service service;
  Metrics metrics;
  std::unique_ptr<HttpServer> http;
};

}  // namespace dsv4

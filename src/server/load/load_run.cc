#include "server/load/load_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include <httplib.h>

#include "base/json.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxThreads = 512;  // of an open loop: so many requests may be under way at once

std::unique_ptr<httplib::Client> connect(const LoadTarget& target) {
  auto client = std::make_unique<httplib::Client>(target.url);
  client->set_tcp_nodelay(true);
  client->set_keep_alive(true);
  client->set_read_timeout(3600, 0);
  client->set_connection_timeout(10, 0);
  if (!target.api_key.empty()) client->set_bearer_token_auth(target.api_key);
  return client;
}

std::string body_of(const LoadTarget& target, const LoadRequest& request) {
  Json body;
  if (!target.model.empty()) body["model"] = target.model;
  body["prompt"] = request.prompt;
  body["max_tokens"] = request.answer_tokens;
  body["temperature"] = 0;
  body["ignore_eos"] = true;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  return body.dump();
}

// Takes the event stream apart as it comes.
class EventReader {
 public:
  EventReader(LoadResult* result, Clock::time_point start, int64_t cancel_after) : result_(result), start_(start), cancel_after_(cancel_after) {}

  bool feed(const char* bytes, size_t size) {
    const double now = std::chrono::duration<double>(Clock::now() - start_).count();
    text_.append(bytes, size);
    size_t end;
    while ((end = text_.find("\n\n")) != std::string::npos) {
      const std::string block = text_.substr(0, end);
      text_.erase(0, end + 2);
      if (block.rfind("data: {", 0) == 0) event(Json::parse(block.substr(6), nullptr, false), now);
    }
    return cancel_after_ < 0 || static_cast<int64_t>(result_->chunk_seconds.size()) < cancel_after_;
  }

 private:
  void event(const Json& json, double now) {
    if (json.is_discarded()) return;
    if (json.contains("error")) {
      result_->finish = "error";
      result_->error = json["error"].value("message", "");
      return;
    }
    if (json.contains("usage") && !json["usage"].is_null()) {
      const Json& usage = json["usage"];
      result_->prompt_tokens = usage.value("prompt_tokens", int64_t{0});
      result_->answer_tokens = usage.value("completion_tokens", int64_t{0});
      if (usage.contains("prompt_tokens_details")) result_->cached_tokens = usage["prompt_tokens_details"].value("cached_tokens", int64_t{0});
    }
    if (!json.contains("choices") || json["choices"].empty()) return;
    const Json& choice = json["choices"][0];
    if (!choice["finish_reason"].is_null()) {
      result_->finish = choice["finish_reason"].get<std::string>();
    } else {
      result_->text += choice.value("text", "");
      result_->chunk_seconds.push_back(now);
    }
  }

  LoadResult* const result_;
  const Clock::time_point start_;
  const int64_t cancel_after_;
  std::string text_;
};

LoadResult send(httplib::Client& client, const LoadTarget& target, const LoadRequest& request, Clock::time_point start) {
  LoadResult out;
  EventReader reader(&out, start, request.cancel_after);
  httplib::Request http;
  http.method = "POST";
  http.path = "/v1/completions";
  http.headers = {{"Content-Type", "application/json"}};
  http.body = body_of(target, request);
  std::string refusal;
  http.response_handler = [&](const httplib::Response& response) {
    out.status = response.status;
    return true;
  };
  http.content_receiver = [&](const char* bytes, size_t size, uint64_t, uint64_t) {
    if (out.status == 200) return reader.feed(bytes, size);
    refusal.append(bytes, size);
    return true;
  };
  const auto result = client.send(http);
  out.end_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (out.status != 0 && out.status != 200) {
    out.finish = "error";
    out.error = refusal;
  } else if (!result) {
    const bool own = result.error() == httplib::Error::Canceled && request.cancel_after >= 0;
    out.finish = own ? "cancelled" : "error";
    if (!own) out.error = httplib::to_string(result.error());
  } else if (out.finish.empty()) {
    out.finish = "error";
    out.error = "the stream ended without an end";
  }
  return out;
}

}  // namespace

Result<ServerFacts> ask_server(const LoadTarget& target) {
  const auto client = connect(target);
  const auto models = client->Get("/v1/models");
  if (!models) return io_error("no answer from " + target.url + ": " + httplib::to_string(models.error()));
  if (models->status != 200) return invalid_argument(target.url + "/v1/models answers " + std::to_string(models->status) + ": " + models->body);
  DSV4_ASSIGN_OR_RETURN(const Json json, parse_json(models->body, "models"));
  if (!json.contains("data") || !json["data"].is_array() || json["data"].empty()) return invalid_data(target.url + "/v1/models names no model");
  const Json& model = json["data"][0];
  ServerFacts out;
  out.model = model.value("id", "");
  out.context_tokens = model.value("max_model_len", int64_t{0});
  out.vocab_size = model.value("vocab_size", int64_t{0});
  return out;
}

LoadResult run_one(const LoadTarget& target, const LoadRequest& request) { return send(*connect(target), target, request, Clock::now()); }

Result<std::vector<LoadResult>> run_load(const LoadTarget& target, const std::vector<LoadRequest>& requests, const LoadOptions& options,
                                         const std::function<void(size_t)>& progress) {
  std::vector<LoadResult> results(requests.size());
  std::atomic<size_t> next{0}, done{0};
  const auto start = Clock::now();
  const bool open = options.rate > 0;
  const auto work = [&] {
    std::unique_ptr<httplib::Client> client = connect(target);
    for (size_t i; (i = next++) < requests.size();) {
      auto sent = Clock::now();
      if (open) {  // what a request waits here for a free thread counts as its latency
        sent = start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(requests[i].at_seconds));
        std::this_thread::sleep_until(sent);
      }
      LoadResult result = send(*client, target, requests[i], sent);
      if (result.finish == "cancelled" || result.status == 0) client = connect(target);  // the connection is in the middle of something
      result.sent_seconds = std::chrono::duration<double>(sent - start).count();
      results[i] = std::move(result);
      if (progress) progress(++done);
    }
  };
  std::vector<std::thread> threads;
  const size_t wanted = open ? std::min(kMaxThreads, requests.size()) : static_cast<size_t>(options.concurrency);
  for (size_t i = 0; i < std::min(wanted, requests.size()); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace dsv4

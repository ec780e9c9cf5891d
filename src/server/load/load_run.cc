#include "server/load/load_run.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <memory>

#include <httplib.h>

#include "base/json.h"
#include "server/load/load_connection.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxConnections = 512;    // of an open loop: so many requests may be under way at once
constexpr std::chrono::seconds kPause{1};  // between two looks at the time

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

std::string head_and_body(const LoadTarget& target, const HttpAddress& address, const LoadRequest& request) {
  const std::string body = body_of(target, request);
  std::string out = "POST /v1/completions HTTP/1.1\r\nHost: " + address.host + "\r\nContent-Type: application/json\r\n";
  if (!target.api_key.empty()) out += "Authorization: Bearer " + target.api_key + "\r\n";
  return out + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

// A connection and the request it is busy with.
class Stream {
 public:
  explicit Stream(const HttpAddress& address) : address_(address), connection_(address) {}

  bool busy() const { return busy_; }
  bool ended() const { return connection_.end() != LoadConnection::End::kNone; }
  size_t index() const { return index_; }
  pollfd wanted() const { return connection_.wanted(); }

  // `sent`: what its times count from.
  void begin(const LoadTarget& target, const LoadRequest& request, size_t index, Clock::time_point sent) {
    busy_ = true;
    index_ = index;
    sent_ = sent;
    cancels_ = request.cancel_after >= 0;
    result_ = {};
    refusal_.clear();
    reader_ = std::make_unique<EventReader>(&result_, sent, request.cancel_after);
    connection_.send(head_and_body(target, address_, request), [this](int status, std::string_view bytes) {
      if (status == 200) return reader_->feed(bytes.data(), bytes.size());
      refusal_.append(bytes);
      return true;
    });
  }

  // True when the request has ended; then result() has it.
  bool turn(short events) {
    connection_.turn(events);
    if (!ended()) return false;
    busy_ = false;
    return true;
  }

  LoadResult result() {
    LoadResult out = std::move(result_);
    out.status = connection_.status();
    out.end_seconds = std::chrono::duration<double>(Clock::now() - sent_).count();
    if (out.status != 0 && out.status != 200) {
      out.finish = "error";
      out.error = refusal_;
    } else if (connection_.end() == LoadConnection::End::kCancelled && cancels_) {
      out.finish = "cancelled";
    } else if (connection_.end() != LoadConnection::End::kComplete) {
      out.finish = "error";
      out.error = connection_.error();
    } else if (out.finish.empty()) {
      out.finish = "error";
      out.error = "the stream ended without an end";
    }
    return out;
  }

 private:
  const HttpAddress& address_;
  LoadConnection connection_;
  bool busy_ = false, cancels_ = false;
  size_t index_ = 0;
  Clock::time_point sent_;
  LoadResult result_;
  std::string refusal_;
  std::unique_ptr<EventReader> reader_;
};

}  // namespace

Result<ServerFacts> ask_server(const LoadTarget& target) {
  httplib::Client client(target.url);
  client.set_connection_timeout(10, 0);
  if (!target.api_key.empty()) client.set_bearer_token_auth(target.api_key);
  const auto models = client.Get("/v1/models");
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

LoadResult run_one(const LoadTarget& target, const LoadRequest& request) {
  LoadOptions alone;
  alone.concurrency = 1;
  auto results = run_load(target, {request}, alone);
  if (results.ok()) return std::move(results->front());
  LoadResult out;
  out.finish = "error";
  out.error = results.status().message();
  return out;
}

Result<std::vector<LoadResult>> run_load(const LoadTarget& target, const std::vector<LoadRequest>& requests, const LoadOptions& options,
                                         const std::function<void(size_t)>& progress) {
  DSV4_ASSIGN_OR_RETURN(const HttpAddress address, resolve_http(target.url));
  const bool open = options.rate > 0;
  const size_t most = open ? kMaxConnections : static_cast<size_t>(options.concurrency);
  std::vector<LoadResult> results(requests.size());
  std::vector<std::unique_ptr<Stream>> streams;
  size_t next = 0, done = 0;
  const auto start = Clock::now();
  // In an open loop what a request waits for a free connection counts as its latency.
  const auto time_of = [&](size_t i) { return start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(requests[i].at_seconds)); };
  std::vector<pollfd> polled;
  std::vector<Stream*> busy;
  while (done < requests.size()) {
    busy.clear();
    for (const auto& stream : streams) {
      if (stream->busy()) busy.push_back(stream.get());
    }
    while (next < requests.size() && busy.size() < most && (!open || time_of(next) <= Clock::now())) {
      const auto idle = std::find_if(streams.begin(), streams.end(), [](const auto& s) { return !s->busy(); });
      Stream* stream = idle != streams.end() ? idle->get() : streams.emplace_back(std::make_unique<Stream>(address)).get();
      const auto sent = open ? time_of(next) : Clock::now();
      results[next].sent_seconds = std::chrono::duration<double>(sent - start).count();
      stream->begin(target, requests[next], next, sent);
      busy.push_back(stream);
      ++next;
    }
    polled.clear();
    Clock::duration pause = kPause;
    for (const Stream* stream : busy) {
      polled.push_back(stream->wanted());
      if (stream->ended()) pause = {};  // before it was sent: no connection could be opened
    }
    if (open && next < requests.size() && busy.size() < most) {
      pause = std::clamp<Clock::duration>(time_of(next) - Clock::now(), {}, pause);
    }
    const timespec limit{.tv_sec = pause / std::chrono::seconds(1), .tv_nsec = pause % std::chrono::seconds(1) / std::chrono::nanoseconds(1)};
    if (ppoll(polled.data(), polled.size(), &limit, nullptr) < 0 && errno != EINTR) return io_error(std::string("ppoll: ") + std::strerror(errno));
    for (size_t i = 0; i < busy.size(); ++i) {
      if (!busy[i]->turn(polled[i].revents)) continue;
      LoadResult& result = results[busy[i]->index()];
      const double sent_seconds = result.sent_seconds;
      result = busy[i]->result();
      result.sent_seconds = sent_seconds;
      ++done;
      if (progress) progress(done);
    }
  }
  return results;
}

}  // namespace dsv4

#include "server/endpoints.h"

#include "server/chat_api.h"
#include "server/completion_api.h"
#include "server/json_text.h"
#include "server/messages_api.h"
#include "server/responses_api.h"
#include "server/web_files.h"

namespace dsv4 {
namespace {

Json model_json(const Service& service, const std::string& name) {
  Json out;
  out["id"] = name;
  out["object"] = "model";
  out["created"] = service.options().created;
  out["owned_by"] = "dsv4";
  out["max_model_len"] = service.options().context_tokens;
  out["vocab_size"] = service.rules().vocab_size;
  return out;
}

HttpReply models(const Service& service) {
  Json out;
  out["object"] = "list";
  Json& data = out["data"] = Json::array();
  for (const std::string& name : service.rules().model_names) data.push_back(model_json(service, name));
  HttpReply reply;
  reply.body = to_text(out);
  return reply;
}

HttpReply health(const Service& service) {
  const LoopState state = service.loop().state();
  Json out;
  out["status"] = state == LoopState::kReady ? "ok" : loop_state_name(state);
  if (const std::string message = service.loop().state_message(); !message.empty()) out["message"] = message;
  HttpReply reply;
  reply.status = state == LoopState::kReady ? 200 : 503;
  reply.body = to_text(out);
  if (reply.status == 503) reply.headers.push_back({"Retry-After", "1"});
  return reply;
}

Json percentiles_json(const LiveFigures::Percentiles& p) { return {{"p50", p.p50}, {"p95", p.p95}, {"p99", p.p99}, {"count", p.count}}; }

// The live page's data.
HttpReply live(const Service& service, Metrics& metrics) {
  const EngineStats s = service.loop().stats();
  const LiveFigures f = metrics.live(s);
  Json out;
  out["state"] = loop_state_name(service.loop().state());
  out["model"] = service.model_name();
  out["context_tokens"] = service.options().context_tokens;
  out["requests"] = {{"outstanding", service.loop().outstanding()},
                     {"waiting", s.waiting},
                     {"running", s.running},
                     {"ended", f.requests},
                     {"errors", f.errors},
                     {"rejected", f.rejected},
                     {"cancelled", f.cancelled}};
  out["tokens_per_second"] = {{"prompt", f.prompt_tokens_per_second}, {"generated", f.generated_tokens_per_second}};
  out["tokens"] = {{"prompt", s.prompt_tokens}, {"generated", s.generated_tokens}, {"cached", s.cached_tokens}};
  out["steps"] = s.steps;
  out["preemptions"] = s.preemptions;
  out["prefix_cache"] = {
      {"states", s.prefix_states}, {"hits", s.prefix_hits}, {"disk_states", s.disk_states}, {"disk_hits", s.disk_hits}, {"disk_bytes", s.disk_bytes}};
  out["cache_bytes"] = s.cache_bytes;
  out["blocks"] = {{"ratio4", {{"total", s.ratio4_blocks}, {"free", s.ratio4_blocks_free}}},
                   {"ratio128", {{"total", s.ratio128_blocks}, {"free", s.ratio128_blocks_free}}}};
  out["seconds"] = {
      {"first_token", percentiles_json(f.first_token)}, {"between_tokens", percentiles_json(f.between_tokens)}, {"request", percentiles_json(f.request)}};
  HttpReply reply;
  reply.headers.push_back({"Cache-Control", "no-store"});
  reply.body = to_text(out);
  return reply;
}

HttpReply metrics_text(const Service& service, Metrics& metrics) {
  HttpReply reply;
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  reply.body = metrics.text(service.loop().stats(), service.loop().state(), service.loop().outstanding());
  return reply;
}

const char* content_type_of(const std::string& name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  return "text/javascript; charset=utf-8";
}

HttpReply web_file(const WebFile& file) {
  HttpReply reply;
  reply.content_type = content_type_of(file.name);
  reply.headers = {{"Cache-Control", "no-cache"},
                   {"Content-Security-Policy",
                    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
                    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"},
                   {"X-Content-Type-Options", "nosniff"},
                   {"Referrer-Policy", "no-referrer"}};
  reply.body = file.bytes;
  return reply;
}

}  // namespace

std::vector<HttpRoute> make_routes(const Service& service, Metrics& metrics) {
  std::vector<HttpRoute> routes;
  const auto post = [&](const char* path, HttpReply (*endpoint)(const Service&, const HttpRequest&)) {
    routes.push_back({"POST", path, true, [&service, endpoint](const HttpRequest& request) { return endpoint(service, request); }});
  };
  post("/v1/chat/completions", chat_completions);
  post("/v1/completions", completions);
  post("/v1/messages", messages);
  post("/v1/messages/count_tokens", count_message_tokens);
  post("/v1/responses", responses);
  post("/v1/tokenize", tokenize);
  post("/v1/detokenize", detokenize);
  routes.push_back({"GET", "/v1/models", true, [&service](const HttpRequest&) { return models(service); }});
  for (const std::string& name : service.rules().model_names) {
    routes.push_back({"GET", "/v1/models/" + name, true, [&service, name](const HttpRequest&) {
                        HttpReply reply;
                        reply.body = to_text(model_json(service, name));
                        return reply;
                      }});
  }
  routes.push_back({"GET", "/health", false, [&service](const HttpRequest&) { return health(service); }});
  routes.push_back({"GET", "/metrics", true, [&service, &metrics](const HttpRequest&) { return metrics_text(service, metrics); }});
  routes.push_back({"GET", "/live", true, [&service, &metrics](const HttpRequest&) { return live(service, metrics); }});
  for (const WebFile& file : web_files()) {  // anyone may see the page; what it asks for needs the key
    routes.push_back({"GET", file.name == "index.html" ? "/" : "/" + file.name, false, [&file](const HttpRequest&) { return web_file(file); }});
  }
  return routes;
}

std::string refusal_body(const std::string& path, int status, const std::string& message) {
  const ApiStyle style = path.rfind("/v1/messages", 0) == 0 ? ApiStyle::kAnthropic : ApiStyle::kOpenAi;
  return error_body({.status = status, .message = message}, style);
}

}  // namespace dsv4

#include <fmt/format.h>

#include "server/completion_api.h"
#include "server/json_text.h"
#include "text/utf8_stream.h"

namespace dsv4 {
namespace {

// A conversation's prompt: the fields that shape it, as in a chat request.
ApiResult<std::vector<int32_t>> encode_messages(const Service& service, const JsonValue& body) {
  auto spec = read_chat_request(body, service.rules());
  if (!spec.ok()) return spec.error();
  return service.chat_prompt(*spec);
}

ApiResult<std::vector<int32_t>> encode_text(const Service& service, const JsonValue& body) {
  FieldReader f(body);
  read_model(f, service.rules());
  const bool add_special = f.boolean("add_special_tokens").value_or(true);
  std::optional<std::string> text;
  for (const char* name : {"prompt", "text", "content"}) {  // vLLM's, plain, and llama.cpp's name
    const auto given = f.string(name);
    if (given && text) f.fail(name, "is given beside another name for the text");
    if (given) text = given;
  }
  f.finish();
  if (f.ok() && !text) f.fail("prompt", "is missing");
  if (!f.ok()) return f.error();
  return encode_prompt(service, *text, add_special);
}

}  // namespace

HttpReply tokenize(const Service& service, const HttpRequest& request) {
  const auto body = read_json(request.body, "body");
  if (!body.ok()) return error_reply(api_error(body.status()), ApiStyle::kOpenAi);
  if (!body->is(JsonKind::kObject)) return error_reply({.status = 400, .message = "the body must be an object"}, ApiStyle::kOpenAi);
  auto tokens = body->find("messages") != nullptr ? encode_messages(service, *body) : encode_text(service, *body);
  if (!tokens.ok()) return error_reply(tokens.error(), ApiStyle::kOpenAi);
  Json out;
  out["count"] = tokens->size();
  out["max_model_len"] = service.options().context_tokens;
  out["tokens"] = *tokens;
  HttpReply reply;
  reply.body = to_text(out);
  return reply;
}

HttpReply detokenize(const Service& service, const HttpRequest& request) {
  const auto body = read_json(request.body, "body");
  if (!body.ok()) return error_reply(api_error(body.status()), ApiStyle::kOpenAi);
  FieldReader f(*body);
  if (!f.ok()) return error_reply(f.error(), ApiStyle::kOpenAi);
  read_model(f, service.rules());
  const bool skip_special = f.boolean("skip_special_tokens").value_or(false);
  std::vector<int32_t> tokens;
  const JsonValue* given = f.array("tokens");
  if (f.ok() && given == nullptr) f.fail("tokens", "is missing");
  if (f.ok()) {
    for (const JsonValue& item : given->items) {
      const auto token = token_of(item, service.rules().vocab_size);
      if (!token)
        f.fail("tokens", fmt::format("holds {}, which is not a token id below {}", item.is(JsonKind::kNumber) ? item.text : item.kind_name(),
                                     service.rules().vocab_size));
      tokens.push_back(token.value_or(0));
    }
  }
  f.finish();
  if (f.ok() && service.tokenizer() == nullptr) f.fail("tokens", "cannot become text: this model has no tokenizer.json");
  if (!f.ok()) return error_reply(f.error(), ApiStyle::kOpenAi);
  const auto bytes = service.tokenizer()->decode(tokens, {.skip_special = skip_special});
  if (!bytes.ok()) return error_reply(api_error(bytes.status()), ApiStyle::kOpenAi);
  Json out;
  out["prompt"] = replace_invalid_utf8(*bytes);
  HttpReply reply;
  reply.body = to_text(out);
  return reply;
}

}  // namespace dsv4

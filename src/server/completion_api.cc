#include "server/completion_api.h"

#include <algorithm>
#include <ctime>
#include <limits>
#include <mutex>

#include <fmt/format.h>

#include "engine/sampler.h"
#include "server/json_text.h"
#include "server/openai_parts.h"
#include "text/utf8_stream.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxPrompts = 64;

struct Completion {
  CompletionSpec spec;
  bool echo = false, stream = false, stream_usage = false;
  int prompt_logprobs = -1;  // as vLLM's field
};

void read_prompts(FieldReader& f, const Service& service, bool add_special, std::vector<std::vector<int32_t>>* out) {
  const JsonValue* prompt = f.value("prompt");
  if (prompt == nullptr) return f.fail("prompt", "is missing");
  const int64_t vocab = service.rules().vocab_size;
  const auto take_text = [&](const std::string& text) {
    auto tokens = encode_prompt(service, text, add_special);
    if (!tokens.ok()) return f.fail(tokens.error());
    out->push_back(std::move(*tokens));
  };
  const auto take_tokens = [&](const JsonValue& array) {
    std::vector<int32_t> tokens;
    for (const JsonValue& item : array.items) {
      const auto token = token_of(item, vocab);
      if (!token)
        return f.fail("prompt", fmt::format("holds {}, which is not a token id below {}", item.is(JsonKind::kNumber) ? item.text : item.kind_name(), vocab));
      tokens.push_back(*token);
    }
    if (tokens.empty()) return f.fail("prompt", "has no tokens");
    out->push_back(std::move(tokens));
  };
  if (prompt->is(JsonKind::kString)) return take_text(prompt->text);
  if (!prompt->is(JsonKind::kArray))
    return f.fail("prompt", fmt::format("must be a string, an array of strings or of token ids, it is {}", prompt->kind_name()));
  if (prompt->items.empty()) return f.fail("prompt", "is empty");
  if (prompt->items[0].is(JsonKind::kNumber)) return take_tokens(*prompt);
  if (prompt->items.size() > kMaxPrompts) return f.fail("prompt", fmt::format("has {} prompts, at most {} are taken", prompt->items.size(), kMaxPrompts));
  for (const JsonValue& item : prompt->items) {
    if (item.is(JsonKind::kString)) {
      take_text(item.text);
    } else if (item.is(JsonKind::kArray)) {
      take_tokens(item);
    } else {
      f.fail("prompt", fmt::format("holds {}", item.kind_name()));
    }
  }
}

ApiResult<Completion> read_completion(const JsonValue& body, const Service& service) {
  FieldReader f(body);
  if (!f.ok()) return f.error();
  const ApiRules& rules = service.rules();
  Completion out;
  CompletionSpec& spec = out.spec;
  read_model(f, rules);
  const bool add_special = f.boolean("add_special_tokens").value_or(true);
  if (f.ok()) read_prompts(f, service, add_special, &spec.prompts);
  spec.sampling = read_sampling(f, rules.sampling);
  spec.sampling.logit_bias = read_logit_bias(f, rules.vocab_size);
  spec.stop = read_stop(f, "stop");
  spec.ignore_eos = f.boolean("ignore_eos").value_or(false);
  spec.max_tokens = f.integer("max_tokens", 0, std::numeric_limits<int32_t>::max()).value_or(16);  // OpenAI's default
  spec.n = static_cast<int>(f.integer("n", 1, rules.max_choices).value_or(1));
  spec.num_logprobs = static_cast<int>(f.integer("logprobs", 0, 20).value_or(-1));
  out.prompt_logprobs = static_cast<int>(f.integer("prompt_logprobs", 0, 20).value_or(-1));
  out.echo = f.boolean("echo").value_or(false);
  out.stream = f.boolean("stream").value_or(false);
  if (const JsonValue* options = f.object("stream_options")) {
    FieldReader o(*options, "stream_options");
    if (!out.stream) f.fail("stream_options", "is only for streams: set stream to true");
    out.stream_usage = o.boolean("include_usage").value_or(false);
    o.ignore({"include_obfuscation"});
    o.finish();
    if (!o.ok()) f.fail(o.error());
  }
  if (f.integer("best_of", 1, rules.max_choices).value_or(1) > spec.n) f.fail("best_of", "must not be above n: this server does not rank answers");
  f.refuse("suffix", "is not possible: this model does not fill in");
  if (out.stream && out.prompt_logprobs >= 0) f.fail("prompt_logprobs", "is not for streams");
  if (out.stream && out.echo && spec.num_logprobs >= 0) f.fail("echo", "with logprobs is not for streams");
  if (*spec.max_tokens == 0 && !out.echo && out.prompt_logprobs < 0) f.fail("max_tokens", "is 0: then echo or prompt_logprobs must be asked for");
  if (out.echo && service.tokenizer() == nullptr) f.fail("echo", "is not possible: this model has no tokenizer.json");
  f.ignore({"user"});
  f.finish();
  if (!f.ok()) return f.error();
  return out;
}

// Log probabilities of a prompt's tokens, gathered on the engine's thread as its positions are computed.
struct PromptScores {
  std::vector<int32_t> prompt;
  int num_top = 0;
  std::mutex mutex;
  std::vector<LogprobRow> rows;  // [i] judges prompt[i + 1]
  std::vector<int32_t> ranks;

  void see(int64_t position, std::span<const float> logits) {
    const size_t i = static_cast<size_t>(position);
    if (i + 1 >= prompt.size()) return;
    const int32_t token = prompt[i + 1];
    LogprobRow row = logprobs_of(logits, token, num_top);
    int32_t rank = 1;
    for (const float l : logits) rank += l > logits[static_cast<size_t>(token)];
    std::lock_guard lock(mutex);
    rows.resize(prompt.size() - 1);
    ranks.resize(prompt.size() - 1);
    rows[i] = std::move(row);
    ranks[i] = rank;
  }
};

struct Text {
  std::string text, finish;
  std::vector<ShownToken> tokens;
};

// OpenAI's older form: parallel arrays. Offsets count characters (code points) of the text, as there.
Json legacy_logprobs(const std::vector<ShownToken>& tokens, bool first_unknown) {
  Json out;
  Json texts = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
  int64_t offset = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const ShownToken& t = tokens[i];
    const std::string text = replace_invalid_utf8(t.chosen.token);
    texts.push_back(text);
    offsets.push_back(offset);
    offset += std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
    if (i == 0 && first_unknown) {
      values.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    values.push_back(t.chosen.logprob);
    Json top = Json::object();
    for (const ShownLogprob& other : t.top) top[replace_invalid_utf8(other.token)] = other.logprob;
    tops.push_back(std::move(top));
  }
  out["tokens"] = std::move(texts);
  out["token_logprobs"] = std::move(values);
  out["top_logprobs"] = std::move(tops);
  out["text_offset"] = std::move(offsets);
  return out;
}

std::vector<ShownToken> scored_prompt(const PromptScores& scores, const Tokenizer& tokenizer) {
  const auto show = [&](const TokenLogprob& l) { return ShownLogprob{std::string(tokenizer.token_bytes(l.token)), l.token, l.logprob}; };
  std::vector<ShownToken> out;
  for (size_t i = 0; i < scores.prompt.size(); ++i) {
    ShownToken token{show({scores.prompt[i], 0}), {}};
    if (i > 0 && i - 1 < scores.rows.size()) {
      token.chosen = show(scores.rows[i - 1].chosen);
      for (const TokenLogprob& l : scores.rows[i - 1].top) token.top.push_back(show(l));
    }
    out.push_back(std::move(token));
  }
  return out;
}

// vLLM's form: null for the first token, then an object from token id to its log probability, rank and text.
Json prompt_logprobs_json(const PromptScores& scores, const Tokenizer* tokenizer) {
  Json out = Json::array({nullptr});
  const auto text_of = [&](int32_t id) { return tokenizer == nullptr ? std::string() : replace_invalid_utf8(tokenizer->token_bytes(id)); };
  for (size_t i = 0; i < scores.rows.size(); ++i) {
    Json entry = Json::object();
    int32_t rank = 0;
    for (const TokenLogprob& l : scores.rows[i].top)
      entry[std::to_string(l.token)] = {{"logprob", l.logprob}, {"rank", ++rank}, {"decoded_token", text_of(l.token)}};
    const TokenLogprob& own = scores.rows[i].chosen;
    entry[std::to_string(own.token)] = {{"logprob", own.logprob}, {"rank", scores.ranks[i]}, {"decoded_token", text_of(own.token)}};
    out.push_back(std::move(entry));
  }
  return out;
}

std::string text_of(const Service& service, const std::vector<int32_t>& tokens) {
  if (service.tokenizer() == nullptr) return "";
  const auto bytes = service.tokenizer()->decode(tokens, {.skip_special = true});
  return bytes.ok() ? replace_invalid_utf8(*bytes) : "";
}

Json frame(const Service& service, const std::string& id) {
  Json out;
  out["id"] = id;
  out["object"] = "text_completion";
  out["created"] = static_cast<int64_t>(std::time(nullptr));
  out["model"] = service.model_name();
  out["system_fingerprint"] = service.options().fingerprint;
  return out;
}

Json choice_json(size_t index, const std::string& text, Json logprobs, const Json& finish) {
  Json out;
  out["index"] = index;
  out["text"] = text;
  out["logprobs"] = std::move(logprobs);
  out["finish_reason"] = finish;
  return out;
}

// Usage of several prompts, each with n answers.
struct Totals {
  AnswerUsage usage;
  int n = 1;
  void add(size_t index, const AnswerEvent& event) {
    if (event.kind != AnswerEvent::Kind::kEnd) return;
    if (index % static_cast<size_t>(n) == 0) usage.prompt_tokens += event.usage.prompt_tokens;
    usage.completion_tokens += event.usage.completion_tokens;
    usage.cached_tokens += event.usage.cached_tokens;
  }
};

HttpReply whole(const Service& service, const HttpRequest& request, const Completion& c, Run run, const std::vector<std::shared_ptr<PromptScores>>& scores) {
  std::vector<Text> texts(c.spec.prompts.size() * static_cast<size_t>(c.spec.n));
  Totals totals{{}, c.spec.n};
  std::optional<ApiError> error;
  const bool complete = run.drive({.peer_gone = request.peer_gone, .on_event = [&](size_t index, AnswerEvent event) {
                                     if (event.error) error = event.error;
                                     totals.add(index, event);
                                     for (ShownToken& t : event.logprobs) texts[index].tokens.push_back(std::move(t));
                                     texts[index].text += event.text;
                                     if (event.kind == AnswerEvent::Kind::kEnd) texts[index].finish = event.finish;
                                   }});
  if (!complete) return error_reply({.status = 499, .message = "the client left"}, ApiStyle::kOpenAi);
  if (error) return error_reply(*error, ApiStyle::kOpenAi);
  Json out = frame(service, new_call_id("cmpl-"));
  Json& choices = out["choices"] = Json::array();
  for (size_t i = 0; i < texts.size(); ++i) {
    const size_t p = i / static_cast<size_t>(c.spec.n);
    std::string text = texts[i].text;
    std::vector<ShownToken> tokens = std::move(texts[i].tokens);
    if (c.echo) {
      text = text_of(service, c.spec.prompts[p]) + text;
      if (c.spec.num_logprobs >= 0) {
        std::vector<ShownToken> prompt = scored_prompt(*scores[i], *service.tokenizer());
        tokens.insert(tokens.begin(), std::make_move_iterator(prompt.begin()), std::make_move_iterator(prompt.end()));
      }
    }
    Json choice = choice_json(i, text, c.spec.num_logprobs >= 0 ? legacy_logprobs(tokens, c.echo) : Json(), texts[i].finish);
    if (c.prompt_logprobs >= 0) choice["prompt_logprobs"] = prompt_logprobs_json(*scores[i], service.tokenizer());
    choices.push_back(std::move(choice));
  }
  out["usage"] = usage_json(totals.usage);
  HttpReply reply;
  reply.body = to_text(out);
  return reply;
}

void stream_out(const Service& service, const Completion& c, Run& run, StreamWriter& writer) {
  const StreamChunks chunks(frame(service, new_call_id("cmpl-")), c.stream_usage);
  Totals totals{{}, c.spec.n};
  bool failed = false;
  const auto send = [&](size_t index, const std::string& text, Json logprobs, const Json& finish) {
    writer.write(chunks.choice(choice_json(index, text, std::move(logprobs), finish)));
  };
  if (c.echo) {
    for (size_t i = 0; i < c.spec.prompts.size() * static_cast<size_t>(c.spec.n); ++i) {
      send(i, text_of(service, c.spec.prompts[i / static_cast<size_t>(c.spec.n)]), nullptr, nullptr);
    }
  }
  const bool complete = run.drive({.stream = &writer,
                                   .on_event =
                                       [&](size_t index, AnswerEvent event) {
                                         totals.add(index, event);
                                         Json logprobs = event.logprobs.empty() ? Json() : legacy_logprobs(event.logprobs, false);
                                         if (event.error) {
                                           failed = true;
                                           writer.write("data: " + error_body(*event.error, ApiStyle::kOpenAi) + "\n\n");
                                         } else if (event.kind == AnswerEvent::Kind::kEnd) {
                                           send(index, "", std::move(logprobs), event.finish);
                                         } else {
                                           send(index, event.text, std::move(logprobs), nullptr);
                                         }
                                       },
                                   .on_silence = [&] { writer.write(": still here\n\n"); }});
  if (!complete) return;
  if (!failed) writer.write(chunks.usage(totals.usage));
  writer.write("data: [DONE]\n\n");
}

}  // namespace

std::optional<int32_t> token_of(const JsonValue& value, int64_t vocab_size) {
  const auto n = integer_of(value);
  if (!n || *n < 0 || *n >= vocab_size) return std::nullopt;
  return static_cast<int32_t>(*n);
}

ApiResult<std::vector<int32_t>> encode_prompt(const Service& service, const std::string& text, bool add_special) {
  const Tokenizer* tokenizer = service.tokenizer();
  if (tokenizer == nullptr) return ApiError{.status = 400, .message = "this model has no tokenizer.json: give token ids", .param = "prompt"};
  auto tokens = tokenizer->encode(text);
  if (!tokens.ok()) return ApiError{.status = 400, .message = tokens.status().message(), .param = "prompt"};
  const int32_t begin = service.options().begin_token;
  if (add_special && begin >= 0 && (tokens->empty() || tokens->front() != begin)) tokens->insert(tokens->begin(), begin);
  if (tokens->empty()) return ApiError{.status = 400, .message = "prompt has no tokens", .param = "prompt"};
  return std::move(*tokens);
}

HttpReply completions(const Service& service, const HttpRequest& request) {
  const auto body = read_json(request.body, "body");
  if (!body.ok()) return error_reply(api_error(body.status()), ApiStyle::kOpenAi);
  auto read = read_completion(*body, service);
  if (!read.ok()) return error_reply(read.error(), ApiStyle::kOpenAi);
  const auto c = std::make_shared<Completion>(std::move(*read));

  std::vector<std::shared_ptr<PromptScores>> scores;
  std::vector<std::function<void(int64_t, std::span<const float>)>> hooks;
  if (c->prompt_logprobs >= 0 || (c->echo && c->spec.num_logprobs >= 0)) {
    for (const auto& prompt : c->spec.prompts) {
      for (int i = 0; i < c->spec.n; ++i) {
        auto s = std::make_shared<PromptScores>();
        s->prompt = prompt;
        s->num_top = std::max(c->prompt_logprobs, c->echo ? c->spec.num_logprobs : 0);
        hooks.push_back([s](int64_t position, std::span<const float> logits) { s->see(position, logits); });
        scores.push_back(std::move(s));
      }
    }
  }
  auto run = service.start(c->spec, request.peer_gone, std::move(hooks));
  if (!run.ok()) return error_reply(run.error(), ApiStyle::kOpenAi);
  if (!c->stream) return whole(service, request, *c, std::move(*run), scores);
  HttpReply reply;
  reply.content_type = "text/event-stream";
  reply.stream = [&service, c, run = std::make_shared<Run>(std::move(*run))](StreamWriter& writer) { stream_out(service, *c, *run, writer); };
  return reply;
}

}  // namespace dsv4

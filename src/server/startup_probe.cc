#include "server/startup_probe.h"

#include <algorithm>

namespace dsv4 {
namespace {

constexpr int64_t kProbeTokens = 16;

std::vector<int32_t> probe_prompt(const Engine& engine, const std::optional<PromptEncoder>& encoder) {
  const int32_t begin = engine.config().bos_token_id;
  if (engine.tokenizer() != nullptr) {
    std::string text = "The capital of France is";
    if (encoder) {
      ChatMessage user;
      user.content = "What is the capital of France?";
      if (auto prompt = encoder->render({user}, {}); prompt.ok()) text = std::move(*prompt);
    }
    if (auto tokens = engine.tokenizer()->encode(text); tokens.ok() && !tokens->empty()) {
      if (!encoder) tokens->insert(tokens->begin(), begin);
      return std::move(*tokens);
    }
  }
  std::vector<int32_t> tokens = {begin};
  for (int32_t id = 2; id < 12; ++id) tokens.push_back(id);
  return tokens;
}

}  // namespace

Status judge_probe(const std::vector<int32_t>& tokens, const std::string& text, bool has_text) {
  if (tokens.empty()) return numerical_error("probe: the engine generated no token");
  if (!has_text) return ok_status();
  if (tokens.size() >= 4 && std::all_of(tokens.begin(), tokens.end(), [&](int32_t t) { return t == tokens[0]; })) {
    return numerical_error("probe: all " + std::to_string(tokens.size()) + " tokens are token " + std::to_string(tokens[0]));
  }
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return numerical_error("probe: the answer has no text");
  if (text.find("\xEF\xBF\xBD") != std::string::npos) return numerical_error("probe: the answer is not valid text");
  return ok_status();
}

std::function<Status(StepEngine&)> make_startup_probe(const Engine& engine, const std::optional<PromptEncoder>& encoder) {
  Request request;
  request.prompt = probe_prompt(engine, encoder);
  request.max_new_tokens = std::min<int64_t>(kProbeTokens, engine.options().max_context_tokens - static_cast<int64_t>(request.prompt.size()));
  const bool has_text = engine.tokenizer() != nullptr;
  return [request, has_text](StepEngine& step_engine) -> Status {
    std::vector<int32_t> tokens;
    std::string text;
    FinishReason finish = FinishReason::kNone;
    Status error;
    const auto id = step_engine.submit(request, [&](const TokenOutput& o) {
      if (o.token >= 0 && o.finish != FinishReason::kEos) tokens.push_back(o.token);
      text += o.text;
      finish = o.finish;
      error = o.error;
    });
    DSV4_RETURN_IF_ERROR(id.status());
    while (finish == FinishReason::kNone) DSV4_RETURN_IF_ERROR(step_engine.step());
    DSV4_RETURN_IF_ERROR(error);
    return judge_probe(tokens, text, has_text);
  };
}

}  // namespace dsv4

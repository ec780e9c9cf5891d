#include "engine/constraint/grammar_constraint.h"

#include <limits>
#include <string>

namespace dsv4 {
namespace {

constexpr int64_t kMaskBudget = 1000000;            // stacks: about a second, which the engine's other requests wait
constexpr size_t kMaxMaskBytes = size_t{64} << 20;  // per grammar; masks are made again when they are needed again
constexpr float kForbidden = -std::numeric_limits<float>::infinity();

class GrammarConstraint : public TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<CompiledGrammar> grammar, const Tokenizer& tokenizer, const GrammarConstraintOptions& options)
      : grammar_(std::move(grammar)), tokenizer_(tokenizer), options_(options), state_(grammar_->automaton().start()), active_(options.start_after < 0) {}

  Status mask(std::span<float> logits) override {
    const size_t eos = static_cast<size_t>(options_.eos_token);
    if (!active_) {
      if (eos < logits.size()) logits[eos] = kForbidden;
      return ok_status();
    }
    const float eos_logit = eos < logits.size() ? logits[eos] : kForbidden;
    const std::vector<uint64_t>& allowed = grammar_->allowed(state_);
    if (grammar_->automaton().exhausted()) return unsupported("constraint: the schema allows too many readings of the same text");
    for (size_t i = 0; i < logits.size(); ++i) {
      if (i / 64 >= allowed.size() || (allowed[i / 64] >> (i % 64) & 1) == 0) logits[i] = kForbidden;
    }
    if (eos < logits.size()) logits[eos] = grammar_->automaton().accepts(state_) ? eos_logit : kForbidden;
    return ok_status();
  }

  Status accept(int32_t token) override {
    if (!active_) {
      active_ = token == options_.start_after;
      return ok_status();
    }
    if (token == options_.eos_token) return ok_status();
    for (const char byte : tokenizer_.token_bytes(token)) {
      state_ = grammar_->automaton().step(state_, static_cast<unsigned char>(byte));
      if (state_ == Automaton::kDead) return numerical_error("constraint: token " + std::to_string(token) + " was chosen against the mask");
    }
    return ok_status();
  }

 private:
  const std::shared_ptr<CompiledGrammar> grammar_;
  const Tokenizer tokenizer_;  // shares the tables
  const GrammarConstraintOptions options_;
  int32_t state_;
  bool active_;
};

}  // namespace

Result<std::shared_ptr<CompiledGrammar>> CompiledGrammar::create(std::shared_ptr<const Grammar> grammar, GrammarNode root,
                                                                 std::shared_ptr<const TokenTrie> trie) {
  DSV4_RETURN_IF_ERROR(grammar->check(root));
  std::shared_ptr<CompiledGrammar> out(new CompiledGrammar(std::move(grammar), root, std::move(trie)));
  if (out->automaton_.exhausted()) return unsupported("the schema allows too many readings of the same text");
  return out;
}

const std::vector<uint64_t>& CompiledGrammar::allowed(int32_t state) {
  const auto known = masks_.find(state);
  if (known != masks_.end()) return known->second;
  const size_t words = (static_cast<size_t>(trie_->vocab_size()) + 63) / 64;
  if (masks_.size() * words * 8 > kMaxMaskBytes) masks_.clear();
  std::vector<uint64_t> mask(words);
  if (!automaton_.exhausted()) automaton_.set_budget(kMaskBudget);
  trie_->walk(
      state, [&](int32_t s, unsigned char byte) { return automaton_.step(s, byte); },
      [&](int32_t token) { mask[static_cast<size_t>(token) / 64] |= uint64_t{1} << (static_cast<size_t>(token) % 64); });
  num_states_.store(automaton_.num_states(), std::memory_order_relaxed);
  return masks_.emplace(state, std::move(mask)).first->second;
}

std::shared_ptr<TokenConstraint> make_grammar_constraint(std::shared_ptr<CompiledGrammar> grammar, const Tokenizer& tokenizer,
                                                         const GrammarConstraintOptions& options) {
  return std::make_shared<GrammarConstraint>(std::move(grammar), tokenizer, options);
}

}  // namespace dsv4

// A grammar as a request's token constraint.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/constraint/automaton.h"
#include "engine/constraint/token_trie.h"
#include "engine/request.h"

namespace dsv4 {

// A grammar with what it has been found to allow. Requests with the same grammar share one. After create() it belongs to the engine's
// thread.
class CompiledGrammar {
 public:
  // Error: kUnsupported, from Grammar::check.
  static Result<std::shared_ptr<CompiledGrammar>> create(std::shared_ptr<const Grammar> grammar, GrammarNode root, std::shared_ptr<const TokenTrie> trie);

  Automaton& automaton() { return automaton_; }
  // Bit t: token t may come in this state.
  const std::vector<uint64_t>& allowed(int32_t state);
  // States made so far, as of the last mask; from any thread. A grammar that has grown huge is better made anew.
  size_t num_states() const { return num_states_.load(std::memory_order_relaxed); }

 private:
  CompiledGrammar(std::shared_ptr<const Grammar> grammar, GrammarNode root, std::shared_ptr<const TokenTrie> trie)
      : automaton_(std::move(grammar), root), trie_(std::move(trie)) {}

  Automaton automaton_;
  const std::shared_ptr<const TokenTrie> trie_;
  std::unordered_map<int32_t, std::vector<uint64_t>> masks_;  // by state
  std::atomic<size_t> num_states_{0};
};

struct GrammarConstraintOptions {
  int32_t eos_token = 1;     // possible exactly when the answer is whole
  int32_t start_after = -1;  // free text up to and with this token (the end of thinking), in which eos is not possible; -1 = from the start
};

// Error of mask and accept: kNumerical when no token fits, which only a vocabulary without single-byte tokens can bring about.
std::shared_ptr<TokenConstraint> make_grammar_constraint(std::shared_ptr<CompiledGrammar> grammar, const Tokenizer& tokenizer,
                                                         const GrammarConstraintOptions& options);

}  // namespace dsv4

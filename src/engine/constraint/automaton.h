// A grammar as a machine: states made when they are first reached, each byte's transition computed once. A state is the set of
// stacks ("what must still come") that the bytes so far allow; stacks are shared tails, so equal ones are one number.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/constraint/grammar.h"

namespace dsv4 {

class Automaton {
 public:
  static constexpr int32_t kDead = -1;

  Automaton(std::shared_ptr<const Grammar> grammar, GrammarNode root);

  int32_t start() const { return start_; }
  // kDead when no sentence goes on like this.
  int32_t step(int32_t state, unsigned char byte) {
    const int32_t known = states_[static_cast<size_t>(state)]->next[byte];
    return known != kUnknown ? known : compute(state, byte);
  }
  // The bytes so far are a whole sentence.
  bool accepts(int32_t state) const { return states_[static_cast<size_t>(state)]->accepts; }
  size_t num_states() const { return states_.size(); }

  // Some grammars have very many ways to read the same bytes ("((a?){1000}){1000}"). Work is counted, one for each stack looked at or
  // put into a state (about 1.5 us); once the budget is used up nothing goes on any more, and exhausted() says so.
  void set_budget(int64_t stacks) { budget_ = stacks; }
  bool exhausted() const { return budget_ < 0; }

 private:
  static constexpr int32_t kUnknown = -2;

  // Top of a stack: `node` is to be matched, `progress` of it is done (bytes of a literal, parts of a sequence, turns of a
  // repetition). Stack 0 is empty: everything is matched.
  struct Stack {
    GrammarNode node = 0;
    int32_t progress = 0;
    int32_t below = 0;
    bool operator==(const Stack&) const = default;
  };
  struct StackHash {
    size_t operator()(const Stack& s) const {
      uint64_t h = static_cast<uint64_t>(s.node) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(s.progress);
      h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9u + static_cast<uint64_t>(s.below);
      return static_cast<size_t>((h ^ (h >> 32)) * 0x94d049bb133111ebu);
    }
  };
  struct State {
    std::vector<int32_t> stacks;  // sorted; tops are bytes or literals; 0 may be among them
    bool accepts = false;
    std::array<int32_t, 256> next;
  };

  int32_t compute(int32_t state, unsigned char byte);
  int32_t intern(Stack stack);
  int32_t intern(std::vector<int32_t> stacks);
  // The stacks with a byte or literal on top that `stack` can become without a byte, and 0 if it can become empty.
  const std::vector<int32_t>& expand(int32_t stack);

  const std::shared_ptr<const Grammar> grammar_;
  const std::vector<char> productive_;
  std::vector<Stack> stacks_;
  std::unordered_map<Stack, int32_t, StackHash> stack_ids_;
  std::unordered_map<int32_t, std::vector<int32_t>> expansions_;
  std::vector<std::unique_ptr<State>> states_;
  std::map<std::vector<int32_t>, int32_t> state_ids_;
  int32_t start_ = 0;
  int64_t budget_ = 300000;
};

}  // namespace dsv4

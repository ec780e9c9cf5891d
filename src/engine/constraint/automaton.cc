#include "engine/constraint/automaton.h"

#include <algorithm>
#include <unordered_set>

namespace dsv4 {

Automaton::Automaton(std::shared_ptr<const Grammar> grammar, GrammarNode root) : grammar_(std::move(grammar)), productive_(grammar_->productive()) {
  stacks_.push_back({});
  start_ = intern(expand(intern(Stack{root, 0, 0})));
}

int32_t Automaton::intern(Stack stack) {
  const auto [found, fresh] = stack_ids_.try_emplace(stack, static_cast<int32_t>(stacks_.size()));
  if (fresh) stacks_.push_back(stack);
  return found->second;
}

int32_t Automaton::intern(std::vector<int32_t> stacks) {
  const auto [found, fresh] = state_ids_.try_emplace(stacks, static_cast<int32_t>(states_.size()));
  if (fresh) {
    auto state = std::make_unique<State>();
    state->accepts = !stacks.empty() && stacks[0] == 0;
    state->stacks = std::move(stacks);
    state->next.fill(kUnknown);
    states_.push_back(std::move(state));
  }
  return found->second;
}

const std::vector<int32_t>& Automaton::expand(int32_t stack) {
  if (const auto known = expansions_.find(stack); known != expansions_.end()) return known->second;
  std::vector<int32_t> ends, work = {stack};
  std::unordered_set<int32_t> seen = {stack};
  const auto reach = [&](int32_t next) {
    if (seen.insert(next).second) work.push_back(next);
  };
  while (!work.empty()) {
    const int32_t id = work.back();
    work.pop_back();
    if (--budget_ < 0) break;
    if (id == 0) {
      ends.push_back(0);
      continue;
    }
    const Stack top = stacks_[static_cast<size_t>(id)];
    const Grammar::Node& n = grammar_->node(top.node);
    const auto reach_node = [&](GrammarNode node, int32_t below) {
      if (productive_[static_cast<size_t>(node)] != 0) reach(intern(Stack{node, 0, below}));
    };
    switch (n.kind) {
      case Grammar::Kind::kBytes:
      case Grammar::Kind::kLiteral: ends.push_back(id); break;
      case Grammar::Kind::kSequence:
        if (n.count == 0) {
          reach(top.below);
        } else {  // the last part stands alone: a tail call does not grow the stack
          const int32_t rest = top.progress + 1 < n.count ? intern(Stack{top.node, top.progress + 1, top.below}) : top.below;
          reach_node(grammar_->child(n, top.progress), rest);
        }
        break;
      case Grammar::Kind::kChoice:
        for (int32_t i = 0; i < n.count; ++i) reach_node(grammar_->child(n, i), top.below);
        break;
      case Grammar::Kind::kRepeat:
        if (top.progress >= n.min) reach(top.below);
        if (n.max < 0 || top.progress < n.max) {
          // Without a limit, turns beyond the minimum are all alike.
          const int32_t turns = n.max < 0 ? std::min(top.progress + 1, n.min) : top.progress + 1;
          reach_node(n.first, n.max >= 0 && turns == n.max ? top.below : intern(Stack{top.node, turns, top.below}));
        }
        break;
      case Grammar::Kind::kRule: reach_node(n.first, top.below); break;
    }
  }
  std::sort(ends.begin(), ends.end());
  if (exhausted()) ends.clear();  // not the truth: the caller asks exhausted()
  return expansions_.emplace(stack, std::move(ends)).first->second;
}

int32_t Automaton::compute(int32_t state, unsigned char byte) {
  if (exhausted()) return kDead;
  std::vector<int32_t> next;
  const std::vector<int32_t> current = states_[static_cast<size_t>(state)]->stacks;
  for (const int32_t id : current) {
    if (id == 0) continue;
    const Stack top = stacks_[static_cast<size_t>(id)];
    const Grammar::Node& n = grammar_->node(top.node);
    int32_t after = top.below;
    if (n.kind == Grammar::Kind::kBytes) {
      if (!grammar_->byte_set(n).test(byte)) continue;
    } else {
      const std::string& text = grammar_->text(n);
      if (static_cast<unsigned char>(text[static_cast<size_t>(top.progress)]) != byte) continue;
      if (static_cast<size_t>(top.progress) + 1 < text.size()) after = intern(Stack{top.node, top.progress + 1, top.below});
    }
    const std::vector<int32_t>& reached = expand(after);
    next.insert(next.end(), reached.begin(), reached.end());
    budget_ -= static_cast<int64_t>(reached.size());
    if (exhausted()) return kDead;
  }
  std::sort(next.begin(), next.end());
  next.erase(std::unique(next.begin(), next.end()), next.end());
  const int32_t id = next.empty() ? kDead : intern(std::move(next));
  states_[static_cast<size_t>(state)]->next[byte] = id;
  return id;
}

}  // namespace dsv4

// A vocabulary's byte strings as a tree, laid out in the order of a walk: masks for a grammar take one pass over it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace dsv4 {

class TokenTrie {
 public:
  // All tokens but added ones; of those only `added` (the markup that a grammar may spell out).
  TokenTrie(const Tokenizer& tokenizer, const std::vector<int32_t>& added);

  int32_t vocab_size() const { return vocab_size_; }

  // Walks the tree: step(state, byte) gives the next state or a negative number, allow(token) is called for each token whose bytes
  // `state` takes.
  template <class Step, class Allow>
  void walk(int32_t state, const Step& step, const Allow& allow) const {
    std::vector<int32_t> states(static_cast<size_t>(max_depth_) + 1);
    states[0] = state;
    for (size_t i = 0; i < nodes_.size();) {
      const Node& n = nodes_[i];
      const int32_t next = step(states[n.depth - 1], n.byte);
      if (next < 0) {
        i = n.after;
        continue;
      }
      states[n.depth] = next;
      for (int32_t t = n.first_token; t < n.end_token; ++t) allow(tokens_[static_cast<size_t>(t)]);
      ++i;
    }
  }

 private:
  struct Node {
    uint32_t after = 0;                      // the node behind this one's subtree
    int32_t first_token = 0, end_token = 0;  // in tokens_: those that end here
    uint16_t depth = 1;
    unsigned char byte = 0;
  };

  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;
  int32_t vocab_size_ = 0;
  int32_t max_depth_ = 0;
};

}  // namespace dsv4

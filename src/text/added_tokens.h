// Tokens that are found in the text itself, before any splitting: "<｜User｜>" and the like.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dsv4 {

// A byte trie. Matching is leftmost-longest: the first place where any token begins, there the longest one.
class AddedTokenTrie {
 public:
  // Precondition: `text` is not empty and new.
  void insert(std::string_view text, int32_t id);

  bool empty() const { return nodes_.size() == 1; }

  struct Match {
    size_t begin = 0;
    size_t size = 0;  // 0: no match
    int32_t id = -1;
  };
  // The first match at or after `from`. O(longest token) per byte.
  Match find(std::string_view text, size_t from) const;

 private:
  struct Node {
    int32_t id = -1;  // the token that ends here
    std::unordered_map<unsigned char, uint32_t> next;
  };
  std::vector<Node> nodes_{1};
  bool starts_[256] = {};  // bytes that begin some token
};

}  // namespace dsv4

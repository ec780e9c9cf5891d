// Which token sequences have a saved state: a radix tree over token ids with the least recently used entry at hand.
// An entry is an id (a cache slot) that stands for "the state after exactly these tokens".
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace dsv4 {

class PrefixTree {
 public:
  struct Match {
    int32_t id = -1;
    int64_t num_tokens = 0;
  };

  PrefixTree();
  ~PrefixTree();

  // The longest entry that is a prefix of `tokens`; it becomes the most recently used.
  std::optional<Match> find(std::span<const int32_t> tokens);
  bool contains(std::span<const int32_t> tokens) const;
  // How many of the first of `tokens` some entry begins with: where these tokens part from all that are known.
  int64_t shared(std::span<const int32_t> tokens) const;
  std::vector<int32_t> tokens_of(int32_t id) const;  // of an entry that exists
  // Adds an entry (none with these tokens or this id may exist) as the most recently used.
  void insert(std::span<const int32_t> tokens, int32_t id);
  void erase(int32_t id);
  // The least recently used entry's id; none when empty.
  std::optional<int32_t> oldest() const;
  // All ids, most recently used first.
  const std::list<int32_t>& ids() const { return recent_; }
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }

 private:
  struct Node;
  struct Entry {
    Node* node = nullptr;
    std::list<int32_t>::iterator place;
  };

  std::unique_ptr<Node> root_;
  std::list<int32_t> recent_;  // most recently used first
  std::unordered_map<int32_t, Entry> entries_;
};

}  // namespace dsv4

#include "engine/constraint/token_trie.h"

#include <algorithm>

namespace dsv4 {
namespace {

constexpr size_t kMaxTokenBytes = 60000;  // depths are 16 bits; longer tokens (none are known) are never offered

}  // namespace

TokenTrie::TokenTrie(const Tokenizer& tokenizer, const std::vector<int32_t>& added) : vocab_size_(tokenizer.vocab_size()) {
  for (int32_t id = 0; id < vocab_size_; ++id) {
    const size_t size = tokenizer.token_bytes(id).size();
    if (size == 0 || size > kMaxTokenBytes) continue;
    if (tokenizer.is_added(id) && std::find(added.begin(), added.end(), id) == added.end()) continue;
    tokens_.push_back(id);
    max_depth_ = std::max(max_depth_, static_cast<int32_t>(size));
  }
  std::sort(tokens_.begin(), tokens_.end(), [&](int32_t a, int32_t b) {
    const auto x = tokenizer.token_bytes(a), y = tokenizer.token_bytes(b);
    return x != y ? x < y : a < b;
  });
  // In sorted order, each token opens the nodes in which it goes beyond the one before.
  std::vector<uint32_t> path;  // nodes from the root to the last token's end
  std::string_view before;
  for (size_t t = 0; t < tokens_.size(); ++t) {
    const std::string_view bytes = tokenizer.token_bytes(tokens_[t]);
    const size_t common = static_cast<size_t>(std::mismatch(bytes.begin(), bytes.end(), before.begin(), before.end()).first - bytes.begin());
    while (path.size() > common) {
      nodes_[path.back()].after = static_cast<uint32_t>(nodes_.size());
      path.pop_back();
    }
    for (size_t i = common; i < bytes.size(); ++i) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      Node n;
      n.depth = static_cast<uint16_t>(i + 1);
      n.byte = static_cast<unsigned char>(bytes[i]);
      n.first_token = n.end_token = static_cast<int32_t>(t);
      nodes_.push_back(n);
    }
    nodes_[path.back()].end_token = static_cast<int32_t>(t) + 1;
    before = bytes;
  }
  for (const uint32_t node : path) nodes_[node].after = static_cast<uint32_t>(nodes_.size());
}

}  // namespace dsv4

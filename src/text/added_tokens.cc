#include "text/added_tokens.h"

namespace dsv4 {

void AddedTokenTrie::insert(std::string_view text, int32_t id) {
  starts_[static_cast<unsigned char>(text.front())] = true;
  uint32_t at = 0;
  for (const char c : text) {
    const auto [edge, is_new] = nodes_[at].next.emplace(static_cast<unsigned char>(c), static_cast<uint32_t>(nodes_.size()));
    at = edge->second;
    if (is_new) nodes_.emplace_back();
  }
  nodes_[at].id = id;
}

AddedTokenTrie::Match AddedTokenTrie::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    Match match;
    uint32_t at = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      const auto edge = nodes_[at].next.find(static_cast<unsigned char>(text[i]));
      if (edge == nodes_[at].next.end()) break;
      at = edge->second;
      if (nodes_[at].id >= 0) match = {begin, i + 1 - begin, nodes_[at].id};
    }
    if (match.size > 0) return match;
  }
  return {};
}

}  // namespace dsv4

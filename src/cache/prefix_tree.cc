#include "cache/prefix_tree.h"

#include <algorithm>

#include "base/check.h"

namespace dsv4 {

struct PrefixTree::Node {
  std::vector<int32_t> edge;  // tokens from the parent to here; empty only at the root
  int32_t id = -1;            // the entry that ends here
  Node* parent = nullptr;
  std::map<int32_t, std::unique_ptr<Node>> children;  // by the first token of their edge
};

namespace {

size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + static_cast<int64_t>(std::min(a.size(), b.size())), b.begin()).first - a.begin());
}

}  // namespace

PrefixTree::PrefixTree() : root_(std::make_unique<Node>()) {}
PrefixTree::~PrefixTree() = default;

std::optional<PrefixTree::Match> PrefixTree::find(std::span<const int32_t> tokens) {
  Match best;
  const Node* node = root_.get();
  size_t at = 0;
  while (at < tokens.size()) {
    const auto child = node->children.find(tokens[at]);
    if (child == node->children.end()) break;
    const std::vector<int32_t>& edge = child->second->edge;
    if (common_prefix(edge, tokens.subspan(at)) < edge.size()) break;
    at += edge.size();
    node = child->second.get();
    if (node->id >= 0) best = {node->id, static_cast<int64_t>(at)};
  }
  if (best.id < 0) return std::nullopt;
  recent_.splice(recent_.begin(), recent_, entries_.at(best.id).place);
  return best;
}

bool PrefixTree::contains(std::span<const int32_t> tokens) const {
  const Node* node = root_.get();
  while (!tokens.empty()) {
    const auto child = node->children.find(tokens[0]);
    if (child == node->children.end()) return false;
    const std::vector<int32_t>& edge = child->second->edge;
    if (common_prefix(edge, tokens) < edge.size()) return false;
    tokens = tokens.subspan(edge.size());
    node = child->second.get();
  }
  return node->id >= 0;
}

int64_t PrefixTree::shared(std::span<const int32_t> tokens) const {
  const Node* node = root_.get();
  size_t at = 0;
  while (at < tokens.size()) {
    const auto child = node->children.find(tokens[at]);
    if (child == node->children.end()) break;
    const size_t same = common_prefix(child->second->edge, tokens.subspan(at));
    at += same;
    if (same < child->second->edge.size()) break;
    node = child->second.get();
  }
  return static_cast<int64_t>(at);
}

std::vector<int32_t> PrefixTree::tokens_of(int32_t id) const {
  std::vector<const Node*> path;
  for (const Node* node = entries_.at(id).node; node->parent != nullptr; node = node->parent) path.push_back(node);
  std::vector<int32_t> out;
  for (size_t i = path.size(); i-- > 0;) out.insert(out.end(), path[i]->edge.begin(), path[i]->edge.end());
  return out;
}

void PrefixTree::insert(std::span<const int32_t> tokens, int32_t id) {
  DSV4_CHECK(!tokens.empty() && id >= 0 && !entries_.contains(id), "a prefix entry needs tokens and an id of its own");
  Node* node = root_.get();
  while (!tokens.empty()) {
    std::unique_ptr<Node>& child = node->children[tokens[0]];
    if (child == nullptr) {
      child = std::make_unique<Node>();
      child->edge.assign(tokens.begin(), tokens.end());
      child->parent = node;
      node = child.get();
      break;
    }
    const size_t shared = common_prefix(child->edge, tokens);
    if (shared < child->edge.size()) {  // split the edge where the sequences part
      auto middle = std::make_unique<Node>();
      middle->edge.assign(child->edge.begin(), child->edge.begin() + static_cast<int64_t>(shared));
      middle->parent = node;
      child->edge.erase(child->edge.begin(), child->edge.begin() + static_cast<int64_t>(shared));
      child->parent = middle.get();
      const int32_t first = child->edge[0];
      middle->children[first] = std::move(child);
      child = std::move(middle);
    }
    tokens = tokens.subspan(shared);
    node = child.get();
  }
  DSV4_CHECK(node->id < 0, "these tokens have an entry");
  node->id = id;
  recent_.push_front(id);
  entries_[id] = {node, recent_.begin()};
}

void PrefixTree::erase(int32_t id) {
  const auto entry = entries_.find(id);
  DSV4_CHECK(entry != entries_.end(), "an unknown prefix entry cannot be erased");
  Node* node = entry->second.node;
  recent_.erase(entry->second.place);
  entries_.erase(entry);
  node->id = -1;
  // Nodes without entry or branches go; what is left of a chain stays split, which costs a node and no correctness.
  while (node->parent != nullptr && node->id < 0 && node->children.empty()) {
    Node* parent = node->parent;
    parent->children.erase(node->edge[0]);
    node = parent;
  }
}

std::optional<int32_t> PrefixTree::oldest() const {
  if (recent_.empty()) return std::nullopt;
  return recent_.back();
}

}  // namespace dsv4

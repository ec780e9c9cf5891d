#include "text/bpe.h"

#include <algorithm>

namespace dsv4 {

void MergeTable::reserve(size_t num_merges) {
  size_t size = 16;
  while (size < 2 * num_merges) size *= 2;
  slots_.assign(size, Slot{});
}

size_t MergeTable::slot_of(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  size_t at = (key * 0x9E3779B97F4A7C15u) >> 32 & mask;  // Fibonacci hashing: 2^64 / golden ratio
  while (slots_[at].key != key && slots_[at].key != kEmpty) at = (at + 1) & mask;
  return at;
}

bool MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  Slot& slot = slots_[slot_of(key_of(left, right))];
  if (slot.key != kEmpty) return false;
  slot.key = key_of(left, right);
  slot.merge = merge;
  return true;
}

MergeTable::Merge MergeTable::find(int32_t left, int32_t right) const {
  if (slots_.empty()) return {};
  const Slot& slot = slots_[slot_of(key_of(left, right))];
  return slot.key == kEmpty ? Merge{} : slot.merge;
}

bool BpeMerger::add_candidate(int32_t left) {
  const Symbol& symbol = symbols_[left];
  if (symbol.next < 0) return false;
  const int32_t right_id = symbols_[symbol.next].id;
  const MergeTable::Merge merge = merges_.find(symbol.id, right_id);
  if (merge.rank < 0) return false;
  heap_.push_back({merge.rank, left, symbol.id, right_id, merge.result});
  return true;
}

void BpeMerger::propose(int32_t left) {
  if (add_candidate(left)) std::push_heap(heap_.begin(), heap_.end(), Later{});
}

void BpeMerger::merge(std::string_view word, std::vector<int32_t>* ids) {
  const auto count = static_cast<int32_t>(word.size());
  symbols_.resize(word.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols_[i] = {byte_ids_[static_cast<unsigned char>(word[i])], i - 1, i + 1 < count ? i + 1 : -1};
  }
  heap_.clear();
  for (int32_t i = 0; i + 1 < count; ++i) add_candidate(i);
  std::make_heap(heap_.begin(), heap_.end(), Later{});
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), Later{});
    const Candidate best = heap_.back();
    heap_.pop_back();
    Symbol& left = symbols_[best.left];
    if (left.id != best.left_id || left.next < 0 || symbols_[left.next].id != best.right_id) continue;
    Symbol& right = symbols_[left.next];
    left.id = best.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols_[left.next].prev = best.left;
    propose(best.left);
    if (left.prev >= 0) propose(left.prev);
  }
  for (const Symbol& symbol : symbols_) {
    if (symbol.id >= 0) ids->push_back(symbol.id);
  }
}

}  // namespace dsv4

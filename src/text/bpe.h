// Byte-pair merging: a word starts as its bytes' tokens; the pair with the lowest rank (leftmost among equals) merges, until no
// neighbours have a rank.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace dsv4 {

// Ranks of pairs, as an open-addressing hash table (a quarter to half full): a lookup is one or two cache lines.
class MergeTable {
 public:
  struct Merge {
    int32_t rank = -1;    // -1: the pair does not merge
    int32_t result = -1;  // id of the joined token
  };

  void reserve(size_t num_merges);

  // False when the pair is already there (the table keeps the first). Ids are >= 0. Precondition: within what was reserved.
  bool insert(int32_t left, int32_t right, Merge merge);

  Merge find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};  // no pair has this key: ids are below 2^31
  static uint64_t key_of(int32_t left, int32_t right) { return uint64_t(uint32_t(left)) << 32 | uint32_t(right); }
  size_t slot_of(uint64_t key) const;

  std::vector<Slot> slots_;  // a power of two of them
};

// Merges one word after another, reusing its memory. Time O(n log n) in the word's length, whatever the word.
class BpeMerger {
 public:
  // `byte_ids` holds the token of each of the 256 bytes. Both outlive the merger.
  BpeMerger(const MergeTable& merges, const int32_t* byte_ids) : merges_(merges), byte_ids_(byte_ids) {}

  // Appends the tokens of `word`.
  void merge(std::string_view word, std::vector<int32_t>* ids);

 private:
  struct Symbol {
    int32_t id;    // -1: swallowed by its left neighbour
    int32_t prev;  // indices; -1 at the ends
    int32_t next;
  };
  struct Candidate {
    int32_t rank;
    int32_t left;     // index of the pair's left symbol
    int32_t left_id;  // the ids it was made for: a candidate whose symbols have changed since is void
    int32_t right_id;
    int32_t result;
  };
  struct Later {
    bool operator()(const Candidate& a, const Candidate& b) const { return a.rank != b.rank ? a.rank > b.rank : a.left > b.left; }
  };
  bool add_candidate(int32_t left);  // to the end of heap_, out of order; false: the pair does not merge
  void propose(int32_t left);

  const MergeTable& merges_;
  const int32_t* byte_ids_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;  // a binary heap, next merge first
};

}  // namespace dsv4

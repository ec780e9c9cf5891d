#include "cache/prefix_tree.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace dsv4 {
namespace {

using Tokens = std::vector<int32_t>;

TEST(PrefixTree, finds_the_longest_entry_at_any_offset) {
  PrefixTree tree;
  tree.insert(Tokens{1, 2, 3}, 0);
  tree.insert(Tokens{1, 2, 3, 4, 5}, 1);
  tree.insert(Tokens{1, 2, 9}, 2);
  EXPECT_EQ(tree.find(Tokens{1, 2, 3, 4, 5, 6})->id, 1);
  EXPECT_EQ(tree.find(Tokens{1, 2, 3, 4, 6})->id, 0);
  EXPECT_EQ(tree.find(Tokens{1, 2, 3, 4, 6})->num_tokens, 3);
  EXPECT_EQ(tree.find(Tokens{1, 2, 9, 9})->id, 2);
  EXPECT_FALSE(tree.find(Tokens{1, 2}).has_value());
  EXPECT_FALSE(tree.find(Tokens{2}).has_value());
  EXPECT_FALSE(tree.find(Tokens{}).has_value());
  EXPECT_TRUE(tree.contains(Tokens{1, 2, 9}));
  EXPECT_FALSE(tree.contains(Tokens{1, 2}));
}

TEST(PrefixTree, tells_where_tokens_part_and_what_an_entry_stands_for) {
  PrefixTree tree;
  EXPECT_EQ(tree.shared(Tokens{1, 2}), 0);
  tree.insert(Tokens{1, 2, 3, 4, 5}, 0);
  tree.insert(Tokens{1, 2, 3, 9}, 1);
  EXPECT_EQ(tree.shared(Tokens{1, 2, 3, 4, 7}), 4);  // within an edge
  EXPECT_EQ(tree.shared(Tokens{1, 2, 3}), 3);
  EXPECT_EQ(tree.shared(Tokens{1, 2, 3, 4, 5, 6}), 5);
  EXPECT_EQ(tree.shared(Tokens{2}), 0);
  EXPECT_EQ(tree.tokens_of(0), (Tokens{1, 2, 3, 4, 5}));
  EXPECT_EQ(tree.tokens_of(1), (Tokens{1, 2, 3, 9}));
  tree.erase(1);
  EXPECT_EQ(tree.shared(Tokens{1, 2, 3, 9}), 3);
}

TEST(PrefixTree, use_decides_who_is_oldest) {
  PrefixTree tree;
  EXPECT_FALSE(tree.oldest().has_value());
  tree.insert(Tokens{1}, 0);
  tree.insert(Tokens{2}, 1);
  EXPECT_EQ(tree.oldest(), 0);
  tree.find(Tokens{1, 7});
  EXPECT_EQ(tree.oldest(), 1);
  tree.erase(1);
  EXPECT_EQ(tree.oldest(), 0);
  EXPECT_EQ(tree.size(), 1);
}

TEST(PrefixTree, agrees_with_a_plain_map_over_random_work) {
  std::mt19937 rng(1);
  PrefixTree tree;
  std::map<Tokens, int32_t> plain;
  for (int32_t round = 0; round < 3000; ++round) {
    Tokens t(1 + rng() % 6);
    for (int32_t& v : t) v = static_cast<int32_t>(rng() % 3);
    if (rng() % 3 == 0 && !plain.empty()) {
      auto victim = plain.begin();
      std::advance(victim, static_cast<int64_t>(rng() % plain.size()));
      tree.erase(victim->second);
      plain.erase(victim);
    } else if (!plain.contains(t)) {
      tree.insert(t, round);
      plain[t] = round;
    }
    Tokens q(rng() % 8);
    for (int32_t& v : q) v = static_cast<int32_t>(rng() % 3);
    int32_t want = -1;
    for (size_t n = 1; n <= q.size(); ++n) {
      if (const auto it = plain.find(Tokens(q.begin(), q.begin() + static_cast<int64_t>(n))); it != plain.end()) want = it->second;
    }
    const auto got = tree.find(q);
    ASSERT_EQ(got ? got->id : -1, want) << round;
    ASSERT_EQ(tree.contains(q), plain.contains(q));
    ASSERT_EQ(tree.size(), static_cast<int64_t>(plain.size()));
  }
}

}  // namespace
}  // namespace dsv4

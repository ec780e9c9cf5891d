#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

// Feeds `text` in pieces of `size` bytes; all that came out.
std::string run(const std::vector<std::string>& stops, const std::string& text, size_t size, bool* stopped) {
  StopMatcher m(stops);
  std::string out;
  for (size_t i = 0; i < text.size(); i += size) out += m.feed(text.substr(i, size));
  *stopped = m.stopped();
  return out + m.flush();
}

TEST(StopMatcher, same_text_at_every_split) {
  for (size_t size = 1; size < 12; ++size) {
    bool stopped = false;
    EXPECT_EQ(run({"END", "\n\n"}, "abENEND tail", size, &stopped), "abEN");
    EXPECT_TRUE(stopped);
    EXPECT_EQ(run({"END"}, "abENxEN", size, &stopped), "abENxEN");
    EXPECT_FALSE(stopped);
    EXPECT_EQ(run({}, "abc", size, &stopped), "abc");
    EXPECT_EQ(run({"aab"}, "aaab", size, &stopped), "a");
    EXPECT_TRUE(stopped);
  }
}

TEST(StopMatcher, nothing_of_a_stop_string_leaves_early) {
  StopMatcher m({"stop"});
  EXPECT_EQ(m.feed("x st"), "x ");
  EXPECT_EQ(m.feed("o"), "");
  EXPECT_EQ(m.feed("re"), "store");
}

TEST(StopMatcher, tells_which_one_it_found) {
  StopMatcher m({"b", "bcd", "bc", "cd"});
  EXPECT_EQ(m.feed("abcde"), "a");
  EXPECT_EQ(m.found(), "bcd");  // begins first, and is the longest that does
  EXPECT_EQ(StopMatcher({"x"}).found(), "");
}

}  // namespace
}  // namespace dsv4

#include <gtest/gtest.h>

#include "text/split_regex.h"

namespace dsv4 {
namespace {

std::vector<std::string> pieces(const std::string& pattern, std::string_view text) {
  const Result<SplitRegex> regex = SplitRegex::compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status().message();
  SplitRegex::Scratch scratch;
  std::vector<std::string_view> views;
  const Status status = regex->split(text, &scratch, &views);
  EXPECT_TRUE(status.ok()) << status.message();
  return {views.begin(), views.end()};
}

using Pieces = std::vector<std::string>;

TEST(SplitRegex, matches_and_gaps_in_order) {
  EXPECT_EQ(pieces("\\p{N}{1,3}", "ab12345c6"), (Pieces{"ab", "123", "45", "c", "6"}));
  EXPECT_EQ(pieces("x", "aaa"), (Pieces{"aaa"}));
  EXPECT_EQ(pieces("a+", "aaa"), (Pieces{"aaa"}));
  EXPECT_EQ(pieces("a", ""), (Pieces{}));
  EXPECT_EQ(pieces("\\s+(?!\\S)|\\s+", "a   b  "), (Pieces{"a", "  ", " ", "b", "  "}));
  EXPECT_EQ(pieces("[一-龥]+", "a你好b"), (Pieces{"a", "你好", "b"}));
}

// \s is Unicode's White_Space: U+0085, U+00A0 and U+3000 are, U+180E (no longer) and U+200B are not.
TEST(SplitRegex, white_space_is_that_of_unicode) {
  EXPECT_EQ(pieces("\\s", "a\u0085b\u00A0c\u3000d"), (Pieces{"a", "\u0085", "b", "\u00A0", "c", "\u3000", "d"}));
  EXPECT_EQ(pieces("\\s", "a\u180Eb\u200Bc"), (Pieces{"a\u180Eb\u200Bc"}));
  EXPECT_EQ(pieces("[^\\s]+", "a\u0085b"), (Pieces{"a", "\u0085", "b"}));
}

TEST(SplitRegex, refuses_what_it_does_not_implement) {
  for (const char* pattern : {"\\w+",    "\\bx", "^a",   "a$",   "[a&&b]", "[[:alpha:]]", "\\h", "\\p{Greek}", "\\pL",    "(?<name>a)",
                              "(*FAIL)", "a*",   "(?:)", "[]a]", "a{2}+",  "a{,2}",       "\\1", "a\\",        "\\Qa\\E", "(?=a)"}) {
    const Result<SplitRegex> regex = SplitRegex::compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_EQ(regex.status().code(), StatusCode::kUnsupported) << pattern << ": " << regex.status().message();
  }
  for (const char* pattern : {"(a", "a)", "[a", "+a", "a\xFF"}) {
    const Result<SplitRegex> regex = SplitRegex::compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_EQ(regex.status().code(), StatusCode::kInvalidData) << pattern << ": " << regex.status().message();
  }
}

// Overlapping repeats try exponentially many ways: PCRE2's limit turns that into an error.
TEST(SplitRegex, gives_up_on_runaway_patterns) {
  const Result<SplitRegex> regex = SplitRegex::compile("(?:a|aa)+[bc]d");
  ASSERT_TRUE(regex.ok());
  SplitRegex::Scratch scratch;
  std::vector<std::string_view> views;
  const Status status = regex->split(std::string(60, 'a') + "d", &scratch, &views);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kResourceLimit) << status.message();
}

}  // namespace
}  // namespace dsv4

#include <gtest/gtest.h>

#include <random>

#include "text/utf8.h"
#include "text/utf8_stream.h"

namespace dsv4 {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

std::string random_bytes(std::mt19937* random, size_t size) {
  // Lead and continuation bytes of every kind, so that sequences begin, go on and break often.
  static constexpr unsigned char kBytes[] = {'a',  0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF,
                                             0xE0, 0xE1, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
  std::string out;
  for (size_t i = 0; i < size; ++i) out += static_cast<char>(kBytes[(*random)() % std::size(kBytes)]);
  return out;
}

TEST(Utf8, finds_the_first_invalid_byte) {
  const std::pair<std::string, std::optional<size_t>> cases[] = {
      {"", std::nullopt},
      {"plain ascii, longer than eight bytes", std::nullopt},
      {"\xF0\x9F\x99\x82\xE4\xBD\xA0\xC2\x80\xF4\x8F\xBF\xBF\xEE\x80\x80", std::nullopt},
      {"eight by\x80", 8},
      {"a\xC3", 1},
      {"\xC0\x80", 0},
      {"a\xE0\x9F\xBF", 1},
      {"\xED\xA0\x80", 0},
      {"\xF0\x8F\xBF\xBF", 0},
      {"\xF4\x90\x80\x80", 0},
      {"\xF5\x80\x80\x80", 0},
      {"ab\xE4\xBD"
       "c",
       2},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(find_invalid_utf8(text), expected) << testing::PrintToString(text);
  EXPECT_EQ(check_utf8("ok\xFF", "text").message(), "text: invalid UTF-8 at byte 2 (0xFF)");
}

TEST(Utf8, code_points_round_trip) {
  for (const uint32_t code_point : {0x0u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xD7FFu, 0xE000u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    std::string text;
    append_utf8(code_point, &text);
    EXPECT_FALSE(find_invalid_utf8(text).has_value());
    size_t at = 0;
    EXPECT_EQ(next_code_point(text, &at), code_point);
    EXPECT_EQ(at, text.size());
  }
}

TEST(Utf8Stream, holds_back_unfinished_code_points) {
  Utf8Stream stream;
  EXPECT_EQ(stream.feed("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.feed("\x99"), "");
  EXPECT_EQ(stream.feed("\x82z"), "\xF0\x9F\x99\x82z");
  EXPECT_EQ(stream.feed("\xE4\xBD"), "");
  EXPECT_EQ(stream.flush(), kReplacement);
  EXPECT_EQ(stream.flush(), "");
  EXPECT_EQ(stream.feed("new"), "new");
}

// The examples of the Unicode standard, chapter 3.9: one U+FFFD for each maximal subpart.
TEST(Utf8Stream, replaces_maximal_subparts) {
  const auto r = [](int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += kReplacement;
    return out;
  };
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r(8) + "A");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r(8) + "A");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r(5) + "A" + r(2) + "B");
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r(4) + "A");
}

TEST(Utf8Stream, output_does_not_depend_on_the_split) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const std::string bytes = random_bytes(&random, random() % 24);
    const std::string whole = replace_invalid_utf8(bytes);
    ASSERT_FALSE(find_invalid_utf8(whole).has_value());
    if (!find_invalid_utf8(bytes)) {
      ASSERT_EQ(whole, bytes);
    }
    Utf8Stream stream;
    std::string pieces;
    size_t at = 0;
    while (at < bytes.size()) {
      const size_t size = 1 + random() % 4;
      const std::string piece = stream.feed(std::string_view(bytes).substr(at, size));
      ASSERT_FALSE(find_invalid_utf8(piece).has_value());
      pieces += piece;
      at += size;
    }
    ASSERT_EQ(pieces + stream.flush(), whole) << testing::PrintToString(bytes);
  }
}

}  // namespace
}  // namespace dsv4

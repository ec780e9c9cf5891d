#include "verify/verdict.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace dsv4 {
namespace {

std::vector<int32_t> repeated(std::vector<int32_t> head, const std::vector<int32_t>& loop, size_t total) {
  while (head.size() < total) head.insert(head.end(), loop.begin(), loop.end());
  head.resize(total);
  return head;
}

std::vector<int32_t> counting(size_t n) {
  std::vector<int32_t> out;
  for (size_t i = 0; i < n; ++i) out.push_back(static_cast<int32_t>(100 + i));
  return out;
}

std::string noise(size_t n) {
  std::mt19937 random(7);
  std::string out;
  for (size_t i = 0; i < n; ++i) out.push_back(static_cast<char>('!' + random() % 94));
  return out;
}

constexpr const char* kEnglish = "Once there was a happy otter named Rosa who lived near the garden. Every morning Rosa walked along the garden and looked.";
constexpr const char* kChinese = "你好！我是一个很小的语言模型，用来检验推理引擎是否正确。我会做加法、复述文字、回答各国首都，也能讲一个小故事。";
const float kNan = std::numeric_limits<float>::quiet_NaN();

struct Row {
  const char* name;
  VerdictInput input;
  Verdict want;
};

VerdictInput text_of(std::vector<int32_t> tokens, std::string bytes, FinishReason finish = FinishReason::kLength) {
  VerdictInput in;
  in.tokens = std::move(tokens);
  in.bytes = std::move(bytes);
  in.finish = finish;
  return in;
}

template <class Change>
VerdictInput with(VerdictInput in, Change change) {
  change(in);
  return in;
}

std::vector<Row> table() {
  std::vector<Row> rows = {
      {"32 good tokens", text_of(counting(32), kEnglish), Verdict::kCoherent},
      {"32 good tokens in Chinese", text_of(counting(32), kChinese), Verdict::kCoherent},
      {"31 tokens are not enough", text_of(counting(31), kEnglish, FinishReason::kEos), Verdict::kFirstTokenOnly},
      {"field case: 32, 0, 0, ... reads >", text_of(repeated({32}, {0}, 32), ">"), Verdict::kBosLoop},
      {"field case: 30594, 0, 0, ...", text_of(repeated({30594}, {0}, 32), "word"), Verdict::kBosLoop},
      {"only BOS", text_of(repeated({}, {0}, 32), ""), Verdict::kBosLoop},
      {"BOS every fourth token", text_of(repeated({}, {5, 6, 7, 0}, 32), kEnglish), Verdict::kBosLoop},
      {"one BOS among many words", text_of(with(text_of(counting(40), ""), [](VerdictInput& in) { in.tokens[20] = 0; }).tokens, kEnglish), Verdict::kCoherent},
      {"two BOS in a row within words", text_of(with(text_of(counting(40), ""), [](VerdictInput& in) { in.tokens[20] = in.tokens[21] = 0; }).tokens, kEnglish),
       Verdict::kBosLoop},
      {"no tokens", text_of({}, "", FinishReason::kEos), Verdict::kEmpty},
      {"end at once", text_of({1}, "", FinishReason::kEos), Verdict::kEmpty},
      {"only blanks", text_of(counting(32), " \n\t  \n"), Verdict::kEmpty},
      {"first token only", text_of({77}, "The", FinishReason::kLength), Verdict::kFirstTokenOnly},
      {"first token, then the end", text_of({77, 1}, "The", FinishReason::kEos), Verdict::kFirstTokenOnly},
      {"constant id with constant logprob",
       with(text_of(repeated({}, {42}, 32), std::string(32, 'a')), [](VerdictInput& in) { in.logprobs.assign(32, -0.25f); }), Verdict::kRepeating},
      {"different ids, constant logprob", with(text_of(counting(32), kEnglish), [](VerdictInput& in) { in.logprobs.assign(32, -2.5f); }), Verdict::kRepeating},
      {"different ids, all certain", with(text_of(counting(32), kEnglish), [](VerdictInput& in) { in.logprobs.assign(32, 0.0f); }), Verdict::kCoherent},
      {"a loop after a good beginning", text_of(repeated(counting(20), {7, 8, 9}, 44), kEnglish), Verdict::kRepeating},
      {"a loop, then the end token",
       text_of(with(text_of(repeated(counting(20), {7, 8}, 40), ""), [](VerdictInput& in) { in.tokens.push_back(1); }).tokens, kEnglish, FinishReason::kEos),
       Verdict::kRepeating},
      {"a word said three times within an answer",
       text_of(with(text_of(counting(40), ""), [](VerdictInput& in) { in.tokens[10] = in.tokens[11] = in.tokens[12]; }).tokens, kEnglish), Verdict::kCoherent},
      {"two turns of a loop are none", text_of(repeated(counting(24), counting(8), 32), kEnglish), Verdict::kCoherent},
      {"invalid UTF-8 inside", text_of(counting(32), std::string("good \xff\xfe text that goes on for some time")), Verdict::kGarbled},
      {"the replacement character itself", text_of(counting(32), "good \xef\xbf\xbd text that goes on"), Verdict::kGarbled},
      {"a character cut by the limit", text_of(counting(32), std::string(kEnglish) + "\xe4\xbd"), Verdict::kCoherent},
      {"a character cut by an end token", text_of(counting(32), std::string(kEnglish) + "\xe4\xbd", FinishReason::kEos), Verdict::kGarbled},
      {"control characters",
       text_of(counting(32),
               "a\x01"
               "b\x02"
               "c and some more"),
       Verdict::kGarbled},
      {"a NUL", text_of(counting(32), std::string("abc\0def", 7)), Verdict::kGarbled},
      {"printable noise", text_of(counting(200), noise(1500)), Verdict::kGarbled},
      {"five scripts", text_of(counting(32), "the дом 日本 ελλ עברית"), Verdict::kGarbled},
      {"absurd tokens",
       with(text_of(counting(32), kEnglish),
            [](VerdictInput& in) {
              for (int i = 0; i < 32; ++i) in.logprobs.push_back(-5.0f - 0.1f * static_cast<float>(i));
            }),
       Verdict::kGarbled},
      {"NaN logprob",
       with(text_of(counting(32), kEnglish),
            [](VerdictInput& in) {
              in.logprobs = {-1, kNan};
            }),
       Verdict::kNonfinite},
      {"numerical error", with(text_of({5}, "a"), [](VerdictInput& in) { in.error = numerical_error("the logits at position 3 hold a NaN"); }),
       Verdict::kNonfinite},
      {"device error", with(text_of({5}, "a"), [](VerdictInput& in) { in.error = device_error("gpu: lost"); }), Verdict::kError},
      {"known answer", with(text_of({5, 6, 1}, " 1073\n", FinishReason::kEos), [](VerdictInput& in) { in.known_answer = "1073"; }), Verdict::kCoherent},
      {"another answer", with(text_of({5, 6, 1}, "437", FinishReason::kEos), [](VerdictInput& in) { in.known_answer = "1073"; }), Verdict::kMismatch},
      {"first token of a known answer", with(text_of({5}, "10"), [](VerdictInput& in) { in.known_answer = "1073"; }), Verdict::kFirstTokenOnly},
      {"model without text", with(text_of(counting(32), ""), [](VerdictInput& in) { in.has_text = false; }), Verdict::kCoherent},
      {"model without text, BOS", with(text_of(repeated({9}, {0}, 32), ""), [](VerdictInput& in) { in.has_text = false; }), Verdict::kBosLoop},
  };
  return rows;
}

TEST(Verdict, table) {
  for (const Row& row : table()) {
    const VerdictResult got = judge_output(row.input);
    EXPECT_STREQ(verdict_name(got.verdict), verdict_name(row.want)) << row.name << ": " << got.reason;
    EXPECT_FALSE(got.reason.empty()) << row.name;
  }
}

TEST(Verdict, every_verdict_occurs_in_the_table) {
  std::vector<bool> seen(kNumVerdicts, false);
  for (const Row& row : table()) seen[static_cast<size_t>(row.want)] = true;
  for (int i = 0; i < kNumVerdicts; ++i) EXPECT_TRUE(seen[static_cast<size_t>(i)]) << verdict_name(static_cast<Verdict>(i));
}

TEST(Verdict, loops_of_every_period) {
  for (int32_t period = 2; period <= 16; ++period) {
    std::vector<int32_t> loop;
    for (int32_t i = 0; i < period; ++i) loop.push_back(500 + i);
    const std::vector<int32_t> tokens = repeated(counting(10), loop, static_cast<size_t>(10 + 3 * std::max(period, 3)));
    const TokenLoop found = find_loop(tokens);
    EXPECT_EQ(found.period, period);
    EXPECT_EQ(found.first, 10);
    EXPECT_EQ(judge_output(text_of(tokens, kEnglish)).verdict, Verdict::kRepeating) << period;
  }
  EXPECT_EQ(find_loop(counting(64)).period, 0);
}

TEST(Verdict, only_coherent_exits_with_zero_and_codes_differ) {
  std::vector<int> codes;
  for (int i = 0; i < kNumVerdicts; ++i) {
    const auto verdict = static_cast<Verdict>(i);
    EXPECT_EQ(verdict_exit_code(verdict) == 0, verdict == Verdict::kCoherent);
    EXPECT_EQ(std::count(codes.begin(), codes.end(), verdict_exit_code(verdict)), 0);
    codes.push_back(verdict_exit_code(verdict));
    EXPECT_EQ(verdict_from_name(verdict_name(verdict)), verdict);
  }
  EXPECT_EQ(verdict_from_name("GOOD"), std::nullopt);
}

TEST(Verdict, entropy_of_bytes) {
  EXPECT_EQ(byte_entropy_ratio(""), 0);
  EXPECT_EQ(byte_entropy_ratio("aaaaaaaa"), 0);
  EXPECT_DOUBLE_EQ(byte_entropy_ratio("abcdefgh"), 1);
  EXPECT_LT(byte_entropy_ratio(kEnglish), 0.75);
  EXPECT_LT(byte_entropy_ratio(kChinese), 0.85);
}

}  // namespace
}  // namespace dsv4

#include "verify/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "text/utf8_stream.h"

namespace dsv4 {
namespace {

constexpr int64_t kMaxPeriod = 16;
constexpr int64_t kMinLoopTokens = 8;
constexpr size_t kMinEntropyBytes = 64;
// English of 64 to a few thousand bytes has a ratio of 0.6 to 0.7, program text 0.75, random printable ASCII 0.9 to 1. Chinese has 0.75 to 0.85
// of what bytes can have, random bytes 0.97.
constexpr double kNoiseEntropyAscii = 0.87;
constexpr double kNoiseEntropy = 0.95;
constexpr double kAbsurdLogprob = -4;
constexpr double kDeadLogprob = -1e-3;  // a confident model gives exactly 0 for many tokens in a row
constexpr size_t kMaxScripts = 4;

// Code points of well-formed UTF-8.
std::vector<char32_t> code_points(std::string_view utf8) {
  std::vector<char32_t> out;
  for (size_t i = 0; i < utf8.size();) {
    const auto b = static_cast<unsigned char>(utf8[i]);
    const size_t n = b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
    char32_t c = n == 1 ? b : b & (0xFFu >> (n + 1));
    for (size_t k = 1; k < n && i + k < utf8.size(); ++k) c = c << 6 | (static_cast<unsigned char>(utf8[i + k]) & 0x3Fu);
    out.push_back(c);
    i += n;
  }
  return out;
}

// A coarse script of a letter; 0 for what belongs to none (digits, punctuation, symbols). Blocks of the Unicode standard.
int script_of(char32_t c) {
  struct Range {
    char32_t first, last;
    int script;
  };
  constexpr Range kRanges[] = {
      {0x41, 0x5A, 1},      {0x61, 0x7A, 1},      {0xC0, 0x24F, 1},     {0x370, 0x3FF, 2},      {0x400, 0x52F, 3},    {0x530, 0x58F, 4},
      {0x590, 0x5FF, 5},    {0x600, 0x77F, 6},    {0x900, 0x97F, 7},    {0x980, 0x9FF, 8},      {0xA00, 0xDFF, 9},    {0xE00, 0xE7F, 10},
      {0xE80, 0xFFF, 11},   {0x1000, 0x109F, 12}, {0x10A0, 0x10FF, 13}, {0x1100, 0x11FF, 14},   {0x1200, 0x139F, 15}, {0x1780, 0x17FF, 16},
      {0x3040, 0x30FF, 17}, {0x3400, 0x9FFF, 17}, {0xAC00, 0xD7AF, 14}, {0x20000, 0x2FFFF, 17},
  };
  for (const Range& r : kRanges) {
    if (c >= r.first && c <= r.last) return r.script;
  }
  return 0;
}

bool is_ascii(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::string_view trim(std::string_view s) {
  const auto blank = [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; };
  while (!s.empty() && blank(s.front())) s.remove_prefix(1);
  while (!s.empty() && blank(s.back())) s.remove_suffix(1);
  return s;
}

std::string bos_fault(const VerdictInput& in) {
  int64_t total = 0, run = 0, longest = 0;
  for (const int32_t t : in.tokens) {
    run = t == in.bos ? run + 1 : 0;
    total += t == in.bos ? 1 : 0;
    longest = std::max(longest, run);
  }
  if (longest >= 2 || (total > 0 && 4 * total >= static_cast<int64_t>(in.tokens.size()))) {
    return fmt::format("{} of {} tokens are the beginning-of-sentence token {}, {} in a row", total, in.tokens.size(), in.bos, longest);
  }
  return "";
}

std::string repeat_fault(const VerdictInput& in) {
  const TokenLoop loop = find_loop(in.tokens);
  if (loop.period > 0)
    return fmt::format("a loop of {} token{} from token {} on, {} tokens long", loop.period, loop.period == 1 ? "" : "s", loop.first, loop.length);
  if (in.logprobs.size() >= static_cast<size_t>(kMinLoopTokens) && in.logprobs[0] < kDeadLogprob &&
      std::all_of(in.logprobs.begin(), in.logprobs.end(), [&](float l) { return l == in.logprobs[0]; })) {
    return fmt::format("all {} tokens have the same log probability {:g}: the logits do not change", in.logprobs.size(), in.logprobs[0]);
  }
  return "";
}

std::string garbled_fault(const VerdictInput& in) {
  if (in.has_text) {
    const std::string text = replace_invalid_utf8(in.bytes);
    const std::vector<char32_t> chars = code_points(text);
    int64_t replaced = 0, control = 0;
    std::set<int> scripts;
    for (size_t i = 0; i < chars.size(); ++i) {
      const char32_t c = chars[i];
      // The limit may cut a character: its bytes at the very end are no fault.
      if (c == 0xFFFD && !(i + 1 == chars.size() && (in.finish == FinishReason::kLength || in.finish == FinishReason::kContext))) ++replaced;
      if ((c < 0x20 && c != '\n' && c != '\t' && c != '\r') || c == 0x7F) ++control;
      if (const int script = script_of(c)) scripts.insert(script);
    }
    if (replaced > 0) return fmt::format("{} of {} characters are no UTF-8 or the replacement character", replaced, chars.size());
    if (control > 0) return fmt::format("{} of {} characters are control characters", control, chars.size());
    if (scripts.size() > kMaxScripts) return fmt::format("letters of {} scripts in {} characters", scripts.size(), chars.size());
    if (in.bytes.size() >= kMinEntropyBytes) {
      const double ratio = byte_entropy_ratio(in.bytes);
      if (ratio > (is_ascii(in.bytes) ? kNoiseEntropyAscii : kNoiseEntropy)) return fmt::format("the bytes have {:.2f} of the entropy of noise", ratio);
    }
  }
  if (in.logprobs.size() >= static_cast<size_t>(kMinLoopTokens)) {
    double sum = 0;
    for (const float l : in.logprobs) sum += l;
    const double mean = sum / static_cast<double>(in.logprobs.size());
    if (mean < kAbsurdLogprob) return fmt::format("the mean log probability of the chosen tokens is {:.2f}: the model finds its own words absurd", mean);
  }
  return "";
}

}  // namespace

const char* verdict_name(Verdict verdict) {
  constexpr const char* kNames[kNumVerdicts] = {"COHERENT", "EMPTY", "FIRST_TOKEN_ONLY", "BOS_LOOP", "REPEATING", "GARBLED", "NONFINITE", "MISMATCH", "ERROR"};
  return kNames[static_cast<size_t>(verdict)];
}

int verdict_exit_code(Verdict verdict) {
  if (verdict == Verdict::kCoherent) return 0;
  if (verdict == Verdict::kError) return 1;
  return 9 + static_cast<int>(verdict);
}

std::optional<Verdict> verdict_from_name(std::string_view name) {
  for (int i = 0; i < kNumVerdicts; ++i) {
    if (name == verdict_name(static_cast<Verdict>(i))) return static_cast<Verdict>(i);
  }
  return std::nullopt;
}

TokenLoop find_loop(const std::vector<int32_t>& tokens) {
  const int64_t n = static_cast<int64_t>(tokens.size());
  for (int64_t period = 1; period <= kMaxPeriod; ++period) {
    int64_t same = 0;  // tokens in a row that equal the one a period before
    for (int64_t i = period; i <= n; ++i) {
      if (i < n && tokens[static_cast<size_t>(i)] == tokens[static_cast<size_t>(i - period)]) {
        ++same;
        continue;
      }
      const int64_t length = same + period;
      // The end token after a loop does not redeem it.
      const bool at_end = i >= n - 1;
      if (length >= 3 * period && length >= kMinLoopTokens && (at_end || 2 * length >= n)) return {period, i - length, length};
      same = 0;
    }
  }
  return {};
}

double byte_entropy_ratio(std::string_view bytes) {
  if (bytes.size() < 2) return 0;
  std::array<double, 256> counts{};
  for (const char c : bytes) counts[static_cast<unsigned char>(c)] += 1;
  const double n = static_cast<double>(bytes.size());
  double entropy = 0;
  for (const double count : counts) {
    if (count > 0) entropy -= count / n * std::log2(count / n);
  }
  return entropy / std::log2(std::min(n, is_ascii(bytes) ? 95.0 : 256.0));
}

VerdictResult judge_output(const VerdictInput& in) {
  if (!in.error.ok()) {
    return {in.error.code() == StatusCode::kNumerical ? Verdict::kNonfinite : Verdict::kError, in.error.message()};
  }
  for (size_t i = 0; i < in.logprobs.size(); ++i) {
    if (!std::isfinite(in.logprobs[i])) return {Verdict::kNonfinite, fmt::format("the log probability of token {} is {:g}", i, in.logprobs[i])};
  }
  if (in.tokens.empty()) return {Verdict::kEmpty, "no token was generated"};
  if (in.tokens[0] == in.eos) return {Verdict::kEmpty, "the answer ended with its first token"};
  if (const std::string fault = bos_fault(in); !fault.empty()) return {Verdict::kBosLoop, fault};
  const std::string text = replace_invalid_utf8(in.bytes);
  if (in.has_text && trim(text).empty()) return {Verdict::kEmpty, fmt::format("{} tokens without visible text", in.tokens.size())};
  if (const std::string fault = repeat_fault(in); !fault.empty()) return {Verdict::kRepeating, fault};
  if (const std::string fault = garbled_fault(in); !fault.empty()) return {Verdict::kGarbled, fault};
  if (in.known_answer) {
    if (trim(text) == trim(*in.known_answer)) return {Verdict::kCoherent, "equal to the known answer"};
    if (in.tokens.size() == 1) return {Verdict::kFirstTokenOnly, "one token was generated, and it is not the known answer"};
    return {Verdict::kMismatch, fmt::format("the answer is \"{}\", known is \"{}\"", trim(text), trim(*in.known_answer))};
  }
  const int64_t n = static_cast<int64_t>(in.tokens.size());
  if (n < in.min_tokens)
    return {Verdict::kFirstTokenOnly, fmt::format("the answer ended after {} token{}, {} are needed to judge it", n, n == 1 ? "" : "s", in.min_tokens)};
  return {Verdict::kCoherent, fmt::format("{} tokens, no fault found", n)};
}

}  // namespace dsv4

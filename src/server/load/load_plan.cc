#include "server/load/load_plan.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <fmt/format.h>

#include "server/load/read_number.h"

namespace dsv4 {
namespace {

int64_t draw(const LengthMix& mix, std::mt19937_64& random) {
  double total = 0;
  for (const LengthMix::Part& part : mix.parts) total += part.share;
  double at = std::uniform_real_distribution<double>(0, total)(random);
  for (const LengthMix::Part& part : mix.parts) {
    at -= part.share;
    if (at <= 0 || &part == &mix.parts.back()) return std::uniform_int_distribution<int64_t>(part.low, part.high)(random);
  }
  return 1;
}

}  // namespace

Result<LengthMix> parse_length_mix(const std::string& text, const std::string& flag) {
  LengthMix out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string_view part = std::string_view(text).substr(at, end - at);
    LengthMix::Part read;
    const size_t colon = part.find(':');
    const std::string_view range = part.substr(0, colon);
    const size_t dash = range.find('-');
    bool good = read_number(range.substr(0, dash), &read.low);
    read.high = read.low;
    if (dash != std::string_view::npos) good &= read_number(range.substr(dash + 1), &read.high);
    if (colon != std::string_view::npos) good &= read_number(part.substr(colon + 1), &read.share);
    if (!good || read.low < 1 || read.high < read.low || !(read.share > 0)) {
      return invalid_argument(fmt::format("{} is \"{}\"; it must read like 64, or 64:0.7,1024:0.3, or 10-50", flag, text));
    }
    out.parts.push_back(read);
    at = end + 1;
  }
  return out;
}

std::vector<LoadRequest> plan_load(const LoadOptions& o) {
  std::mt19937_64 random(o.seed);
  std::uniform_int_distribution<int32_t> token(static_cast<int32_t>(std::min<int64_t>(100, o.vocab_size / 10)), static_cast<int32_t>(o.vocab_size - 1));
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<int32_t> prefix(static_cast<size_t>(o.shared_prefix_tokens));
  for (int32_t& t : prefix) t = token(random);
  std::vector<LoadRequest> out;
  double at = 0;
  for (int64_t i = 0; i < o.num_requests; ++i) {
    LoadRequest r;
    if (o.rate > 0) {
      at += -std::log(1 - uniform(random)) / o.rate;  // exponential gaps: arrivals are Poisson
      r.at_seconds = at;
    }
    r.prompt = prefix;
    const size_t length = std::max(prefix.size() + 1, static_cast<size_t>(draw(o.prompt_tokens, random)));
    while (r.prompt.size() < length) r.prompt.push_back(token(random));
    r.answer_tokens = draw(o.answer_tokens, random);
    if (uniform(random) < o.cancel_share) r.cancel_after = std::uniform_int_distribution<int64_t>(0, r.answer_tokens)(random);
    out.push_back(std::move(r));
  }
  return out;
}

}  // namespace dsv4

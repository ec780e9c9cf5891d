#include "server/sampling_fields.h"

#include <charconv>
#include <limits>

#include <fmt/format.h>

namespace dsv4 {
namespace {

constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1000;

}  // namespace

SamplingParams read_sampling(FieldReader& f, const SamplingDefaults& defaults) {
  SamplingParams p;
  p.temperature = static_cast<float>(f.number("temperature", 0, 2).value_or(defaults.temperature));
  // 0 means "the best token alone", which the smallest positive mass does.
  p.top_p = std::max(std::numeric_limits<float>::min(), static_cast<float>(f.number("top_p", 0, 1).value_or(defaults.top_p)));
  p.top_k = static_cast<int32_t>(std::max<int64_t>(0, f.integer("top_k", -1, std::numeric_limits<int32_t>::max()).value_or(0)));  // -1: all, as 0
  p.min_p = static_cast<float>(f.number("min_p", 0, 0.999999).value_or(0));
  p.frequency_penalty = static_cast<float>(f.number("frequency_penalty", -2, 2).value_or(0));
  p.presence_penalty = static_cast<float>(f.number("presence_penalty", -2, 2).value_or(0));
  p.repetition_penalty = static_cast<float>(f.number("repetition_penalty", 0.01, 10).value_or(1));
  if (const auto seed = f.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max())) p.seed = static_cast<uint64_t>(*seed);
  return p;
}

std::vector<std::pair<int32_t, float>> read_logit_bias(FieldReader& f, int64_t vocab_size) {
  std::vector<std::pair<int32_t, float>> out;
  const JsonValue* biases = f.object("logit_bias");
  if (biases == nullptr) return out;
  for (size_t i = 0; i < biases->items.size(); ++i) {
    const std::string& name = biases->names[i];
    int32_t token = -1;
    const auto [at, error] = std::from_chars(name.data(), name.data() + name.size(), token);
    const auto bias = number_of(biases->items[i]);
    if (error != std::errc() || at != name.data() + name.size() || token < 0 || token >= vocab_size) {
      f.fail("logit_bias", fmt::format("names \"{}\", which is not a token id below {}", name, vocab_size));
    } else if (!bias || !(*bias >= -100 && *bias <= 100)) {
      f.fail("logit_bias", fmt::format("of token {} must be a number between -100 and 100", token));
    } else {
      out.push_back({token, static_cast<float>(*bias)});
    }
  }
  return out;
}

std::vector<std::string> read_stop(FieldReader& f, std::string_view name) {
  std::vector<std::string> out;
  const JsonValue* stop = f.value(name);
  if (stop == nullptr) return out;
  if (stop->is(JsonKind::kString)) {
    out.push_back(stop->text);
  } else if (stop->is(JsonKind::kArray)) {
    for (const JsonValue& item : stop->items) {
      if (!item.is(JsonKind::kString)) f.fail(name, fmt::format("must hold strings, one item is {}", item.kind_name()));
      out.push_back(item.text);
    }
  } else {
    f.fail(name, fmt::format("must be a string or an array of strings, it is {}", stop->kind_name()));
  }
  if (out.size() > kMaxStops) f.fail(name, fmt::format("has {} strings, at most {} are taken", out.size(), kMaxStops));
  for (const std::string& s : out) {
    if (s.empty()) f.fail(name, "must not hold an empty string");
    if (s.size() > kMaxStopBytes) f.fail(name, fmt::format("has a string of {} bytes, at most {} are taken", s.size(), kMaxStopBytes));
  }
  return out;
}

}  // namespace dsv4

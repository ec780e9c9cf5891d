#include "engine/request.h"

#include <fmt/format.h>

namespace dsv4 {

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone: return "none";
    case FinishReason::kEos: return "eos";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kContext: return "context";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kError: return "error";
  }
  return "?";
}

Status validate(const SamplingParams& p, int64_t vocab_size) {
  std::string faults;
  // Ranges in accepting form, so that NaN is out.
  const auto rule = [&](bool accepted, const char* name, double value, const char* range) {
    if (accepted) return;
    faults += fmt::format("{}{} is {:g}, it must be {}", faults.empty() ? "" : "; ", name, value, range);
  };
  rule(p.temperature >= 0 && p.temperature <= 100, "temperature", p.temperature, "between 0 and 100");
  rule(p.top_p > 0 && p.top_p <= 1, "top_p", p.top_p, "above 0 and at most 1");
  rule(p.top_k >= 0, "top_k", p.top_k, "0 (all) or more");
  rule(p.min_p >= 0 && p.min_p < 1, "min_p", p.min_p, "at least 0 and below 1");
  rule(p.repetition_penalty > 0 && p.repetition_penalty <= 10, "repetition_penalty", p.repetition_penalty, "above 0 and at most 10");
  rule(p.frequency_penalty >= -2 && p.frequency_penalty <= 2, "frequency_penalty", p.frequency_penalty, "between -2 and 2");
  rule(p.presence_penalty >= -2 && p.presence_penalty <= 2, "presence_penalty", p.presence_penalty, "between -2 and 2");
  for (const auto& [token, bias] : p.logit_bias) {
    rule(token >= 0 && token < vocab_size, "logit_bias token", token, fmt::format("below the vocabulary's {}", vocab_size).c_str());
    rule(bias >= -100 && bias <= 100, "logit_bias value", bias, "between -100 and 100");
  }
  return faults.empty() ? ok_status() : invalid_argument(faults);
}

}  // namespace dsv4

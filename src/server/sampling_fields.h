// The fields of all OpenAI-like requests that choose tokens.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/field_reader.h"

namespace dsv4 {

struct SamplingDefaults {
  double temperature = 1;
  double top_p = 1;
};

// temperature, top_p, top_k, min_p, frequency_penalty, presence_penalty, repetition_penalty, seed.
SamplingParams read_sampling(FieldReader& fields, const SamplingDefaults& defaults);

// logit_bias: {"token id": bias}.
std::vector<std::pair<int32_t, float>> read_logit_bias(FieldReader& fields, int64_t vocab_size);

// A string, or up to 16 of them.
std::vector<std::string> read_stop(FieldReader& fields, std::string_view name);

}  // namespace dsv4

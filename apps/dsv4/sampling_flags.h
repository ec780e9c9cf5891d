// Sampling flags shared by run and chat.
#pragma once

#include "command.h"
#include "engine/request.h"

namespace dsv4 {

struct SamplingFlags {
  SamplingParams params;
  int64_t max_tokens = 256;
  std::vector<std::string> stop;
  std::vector<std::string> logit_bias;  // "ID:VALUE"
  uint64_t seed = 0;
  bool seed_given = false;
  bool ignore_eos = false;
};

void add_sampling_flags(CLI::App& command, SamplingFlags* flags);

// A request with these settings and no prompt yet.
Result<Request> make_request(const SamplingFlags& flags);

}  // namespace dsv4

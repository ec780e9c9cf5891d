#include "sampling_flags.h"

#include <CLI/CLI.hpp>
#include <charconv>

namespace dsv4 {

void add_sampling_flags(CLI::App& command, SamplingFlags* f) {
  command.add_option("--max-tokens,-n", f->max_tokens, "most new tokens")->capture_default_str();
  command.add_option("--temperature", f->params.temperature, "0 = greedy")->capture_default_str();
  command.add_option("--top-p", f->params.top_p, "keep the smallest set with this mass")->capture_default_str();
  command.add_option("--top-k", f->params.top_k, "keep the k best; 0 = all")->capture_default_str();
  command.add_option("--min-p", f->params.min_p, "drop tokens below this share of the best")->capture_default_str();
  command.add_option("--repetition-penalty", f->params.repetition_penalty)->capture_default_str();
  command.add_option("--frequency-penalty", f->params.frequency_penalty)->capture_default_str();
  command.add_option("--presence-penalty", f->params.presence_penalty)->capture_default_str();
  command.add_option("--logit-bias", f->logit_bias, "ID:VALUE, may be repeated");
  command.add_option_function<uint64_t>(
      "--seed",
      [f](uint64_t seed) {
        f->seed = seed;
        f->seed_given = true;
      },
      "same seed, same tokens; drawn when not given");
  command.add_option("--stop", f->stop, "text that ends the answer, may be repeated");
  command.add_flag("--ignore-eos", f->ignore_eos, "go on after the end token");
}

Result<Request> make_request(const SamplingFlags& f) {
  Request r;
  r.sampling = f.params;
  r.max_new_tokens = f.max_tokens;
  r.stop = f.stop;
  r.ignore_eos = f.ignore_eos;
  if (f.seed_given) r.sampling.seed = f.seed;
  for (const std::string& entry : f.logit_bias) {
    const size_t colon = entry.find(':');
    int32_t token = -1;
    float value = 0;
    const char *begin = entry.data(), *end = begin + entry.size(), *middle = begin + std::min(colon, entry.size());
    const bool ok = colon != std::string::npos && std::from_chars(begin, middle, token).ptr == middle && middle + 1 < end &&
                    std::from_chars(middle + 1, end, value).ptr == end;
    if (!ok) return invalid_argument("--logit-bias is \"" + entry + "\", it must be ID:VALUE");
    r.sampling.logit_bias.emplace_back(token, value);
  }
  return r;
}

}  // namespace dsv4

#include "verify/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>

#include "base/json.h"
#include "verify/canary.h"
#include "verify/numbers.h"
#include "verify/prompts.h"

namespace dsv4 {
namespace {

using Tokens = std::vector<int32_t>;

struct Fault {
  std::string text;  // empty = none
};

// What the checks share: engines, made when first needed, and prompts.
class Bench {
 public:
  Bench(const EngineFactory& factory, const SuiteOptions& options) : options(options), factory_(factory) {}

  const SuiteOptions& options;

  // One sequence at a time, no prefix cache: the plain use.
  Result<Engine*> plain() { return get(plain_, {1, 0}); }
  // 8 sequences together.
  Result<Engine*> batch() { return get(batch_, {8, 0}); }

  struct Shape {
    int32_t max_seqs = 1;
    int32_t prefix_states = 0;
  };
  Result<std::unique_ptr<Engine>> fresh(const Shape& shape) {
    EngineOptions o;
    o.max_seqs = shape.max_seqs;
    o.prefix_states = shape.prefix_states;
    o.max_context_tokens = 1024;
    o.prefill_chunk = 256;
    o.max_logits_rows = 256 + shape.max_seqs;
    return factory_(o);
  }

  // Prompts that differ; a model with words gets words, others seeded ids.
  Result<Tokens> prompt(Engine& engine, int64_t index) {
    if (engine.tokenizer() != nullptr) {
      const char* kMessages[] = {"What is 512 + 561?",
                                 "Tell me a story about an otter and a lantern.",
                                 "What is the capital of France?",
                                 "Repeat exactly: cloud window paper candle",
                                 "Return JSON with name, age, city: Iris, 34, Oslo",
                                 "What is 1073 - 636?",
                                 "Sort these numbers from small to large: 44, 3, 97, 12",
                                 "Tell me a story about a wolf and a bell."};
      return encode_prompt(engine, {kMessages[static_cast<size_t>(index) % 8], {}});
    }
    return ids(engine, 12 + 3 * index, static_cast<uint64_t>(index));
  }

  // n ids: the beginning of a prompt repeated, or seeded ones.
  Result<Tokens> long_prompt(Engine& engine, int64_t n) {
    if (engine.tokenizer() == nullptr) return ids(engine, n, 77);
    DSV4_ASSIGN_OR_RETURN(Tokens base, prompt(engine, 1));
    Tokens out{base.front()};
    while (static_cast<int64_t>(out.size()) < n) out.insert(out.end(), base.begin() + 1, base.end());
    out.resize(static_cast<size_t>(n));
    return out;
  }

 private:
  Result<Tokens> ids(Engine& engine, int64_t n, uint64_t seed) {
    std::mt19937_64 random(seed + 1);
    Tokens out;
    for (int64_t i = 0; i < n; ++i) out.push_back(static_cast<int32_t>(2 + random() % static_cast<uint64_t>(engine.config().vocab_size - 2)));
    return out;
  }
  Result<Engine*> get(std::unique_ptr<Engine>& place, const Shape& shape) {
    if (place == nullptr) {
      DSV4_ASSIGN_OR_RETURN(place, fresh(shape));
    }
    return place.get();
  }

  const EngineFactory& factory_;
  std::unique_ptr<Engine> plain_, batch_;
};

Request long_answer(Tokens prompt, int64_t n) {
  Request r = greedy_request(std::move(prompt), n);
  r.ignore_eos = true;  // past the end the model babbles, but always the same
  return r;
}

std::string difference(const Tokens& got, const Tokens& want, const std::string& what) {
  const auto [x, y] = std::mismatch(got.begin(), got.end(), want.begin(), want.end());
  if (x == got.end() && y == want.end()) return "";
  const auto token = [](auto at, auto end) { return at == end ? std::string("the end") : std::to_string(*at); };
  return fmt::format("{}: token {} is {} instead of {}", what, x - got.begin(), token(x, got.end()), token(y, want.end()));
}

// Every generated token is the arg max of one plain prefill over prompt and answer, and no logit is NaN. Empty, or what is wrong.
Result<std::string> against_prefill(Engine& engine, const Tokens& prompt, const Tokens& answer) {
  Tokens all = prompt;
  all.insert(all.end(), answer.begin(), answer.end());
  const int64_t first = static_cast<int64_t>(prompt.size()) - 1;
  std::string fault;
  DSV4_RETURN_IF_ERROR(prefill_logits(engine, all, [&](int64_t position, std::span<const float> row) {
    if (position < first || position - first >= static_cast<int64_t>(answer.size()) || !fault.empty()) return;
    const int32_t want = argmax_of(row), got = answer[static_cast<size_t>(position - first)];
    if (std::any_of(row.begin(), row.end(), [](float v) { return v != v; })) {
      fault = fmt::format("the logits at position {} hold a NaN", position);
    } else if (want != got) {
      fault = fmt::format("token {} of the answer (position {}) is {}, a prefill gives {}", position - first, position + 1, got, want);
    }
  }));
  return fault;
}

// Decodes n tokens after `prompt` and holds them against a prefill.
Result<Fault> decode_and_compare(Bench& bench, const Tokens& prompt, int64_t n) {
  DSV4_ASSIGN_OR_RETURN(Engine * engine, bench.plain());
  DSV4_ASSIGN_OR_RETURN(const Generation run, generate(*engine, long_answer(prompt, n)));
  if (static_cast<int64_t>(run.tokens.size()) != n) return Fault{fmt::format("{} tokens instead of {}", run.tokens.size(), n)};
  DSV4_ASSIGN_OR_RETURN(std::string fault, against_prefill(*engine, prompt, run.tokens));
  return Fault{std::move(fault)};
}

Result<Fault> tokens_check(Bench& bench, int64_t n) {
  DSV4_ASSIGN_OR_RETURN(Engine * engine, bench.plain());
  DSV4_ASSIGN_OR_RETURN(const Tokens prompt, bench.prompt(*engine, 1));
  return decode_and_compare(bench, prompt, n);
}

// Decoding runs across each of these positions.
Result<Fault> boundary_check(Bench& bench, const std::vector<int64_t>& boundaries) {
  DSV4_ASSIGN_OR_RETURN(Engine * engine, bench.plain());
  for (const int64_t boundary : boundaries) {
    for (const int64_t before : bench.options.quick ? std::vector<int64_t>{2} : std::vector<int64_t>{1, 3}) {
      if (boundary - before < 1) continue;
      DSV4_ASSIGN_OR_RETURN(const Tokens prompt, bench.long_prompt(*engine, boundary - before));
      DSV4_ASSIGN_OR_RETURN(Fault fault, decode_and_compare(bench, prompt, before + 4));
      if (!fault.text.empty()) return Fault{fmt::format("across position {}: {}", boundary, fault.text)};
    }
  }
  return Fault{};
}

Result<Fault> check_32(Bench& b) { return tokens_check(b, 32); }
Result<Fault> check_128(Bench& b) { return tokens_check(b, 128); }
Result<Fault> check_768(Bench& b) { return tokens_check(b, b.options.quick ? 256 : 768); }
Result<Fault> check_block(Bench& b) { return boundary_check(b, b.options.quick ? std::vector<int64_t>{64, 128} : std::vector<int64_t>{64, 128, 256}); }

Result<Fault> check_window(Bench& b) {
  DSV4_ASSIGN_OR_RETURN(Engine * engine, b.plain());
  const int64_t w = engine->config().window_tokens;
  return boundary_check(b, {w, w + 1, 2 * w});
}

Result<Fault> check_compression(Bench& b) {
  DSV4_ASSIGN_OR_RETURN(Engine * engine, b.plain());
  const int64_t all_chosen = 4 * engine->config().index_topk;  // from here on the indexer leaves rows out
  std::vector<int64_t> at = {4, 8, 128};
  if (!b.options.quick) at.insert(at.end(), {256, 384});
  if (all_chosen + 8 < 1000) at.push_back(all_chosen + 1);
  return boundary_check(b, at);
}

Result<Fault> check_two_turns(Bench& b) {
  // The second turn continues the first; with and without what the first left in the prefix cache.
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> keeps, b.fresh({1, 8}));
  DSV4_ASSIGN_OR_RETURN(const Tokens first, b.prompt(*keeps, 0));
  DSV4_ASSIGN_OR_RETURN(const Generation one, generate(*keeps, greedy_request(first, 24)));
  DSV4_ASSIGN_OR_RETURN(const Tokens more, b.prompt(*keeps, 2));
  Tokens second = first;
  second.insert(second.end(), one.tokens.begin(), one.tokens.end());
  second.insert(second.end(), more.begin() + 1, more.end());
  DSV4_ASSIGN_OR_RETURN(const Generation two, generate(*keeps, long_answer(second, 24)));
  DSV4_ASSIGN_OR_RETURN(Engine * plain, b.plain());
  DSV4_ASSIGN_OR_RETURN(const Generation want, generate(*plain, long_answer(second, 24)));
  return Fault{difference(two.tokens, want.tokens, "second turn")};
}

Result<Fault> check_prefix(Bench& b) {
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> on, b.fresh({1, 8}));
  DSV4_ASSIGN_OR_RETURN(Engine * off, b.plain());
  for (const int64_t n : {30, 65, 130, 300}) {
    DSV4_ASSIGN_OR_RETURN(Tokens prompt, b.long_prompt(*on, n));
    DSV4_ASSIGN_OR_RETURN(const Generation cold, generate(*on, long_answer(prompt, 12)));
    DSV4_ASSIGN_OR_RETURN(const Generation warm, generate(*on, long_answer(prompt, 12)));
    DSV4_ASSIGN_OR_RETURN(const Generation want, generate(*off, long_answer(prompt, 12)));
    if (warm.outputs.back().num_cached_tokens == 0) return Fault{fmt::format("the second run of a prompt of {} tokens found nothing in the prefix cache", n)};
    for (const auto& [run, name] : {std::pair{&cold, "cold"}, std::pair{&warm, "warm"}}) {
      if (std::string d = difference(run->tokens, want.tokens, fmt::format("{} prompt of {}", name, n)); !d.empty()) return Fault{d};
    }
  }
  return Fault{};
}

Result<Fault> compare_batches(Bench& b, const std::vector<Tokens>& prompts, const std::vector<int32_t>& sizes, int64_t n) {
  DSV4_ASSIGN_OR_RETURN(Engine * plain, b.plain());
  std::vector<Tokens> alone;
  for (const Tokens& prompt : prompts) {
    DSV4_ASSIGN_OR_RETURN(Generation run, generate(*plain, long_answer(prompt, n)));
    alone.push_back(std::move(run.tokens));
  }
  std::mt19937_64 random(b.options.seed);
  for (const int32_t size : sizes) {
    DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, b.fresh({size, 0}));
    for (int64_t round = 0; round < b.options.soak; ++round) {
      // As many requests as fill the batch, in a random order.
      std::vector<size_t> order;
      for (size_t i = 0; i < std::max(prompts.size(), static_cast<size_t>(size)); ++i) order.push_back(i % prompts.size());
      std::shuffle(order.begin(), order.end(), random);
      std::vector<Request> requests;
      for (const size_t i : order) requests.push_back(long_answer(prompts[i], n));
      // They come 0 to 2 steps apart, so that prompts join sequences that decode.
      const auto steps_before = [&](size_t) { return static_cast<int64_t>(random() % 3); };
      DSV4_ASSIGN_OR_RETURN(const std::vector<Generation> runs, generate_together(*engine, std::move(requests), steps_before));
      for (size_t k = 0; k < runs.size(); ++k) {
        if (std::string d = difference(runs[k].tokens, alone[order[k]], fmt::format("batch of {}, request {}", size, order[k])); !d.empty()) return Fault{d};
      }
    }
  }
  return Fault{};
}

Result<std::vector<Tokens>> eight_prompts(Bench& b) {
  DSV4_ASSIGN_OR_RETURN(Engine * plain, b.plain());
  std::vector<Tokens> prompts;
  for (int64_t i = 0; i < 8; ++i) {
    DSV4_ASSIGN_OR_RETURN(Tokens prompt, b.prompt(*plain, i));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

Result<Fault> check_8_prompts(Bench& b) {
  DSV4_ASSIGN_OR_RETURN(Engine * plain, b.plain());
  DSV4_ASSIGN_OR_RETURN(const std::vector<Tokens> prompts, eight_prompts(b));
  for (const Tokens& prompt : prompts) {
    DSV4_ASSIGN_OR_RETURN(const Generation run, generate(*plain, greedy_request(prompt, 48)));
    DSV4_ASSIGN_OR_RETURN(const std::string fault, against_prefill(*plain, prompt, run.tokens));
    if (!fault.empty()) return Fault{fault};
  }
  return Fault{};
}

Result<Fault> check_2_concurrent(Bench& b) {
  DSV4_ASSIGN_OR_RETURN(std::vector<Tokens> prompts, eight_prompts(b));
  prompts.resize(2);
  return compare_batches(b, prompts, {2}, 32);
}

Result<Fault> check_batches(Bench& b) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<Tokens> prompts, eight_prompts(b));
  const std::vector<int32_t> sizes = b.options.quick ? std::vector<int32_t>{2, 8, 9} : std::vector<int32_t>{2, 7, 8, 9, 16, 64};
  return compare_batches(b, prompts, sizes, b.options.quick ? 48 : 512);
}

// 50 runs on one engine: no NaN (the sampler would end the request), no id 0 (the fill value of a broken sampler), always the same.
Result<Fault> check_50_runs(Bench& b) {
  DSV4_ASSIGN_OR_RETURN(Engine * engine, b.batch());
  DSV4_ASSIGN_OR_RETURN(const std::vector<Tokens> prompts, eight_prompts(b));
  std::vector<Tokens> first;
  for (int64_t round = 0; round < 50 * b.options.soak; ++round) {
    std::vector<Request> requests;
    for (const Tokens& prompt : prompts) requests.push_back(greedy_request(prompt, b.options.quick ? 3 : 24));
    DSV4_ASSIGN_OR_RETURN(const std::vector<Generation> runs, generate_together(*engine, std::move(requests)));
    for (size_t i = 0; i < runs.size(); ++i) {
      if (std::count(runs[i].tokens.begin(), runs[i].tokens.end(), 0) > 0) return Fault{fmt::format("run {}, request {}: token 0 was generated", round, i)};
      if (round == 0) {
        first.push_back(runs[i].tokens);
      } else if (std::string d = difference(runs[i].tokens, first[i], fmt::format("run {}, request {}", round, i)); !d.empty()) {
        return Fault{d};
      }
    }
  }
  return Fault{};
}

// A, B, A through one engine: B's answer leaves nothing behind.
Result<Fault> check_changed_input(Bench& b) {
  DSV4_ASSIGN_OR_RETURN(Engine * engine, b.plain());
  DSV4_ASSIGN_OR_RETURN(const Tokens x, b.prompt(*engine, 0));
  DSV4_ASSIGN_OR_RETURN(const Tokens y, b.prompt(*engine, 5));
  DSV4_ASSIGN_OR_RETURN(const Generation before, generate(*engine, greedy_request(x, 16)));
  DSV4_ASSIGN_OR_RETURN(const Generation other, generate(*engine, greedy_request(y, 16)));
  DSV4_ASSIGN_OR_RETURN(const Generation after, generate(*engine, greedy_request(x, 16)));
  if (other.tokens == before.tokens) return Fault{"another prompt gave the same tokens: the input does not reach the model"};
  return Fault{difference(after.tokens, before.tokens, "the first prompt again")};
}

struct Check {
  const char* name;
  const char* what;
  Result<Fault> (*run)(Bench&);
};
constexpr Check kChecks[] = {
    {"32 tokens", "32 decoded tokens are the arg maxes of one prefill", check_32},
    {"128 tokens", "128 decoded tokens likewise", check_128},
    {"768 tokens", "768 (quick: 256) decoded tokens likewise", check_768},
    {"two turns", "a second turn on top of a kept first one = computed afresh", check_two_turns},
    {"8 prompts", "8 answers are the arg maxes of prefills", check_8_prompts},
    {"changed input", "A, B, A on one engine: A's answer is the same both times, B's another", check_changed_input},
    {"2 concurrent", "2 requests together = each alone", check_2_concurrent},
    {"block boundary", "decoding across cache block boundaries", check_block},
    {"window boundary", "decoding across the attention window's edge", check_window},
    {"C4/C128 boundary", "decoding across compressed rows' edges, and where the indexer begins to choose", check_compression},
    {"prefix cache", "cold, warm and without prefix cache: the same tokens", check_prefix},
    {"50 runs", "8 requests, 50 times on one engine: no NaN, no token 0, no change", check_50_runs},
    {"batches", "the same 8 requests alone and in batches of 2, 7, 8, 9, 16, 64, in random order, 512 tokens (quick: 2, 8, 9; 48 tokens)", check_batches},
};

}  // namespace

std::vector<std::pair<std::string, std::string>> suite_checks() {
  std::vector<std::pair<std::string, std::string>> out;
  for (const Check& c : kChecks) out.emplace_back(c.name, c.what);
  return out;
}

Result<SuiteReport> run_suite(const EngineFactory& make_engine, const SuiteOptions& options, const std::function<void(const SuiteLine&)>& on_line) {
  for (const std::string& name : options.only) {
    if (std::none_of(std::begin(kChecks), std::end(kChecks), [&](const Check& c) { return name == c.name; })) {
      std::string names;
      for (const Check& c : kChecks) names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", c.name);
      return invalid_argument("suite: there is no check \"" + name + "\"; there are " + names);
    }
  }
  Bench bench(make_engine, options);
  DSV4_ASSIGN_OR_RETURN(Engine * plain, bench.plain());
  SuiteReport report;
  report.manifest = make_manifest(*plain, "verify suite");
  for (const Check& c : kChecks) {
    if (!options.only.empty() && std::find(options.only.begin(), options.only.end(), c.name) == options.only.end()) continue;
    const auto start = std::chrono::steady_clock::now();
    const Result<Fault> fault = c.run(bench);
    SuiteLine line{c.name, fault.ok() && fault->text.empty(), std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), c.what};
    if (!fault.ok()) line.detail = fault.status().message();
    if (fault.ok() && !fault->text.empty()) line.detail = fault->text;
    if (on_line) on_line(line);
    report.lines.push_back(std::move(line));
  }
  report.passed = !report.lines.empty() && std::all_of(report.lines.begin(), report.lines.end(), [](const SuiteLine& l) { return l.passed; });
  return report;
}

std::string to_text(const SuiteLine& l) { return fmt::format("{:<18} {:<7} {:7.2f} s  {}", l.name, l.passed ? "ok" : "FAILED", l.seconds, l.detail); }

std::string to_json(const SuiteReport& report) {
  Json lines = Json::array();
  for (const SuiteLine& l : report.lines) lines.push_back({{"name", l.name}, {"passed", l.passed}, {"seconds", l.seconds}, {"detail", l.detail}});
  return Json{{"manifest", to_json_value(report.manifest)}, {"passed", report.passed}, {"checks", std::move(lines)}}.dump(1, ' ', false,
                                                                                                                          Json::error_handler_t::replace) +
         "\n";
}

}  // namespace dsv4

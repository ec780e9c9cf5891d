#include "verify/golden.h"

#include <algorithm>
#include <map>

#include "verify/numbers.h"

namespace dsv4 {
namespace {

constexpr int64_t kHiddenTokens = 300;  // of the case below
constexpr const char* kHiddenCase = "tokens/384";

// Collects some rows of the streams before each layer, and of the final hidden state.
class HiddenTap final : public TensorTap {
 public:
  HiddenTap(Device& device, std::vector<int32_t> positions, int64_t num_layers)
      : TensorTap(device), positions_(std::move(positions)), layers_(static_cast<size_t>(num_layers + 1)) {}

  bool wants(const std::string& name, int64_t) const override { return name == "streams" || name == "final.x"; }
  Status on_tensor(const std::string& name, int64_t layer, int64_t rows, int64_t cols, std::vector<float>& values) override {
    for (const int32_t p : positions_) {
      const int64_t row = p - first_;
      if (row < 0 || row >= rows) continue;
      std::vector<float>& out = layers_[static_cast<size_t>(layer)];
      out.insert(out.end(), values.begin() + row * cols, values.begin() + (row + 1) * cols);
    }
    if (name == "final.x") first_ += rows;  // every row's logits are asked for, so these are the step's rows
    return ok_status();
  }

  const std::vector<std::vector<float>>& layers() const { return layers_; }

 private:
  std::vector<int32_t> positions_;
  std::vector<std::vector<float>> layers_;
  int64_t first_ = 0;  // position of the step's first row
};

class Run {
 public:
  Run(const GoldenFile& golden, GoldenKind kind, const GoldenOptions& options, Engine& engine, const std::function<void(const GoldenLine&)>& on_line,
      std::vector<GoldenLine>* lines)
      : golden_(golden),
        kind_(kind),
        options_(options),
        engine_(engine),
        on_line_(on_line),
        lines_(*lines),
        prefix_(std::string(golden_kind_name(kind)) + "/") {}

  Status all() {
    DSV4_RETURN_IF_ERROR(logits());
    if (!options_.greedy) return ok_status();
    if (golden_.has(prefix_ + "hidden/0")) DSV4_RETURN_IF_ERROR(hidden());
    if (golden_.has(prefix_ + "decode_logits")) DSV4_RETURN_IF_ERROR(decode());
    for (const int64_t k : golden_.prompts()) {
      if (golden_.has(prefix_ + "greedy/" + std::to_string(k))) DSV4_RETURN_IF_ERROR(greedy(k));
    }
    return ok_status();
  }

 private:
  struct Case {
    int64_t n = 0;
    std::vector<int32_t> tokens;
    std::vector<float> want;
    std::vector<int32_t> want_argmax;
  };

  void emit(GoldenLine line) {
    line.kind = kind_;
    if (on_line_) on_line_(line);
    lines_.push_back(std::move(line));
  }

  // The longest case runs; a case whose tokens begin it reads its logits there: a position never depends on what follows.
  Status logits() {
    std::vector<Case> cases;
    for (const int64_t n : golden_.lengths()) {
      const std::string number = std::to_string(n);
      if ((options_.max_tokens > 0 && n > options_.max_tokens) || !golden_.has(prefix_ + "logits/" + number)) continue;
      Case c;
      c.n = n;
      DSV4_ASSIGN_OR_RETURN(c.tokens, golden_.ints("tokens/" + number));
      DSV4_ASSIGN_OR_RETURN(c.want, golden_.floats(prefix_ + "logits/" + number));
      if (golden_.has(prefix_ + "argmax/" + number)) {
        DSV4_ASSIGN_OR_RETURN(c.want_argmax, golden_.ints(prefix_ + "argmax/" + number));
        if (static_cast<int64_t>(c.want_argmax.size()) != n)
          return invalid_data(golden_.path() + ": " + prefix_ + "argmax/" + number + " does not have " + number + " entries");
      }
      if (static_cast<int64_t>(c.tokens.size()) != n || n == 0) {
        return invalid_data(golden_.path() + ": tokens/" + number + " holds " + std::to_string(c.tokens.size()) + " tokens");
      }
      if (static_cast<int64_t>(c.want.size()) != engine_.config().vocab_size) {
        return invalid_argument(golden_.path() + ": its logits have " + std::to_string(c.want.size()) + " entries, the model's vocabulary " +
                                std::to_string(engine_.config().vocab_size) + ": these goldens are of another model");
      }
      cases.push_back(std::move(c));
    }
    std::vector<GoldenLine> found(cases.size());
    std::vector<bool> done(cases.size(), false);
    for (size_t last = cases.size(); last-- > 0;) {
      if (done[last]) continue;
      std::vector<size_t> members;
      for (size_t i = 0; i <= last; ++i) {
        if (!done[i] && std::equal(cases[i].tokens.begin(), cases[i].tokens.end(), cases[last].tokens.begin())) members.push_back(i);
      }
      DSV4_RETURN_IF_ERROR(run_cases(cases, members, last, &found));
      for (const size_t i : members) done[i] = true;
    }
    for (GoldenLine& line : found) emit(std::move(line));
    return ok_status();
  }

  Status run_cases(const std::vector<Case>& cases, const std::vector<size_t>& members, size_t longest, std::vector<GoldenLine>* found) {
    std::vector<int32_t> argmax(cases[longest].tokens.size(), -1);
    DSV4_RETURN_IF_ERROR(prefill_logits(engine_, cases[longest].tokens, [&](int64_t position, std::span<const float> row) {
      argmax[static_cast<size_t>(position)] = argmax_of(row);
      for (const size_t i : members) {
        if (cases[i].n == position + 1) (*found)[i].error = relative_error(row, cases[i].want);
      }
    }));
    for (const size_t i : members) {
      const Case& c = cases[i];
      GoldenLine& line = (*found)[i];
      line.group = "logits";
      line.number = c.n;
      // Without recorded arg maxes, that of the golden logits.
      const int64_t begin = c.want_argmax.empty() ? c.n - 1 : 0;
      for (int64_t p = begin; p < c.n; ++p) {
        const int32_t want = c.want_argmax.empty() ? argmax_of(c.want) : c.want_argmax[static_cast<size_t>(p)];
        const int32_t got = argmax[static_cast<size_t>(p)];
        ++line.total;
        if (got == want) {
          ++line.equal;
        } else if (line.first_difference < 0) {
          line.first_difference = p;
          line.want = want;
          line.got = got;
        }
      }
      if (kind_ == GoldenKind::kExact) {
        line.passed = line.error <= kGoldenExactBound && line.equal == line.total;
      } else if (options_.weights == GoldenWeights::kRandom) {
        line.passed = c.n > kGoldenFlipFreeTokens ? line.error < 1e30 : line.error <= kGoldenExactBound;
      } else {
        line.passed = line.error <= kGoldenWorst;
      }
    }
    return ok_status();
  }

  Status hidden() {
    DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, golden_.ints(kHiddenCase));
    if (static_cast<int64_t>(tokens.size()) < kHiddenTokens) return invalid_data(golden_.path() + ": " + kHiddenCase + " is shorter than its name says");
    tokens.resize(kHiddenTokens);
    DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> positions, golden_.ints("hidden/positions"));
    HiddenTap tap(engine_.device(), positions, engine_.config().num_layers);
    {
      const ScopedObserver observe(engine_, &tap);
      DSV4_RETURN_IF_ERROR(prefill_logits(engine_, std::move(tokens), [](int64_t, std::span<const float>) {}));
    }
    for (size_t i = 0; i < tap.layers().size(); ++i) {
      DSV4_ASSIGN_OR_RETURN(const std::vector<float> want, golden_.floats(prefix_ + "hidden/" + std::to_string(i)));
      GoldenLine line;
      line.group = "hidden";
      line.number = static_cast<int64_t>(i);
      line.error = relative_error(tap.layers()[i], want);
      line.passed = line.error <= kGoldenExactBound;
      emit(std::move(line));
    }
    return ok_status();
  }

  Status decode() {
    DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, golden_.ints("decode/tokens"));
    DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> prefill, golden_.ints("decode/prefill"));
    DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> steps, golden_.ints("decode/steps"));
    DSV4_ASSIGN_OR_RETURN(const std::vector<float> want, golden_.floats(prefix_ + "decode_logits"));
    const size_t vocab = static_cast<size_t>(engine_.config().vocab_size);
    if (prefill.size() != 1 || want.size() != steps.size() * vocab)
      return invalid_data(golden_.path() + ": decode/steps and " + prefix_ + "decode_logits disagree");
    std::map<int64_t, GoldenLine> found;
    DSV4_RETURN_IF_ERROR(forced_decode(engine_, tokens, prefill[0], [&](int64_t position, std::span<const float> row) {
      for (size_t i = 0; i < steps.size(); ++i) {
        if (steps[i] != position) continue;
        const auto golden_row = std::span(want).subspan(i * vocab, vocab);
        GoldenLine& line = found[position];
        line.group = "decode";
        line.number = position;
        line.error = relative_error(row, golden_row);
        line.total = 1;
        line.want = argmax_of(golden_row);
        line.got = argmax_of(row);
        line.equal = line.want == line.got ? 1 : 0;
        line.first_difference = line.equal ? -1 : position;
        line.passed = options_.weights == GoldenWeights::kRandom ? line.error < 1e30 : line.error <= kGoldenWorst;
      }
    }));
    if (found.size() != steps.size()) return invalid_data(golden_.path() + ": decode/steps names a token index outside decode/tokens");
    for (auto& [position, line] : found) emit(std::move(line));
    return ok_status();
  }

  Status greedy(int64_t k) {
    DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, golden_.ints("prompt/" + std::to_string(k)));
    DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> want, golden_.ints(prefix_ + "greedy/" + std::to_string(k)));
    const int64_t n = static_cast<int64_t>(want.size());
    DSV4_ASSIGN_OR_RETURN(const Generation run, generate(engine_, greedy_request(prompt, n)));
    GoldenLine line;
    line.group = "greedy";
    line.number = k;
    line.total = n;
    const size_t at = static_cast<size_t>(std::mismatch(want.begin(), want.end(), run.tokens.begin(), run.tokens.end()).first - want.begin());
    line.equal = static_cast<int64_t>(at);
    if (at < want.size() || run.tokens.size() != want.size()) {
      line.first_difference = static_cast<int64_t>(at);
      line.want = at < want.size() ? want[at] : -1;
      line.got = at < run.tokens.size() ? run.tokens[at] : -1;
      line.passed = false;
      DSV4_RETURN_IF_ERROR(measure_margin(prompt, run.tokens, &line));
    }
    emit(std::move(line));
    return ok_status();
  }

  // How much the model preferred its own token at the first difference.
  Status measure_margin(const std::vector<int32_t>& prompt, const std::vector<int32_t>& generated, GoldenLine* line) {
    if (line->want < 0 || line->got < 0) return ok_status();
    std::vector<int32_t> tokens = prompt;
    tokens.insert(tokens.end(), generated.begin(), generated.begin() + line->first_difference);
    const int64_t last = static_cast<int64_t>(tokens.size()) - 1;
    return prefill_logits(engine_, std::move(tokens), [&](int64_t position, std::span<const float> row) {
      if (position == last) line->margin = static_cast<double>(row[static_cast<size_t>(line->got)]) - row[static_cast<size_t>(line->want)];
    });
  }

  const GoldenFile& golden_;
  GoldenKind kind_;
  const GoldenOptions& options_;
  Engine& engine_;
  const std::function<void(const GoldenLine&)>& on_line_;
  std::vector<GoldenLine>& lines_;
  std::string prefix_;
};

}  // namespace

EngineOptions golden_engine_options(GoldenKind kind, int64_t prefill_chunk) {
  EngineOptions o;
  o.arithmetic = kind == GoldenKind::kExact ? Arithmetic::kExact : Arithmetic::kQat;
  o.cache_format = kind == GoldenKind::kServed ? RowFormat::kFp8DsMla : RowFormat::kF32;
  o.max_context_tokens = 2048;
  o.max_seqs = 1;
  o.prefill_chunk = prefill_chunk;
  o.max_logits_rows = prefill_chunk + o.max_seqs;
  o.prefix_states = 0;  // every token is computed here
  return o;
}

Result<GoldenReport> verify_golden(const GoldenFile& golden, const EngineFactory& make_engine, const GoldenOptions& options,
                                   const std::function<void(const GoldenLine&)>& on_line) {
  GoldenReport report;
  std::vector<GoldenKind> kinds = options.kinds;
  if (kinds.empty()) {
    for (const GoldenKind kind : {GoldenKind::kExact, GoldenKind::kQat, GoldenKind::kServed}) {
      if (golden.has_kind(kind)) kinds.push_back(kind);
    }
  }
  for (const GoldenKind kind : kinds) {
    if (!golden.has_kind(kind)) return invalid_argument(golden.path() + ": it has no " + golden_kind_name(kind) + "/logits");
    DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine(golden_engine_options(kind, options.prefill_chunk)));
    report.manifest = make_manifest(*engine, "verify golden");
    DSV4_RETURN_IF_ERROR(Run(golden, kind, options, *engine, on_line, &report.lines).all());
  }
  report.groups = judge_golden(report.lines, options.weights);
  report.passed = !report.groups.empty() && std::all_of(report.groups.begin(), report.groups.end(), [](const GoldenGroup& g) { return g.passed; });
  return report;
}

}  // namespace dsv4

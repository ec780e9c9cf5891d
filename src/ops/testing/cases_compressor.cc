// compressor_step: rows of windows of 4 (with overlap) and 128 tokens, state carried between steps, the indexer's rows. The truth is the
// plain softmax over a window's tokens, not the running one.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "ops/testing/cache_tools.h"
#include "ops/testing/case_lists.h"
#include "ops/testing/window_truth.h"

namespace dsv4::optest {
namespace {

enum class Gates { kNormal, kRising, kWide, kEqual };

struct Compressor {
  std::vector<SeqSpec> seqs = {};
  int32_t ratio = 4;
  CacheSpec cache = {};
  bool indexer = false;
  CacheRounding rounding = CacheRounding::kE4M3;
  Gates gates = Gates::kNormal;
  int64_t pad = 0;
};

std::vector<float> gates_of(Problem& p, const Compressor& c, int64_t rows, int64_t width) {
  std::vector<float> g = p.rng.activations(rows * width, 1);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < width; ++i) {
      float& v = g[static_cast<size_t>(t * width + i)];
      if (c.gates == Gates::kRising) v = 0.1f * v + static_cast<float>(t);
      if (c.gates == Gates::kWide) v *= 40;
      if (c.gates == Gates::kEqual) v = 0.5f;
    }
  }
  return g;
}

void build_compressor(Problem& p, const Compressor& c) {
  const StepRows step = add_step(p, c.seqs);
  const int64_t dim = c.cache.row_dim, width = c.ratio == 4 ? 2 * dim : dim, rope = 64, planes = c.ratio == 4 ? 2 : 1;
  const int64_t rows = p.num_rows, slots = step.num_slots() + 1;  // one slot more that nobody uses

  // Tokens each sequence saw before the step, as far back as they matter; the step's rows follow them in the same arrays.
  std::vector<int64_t> history_start;
  int64_t history = 0;
  for (const SeqSpec& s : c.seqs) {
    history_start.push_back(history);
    history += s.slot < 0 ? 0 : std::min<int64_t>(s.first, s.first % c.ratio + (c.ratio == 4 ? 4 : 0));
  }
  const std::vector<float> kv = p.rng.activations((rows + history) * width, 1), gate = gates_of(p, c, rows + history, width),
                           ape = p.rng.activations(c.ratio * width, 0.5);
  std::vector<float> turn = random_rotations(p.rng, rows, rope);
  const std::vector<uint16_t> norm = norm_weight(p.rng, dim);
  for (int64_t t = 0; t < rows; ++t) {
    if ((step.positions[static_cast<size_t>(t)] + 1) % c.ratio != 0 || step.positions[static_cast<size_t>(t)] < 0) {
      std::fill_n(turn.begin() + t * rope, rope, std::numeric_limits<float>::quiet_NaN());  // read only where a window ends
    }
  }
  const auto values = [&](const std::vector<float>& all) { return std::vector<float>(all.begin(), all.begin() + rows * width); };
  const int kt = p.add_rows("kv", width, c.pad, values(kv)), gt = p.add_rows("gate", width, c.pad, values(gate));
  const int at = p.add("ape", Role::kInput, false, c.ratio, width, 0, ape), nt = p.add_vector("norm", norm);
  const int ct = p.add_rows("cos_sin", rope, c.pad, turn);

  std::vector<std::map<int32_t, Token>> tokens(c.seqs.size());
  std::vector<int64_t> rows_per_slot(static_cast<size_t>(slots), 0);
  for (size_t s = 0; s < c.seqs.size(); ++s) {
    const SeqSpec& q = c.seqs[s];
    if (q.slot < 0) continue;
    rows_per_slot[static_cast<size_t>(q.slot)] = (q.first + q.rows) / c.ratio;
    const int64_t before = std::min<int64_t>(q.first, q.first % c.ratio + (c.ratio == 4 ? 4 : 0));
    for (int64_t i = 0; i < before; ++i) {
      const int64_t at_row = rows + history_start[s] + i;
      tokens[s][static_cast<int32_t>(q.first - before + i)] = {kv.data() + at_row * width, gate.data() + at_row * width};
    }
    for (int32_t i = 0; i < q.rows; ++i) {
      const int64_t at_row = step.starts[s] + i;
      tokens[s][q.first + i] = {kv.data() + at_row * width, gate.data() + at_row * width};
    }
  }
  const Cache cache = add_cache(p, "out", Role::kUpdated, c.cache, rows_per_slot);
  const int64_t slot_floats = planes * 3 * dim;
  const int st = p.add_poisoned("state", Elem::kF32, Role::kUpdated, false, 1, slots * slot_floats, 0);
  const Windows windows(c.ratio, dim, ape);
  const auto state_at = [&](int32_t slot, int64_t plane) { return slot * slot_floats + plane * 3 * dim; };
  for (size_t s = 0; s < c.seqs.size(); ++s) {
    const SeqSpec& q = c.seqs[s];
    // A state that position 0 (ratio 128: a window's start) resets may hold anything before: it stays poison.
    if (q.slot < 0 || q.first == 0 || (c.ratio == 128 && q.first % 128 == 0)) continue;
    float* state = reinterpret_cast<float*>(p.tensors[static_cast<size_t>(st)].image.data());
    for (int64_t plane = 0; plane < planes; ++plane) {
      for (int64_t d = 0; d < dim; ++d) {
        const Channel::Result r = windows.accumulator(tokens[s], q.first, static_cast<int>(plane), d).result();
        state[state_at(q.slot, plane) + d] = static_cast<float>(r.max);
        state[state_at(q.slot, plane) + dim + d] = static_cast<float>(r.sum);
        state[state_at(q.slot, plane) + 2 * dim + d] = static_cast<float>(r.weighted);
      }
    }
  }

  p.call = [=, ratio = c.ratio, indexer = c.indexer, rounding = c.rounding](Device& d, const Bound& b) {
    CompressorStepArgs args;
    args.kv = b.matrix<float>(kt);
    args.gate = b.matrix<float>(gt);
    args.ape = b.pointer<float>(at);
    args.norm = b.pointer<uint16_t>(nt);
    args.ratio = ratio;
    args.head_dim = dim;
    args.cos_sin = b.matrix<float>(ct);
    args.hadamard = indexer;
    args.rows = step.bind(b);
    args.state = b.pointer<float>(st);
    args.rounding = rounding;
    args.out = cache.bind(b);
    args.table = cache.table(b);
    return run_op("compressor_step", d.context(), d.ops().compressor_step, args);
  };
  // State that the next token resets anyway is written by some and left by others; nobody judges it.
  const auto live = [ratio = c.ratio](int32_t end, int64_t plane) { return end % ratio != 0 || (ratio == 4 && plane == 0); };
  p.state_units = [=, ratio = c.ratio](RowRange range) {
    std::vector<Unit> units;
    for (size_t s = 0; s < step.seqs.size(); ++s) {
      const int64_t begin = std::max(range.begin, step.starts[s]), end = std::min(range.end, step.starts[s] + step.seqs[s].rows);
      if (step.seqs[s].slot < 0 || begin >= end) continue;
      for (int64_t t = begin; t < end; ++t) {
        const int32_t position = step.positions[static_cast<size_t>(t)];
        if ((position + 1) % ratio == 0) units.push_back(cache.unit(step.seqs[s].slot, position / ratio));
      }
      for (int64_t plane = 0; plane < planes; ++plane) {
        const int64_t from = 4 * (step.seqs[s].slot * slot_floats + plane * 3 * dim);
        units.push_back({st, Elem::kF32, {{from, from + 12 * dim}}, live(step.positions[static_cast<size_t>(end - 1)] + 1, plane)});
      }
    }
    return units;
  };

  struct RowAt {
    int32_t slot;
    int64_t row;
    Row truth;
  };
  std::vector<RowAt> truths;
  struct StateAt {
    int64_t from;  // float of the plane's maximum
    std::vector<Channel::Result> channels;
  };
  std::vector<StateAt> states;
  for (size_t s = 0; s < c.seqs.size(); ++s) {
    const SeqSpec& q = c.seqs[s];
    if (q.slot < 0 || q.rows == 0) continue;
    for (int32_t i = 0; i < q.rows; ++i) {
      const int32_t position = q.first + i;
      if ((position + 1) % c.ratio != 0) continue;
      Row row;
      for (int64_t d = 0; d < dim; ++d) {
        const Channel::Result r = windows.row(tokens[s], position / c.ratio, d).result();
        row.value.push_back(r.weighted / r.sum);
        row.error.push_back(kUnit * (r.units * (r.magnitude + std::fabs(r.weighted)) + std::fabs(r.weighted)) / r.sum);
      }
      row = normed(row, norm.data(), 1e-6f);
      rotate(row, dim, turn.data() + (step.starts[s] + i) * rope, rope, 1);
      if (c.indexer) hadamard(row, dim);
      truths.push_back({q.slot, position / c.ratio, std::move(row)});
    }
    for (int64_t plane = 0; plane < planes; ++plane) {
      if (!live(q.first + q.rows, plane)) continue;
      StateAt state{state_at(q.slot, plane), {}};
      for (int64_t d = 0; d < dim; ++d) state.channels.push_back(windows.accumulator(tokens[s], q.first + q.rows, static_cast<int>(plane), d).result());
      states.push_back(std::move(state));
    }
  }
  const RowRounding how = row_rounding(c.cache.format, c.rounding, dim, rope, c.indexer);
  p.judge = [=](const Images& actual, const Images* reference, Verdict& v) {
    for (const RowAt& r : truths) judge_cache_row(cache, r.slot, r.row, r.truth, how, actual, reference, v);
    judge_flips(v.compared, v);
    const float* all = reinterpret_cast<const float*>(actual[static_cast<size_t>(st)].data());
    for (const StateAt& s : states) {
      for (int64_t d = 0; d < dim; ++d) {
        const Channel::Result& r = s.channels[static_cast<size_t>(d)];
        const float* m = all + s.from + d;
        v.compared += 3;
        const bool fine = m[0] == r.max && std::fabs(m[dim] - r.sum) <= kUnit * (r.units + 2) * r.sum &&
                          std::fabs(m[2 * dim] - r.weighted) <= kUnit * (r.units + 2) * r.magnitude;
        if (fine) continue;
        v.refuse([&] {
          return "state channel " + std::to_string(d) + " is (" + std::to_string(m[0]) + ", " + std::to_string(m[dim]) + ", " + std::to_string(m[2 * dim]) +
                 "), expected (" + std::to_string(r.max) + ", " + std::to_string(r.sum) + ", " + std::to_string(r.weighted) + ")";
        });
      }
    }
  };
}

}  // namespace

void add_compressor_cases(std::vector<OpCase>& cases) {
  const auto add = [&](const std::string& name, Compressor c, bool odd = false) {
    add_case(cases, "compressor_step", name, build_compressor, std::move(c), odd);
  };
  constexpr CacheSpec kPacked = {};
  constexpr CacheSpec kPlain = {.format = RowFormat::kF32};
  constexpr CacheSpec kIndex = {.format = RowFormat::kMxfp4, .row_dim = 128};
  constexpr CacheSpec kPlainIndex = {.format = RowFormat::kF32, .row_dim = 128};
  constexpr CacheRounding kRound = CacheRounding::kE4M3, kExact = CacheRounding::kNone;
  struct Kind {
    const char* name;
    int32_t ratio;
    CacheSpec cache;
    bool indexer;
    CacheRounding rounding;
  };
  for (const Kind& k : {Kind{"ratio4_fp8_ds_mla", 4, kPacked, false, kRound}, Kind{"ratio4_f32_rounded", 4, kPlain, false, kRound},
                        Kind{"ratio4_f32_exact", 4, kPlain, false, kExact}, Kind{"indexer_mxfp4", 4, kIndex, true, kRound},
                        Kind{"indexer_f32_rounded", 4, kPlainIndex, true, kRound}, Kind{"indexer_f32_exact", 4, kPlainIndex, true, kExact},
                        Kind{"ratio128_fp8_ds_mla", 128, kPacked, false, kRound}, Kind{"ratio128_f32_exact", 128, kPlain, false, kExact}}) {
    const int32_t r = k.ratio;
    const auto of = [&](std::vector<SeqSpec> seqs) { return Compressor{std::move(seqs), r, k.cache, k.indexer, k.rounding}; };
    const std::string n = k.name;
    add(n + "_zero_tokens", of({}));
    add(n + "_first_window", of({{0, 0, r + 3}}));
    add(n + "_one_row_in_a_window", of({{0, 3 * r + 1, 1}}));
    add(n + "_one_row_ends_a_window", of({{0, 3 * r - 1, 1}}));
    add(n + "_window_minus_1", of({{0, 0, r - 1}}));
    add(n + "_starts_on_a_window", of({{0, 2 * r, r + 1}}));
    add(n + "_block_boundary", of({{0, 63 * r - 1, r + 5}}));
    add(n + "_sequences_and_padding", of({{2, r - 2, 5, 2}, {-1, 0, 0, 3}, {0, 0, 6}, {4, 9, 0}, {3, 7 * r - 1, 1}}));
  }
  add("ratio4_sixty_five_rows", {.seqs = {{0, 0, 65}}});
  add("ratio4_batch_of_200_mid_window", {.seqs = {{0, 250, 100}, {1, 3, 100}}, .pad = 4});
  add("ratio4_strided_rows_odd", {.seqs = {{0, 1, 9}}, .pad = 1});
  add("ratio128_three_windows", {.seqs = {{0, 100, 300}}, .ratio = 128});
  add("ratio128_far_position", {.seqs = {{0, 128 * 64 - 3, 8}, {1, 128 * 65 - 1, 2}}, .ratio = 128});
  add("rising_gates_every_token_a_new_maximum", {.seqs = {{0, 0, 140}}, .ratio = 128, .gates = Gates::kRising});
  add("wide_gates_underflow", {.seqs = {{0, 0, 30}}, .cache = kPlain, .rounding = kExact, .gates = Gates::kWide});
  add("equal_gates", {.seqs = {{0, 0, 130}}, .ratio = 128, .cache = kPlain, .rounding = kExact, .gates = Gates::kEqual});
  add("stride_of_a_shared_arena", {.seqs = {{0, 252, 9}, {1, 0, 5}}, .cache = {.extra_stride = 1002240 - 37376, .base_offset = 37376 * 2}});
  add("indexer_behind_compressed_rows",
      {.seqs = {{0, 252, 9}}, .cache = {.format = RowFormat::kMxfp4, .row_dim = 128, .extra_stride = 37376, .base_offset = 37376}, .indexer = true});
}

}  // namespace dsv4::optest

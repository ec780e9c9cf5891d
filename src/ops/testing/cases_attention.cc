// sparse_attention, judged against a dense softmax in double over the rows a token may see. All other rows of the cache hold NaN.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "ops/testing/cache_tools.h"
#include "ops/testing/case_lists.h"

namespace dsv4::optest {
namespace {

enum class Sinks { kNormal, kHuge, kAbsent, kHopeless };

struct Attention {
  std::vector<SeqSpec> seqs = {};
  int64_t heads = 4;
  int32_t window = 128, ring_rows = 256, ratio = 0;
  RowFormat format = RowFormat::kFp8DsMla;
  int64_t topk = 32;      // ratio 4
  bool full_topk = true;  // false: lists shorter than topk, cut off by a -1 with poison behind it
  Sinks sinks = Sinks::kNormal;
  double q_scale = 1;  // 1: scores of deviation about 1; 30: one key takes all
  int64_t extra_stride = 0, base_offset = 0, pad = 0;
  int32_t row_dim = 512;
};

float sink_value(Rng& rng, Sinks s) {
  switch (s) {
    case Sinks::kNormal: return static_cast<float>(rng.normal() * 2);
    case Sinks::kHuge: return static_cast<float>(30 + 10 * rng.normal());
    case Sinks::kAbsent: return -1e30f;
    case Sinks::kHopeless: return 3e4f;
  }
  return 0;
}

void build_attention(Problem& p, const Attention& c) {
  const StepRows step = add_step(p, c.seqs);
  const int64_t dim = c.row_dim, cols = c.heads * dim, rope = 64, rows = p.num_rows;
  std::vector<float> q = p.rng.activations(rows * cols, c.q_scale);
  const std::vector<float> turn = random_rotations(p.rng, rows, rope);
  std::vector<float> sink;
  for (int64_t h = 0; h < c.heads; ++h) sink.push_back(sink_value(p.rng, c.sinks));

  // Keys of each row, in the order of the definition.
  struct Seen {
    std::vector<int32_t> window, compressed;  // ring rows; compressed rows
  };
  std::vector<Seen> seen(static_cast<size_t>(rows));
  std::vector<std::set<int32_t>> ring_used(static_cast<size_t>(step.num_slots())), compressed_used(ring_used.size());
  std::vector<int64_t> compressed_rows(ring_used.size(), 0);
  std::vector<int32_t> topk(static_cast<size_t>(rows * c.topk), static_cast<int32_t>(kPoisonWord));
  for (int64_t t = 0; t < rows; ++t) {
    const int32_t position = step.positions[static_cast<size_t>(t)];
    Seen& s = seen[static_cast<size_t>(t)];
    if (position < 0) {
      std::fill_n(q.begin() + t * cols, cols, std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    const size_t slot = static_cast<size_t>(step.slots[static_cast<size_t>(t)]);
    for (int32_t k = std::max(0, position - c.window + 1); k <= position; ++k) s.window.push_back(k % c.ring_rows);
    const int32_t count = c.ratio == 0 ? 0 : (position + 1) / c.ratio;
    compressed_rows[slot] = std::max<int64_t>(compressed_rows[slot], count);
    if (c.ratio == 128) {
      for (int32_t j = 0; j < count; ++j) s.compressed.push_back(j);
    } else if (c.ratio == 4) {
      const int64_t limit = c.full_topk ? c.topk : p.rng.below(c.topk);
      std::vector<int32_t> chosen = p.rng.permutation(count);
      chosen.resize(static_cast<size_t>(std::min<int64_t>(limit, count)));
      std::sort(chosen.begin(), chosen.end());
      std::copy(chosen.begin(), chosen.end(), topk.begin() + t * c.topk);
      if (static_cast<int64_t>(chosen.size()) < c.topk) topk[static_cast<size_t>(t * c.topk) + chosen.size()] = -1;
      s.compressed = std::move(chosen);
    }
    ring_used[slot].insert(s.window.begin(), s.window.end());
    compressed_used[slot].insert(s.compressed.begin(), s.compressed.end());
  }

  const int qt = p.add_rows("q", cols, c.pad, q), ct = p.add_rows("cos_sin", rope, c.pad, turn), st = p.add_vector("sink", sink);
  const CacheSpec spec = {.format = c.format, .row_dim = c.row_dim, .extra_stride = c.extra_stride, .base_offset = c.base_offset};
  const Cache window = add_cache(p, "window", Role::kInput, spec, std::vector<int64_t>(ring_used.size(), c.ring_rows), 0);
  const Cache compressed = add_cache(p, "compressed", Role::kInput, spec, compressed_rows);
  const int tt = c.ratio == 4 ? p.add_rows("topk", c.topk, c.pad, topk) : -1;
  const int ot = p.add_output<float>("o", cols, c.pad);
  for (size_t slot = 0; slot < ring_used.size(); ++slot) {
    for (const int32_t r : ring_used[slot]) window.write(p, static_cast<int32_t>(slot), r, p.rng.activations(dim, 1).data());
    for (const int32_t r : compressed_used[slot]) compressed.write(p, static_cast<int32_t>(slot), r, p.rng.activations(dim, 1).data());
  }
  const int64_t longest = *std::max_element(compressed_rows.begin(), compressed_rows.end());
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
  p.call = [=](Device& d, const Bound& b) {
    SparseAttentionArgs args;
    args.q = b.matrix<float>(qt);
    args.heads = c.heads;
    args.rows = step.bind(b);
    args.window = window.bind(b);
    args.window_table = window.table(b);
    args.ring_rows = c.ring_rows;
    args.window_tokens = c.window;
    args.ratio = c.ratio;
    if (c.ratio != 0) {
      args.compressed = compressed.bind(b);
      args.compressed_table = compressed.table(b);
      args.max_compressed_rows = longest;
    }
    if (c.ratio == 4) args.topk = b.matrix<int32_t>(tt);
    args.sink = b.pointer<float>(st);
    args.scale = scale;
    args.cos_sin = b.matrix<float>(ct);
    args.o = b.matrix<float>(ot);
    return run_op("sparse_attention", d.context(), d.ops().sparse_attention, args);
  };

  Truth truth;
  // Scores carry the error of a product of dim terms, which every output inherits through its weights; then a sum over the keys.
  truth.global = 2 * sum_global(dim) * c.q_scale + sum_global(c.window + longest);
  const Images images = p.images();
  for (int64_t t = 0; t < rows; ++t) {
    const Seen& s = seen[static_cast<size_t>(t)];
    if (s.window.empty()) {
      for (int64_t i = 0; i < cols; ++i) truth.push(0, 0);
      continue;
    }
    const int32_t slot = step.slots[static_cast<size_t>(t)];
    std::vector<std::vector<float>> keys;
    for (const int32_t r : s.window) keys.push_back(window.read(images, slot, r));
    for (const int32_t r : s.compressed) keys.push_back(compressed.read(images, slot, r));
    for (int64_t h = 0; h < c.heads; ++h) {
      std::vector<double> weight, error;
      double top = sink[static_cast<size_t>(h)];
      for (const auto& k : keys) {
        const Sum dotted = dot(q.data() + t * cols + h * dim, k.data(), dim);
        weight.push_back(dotted.value * scale);
        error.push_back(dotted.error() * scale + kUnit * std::fabs(weight.back()));
        top = std::max(top, weight.back());
      }
      // Relative error of a probability: its score's, the rounded difference to the maximum, 8 units for the exponential. The division by
      // the sum adds the like of all, weighted, and a sum of positive terms.
      double sum = std::exp(sink[static_cast<size_t>(h)] - top), common = 0;
      for (size_t k = 0; k < keys.size(); ++k) {
        error[k] += kUnit * (std::fabs(weight[k] - top) + 8);
        weight[k] = std::exp(weight[k] - top);
        sum += weight[k];
      }
      for (size_t k = 0; k < keys.size(); ++k) {
        weight[k] /= sum;
        common += weight[k] * error[k] * weight[k] * error[k];
      }
      common = 2 * std::sqrt(common) + kUnit * (4 * std::sqrt(static_cast<double>(keys.size()) / 3) + 8);
      Row o;
      for (int64_t i = 0; i < dim; ++i) {
        Sum value;
        double own = 0, floor = 0;
        for (size_t k = 0; k < keys.size(); ++k) {
          const double x = keys[k][static_cast<size_t>(i)];
          value.add(weight[k] * x);
          own += weight[k] * x * error[k] * weight[k] * x * error[k];
          floor += std::fabs(x);
        }
        o.value.push_back(value.value);
        // Errors of the scores are independent of each other: their root sum of squares, twice. Probabilities below the least normal
        // float32 may become zero.
        o.error.push_back(2 * std::sqrt(own) + std::fabs(value.value) * common + value.error() + floor * 0x1p-125);
      }
      rotate(o, dim, turn.data() + t * rope, rope, -1);
      for (size_t i = 0; i < o.value.size(); ++i) truth.push(o.value[i], o.error[i]);
    }
  }
  p.judge = [&p, ot, truth](const Images& actual, const Images*, Verdict& v) { judge_floats(p, ot, truth, actual, v); };
}

}  // namespace

void add_attention_cases(std::vector<OpCase>& cases) {
  const auto add = [&](const std::string& name, Attention c, bool odd = false) {
    add_case(cases, "sparse_attention", name, build_attention, std::move(c), odd);
  };
  for (const RowFormat f : {RowFormat::kFp8DsMla, RowFormat::kF32}) {
    const std::string n = row_format_name(f);
    add(n + "_zero_tokens", {.seqs = {}, .format = f});
    add(n + "_position_0_sees_itself", {.seqs = {{0, 0, 1}}, .format = f});
    add(n + "_window_boundary", {.seqs = {{0, 126, 4}}, .format = f});
    add(n + "_window_64_prefill", {.seqs = {{0, 0, 70}}, .heads = 2, .window = 64, .format = f});
    add(n + "_ring_wraps", {.seqs = {{0, 250, 9}, {1, 1000, 2}}, .format = f});
    add(n + "_ratio128_boundary", {.seqs = {{0, 126, 4}, {1, 255, 1}}, .ratio = 128, .format = f});
    add(n + "_ratio4_topk", {.seqs = {{0, 255, 6}}, .ratio = 4, .format = f});
    add(n + "_ratio4_lists_end_early", {.seqs = {{0, 300, 6}, {1, 0, 5}}, .ratio = 4, .format = f, .full_topk = false});
    add(n + "_sequences_and_padding", {.seqs = {{3, 700, 3, 2}, {-1, 0, 0, 3}, {1, 0, 2}, {0, 5, 0}, {2, 130, 1}}, .ratio = 4, .format = f});
  }
  add("ratio128_many_rows_across_blocks", {.seqs = {{0, 128 * 66 - 1, 2}, {1, 128 * 63 - 1, 1}, {2, 128 * 64, 1}}, .ratio = 128});
  add("one_head", {.seqs = {{0, 200, 3}}, .heads = 1, .ratio = 4});
  add("seven_heads", {.seqs = {{0, 200, 3}}, .heads = 7, .ratio = 4});
  add("ring_not_a_multiple_of_a_block", {.seqs = {{0, 260, 9}}, .ring_rows = 137});
  add("sinks_huge", {.seqs = {{0, 140, 3}}, .sinks = Sinks::kHuge});
  add("sinks_absent", {.seqs = {{0, 140, 3}}, .sinks = Sinks::kAbsent});
  add("sinks_leave_nothing", {.seqs = {{0, 140, 3}}, .sinks = Sinks::kHopeless});
  add("one_key_takes_all", {.seqs = {{0, 140, 3}}, .ratio = 4, .q_scale = 30});
  add("strided_rows", {.seqs = {{0, 30, 5}}, .heads = 2, .ratio = 4, .pad = 8});
  add("strided_rows_odd", {.seqs = {{0, 30, 5}}, .heads = 2, .ratio = 4, .pad = 3});
  add("stride_of_a_shared_arena", {.seqs = {{0, 130, 2}}, .ring_rows = 129, .ratio = 4, .extra_stride = 1002240 - 37376, .base_offset = 37376 * 2});
  add("sixty_five_rows_decode", [] {
    Attention c{.heads = 2, .window = 64, .ring_rows = 64, .ratio = 4, .topk = 8};
    for (int32_t s = 0; s < 65; ++s) c.seqs.push_back({64 - s, 3 * s, 1});
    return c;
  }());
  add("rows_of_128_values_f32", {.seqs = {{0, 20, 5}}, .format = RowFormat::kF32, .row_dim = 128}, true);
  add("v4_flash_decode_ratio4", {.seqs = {{0, 4 * 700, 1}}, .heads = 64, .ratio = 4, .topk = 512});
  add("v4_flash_decode_ratio128", {.seqs = {{0, 128 * 130, 1}}, .heads = 64, .ratio = 128});
}

}  // namespace dsv4::optest

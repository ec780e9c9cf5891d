// moe_experts: the routed experts of a layer, most of which nobody chose.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/testing/case_lists.h"
#include "ops/testing/case_tools.h"

namespace dsv4::optest {
namespace {

struct Experts {
  int64_t rows = 1, experts = 16, topk = 4, dim = 256, ffn = 128, pad = 0;
  WeightFormat format = WeightFormat::kMxfp4;
  ActivationRounding rounding = ActivationRounding::kE4M3;
  float limit = 10;
  double scale = 1;
  bool same_expert = false;  // every row goes to the same few experts: the longest groups there are
  int64_t misalign = 0;
};

// The weighted product after the rounding before w2, and what else it may be where a value, or the amax that sets a scale, lies within its
// float32 error of a boundary: each choice changes some values.
struct RoundedAct {
  std::vector<double> value;
  struct Change {
    size_t index;
    double delta;
  };
  std::vector<std::vector<Change>> choices;
};

RoundedAct round_act(const Row& act, ActivationRounding rounding) {
  RoundedAct out{act.value, {}};
  if (rounding == ActivationRounding::kNone) return out;
  if (rounding == ActivationRounding::kBF16) {
    for (size_t i = 0; i < act.value.size(); ++i) {
      out.value[i] = nearest_bf16(act.value[i]);
      for (const double e : {-act.error[i], act.error[i]}) {
        const double other = nearest_bf16(act.value[i] + e);
        if (other != out.value[i]) out.choices.push_back({{i, other - out.value[i]}});
      }
    }
    return out;
  }
  for (size_t g = 0; g < act.value.size(); g += 128) {
    double low = 0, high = 0, amax = 0;
    for (size_t i = g; i < g + 128; ++i) {
      amax = std::max(amax, std::fabs(act.value[i]));
      low = std::max(low, std::fabs(act.value[i]) - act.error[i]);
      high = std::max(high, std::fabs(act.value[i]) + act.error[i]);
    }
    const auto scale_of = [](double x) { return std::ldexp(1.0, ceil_log2(std::max(x, double{1e-4f}) / 448)); };
    const auto at_scale = [](double x, double scale) { return nearest_e4m3(x / scale) * scale; };
    const double s = scale_of(amax);
    for (size_t i = g; i < g + 128; ++i) {
      out.value[i] = at_scale(act.value[i], s);
      for (const double e : {-act.error[i], act.error[i]}) {
        const double other = at_scale(act.value[i] + e, s);
        if (other != out.value[i]) out.choices.push_back({{i, other - out.value[i]}});
      }
    }
    for (const double other : {scale_of(low * (1 - 3 * kUnit)), scale_of(high * (1 + 3 * kUnit))}) {
      if (other == s) continue;
      out.choices.emplace_back();
      for (size_t i = g; i < g + 128; ++i) out.choices.back().push_back({i, at_scale(act.value[i], other) - out.value[i]});
    }
  }
  return out;
}

void build_experts(Problem& p, const Experts& c) {
  p.num_rows = c.rows;
  const std::vector<float> x = p.rng.activations(c.rows * c.dim, c.scale), y0 = p.rng.activations(c.rows * c.dim, 0.5);
  std::vector<int32_t> chosen;
  std::vector<float> weights = p.rng.activations(c.rows * c.topk, 0.3);
  for (float& w : weights) w = std::fabs(w) + 0.01f;
  std::vector<bool> used(static_cast<size_t>(c.experts));
  for (int64_t t = 0; t < c.rows; ++t) {
    std::vector<int32_t> order = p.rng.permutation(c.experts);
    if (c.same_expert) std::sort(order.begin(), order.end());
    for (int64_t k = 0; k < c.topk; ++k) {
      // A padding row has no expert at all; a row may also lack one (it lives elsewhere).
      const bool none = c.rows > 1 && (t % 5 == 3 || (t % 5 == 1 && k == c.topk / 2));
      chosen.push_back(none ? -1 : order[static_cast<size_t>(k)]);
      if (!none) used[static_cast<size_t>(order[static_cast<size_t>(k)])] = true;
      if (none) weights[static_cast<size_t>(t * c.topk + k)] = t % 5 == 3 ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    }
  }
  const int xt = p.add_rows("x", c.dim, c.pad, x), et = p.add_rows("experts", c.topk, c.pad, chosen), wt = p.add_rows("weights", c.topk, c.pad, weights);
  const int yt = p.add("y", Role::kUpdated, true, c.rows, c.dim, c.pad, y0);
  // Experts nobody chose share three poisoned weights.
  const int poisoned[3] = {p.add_poisoned_weight("unchosen w1", c.format, c.ffn, c.dim), p.add_poisoned_weight("unchosen w3", c.format, c.ffn, c.dim),
                           p.add_poisoned_weight("unchosen w2", c.format, c.dim, c.ffn)};
  std::vector<int> index[3];
  for (int64_t e = 0; e < c.experts; ++e) {
    for (int m = 0; m < 3; ++m) {
      if (!used[static_cast<size_t>(e)]) {
        index[m].push_back(poisoned[m]);
      } else {
        index[m].push_back(p.add_weight("expert " + std::to_string(e) + " w" +
                                            std::to_string(m == 0   ? 1
                                                           : m == 1 ? 3
                                                                    : 2),
                                        c.format, m == 2 ? c.dim : c.ffn, m == 2 ? c.ffn : c.dim, c.misalign));
      }
    }
  }
  int tables[6];
  for (int i = 0; i < 6; ++i) tables[i] = p.add_poisoned("expert pointers " + std::to_string(i), Elem::kI64, Role::kInput, false, 1, c.experts, 0);
  p.fill_addresses = [=, experts = c.experts](const std::vector<WeightView>& placed, Images& images) {
    for (int i = 0; i < 6; ++i) {
      for (int64_t e = 0; e < experts; ++e) {
        const WeightView& w = placed[static_cast<size_t>(index[i / 2][static_cast<size_t>(e)])];
        const uint8_t* address = i % 2 == 0 ? w.data : w.scale;
        std::memcpy(images[static_cast<size_t>(tables[i])].data() + 8 * e, &address, 8);
      }
    }
  };
  p.call = [=](Device& d, const Bound& b) {
    MoeExpertsArgs args;
    args.x = b.matrix<float>(xt);
    const auto table = [&](int i) { return b.pointer<const uint8_t* const>(tables[i]); };
    args.table = {c.format, c.experts, c.dim, c.ffn, table(0), table(1), table(2), table(3), table(4), table(5)};
    args.experts = b.matrix<int32_t>(et);
    args.weights = b.matrix<float>(wt);
    args.limit = c.limit;
    args.rounding = c.rounding;
    args.y = b.matrix<float>(yt);
    return run_op("moe_experts", d.context(), d.ops().moe_experts, args);
  };

  const bool rounded = c.rounding != ActivationRounding::kNone;
  Truth truth;
  truth.value.assign(y0.begin(), y0.end());
  truth.bound.assign(y0.size(), 0.0);
  truth.global = sum_global(c.dim) + sum_global(c.ffn);
  std::vector<std::vector<std::vector<double>>> choices(static_cast<size_t>(c.rows));  // [row][choice][dim]: what a choice adds to y
  for (int64_t t = 0; t < c.rows; ++t) {
    std::vector<double> in(x.begin() + t * c.dim, x.begin() + (t + 1) * c.dim);
    in = rounded_activations(in, c.rounding);
    for (int64_t k = 0; k < c.topk; ++k) {
      const int32_t e = chosen[static_cast<size_t>(t * c.topk + k)];
      if (e < 0) continue;
      const auto view = [&](int m) -> const WeightView& { return p.weights[static_cast<size_t>(index[m][static_cast<size_t>(e)])]->view; };
      const double weight = weights[static_cast<size_t>(t * c.topk + k)], limit = c.limit;
      Row act;
      for (int64_t i = 0; i < c.ffn; ++i) {
        const Sum gate = dot(in.data(), weight_row(view(0), i).data(), c.dim), up = dot(in.data(), weight_row(view(1), i).data(), c.dim);
        const double g = std::min(gate.value, limit), u = std::clamp(up.value, -limit, limit), silu = g / (1 + std::exp(-g));
        // silu's slope is at most 1.1; clamping never widens an error; then silu itself as in swiglu and the products.
        act.value.push_back(silu * u * weight);
        act.error.push_back(std::fabs(weight) * (1.1 * gate.error() * std::fabs(u) + up.error() * std::fabs(silu)) +
                            kUnit * (18 + std::fabs(g)) * std::fabs(act.value.back()) + 0x1p-120);
      }
      const RoundedAct a = round_act(act, c.rounding);
      const size_t first_choice = choices[static_cast<size_t>(t)].size();
      choices[static_cast<size_t>(t)].resize(first_choice + a.choices.size());
      for (int64_t i = 0; i < c.dim; ++i) {
        const std::vector<double> w2 = weight_row(view(2), i);
        const Sum s = dot(a.value.data(), w2.data(), c.ffn);
        double own = 0;  // errors of different values are independent: root sum of squares
        for (size_t f = 0; !rounded && f < w2.size(); ++f) own += w2[f] * act.error[f] * w2[f] * act.error[f];
        for (size_t j = 0; j < a.choices.size(); ++j) {
          double added = 0;
          for (const RoundedAct::Change& change : a.choices[j]) added += change.delta * w2[change.index];
          choices[static_cast<size_t>(t)][first_choice + j].push_back(added);
        }
        const size_t at = static_cast<size_t>(t * c.dim + i);
        truth.value[at] += s.value;
        // The sum over experts starts from y and may take any order.
        truth.bound[at] += s.error() + std::sqrt(own) + 2 * kUnit * (std::fabs(truth.value[at]) + std::fabs(s.value));
      }
    }
  }
  p.judge = [&p, yt, truth, choices, values = c.rows * c.topk * c.ffn](const Images& actual, const Images*, Verdict& v) {
    Truth explained = truth;
    for (size_t t = 0; t < choices.size(); ++t) {
      const float* got = image_row<float>(p, actual, yt, static_cast<int64_t>(t));
      for (const std::vector<double>& effect : choices[t]) {
        // A choice touches the whole row; it was taken if the difference to the truth has more than half of its direction.
        double along = 0, length = 0;
        double* row = explained.value.data() + t * effect.size();
        for (size_t i = 0; i < effect.size(); ++i) {
          along += (got[i] - row[i]) * effect[i];
          length += effect[i] * effect[i];
        }
        if (!(along > 0.5 * length)) continue;
        ++v.flips;
        for (size_t i = 0; i < effect.size(); ++i) row[i] += effect[i];
      }
    }
    judge_flips(values, v);
    judge_floats(p, yt, explained, actual, v);
  };
}

}  // namespace

void add_moe_experts_cases(std::vector<OpCase>& cases) {
  const auto experts = [&](const char* name, Experts c, bool odd = false) { add_case(cases, "moe_experts", name, build_experts, c, odd); };
  experts("zero_tokens", {.rows = 0});
  experts("one_row_tiny_model", {});
  experts("one_row_rand_model", {.experts = 10, .topk = 6, .dim = 384});
  experts("seven_rows_rand_model", {.rows = 7, .experts = 10, .topk = 6, .dim = 384});
  experts("sixty_five_rows", {.rows = 65, .experts = 16, .topk = 4});
  experts("one_expert_takes_all", {.rows = 20, .experts = 1, .topk = 1});
  experts("every_row_the_same_experts", {.rows = 40, .experts = 144, .topk = 2, .same_expert = true});
  experts("k160_few_chosen", {.rows = 3, .experts = 160, .topk = 6, .dim = 128});
  experts("v4_flash_256_experts", {.rows = 9, .experts = 256, .topk = 6, .dim = 128});
  experts("unrounded", {.rows = 6, .rounding = ActivationRounding::kNone});
  experts("bf16_activations_one_row", {.rounding = ActivationRounding::kBF16});
  experts("bf16_activations_forty_rows", {.rows = 40, .experts = 6, .rounding = ActivationRounding::kBF16});
  experts("bf16_activations_fp8_block", {.rows = 5, .experts = 6, .topk = 2, .format = WeightFormat::kFp8Block, .rounding = ActivationRounding::kBF16});
  experts("limits_cut", {.rows = 4, .limit = 0.7f, .scale = 4});
  experts("fp8_block_experts", {.rows = 5, .experts = 6, .topk = 2, .format = WeightFormat::kFp8Block});
  experts("bf16_experts", {.rows = 5, .experts = 6, .topk = 2, .format = WeightFormat::kBF16, .rounding = ActivationRounding::kNone}, true);
  experts("strided_rows", {.rows = 6, .dim = 128, .pad = 4});
  experts("strided_rows_odd", {.rows = 6, .dim = 128, .pad = 1});
  experts("unaligned_weights", {.rows = 3, .dim = 128, .misalign = 1});
  experts("ffn_wider_than_hidden", {.rows = 4, .experts = 5, .topk = 2, .dim = 128, .ffn = 384});
  experts("v4_flash_one_row", {.experts = 256, .topk = 6, .dim = 4096, .ffn = 2048});
}

}  // namespace dsv4::optest

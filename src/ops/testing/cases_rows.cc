// Operators that map a row to a row: rms_norm, query_norm_rope, swiglu.
#include <algorithm>
#include <limits>

#include "ops/testing/case_lists.h"
#include "ops/testing/case_tools.h"

namespace dsv4::optest {
namespace {

struct RmsNorm {
  int64_t rows = 1, cols = 128, pad = 0;
  double scale = 1;
  bool in_place = false;
  bool nan_row = false;  // a NaN in row 1: that row is NaN, the others are untouched by it
  float eps = 1e-6f;
};

void build_rms_norm(Problem& p, const RmsNorm& c) {
  p.num_rows = c.rows;
  std::vector<float> x = p.rng.activations(c.rows * c.cols, c.scale);
  if (c.nan_row) x[static_cast<size_t>(c.cols + 3)] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<uint16_t> weight = norm_weight(p.rng, c.cols);
  const int in = p.add("x", c.in_place ? Role::kUpdated : Role::kInput, true, c.rows, c.cols, c.pad, x);
  const int w = p.add_vector("weight", weight);
  const int out = c.in_place ? in : p.add_output<float>("out", c.cols, c.pad == 0 ? 0 : c.pad + 4);
  p.call = [=, eps = c.eps](Device& d, const Bound& b) {
    const RmsNormArgs args{b.matrix<float>(in), b.pointer<uint16_t>(w), eps, b.matrix<float>(out)};
    return run_op("rms_norm", d.context(), d.ops().rms_norm, args);
  };
  Truth truth;
  truth.global = kUnit * norm_units(c.cols);  // every element deviates by the row's common factor at most
  for (int64_t r = 0; r < c.rows; ++r) {
    const Row y = normed(exact_row(x.data() + r * c.cols, c.cols), weight.data(), c.eps);
    for (size_t i = 0; i < y.value.size(); ++i) truth.push(y.value[i], y.error[i]);
  }
  p.judge = [&p, out, truth](const Images& actual, const Images*, Verdict& v) { judge_floats(p, out, truth, actual, v); };
}

struct QueryNormRope {
  int64_t rows = 1, heads = 4, head_dim = 512, rope_dim = 64, pad = 0;
};

void build_query_norm_rope(Problem& p, const QueryNormRope& c) {
  p.num_rows = c.rows;
  const int64_t cols = c.heads * c.head_dim;
  const std::vector<float> q = p.rng.activations(c.rows * cols, 0.7), turn = random_rotations(p.rng, c.rows, c.rope_dim);
  const int qt = p.add("q", Role::kUpdated, true, c.rows, cols, c.pad, q);
  const int ct = p.add_rows("cos_sin", c.rope_dim, c.pad, turn);
  p.call = [=, heads = c.heads](Device& d, const Bound& b) {
    const QueryNormRopeArgs args{b.matrix<float>(qt), heads, b.matrix<float>(ct), 1e-6f};
    return run_op("query_norm_rope", d.context(), d.ops().query_norm_rope, args);
  };
  Truth truth;
  truth.global = kUnit * (norm_units(c.head_dim) + 2);  // the norm's common factor and the two roundings of a rotation
  for (int64_t h = 0; h < c.rows * c.heads; ++h) {
    Row y = normed(exact_row(q.data() + h * c.head_dim, c.head_dim), nullptr, 1e-6f);
    rotate(y, c.head_dim, turn.data() + h / c.heads * c.rope_dim, c.rope_dim, 1);
    for (size_t i = 0; i < y.value.size(); ++i) truth.push(y.value[i], y.error[i]);
  }
  p.judge = [&p, qt, truth](const Images& actual, const Images*, Verdict& v) { judge_floats(p, qt, truth, actual, v); };
}

enum class Alias { kNone, kGate, kUp };

struct Swiglu {
  int64_t rows = 1, cols = 128, pad = 0;
  double scale = 2;
  float limit = 10;
  Alias alias = Alias::kNone;
};

void build_swiglu(Problem& p, const Swiglu& c) {
  p.num_rows = c.rows;
  const std::vector<float> gate = p.rng.activations(c.rows * c.cols, c.scale), up = p.rng.activations(c.rows * c.cols, c.scale);
  const int g = p.add("gate", c.alias == Alias::kGate ? Role::kUpdated : Role::kInput, true, c.rows, c.cols, c.pad, gate);
  const int u = p.add("up", c.alias == Alias::kUp ? Role::kUpdated : Role::kInput, true, c.rows, c.cols, 2 * c.pad, up);
  const int out = c.alias == Alias::kGate ? g : c.alias == Alias::kUp ? u : p.add_output<float>("out", c.cols, 3 * c.pad);
  p.call = [=, limit = c.limit](Device& d, const Bound& b) {
    const SwigluArgs args{b.matrix<float>(g), b.matrix<float>(u), limit, b.matrix<float>(out)};
    return run_op("swiglu", d.context(), d.ops().swiglu, args);
  };
  Truth truth;
  truth.global = 10 * kUnit;
  for (size_t i = 0; i < gate.size(); ++i) {
    const double a = std::min<double>(gate[i], c.limit), b = std::clamp<double>(up[i], -c.limit, c.limit);
    const double v = a / (1 + std::exp(-a)) * b;
    // exp of 2 units in the last place (4), the sum, the quotient, two products: 8, and 8 for a reciprocal and for exp(x) by 2^(x log2 e).
    // The argument of that exponential is rounded: |a| units more. Quotients below the least normal number may flush to zero.
    truth.push(v, kUnit * (16 + std::fabs(a)) * std::fabs(v) + 0x1p-125 * (std::fabs(a * b) + 1));
  }
  p.judge = [&p, out, truth](const Images& actual, const Images*, Verdict& v) { judge_floats(p, out, truth, actual, v); };
}

}  // namespace

void add_row_cases(std::vector<OpCase>& cases) {
  const auto rms = [&](const char* name, RmsNorm c) { add_case(cases, "rms_norm", name, build_rms_norm, c); };
  rms("zero_tokens", {.rows = 0, .cols = 256});
  rms("one_row_tiny_model", {.cols = 256});
  rms("seven_rows_q_lora_rank", {.rows = 7, .cols = 1024});
  rms("tile_minus_1", {.rows = 63, .cols = 127});
  rms("wider_than_block", {.rows = 3, .cols = 4096 + 384});
  rms("narrower_than_warp", {.rows = 5, .cols = 5});
  rms("strided_rows", {.rows = 9, .cols = 384, .pad = 20});
  rms("strided_rows_odd", {.rows = 9, .cols = 383, .pad = 2});
  rms("in_place", {.rows = 65, .cols = 512, .in_place = true});
  rms("in_place_strided", {.rows = 6, .cols = 130, .pad = 6, .in_place = true});
  rms("eps_matters_small_values", {.rows = 4, .cols = 256, .scale = 1e-4});
  rms("large_values", {.rows = 4, .cols = 256, .scale = 3e4});
  rms("nan_stays_in_its_row", {.rows = 4, .cols = 128, .nan_row = true});
  rms("v4_flash_hidden", {.rows = 2, .cols = 4096});

  const auto qnr = [&](const char* name, QueryNormRope c) { add_case(cases, "query_norm_rope", name, build_query_norm_rope, c); };
  qnr("zero_tokens", {.rows = 0});
  qnr("one_row_tiny_model", {});
  qnr("sixty_five_rows", {.rows = 65, .heads = 2});
  qnr("strided_rows", {.rows = 7, .heads = 3, .pad = 12});
  qnr("strided_rows_odd", {.rows = 7, .heads = 1, .pad = 3});
  qnr("all_of_the_head_rotates", {.rows = 3, .heads = 2, .head_dim = 64});
  qnr("v4_flash_heads", {.rows = 2, .heads = 64});

  const auto swi = [&](const char* name, Swiglu c) { add_case(cases, "swiglu", name, build_swiglu, c); };
  swi("zero_tokens", {.rows = 0});
  swi("one_row", {.cols = 128});
  swi("seven_rows_odd_width", {.rows = 7, .cols = 131});
  swi("strided_rows", {.rows = 5, .cols = 96, .pad = 8});
  swi("strided_rows_odd", {.rows = 5, .cols = 97, .pad = 1});
  swi("out_is_gate", {.rows = 64, .cols = 128, .alias = Alias::kGate});
  swi("out_is_up", {.rows = 65, .cols = 128, .pad = 4, .alias = Alias::kUp});
  swi("beyond_the_limits", {.rows = 3, .cols = 256, .scale = 30});
  swi("sigmoid_underflows", {.rows = 2, .cols = 512, .scale = 60});
  swi("small_limit", {.rows = 2, .cols = 128, .limit = 0.5f});
  swi("v4_flash_ffn", {.rows = 2, .cols = 2048});
}

}  // namespace dsv4::optest

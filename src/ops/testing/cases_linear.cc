// linear and grouped_linear: every weight format, shapes off every tile, the activation rounding.
#include <algorithm>
#include <cmath>

#include "ops/testing/case_lists.h"
#include "ops/testing/case_tools.h"

namespace dsv4::optest {
namespace {

constexpr WeightFormat kF32 = WeightFormat::kF32, kBF16 = WeightFormat::kBF16, kFp8 = WeightFormat::kFp8Block, kMx = WeightFormat::kMxfp4;

struct Job {
  WeightFormat format = kFp8;
  int64_t n = 1;
};

struct Linear {
  int64_t rows = 1, k = 128;
  std::vector<Job> jobs;
  ActivationRounding rounding = ActivationRounding::kNone;
  int64_t pad = 0;
  int64_t misalign = 0;  // bytes the weights are off every alignment, as in a file
  bool hard = false;     // groups at the edges of the rounding rule
};

// Groups of 128 whose scale or values sit on an edge of the rule, one kind per group in turn.
void put_hard_groups(Rng& rng, std::vector<float>& x) {
  for (size_t g = 0; g + 128 <= x.size(); g += 128) {
    float* v = x.data() + g;
    const int kind = static_cast<int>(g / 128 % 8);
    const float top = std::ldexp(448.0f, static_cast<int>(rng.below(9)) - 4);
    for (int i = 0; i < 128; ++i) {
      if (kind == 0) v[i] = 0;                                                                                  // amax 0: the floor of 1e-4
      if (kind == 1) v[i] *= 1e-6f;                                                                             // below the floor
      if (kind == 2) v[i] = i == 77 ? top : v[i];                                                               // amax exactly 448 s
      if (kind == 3) v[i] = i == 5 ? -std::nextafter(top, 1e9f) : v[i];                                         // a hair above: twice the scale
      if (kind == 4) v[i] = i == 127 ? std::nextafter(top, 0.0f) : v[i];                                        // a hair below
      if (kind == 5) v[i] = i == 0 ? 448 : std::ldexp(2.0f * static_cast<float>(rng.below(8)) + 17.0f, i % 4);  // midpoints of codes: ties to even
      if (kind == 6) v[i] = i == 0 ? 256 : std::ldexp(static_cast<float>(rng.below(32)) - 15.5f, -10);          // subnormal codes and their midpoints
    }
  }
}

std::vector<double> as_double(const float* x, int64_t n) { return std::vector<double>(x, x + n); }

void build_linear(Problem& p, const Linear& c) {
  p.num_rows = c.rows;
  std::vector<float> x = p.rng.activations(c.rows * c.k, 1);
  if (c.hard) put_hard_groups(p.rng, x);
  const int xt = p.add_rows("x", c.k, c.pad, x);
  std::vector<int> weights, outputs;
  for (size_t j = 0; j < c.jobs.size(); ++j) {
    const std::string number = std::to_string(j);
    weights.push_back(p.add_weight("weight " + number, c.jobs[j].format, c.jobs[j].n, c.k,
                                   c.misalign * (c.jobs[j].format == kF32    ? 4
                                                 : c.jobs[j].format == kBF16 ? 2
                                                                             : 1)));
    outputs.push_back(p.add_output<float>("y" + number, c.jobs[j].n, c.pad == 0 ? 0 : c.pad + static_cast<int64_t>(j)));
  }
  p.call = [=, rounding = c.rounding](Device& d, const Bound& b) {
    LinearArgs args{b.matrix<float>(xt), rounding, static_cast<int>(weights.size()), {}};
    for (size_t j = 0; j < weights.size(); ++j) args.jobs[j] = {b.weights[static_cast<size_t>(weights[j])], b.matrix<float>(outputs[j])};
    return run_op("linear", d.context(), d.ops().linear, args);
  };
  std::vector<Truth> truths(c.jobs.size());
  for (size_t j = 0; j < c.jobs.size(); ++j) {
    const WeightView& w = p.weights[static_cast<size_t>(weights[j])]->view;
    const bool rounded = w.format == kFp8 || w.format == kMx;
    std::vector<std::vector<double>> in;
    for (int64_t r = 0; r < c.rows; ++r) {
      in.push_back(as_double(x.data() + r * c.k, c.k));
      if (rounded) in.back() = rounded_activations(in.back(), c.rounding);
    }
    Truth& truth = truths[j];
    truth.global = sum_global(c.k);
    truth.value.resize(static_cast<size_t>(c.rows * w.n));
    truth.bound.resize(truth.value.size());
    for (int64_t n = 0; n < w.n; ++n) {
      const std::vector<double> row = weight_row(w, n);
      for (int64_t r = 0; r < c.rows; ++r) {
        const Sum s = dot(in[static_cast<size_t>(r)].data(), row.data(), c.k);
        truth.value[static_cast<size_t>(r * w.n + n)] = s.value;
        truth.bound[static_cast<size_t>(r * w.n + n)] = s.error();
      }
    }
  }
  p.judge = [&p, outputs, truths](const Images& actual, const Images*, Verdict& v) {
    for (size_t j = 0; j < outputs.size(); ++j) judge_floats(p, outputs[j], truths[j], actual, v);
  };
}

struct Grouped {
  int64_t rows = 1, groups = 4, k = 512, rank = 128;  // per group
  WeightFormat format = kFp8;
  int64_t pad = 0;
  int64_t misalign = 0;
};

void build_grouped(Problem& p, const Grouped& c) {
  p.num_rows = c.rows;
  const int64_t cols = c.groups * c.k, n = c.groups * c.rank;
  const std::vector<float> x = p.rng.activations(c.rows * cols, 1);
  const int xt = p.add_rows("x", cols, c.pad, x);
  const int wt = p.add_weight("weight", c.format, n, c.k, c.misalign);
  const int y = p.add_output<float>("y", n, c.pad);
  p.call = [=, groups = c.groups](Device& d, const Bound& b) {
    const GroupedLinearArgs args{b.matrix<float>(xt), b.weights[static_cast<size_t>(wt)], groups, b.matrix<float>(y)};
    return run_op("grouped_linear", d.context(), d.ops().grouped_linear, args);
  };
  Truth truth;
  truth.global = sum_global(c.k);
  truth.value.resize(static_cast<size_t>(c.rows * n));
  truth.bound.resize(truth.value.size());
  for (int64_t i = 0; i < n; ++i) {
    const std::vector<double> row = weight_row(p.weights[0]->view, i);
    for (int64_t r = 0; r < c.rows; ++r) {
      const Sum s = dot(x.data() + r * cols + i / c.rank * c.k, row.data(), c.k);
      truth.value[static_cast<size_t>(r * n + i)] = s.value;
      truth.bound[static_cast<size_t>(r * n + i)] = s.error();
    }
  }
  p.judge = [&p, y, truth](const Images& actual, const Images*, Verdict& v) { judge_floats(p, y, truth, actual, v); };
}

}  // namespace

void add_linear_cases(std::vector<OpCase>& cases) {
  constexpr ActivationRounding kQat = ActivationRounding::kE4M3;
  const auto add = [&](const std::string& name, Linear c, bool odd = false) { add_case(cases, "linear", name, build_linear, std::move(c), odd); };
  for (const WeightFormat f : {kF32, kBF16, kFp8, kMx}) {
    const std::string name = weight_format_name(f);
    const ActivationRounding rounding = f == kFp8 || f == kMx ? kQat : ActivationRounding::kNone;
    add(name + "_zero_tokens", {.rows = 0, .jobs = {{f, 16}}, .rounding = rounding});
    add(name + "_one_row_one_output", {.jobs = {{f, 1}}, .rounding = rounding});
    add(name + "_one_row_k384_n130", {.k = 384, .jobs = {{f, 130}}, .rounding = rounding});
    add(name + "_seven_rows_k256_n129", {.rows = 7, .k = 256, .jobs = {{f, 129}}, .rounding = rounding});
    add(name + "_tile_minus_1", {.rows = 63, .k = 128, .jobs = {{f, 63}}, .rounding = rounding});
    add(name + "_tile", {.rows = 64, .k = 256, .jobs = {{f, 128}}, .rounding = rounding});
    add(name + "_tile_plus_1", {.rows = 65, .k = 384, .jobs = {{f, 65}}, .rounding = rounding});
    add(name + "_strided_rows", {.rows = 5, .k = 128, .jobs = {{f, 40}}, .rounding = rounding, .pad = 12});
    add(name + "_strided_rows_odd", {.rows = 3, .k = 128, .jobs = {{f, 33}}, .rounding = rounding, .pad = 1});
    add(name + "_unaligned_weight", {.rows = 3, .k = 256, .jobs = {{f, 50}}, .rounding = rounding, .misalign = 1});
    add(name + "_unrounded", {.rows = 4, .k = 256, .jobs = {{f, 140}}});
    add(name + "_four_jobs", {.rows = 3, .k = 256, .jobs = {{f, 100}, {f, 1}, {f, 64}, {f, 37}}, .rounding = rounding});
  }
  add("fp8_block_rounding_edges", {.rows = 9, .k = 1024, .jobs = {{kFp8, 70}}, .rounding = kQat, .hard = true});
  add("mxfp4_rounding_edges", {.rows = 8, .k = 1024, .jobs = {{kMx, 70}}, .rounding = kQat, .hard = true});
  add("mixed_formats_round_only_some", {.rows = 7, .k = 256, .jobs = {{kFp8, 66}, {kBF16, 31}, {kMx, 65}, {kF32, 9}}, .rounding = kQat, .hard = true});
  add("eight_jobs",
      {.rows = 2, .k = 384, .jobs = {{kBF16, 5}, {kFp8, 6}, {kBF16, 7}, {kFp8, 8}, {kBF16, 9}, {kFp8, 10}, {kBF16, 11}, {kFp8, 12}}, .rounding = kQat});
  add("bf16_k_not_a_multiple", {.rows = 5, .k = 99, .jobs = {{kBF16, 33}}}, true);
  add("fp8_block_k_not_a_multiple", {.rows = 5, .k = 200, .jobs = {{kFp8, 150}}}, true);
  add("mxfp4_k_160", {.rows = 5, .k = 160, .jobs = {{kMx, 33}}}, true);
  for (const int64_t rows : {1, 5, 17, 70}) {
    add("bf16_activations_" + std::to_string(rows) + "_rows",
        {.rows = rows, .k = 384, .jobs = {{kFp8, 130}, {kBF16, 20}, {kMx, 66}, {kF32, 9}}, .rounding = ActivationRounding::kBF16, .hard = rows == 5});
  }
  add("bf16_activations_k_not_a_multiple", {.rows = 5, .k = 200, .jobs = {{kFp8, 150}}, .rounding = ActivationRounding::kBF16}, true);
  add("batch_of_200", {.rows = 200, .k = 256, .jobs = {{kFp8, 72}}, .rounding = kQat});
  add("v4_flash_expert_shape", {.k = 4096, .jobs = {{kFp8, 2048}}, .rounding = kQat});
  add("v4_flash_compressor", {.rows = 2, .k = 4096, .jobs = {{kBF16, 512}, {kBF16, 512}}});
  add("v4_flash_router", {.rows = 3, .k = 4096, .jobs = {{kBF16, 256}}, .rounding = kQat});

  const auto grouped = [&](const char* name, Grouped c, bool odd = false) { add_case(cases, "grouped_linear", name, build_grouped, c, odd); };
  grouped("zero_tokens", {.rows = 0});
  grouped("one_row_tiny_model", {});
  grouped("seven_rows_rand_model", {.rows = 7, .groups = 2, .k = 1024});
  grouped("sixty_five_rows", {.rows = 65, .groups = 2, .k = 256, .rank = 128});
  grouped("strided_rows", {.rows = 5, .groups = 2, .k = 256, .pad = 4});
  grouped("strided_rows_odd", {.rows = 5, .groups = 2, .k = 256, .pad = 3});
  grouped("one_group", {.rows = 3, .groups = 1, .k = 256, .rank = 70});
  grouped("groups_share_a_scale_block", {.rows = 4, .groups = 4, .k = 256, .rank = 96}, true);
  grouped("bf16", {.rows = 3, .format = kBF16});
  grouped("f32", {.rows = 3, .groups = 2, .rank = 33, .format = kF32});
  grouped("mxfp4", {.rows = 3, .groups = 2, .rank = 40, .format = kMx});
  grouped("unaligned_weight", {.rows = 3, .groups = 2, .k = 256, .misalign = 1});
  grouped("v4_flash_half_the_groups", {.groups = 4, .k = 4096, .rank = 1024});
}

}  // namespace dsv4::optest

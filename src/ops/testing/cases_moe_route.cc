// moe_route: choice and weights of experts. A choice may differ only where scores are equal within their errors.
#include <algorithm>
#include <cmath>

#include "ops/testing/case_lists.h"
#include "ops/testing/case_tools.h"

namespace dsv4::optest {
namespace {

enum class Logits { kNormal, kEqual, kPairsEqual, kExtreme };

struct Route {
  int64_t rows = 1, experts = 16, topk = 4, pad = 0;
  bool hash = false;
  Logits logits = Logits::kNormal;
  bool bias_decides = false;  // biases far larger than scores: selection ignores the scores, weights do not
  bool padding = true;        // some rows have token id -1 when there are several
};

double softplus_root(double x) { return std::sqrt(std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)))); }

// Relative error of the score: exp, log1p, the sum and the root, 16 units; for very negative x the argument of exp is as large as x.
double score_error(double x, double s) { return kUnit * (16 + std::fabs(x)) * s; }

void build_route(Problem& p, const Route& c) {
  p.num_rows = c.rows;
  const int64_t vocab = 64, e_count = c.experts, topk = c.topk;
  std::vector<float> logits = p.rng.activations(c.rows * e_count, 2);
  for (int64_t t = 0; t < c.rows; ++t) {
    for (int64_t e = 0; e < e_count; ++e) {
      float& x = logits[static_cast<size_t>(t * e_count + e)];
      if (c.logits == Logits::kEqual) x = 0.25f;
      if (c.logits == Logits::kPairsEqual && e % 2 == 1) x = logits[static_cast<size_t>(t * e_count + e - 1)];
      if (c.logits == Logits::kExtreme) x *= t % 2 == 0 ? 30.0f : 8.0f;
    }
  }
  std::vector<float> bias(static_cast<size_t>(e_count));
  for (size_t e = 0; e < bias.size(); ++e) {
    bias[e] = static_cast<float>(p.rng.normal() * (c.bias_decides ? 100 : 0.2));
    if (c.logits == Logits::kEqual) bias[e] = 0;
    if (c.logits == Logits::kPairsEqual && e % 2 == 1) bias[e] = bias[e - 1];
  }
  std::vector<int64_t> tid2eid;
  for (int64_t id = 0; id < vocab; ++id) {
    const std::vector<int32_t> order = p.rng.permutation(e_count);
    tid2eid.insert(tid2eid.end(), order.begin(), order.begin() + topk);
  }
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < c.rows; ++t) ids.push_back(c.padding && c.rows > 1 && t % 6 == 4 ? -1 : static_cast<int32_t>(p.rng.below(vocab)));
  if (c.rows > 1) ids[0] = static_cast<int32_t>(vocab - 1);

  const float scaling = 1.5f;
  const int lt = p.add_rows("logits", e_count, c.pad, logits), it = p.add_rows("token_ids", 1, 0, ids);
  const int bt = c.hash ? p.add_vector("tid2eid", tid2eid) : p.add_vector("bias", bias);
  const int et = p.add_output<int32_t>("experts", topk, c.pad), wt = p.add_output<float>("weights", topk, 2 * c.pad);
  p.call = [=, hash = c.hash](Device& d, const Bound& b) {
    MoeRouteArgs args;
    args.logits = b.matrix<float>(lt);
    if (hash) {
      args.tid2eid = b.pointer<int64_t>(bt);
    } else {
      args.bias = b.pointer<float>(bt);
    }
    args.token_ids = b.vector<int32_t>(it);
    args.scaling = scaling;
    args.experts = b.matrix<int32_t>(et);
    args.weights = b.matrix<float>(wt);
    return run_op("moe_route", d.context(), d.ops().moe_route, args);
  };
  p.judge = [=, &p, hash = c.hash](const Images& actual, const Images*, Verdict& v) {
    for (int64_t t = 0; t < p.num_rows; ++t) {
      const int32_t* got = image_row<int32_t>(p, actual, et, t);
      const float* weights = image_row<float>(p, actual, wt, t);
      const int32_t id = ids[static_cast<size_t>(t)];
      const auto refuse = [&](const std::string& what) { v.refuse([&] { return "row " + std::to_string(t) + ": " + what; }); };
      v.compared += 2 * topk;
      if (id < 0) {
        for (int64_t k = 0; k < topk; ++k) {
          if (got[k] != -1 || weights[k] != 0) refuse("padding has expert " + std::to_string(got[k]) + " of weight " + std::to_string(weights[k]));
        }
        continue;
      }
      std::vector<double> s, error, choice;
      for (int64_t e = 0; e < e_count; ++e) {
        const double x = logits[static_cast<size_t>(t * e_count + e)];
        s.push_back(softplus_root(x));
        error.push_back(score_error(x, s.back()));
        choice.push_back(s.back() + bias[static_cast<size_t>(e)]);
        if (!hash) error.back() += kUnit * std::fabs(choice.back());
      }
      std::vector<bool> chosen(s.size());
      bool valid = true;
      for (int64_t k = 0; k < topk && valid; ++k) {
        valid = got[k] >= 0 && got[k] < e_count && !chosen[static_cast<size_t>(got[k])];
        if (valid) chosen[static_cast<size_t>(got[k])] = true;
        if (valid && hash) valid = got[k] == tid2eid[static_cast<size_t>(id * topk + k)];
      }
      if (!valid) {
        refuse("expert list is not valid");
        continue;
      }
      // a in front of b (or chosen and b not): refused when b is better by more than the errors, or exactly equal and lower.
      const auto check_order = [&](size_t a, size_t b) {
        const bool equal = logits[static_cast<size_t>(t * e_count) + a] == logits[static_cast<size_t>(t * e_count) + b] && bias[a] == bias[b];
        if (equal ? b < a : choice[b] > choice[a] + error[a] + error[b]) refuse("expert " + std::to_string(a) + " precedes expert " + std::to_string(b));
      };
      double sum = 0, sum_error = 0;
      for (int64_t k = 0; k < topk; ++k) {
        const size_t a = static_cast<size_t>(got[k]);
        sum += s[a];
        sum_error += score_error(logits[static_cast<size_t>(t * e_count) + a], s[a]);
        if (hash) continue;
        if (k + 1 < topk) check_order(a, static_cast<size_t>(got[k + 1]));
        for (size_t b = 0; k + 1 == topk && b < s.size(); ++b) {
          if (!chosen[b]) check_order(a, b);
        }
      }
      for (int64_t k = 0; k < topk; ++k) {
        const size_t a = static_cast<size_t>(got[k]);
        const double want = s[a] / sum * scaling;
        // The score's own error, the sum's with its roundings, a quotient and a product.
        const double bound = want * (score_error(logits[static_cast<size_t>(t * e_count) + a], 1) + sum_error / sum + kUnit * static_cast<double>(topk + 4));
        if (!(std::fabs(weights[k] - want) <= bound))
          refuse("weight " + std::to_string(k) + " is " + std::to_string(weights[k]) + ", expected " + std::to_string(want));
        if (bound > 0) v.worst_ratio = std::max(v.worst_ratio, std::fabs(weights[k] - want) / bound);
      }
    }
  };
}

}  // namespace

void add_moe_route_cases(std::vector<OpCase>& cases) {
  const auto route = [&](const char* name, Route c) { add_case(cases, "moe_route", name, build_route, c); };
  route("zero_tokens", {.rows = 0});
  route("one_row_tiny_model", {});
  route("rand_model_top_6_of_10", {.rows = 7, .experts = 10, .topk = 6});
  route("rand_model_hash", {.rows = 7, .experts = 10, .topk = 6, .hash = true});
  route("one_expert", {.rows = 3, .experts = 1, .topk = 1});
  route("all_experts", {.rows = 5, .experts = 8, .topk = 8});
  route("sixty_five_rows_144_experts", {.rows = 65, .experts = 144, .topk = 6});
  route("k160_pruned", {.rows = 64, .experts = 160, .topk = 6});
  route("v4_flash", {.rows = 65, .experts = 256, .topk = 6});
  route("v4_flash_hash", {.rows = 65, .experts = 256, .topk = 6, .hash = true});
  route("equal_scores_take_the_lowest", {.rows = 3, .experts = 144, .topk = 6, .logits = Logits::kEqual});
  route("equal_pairs_take_the_lower_first", {.rows = 9, .experts = 160, .topk = 5, .logits = Logits::kPairsEqual});
  route("bias_decides_alone", {.rows = 9, .experts = 256, .topk = 6, .bias_decides = true});
  route("extreme_logits_are_stable", {.rows = 8, .experts = 40, .topk = 6, .logits = Logits::kExtreme});
  route("extreme_logits_hash", {.rows = 8, .experts = 40, .topk = 6, .hash = true, .logits = Logits::kExtreme});
  route("strided_rows", {.rows = 9, .experts = 32, .topk = 4, .pad = 4});
  route("strided_rows_odd", {.rows = 9, .experts = 33, .topk = 3, .pad = 1});
}

}  // namespace dsv4::optest

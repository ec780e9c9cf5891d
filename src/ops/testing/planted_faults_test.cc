// Wrong operators that the shared operator test must refuse: rows, tables, linear, hyper-connections, experts.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/testing/faulty_device.h"
#include "tensor/dtype.h"
#include "tensor/rounding.h"

namespace dsv4::optest {
namespace {

class PlantedFault : public testing::TestWithParam<Fault> {};
TEST_P(PlantedFault, is_refused) { expect_refused(GetParam()); }

// The reference on a copy of some input; the copy lives in `storage`, dense.
template <class T>
Matrix<T> copy_of(const Matrix<const T>& m, std::vector<T>& storage) {
  storage.clear();
  for (int64_t r = 0; r < m.rows; ++r) storage.insert(storage.end(), m.row(r), m.row(r) + m.cols);
  return {storage.data(), m.rows, m.cols};
}

template <class T>
void scale_rows(const Matrix<T>& m, float factor) {
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.cols; ++c) m.row(r)[c] *= factor;
  }
}

int calls = 0;  // for the operator that is not repeatable

Status with_draws(OpContext& c, const SampleArgs& a, void (*change)(Draw&)) {
  std::vector<Draw> draws(a.draws, a.draws + a.logits.rows);
  for (Draw& d : draws) change(d);
  return sample_reference(c, {a.logits, draws.data(), a.ids});
}

const Fault kRowFaults[] = {
    {"writes_only_zeros", "rms_norm", "one_row_tiny_model", "expected",
     [](OpTable& t) {
       t.rms_norm = [](OpContext&, const RmsNormArgs& a) {
         for (int64_t r = 0; r < a.out.rows; ++r) std::fill_n(a.out.row(r), a.out.cols, 0.0f);
         return ok_status();
       };
     }},
    {"skips_the_last_row", "rms_norm", "seven_rows_q_lora_rank", "out[6][0] is nan",
     [](OpTable& t) {
       t.rms_norm = [](OpContext& c, const RmsNormArgs& a) {
         RmsNormArgs b = a;
         b.x = a.x.first_rows(std::max<int64_t>(0, a.x.rows - 1));
         b.out = a.out.first_rows(b.x.rows);
         return rms_norm_reference(c, b);
       };
     }},
    {"depends_on_the_batch", "rms_norm", "seven_rows_q_lora_rank", "alone equals the row in the batch",
     [](OpTable& t) {
       t.rms_norm = [](OpContext& c, const RmsNormArgs& a) {
         Status s = rms_norm_reference(c, a);
         scale_rows(a.out, a.out.rows > 1 ? 1 + 0x1p-23f : 1);  // one unit in the last place: far inside every bound
         return s;
       };
     }},
    {"is_not_repeatable", "rms_norm", "seven_rows_q_lora_rank", "a repeated run gives the same bits",
     [](OpTable& t) {
       t.rms_norm = [](OpContext& c, const RmsNormArgs& a) {
         Status s = rms_norm_reference(c, a);
         scale_rows(a.out, ++calls % 2 == 0 ? 1 + 0x1p-23f : 1);
         return s;
       };
     }},
    {"reads_padding", "rms_norm", "strided_rows", "is nan",
     [](OpTable& t) {
       t.rms_norm = [](OpContext& c, const RmsNormArgs& a) {
         for (int64_t r = 0; r < a.x.rows; ++r) {
           std::vector<float> x(a.x.row(r), a.x.row(r) + a.x.row_stride), out(x.size());
           std::vector<uint16_t> w(a.weight, a.weight + a.x.cols);
           w.resize(x.size(), 0x3f80);
           const RmsNormArgs b{{x.data(), 1, a.x.row_stride}, w.data(), a.eps, {out.data(), 1, a.x.row_stride}};
           DSV4_RETURN_IF_ERROR(rms_norm_reference(c, b));
           std::copy_n(out.data(), a.out.cols, a.out.row(r));
         }
         return ok_status();
       };
     }},
    {"ignores_the_stride", "rms_norm", "strided_rows", "",
     [](OpTable& t) {
       t.rms_norm = [](OpContext& c, const RmsNormArgs& a) {
         RmsNormArgs b = a;
         b.x.row_stride = b.x.cols;
         return rms_norm_reference(c, b);
       };
     }},
    {"writes_one_past_the_end", "rms_norm", "seven_rows_q_lora_rank", "output out: memory outside the results was written",
     [](OpTable& t) {
       t.rms_norm = [](OpContext& c, const RmsNormArgs& a) {
         if (a.out.rows > 0) a.out.row(a.out.rows - 1)[a.out.cols] = 0;
         return rms_norm_reference(c, a);
       };
     }},
    {"writes_padding", "rms_norm", "strided_rows", "output out: memory outside the results was written",
     [](OpTable& t) {
       t.rms_norm = [](OpContext& c, const RmsNormArgs& a) {
         for (int64_t r = 0; r < a.out.rows; ++r) a.out.row(r)[a.out.cols] = 0;
         return rms_norm_reference(c, a);
       };
     }},
    {"writes_its_input", "rms_norm", "one_row_tiny_model", "input x: memory outside the results was written",
     [](OpTable& t) {
       t.rms_norm = [](OpContext& c, const RmsNormArgs& a) {
         Status s = rms_norm_reference(c, a);
         const_cast<float*>(a.x.data)[3] = 1;
         return s;
       };
     }},
    {"touches_memory_without_rows", "rms_norm", "zero_tokens", "memory outside the results was written",
     [](OpTable& t) {
       t.rms_norm = [](OpContext& c, const RmsNormArgs& a) {
         if (a.out.rows == 0) a.out.data[0] = 0;
         return rms_norm_reference(c, a);
       };
     }},
    {"cannot_work_in_place", "rms_norm", "in_place", "",
     [](OpTable& t) {
       t.rms_norm = [](OpContext& c, const RmsNormArgs& a) {
         for (int64_t r = 0; r < a.out.rows; ++r) a.out.row(r)[0] = 0;  // clears the output before it reads
         return rms_norm_reference(c, a);
       };
     }},
    {"lets_a_nan_leak", "rms_norm", "nan_stays_in_its_row", "",
     [](OpTable& t) {
       t.rms_norm = [](OpContext& c, const RmsNormArgs& a) {
         Status s = rms_norm_reference(c, a);
         if (a.out.rows > 2 && std::isnan(a.out.row(1)[0])) a.out.row(2)[0] = a.out.row(1)[0];
         return s;
       };
     }},
    {"hides_a_nan", "rms_norm", "nan_stays_in_its_row", "expected nan",
     [](OpTable& t) {
       t.rms_norm = [](OpContext& c, const RmsNormArgs& a) {
         Status s = rms_norm_reference(c, a);
         for (int64_t r = 0; r < a.out.rows; ++r) {
           for (int64_t i = 0; i < a.out.cols; ++i) a.out.row(r)[i] = std::isnan(a.out.row(r)[i]) ? 0 : a.out.row(r)[i];
         }
         return s;
       };
     }},
    {"forgets_eps", "rms_norm", "eps_matters_small_values", "",
     [](OpTable& t) {
       t.rms_norm = [](OpContext& c, const RmsNormArgs& a) {
         RmsNormArgs b = a;
         b.eps = 0;
         return rms_norm_reference(c, b);
       };
     }},
    {"is_missing", "rms_norm", "one_row_tiny_model", "has no operator rms_norm", [](OpTable& t) { t.rms_norm = nullptr; }},
    {"says_unsupported_for_a_model_shape", "rms_norm", "one_row_tiny_model", "a model needs this shape",
     [](OpTable& t) { t.rms_norm = [](OpContext&, const RmsNormArgs&) { return unsupported("not today"); }; }},
    {"rotates_the_first_values", "query_norm_rope", "one_row_tiny_model", "",
     [](OpTable& t) {
       t.query_norm_rope = [](OpContext& c, const QueryNormRopeArgs& a) {
         const int64_t dim = a.q.cols / a.heads, rope = a.cos_sin.cols;
         const auto turn = [&] {
           for (int64_t r = 0; r < a.q.rows; ++r) {
             for (int64_t h = 0; h < a.heads; ++h) std::rotate(a.q.row(r) + h * dim, a.q.row(r) + h * dim + rope, a.q.row(r) + (h + 1) * dim);
           }
         };
         turn();
         return query_norm_rope_reference(c, a);
       };
     }},
    {"clamps_the_gate_below", "swiglu", "beyond_the_limits", "",
     [](OpTable& t) {
       t.swiglu = [](OpContext& c, const SwigluArgs& a) {
         std::vector<float> gate;
         const Matrix<float> copy = copy_of(a.gate, gate);
         for (float& x : gate) x = std::max(x, -a.limit);
         SwigluArgs b = a;
         b.gate = copy;
         return swiglu_reference(c, b);
       };
     }},
    {"leaves_padding_rows", "embed", "padding_rows_are_zero", "expected 0",
     [](OpTable& t) {
       t.embed = [](OpContext& c, const EmbedArgs& a) {
         std::vector<int32_t> ids(a.token_ids.data, a.token_ids.data + a.token_ids.size);
         for (int32_t& id : ids) id = std::max(id, 0);
         EmbedArgs b = a;
         b.token_ids = {ids.data(), a.token_ids.size};
         return embed_reference(c, b);
       };
     }},
    {"does_not_round_the_angle", "rope_table", "far_positions_and_padding", "",
     [](OpTable& t) {
       t.rope_table = [](OpContext&, const RopeTableArgs& a) {
         for (int64_t r = 0; r < a.out.rows; ++r) {
           for (int64_t i = 0; i < a.freqs.size; ++i) {
             const double p = std::max(a.positions.data[r] + a.offset, 0);
             a.out.row(r)[2 * i] = static_cast<float>(std::cos(p * a.freqs.data[i]));
             a.out.row(r)[2 * i + 1] = static_cast<float>(std::sin(p * a.freqs.data[i]));
           }
         }
         return ok_status();
       };
     }},
    {"ignores_the_offset", "rope_table", "first_token_of_a_window_of_4", "",
     [](OpTable& t) {
       t.rope_table = [](OpContext& c, const RopeTableArgs& a) {
         RopeTableArgs b = a;
         b.offset = 0;
         return rope_table_reference(c, b);
       };
     }},
    {"takes_the_highest_tie", "argmax", "ties_nan_infinities", "ids[0]",
     [](OpTable& t) {
       t.argmax = [](OpContext& c, const ArgmaxArgs& a) {
         DSV4_RETURN_IF_ERROR(argmax_reference(c, a));
         for (int64_t r = 0; r < a.logits.rows; ++r) {
           for (int64_t i = 0; a.ids.data[r] >= 0 && i < a.logits.cols; ++i) {
             if (a.logits.row(r)[i] == a.logits.row(r)[a.ids.data[r]]) a.ids.data[r] = static_cast<int32_t>(i);
           }
         }
         return ok_status();
       };
     }},
    {"keeps_all_that_top_p_cuts", "sample", "sixty_five_rows", "ids",
     [](OpTable& t) { t.sample = [](OpContext& c, const SampleArgs& a) { return with_draws(c, a, [](Draw& d) { d.top_p = 1; }); }; }},
    {"draws_where_the_temperature_is_0", "sample", "sixty_five_rows", "ids",
     [](OpTable& t) {
       t.sample = [](OpContext& c, const SampleArgs& a) { return with_draws(c, a, [](Draw& d) { d.temperature = d.temperature > 0 ? d.temperature : 1; }); };
     }},
    {"skips_nan", "argmax", "ties_nan_infinities", "expected -1",
     [](OpTable& t) {
       t.argmax = [](OpContext& c, const ArgmaxArgs& a) {
         std::vector<float> copy;
         ArgmaxArgs b = a;
         b.logits = copy_of(a.logits, copy);
         for (float& x : copy) x = std::isnan(x) ? -std::numeric_limits<float>::infinity() : x;
         return argmax_reference(c, b);
       };
     }},
};
INSTANTIATE_TEST_SUITE_P(Rows, PlantedFault, testing::ValuesIn(kRowFaults), fault_name);

// The reference with other weights: `change` gets a copy of the packed bytes.
Status with_weight(OpContext& c, LinearArgs a, void (*change)(WeightView&, std::vector<uint8_t>& data, std::vector<uint8_t>& scale)) {
  const WeightView& w = a.jobs[0].weight;
  std::vector<uint8_t> data(w.data, w.data + w.n * w.row_bytes()), scale;
  if (w.scale != nullptr) scale.assign(w.scale, w.scale + w.total_bytes() - w.n * w.row_bytes());
  a.jobs[0].weight.data = data.data();
  if (w.scale != nullptr) a.jobs[0].weight.scale = scale.data();
  change(a.jobs[0].weight, data, scale);
  return linear_reference(c, a);
}

Status with_x(OpContext& c, LinearArgs a, void (*change)(float* x, int64_t n)) {
  std::vector<float> copy;
  a.x = copy_of(a.x, copy);
  change(copy.data(), static_cast<int64_t>(copy.size()));
  return linear_reference(c, a);
}

template <ActivationRounding kRounding>
Status linear_rounded(OpContext& c, const LinearArgs& a) {
  LinearArgs b = a;
  b.rounding = kRounding;
  return linear_reference(c, b);
}

const Fault kProductFaults[] = {
    {"forgets_the_activation_rounding", "linear", "fp8_block_one_row_k384_n130", "", [](OpTable& t) { t.linear = linear_rounded<ActivationRounding::kNone>; }},
    {"rounds_to_e4m3_where_bf16_is_asked_for", "linear", "bf16_activations_5_rows", "y0",
     [](OpTable& t) { t.linear = linear_rounded<ActivationRounding::kE4M3>; }},
    {"forgets_to_round_to_bf16", "linear", "bf16_activations_5_rows", "y0", [](OpTable& t) { t.linear = linear_rounded<ActivationRounding::kNone>; }},
    {"rounds_before_bf16_weights_too", "linear", "mixed_formats_round_only_some", "y1",
     [](OpTable& t) {
       t.linear = [](OpContext& c, const LinearArgs& a) { return with_x(c, a, [](float* x, int64_t n) { round_e4m3(x, n, kActivationGroup, x); }); };
     }},
    {"rounds_per_64_values", "linear", "mxfp4_rounding_edges", "",
     [](OpTable& t) {
       t.linear = [](OpContext& c, const LinearArgs& a) {
         LinearArgs b = a;
         b.rounding = ActivationRounding::kNone;
         return with_x(c, b, [](float* x, int64_t n) { round_e4m3(x, n, 64, x); });
       };
     }},
    {"multiplies_in_bf16", "linear", "bf16_one_row_k384_n130", "",
     [](OpTable& t) { t.linear = [](OpContext& c, const LinearArgs& a) { return with_x(c, a, [](float* x, int64_t n) { round_bf16(x, n, x); }); }; }},
    {"multiplies_in_tf32", "linear", "v4_flash_router", "",
     [](OpTable& t) {
       t.linear = [](OpContext& c, const LinearArgs& a) {
         return with_x(c, a, [](float* x, int64_t n) {
           for (int64_t i = 0; i < n; ++i) x[i] = std::bit_cast<float>((std::bit_cast<uint32_t>(x[i]) + 0x1000u) & ~0x1fffu);
         });
       };
     }},
    {"transposes_the_scale_grid", "linear", "fp8_block_one_row_k384_n130", "",
     [](OpTable& t) {
       t.linear = [](OpContext& c, const LinearArgs& a) {
         return with_weight(c, a, [](WeightView& w, std::vector<uint8_t>&, std::vector<uint8_t>& scale) {
           const int64_t rows = (w.n + 127) / 128, cols = (w.k + 127) / 128;
           const std::vector<uint8_t> old = scale;
           for (int64_t r = 0; r < rows; ++r) {
             for (int64_t col = 0; col < cols; ++col) scale[static_cast<size_t>(r * cols + col)] = old[static_cast<size_t>(col * rows + r)];
           }
         });
       };
     }},
    {"swaps_the_nibbles", "linear", "mxfp4_one_row_k384_n130", "",
     [](OpTable& t) {
       t.linear = [](OpContext& c, const LinearArgs& a) {
         return with_weight(c, a, [](WeightView&, std::vector<uint8_t>& data, std::vector<uint8_t>&) {
           for (uint8_t& b : data) b = static_cast<uint8_t>(b << 4 | b >> 4);
         });
       };
     }},
    {"loses_the_last_output", "linear", "fp8_block_seven_rows_k256_n129", "y0[0][128] is nan",
     [](OpTable& t) {
       t.linear = [](OpContext& c, const LinearArgs& a) {
         std::vector<float> y;
         LinearArgs b = a;
         const Matrix<float> out = a.jobs[0].y;
         b.jobs[0].y = copy_of<float>(out, y);
         DSV4_RETURN_IF_ERROR(linear_reference(c, b));
         for (int64_t r = 0; r < out.rows; ++r) std::copy_n(b.jobs[0].y.row(r), out.cols - 1, out.row(r));
         return ok_status();
       };
     }},
    {"rounds_its_activations", "grouped_linear", "one_row_tiny_model", "",
     [](OpTable& t) {
       t.grouped_linear = [](OpContext& c, const GroupedLinearArgs& a) {
         std::vector<float> x;
         GroupedLinearArgs b = a;
         b.x = copy_of(a.x, x);
         round_e4m3(x.data(), static_cast<int64_t>(x.size()), kActivationGroup, x.data());
         return grouped_linear_reference(c, b);
       };
     }},
    {"sums_over_the_second_index", "hc_post", "one_row_tiny_model", "",
     [](OpTable& t) {
       t.hc_post = [](OpContext& c, const HcPostArgs& a) {
         std::vector<float> comb;
         HcPostArgs b = a;
         b.comb = copy_of(a.comb, comb);
         const int64_t m = a.post.cols;
         for (int64_t r = 0; r < a.comb.rows; ++r) {
           for (int64_t j = 0; j < m; ++j) {
             for (int64_t k = 0; k < m; ++k) comb[static_cast<size_t>(r * m * m + j * m + k)] = a.comb.row(r)[k * m + j];
           }
         }
         return hc_post_reference(c, b);
       };
     }},
    {"one_iteration_short", "hc_pre", "two_sinkhorn_iterations", "comb",
     [](OpTable& t) {
       t.hc_pre = [](OpContext& c, const HcPreArgs& a) {
         HcPreArgs b = a;
         b.sinkhorn_iters = a.sinkhorn_iters - 1;
         return hc_pre_reference(c, b);
       };
     }},
    {"forgets_to_double_post", "hc_pre", "one_row_tiny_model", "post",
     [](OpTable& t) {
       t.hc_pre = [](OpContext& c, const HcPreArgs& a) {
         Status s = hc_pre_reference(c, a);
         scale_rows(a.post, 0.5f);
         return s;
       };
     }},
    {"reads_rows_nobody_chose", "hc_head", "rows_out_of_order_and_padding", "",
     [](OpTable& t) {
       t.hc_head = [](OpContext& c, const HcHeadArgs& a) {
         std::vector<int32_t> rows(a.rows.data, a.rows.data + a.rows.size);
         for (int32_t& r : rows) r = std::max(r, 0);
         HcHeadArgs b = a;
         b.rows = {rows.data(), a.rows.size};
         return hc_head_reference(c, b);
       };
     }},
};
INSTANTIATE_TEST_SUITE_P(Products, PlantedFault, testing::ValuesIn(kProductFaults), fault_name);

const Fault kExpertFaults[] = {
    {"puts_the_bias_into_the_weights", "moe_route", "bias_decides_alone", "weight",
     [](OpTable& t) {
       t.moe_route = [](OpContext& c, const MoeRouteArgs& a) {
         DSV4_RETURN_IF_ERROR(moe_route_reference(c, a));
         for (int64_t r = 0; r < a.weights.rows; ++r) {
           for (int64_t k = 0; a.bias != nullptr && a.experts.row(r)[k] >= 0 && k < a.weights.cols; ++k) a.weights.row(r)[k] += a.bias[a.experts.row(r)[k]];
         }
         return ok_status();
       };
     }},
    {"breaks_ties_upwards", "moe_route", "equal_pairs_take_the_lower_first", "precedes",
     [](OpTable& t) {
       t.moe_route = [](OpContext& c, const MoeRouteArgs& a) {
         DSV4_RETURN_IF_ERROR(moe_route_reference(c, a));
         for (int64_t r = 0; r < a.experts.rows; ++r) {
           for (int64_t k = 0; k + 1 < a.experts.cols; ++k) {
             int32_t* e = a.experts.row(r) + k;
             if (e[0] >= 0 && a.logits.row(r)[e[0]] == a.logits.row(r)[e[1]]) std::swap(e[0], e[1]);
           }
         }
         return ok_status();
       };
     }},
    {"overflows_on_large_logits", "moe_route", "extreme_logits_are_stable", "",
     [](OpTable& t) {
       t.moe_route = [](OpContext& c, const MoeRouteArgs& a) {
         DSV4_RETURN_IF_ERROR(moe_route_reference(c, a));
         for (int64_t r = 0; r < a.weights.rows; ++r) {
           for (int64_t k = 0; k < a.weights.cols; ++k) {
             if (a.experts.row(r)[k] >= 0 && std::isinf(std::exp(a.logits.row(r)[a.experts.row(r)[k]])))
               a.weights.row(r)[k] = std::numeric_limits<float>::infinity();
           }
         }
         return ok_status();
       };
     }},
    {"gives_padding_an_expert", "moe_route", "v4_flash_hash", "padding",
     [](OpTable& t) {
       t.moe_route = [](OpContext& c, const MoeRouteArgs& a) {
         DSV4_RETURN_IF_ERROR(moe_route_reference(c, a));
         for (int64_t r = 0; r < a.experts.rows; ++r) a.experts.row(r)[0] = std::max(a.experts.row(r)[0], 0);
         return ok_status();
       };
     }},
    {"overwrites_y", "moe_experts", "one_row_tiny_model", "",
     [](OpTable& t) {
       t.moe_experts = [](OpContext& c, const MoeExpertsArgs& a) {
         for (int64_t r = 0; r < a.y.rows; ++r) std::fill_n(a.y.row(r), a.y.cols, 0.0f);
         return moe_experts_reference(c, a);
       };
     }},
    {"multiplies_the_weight_after_w2", "moe_experts", "seven_rows_rand_model", "",
     [](OpTable& t) {
       t.moe_experts = [](OpContext& c, const MoeExpertsArgs& a) {
         for (int64_t k = 0; k < a.experts.cols; ++k) {  // one expert of each row at a time, unweighted, then weighted
           std::vector<float> y(static_cast<size_t>(a.y.rows * a.y.cols)), weights;
           std::vector<int32_t> experts;
           for (int64_t r = 0; r < a.y.rows; ++r) {
             experts.push_back(a.experts.row(r)[k]);
             weights.push_back(1);
           }
           MoeExpertsArgs b = a;
           b.experts = {experts.data(), a.y.rows, 1};
           b.weights = {weights.data(), a.y.rows, 1};
           b.y = {y.data(), a.y.rows, a.y.cols};
           DSV4_RETURN_IF_ERROR(moe_experts_reference(c, b));
           for (int64_t r = 0; r < a.y.rows; ++r) {
             for (int64_t i = 0; experts[static_cast<size_t>(r)] >= 0 && i < a.y.cols; ++i) a.y.row(r)[i] += a.weights.row(r)[k] * b.y.row(r)[i];
           }
         }
         return ok_status();
       };
     }},
    {"reads_experts_nobody_chose", "moe_experts", "k160_few_chosen", "is nan",
     [](OpTable& t) {
       t.moe_experts = [](OpContext& c, const MoeExpertsArgs& a) {
         std::vector<int32_t> experts;
         std::vector<float> weights;
         for (int64_t r = 0; r < a.x.rows; ++r) {  // every expert, most with weight zero
           for (int64_t e = 0; e < a.table.num_experts; ++e) {
             experts.push_back(static_cast<int32_t>(e));
             weights.push_back(0);
             for (int64_t k = 0; k < a.experts.cols; ++k) {
               if (a.experts.row(r)[k] == e) weights.back() = a.weights.row(r)[k];
             }
           }
         }
         MoeExpertsArgs b = a;
         b.experts = {experts.data(), a.x.rows, a.table.num_experts};
         b.weights = {weights.data(), a.x.rows, a.table.num_experts};
         return moe_experts_reference(c, b);
       };
     }},
    {"forgets_the_limit", "moe_experts", "limits_cut", "",
     [](OpTable& t) {
       t.moe_experts = [](OpContext& c, const MoeExpertsArgs& a) {
         MoeExpertsArgs b = a;
         b.limit = 1e9f;
         return moe_experts_reference(c, b);
       };
     }},
    {"loses_one_row_of_a_large_group", "moe_experts", "every_row_the_same_experts", "",
     [](OpTable& t) {
       t.moe_experts = [](OpContext& c, const MoeExpertsArgs& a) {
         std::vector<int32_t> experts;
         MoeExpertsArgs b = a;
         b.experts = copy_of(a.experts, experts);
         if (a.x.rows > 32) experts[static_cast<size_t>(32 * a.experts.cols)] = -1;
         return moe_experts_reference(c, b);
       };
     }},
};
INSTANTIATE_TEST_SUITE_P(Experts, PlantedFault, testing::ValuesIn(kExpertFaults), fault_name);

}  // namespace
}  // namespace dsv4::optest

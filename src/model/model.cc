#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "ops/fused_ops.h"

namespace dsv4 {
namespace {

// A hint in steps of one row: the weights of the next hc_pre come near while a sub-block's last product runs. With more rows that is no time worth saving.
void hc_soon(Device& device, const HyperConnectionWeights& hc) { read_soon(device, {hc.fn.data, 4 * hc.fn.rows * hc.fn.row_stride}); }

}  // namespace

struct Model::Scratch {
  float *angle_plain = nullptr, *angle_yarn = nullptr, *angle_ratio4 = nullptr, *angle_ratio128 = nullptr;  // [T, rope]
  float *h = nullptr, *other_h = nullptr, *x = nullptr, *post = nullptr, *comb = nullptr, *y = nullptr;
  float *qr = nullptr, *q = nullptr, *kv = nullptr, *o = nullptr, *o_low = nullptr;
  float *comp_kv = nullptr, *comp_gate = nullptr, *index_kv = nullptr, *index_gate = nullptr, *index_q = nullptr, *index_w = nullptr;
  int32_t* topk = nullptr;
  float *gate_logits = nullptr, *route_weights = nullptr, *shared_gate = nullptr, *shared_up = nullptr;
  int32_t* experts = nullptr;
  float *final_x = nullptr, *logits = nullptr;
};

Model::Model(const ModelConfig& config, const ModelWeights& weights, const ModelOptions& options, Device& device)
    : config_(config),
      weights_(weights),
      options_(options),
      device_(device),
      ops_(options.arithmetic == Arithmetic::kEmulation ? device.emulation_ops() : device.ops()),
      fused_(options.arithmetic == Arithmetic::kEmulation ? FusedOps{} : fused_ops(device)),
      s_(std::make_unique<Scratch>()) {}

Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::create(const ModelConfig& config, const ModelWeights& weights, const ModelOptions& options, Device& device) {
  if (const char* missing = first_missing_op(device.ops())) {
    return unsupported("backend " + device.info().backend + ": operator " + missing + " is missing");
  }
  if (options.max_step_rows < 1 || options.max_logits_rows < 1) return invalid_argument("model: a step needs at least one row");
  std::unique_ptr<Model> model(new Model(config, weights, options, device));
  DSV4_RETURN_IF_ERROR(model->allocate_scratch());

  const int64_t half = config.rope_head_dim / 2;
  std::vector<float> frequencies(static_cast<size_t>(2 * half));
  const YarnScaling yarn{config.yarn_factor, config.yarn_original_positions, config.yarn_beta_fast, config.yarn_beta_slow};
  rope_frequencies(config.rope_head_dim, config.rope_theta, nullptr, frequencies.data());
  rope_frequencies(config.rope_head_dim, config.compress_rope_theta, &yarn, frequencies.data() + half);
  DSV4_ASSIGN_OR_RETURN(model->frequencies_, device.allocate(4 * 2 * half, "rotary frequencies"));
  DSV4_RETURN_IF_ERROR(device.upload(model->frequencies_.as<void>(), frequencies.data(), 4 * 2 * half));
  return model;
}

Status Model::allocate_scratch() {
  const ModelConfig& c = config_;
  const int64_t t = options_.max_step_rows, r = options_.max_logits_rows, m = c.hc_mult;
  int64_t total = 0;
  std::vector<std::pair<void**, int64_t>> parts;
  const auto want = [&](auto** pointer, int64_t elements) {
    parts.emplace_back(reinterpret_cast<void**>(pointer), total);
    total += (4 * elements + 255) / 256 * 256;
  };
  for (float** p : {&s_->angle_plain, &s_->angle_yarn, &s_->angle_ratio4, &s_->angle_ratio128}) want(p, t * c.rope_head_dim);
  want(&s_->h, t * m * c.hidden_dim);
  want(&s_->other_h, m * c.hidden_dim);
  want(&s_->x, t * c.hidden_dim);
  want(&s_->post, t * m);
  want(&s_->comb, t * m * m);
  want(&s_->y, t * c.hidden_dim);
  want(&s_->qr, t * c.q_lora_rank);
  want(&s_->q, t * c.num_heads * c.head_dim);
  want(&s_->kv, t * c.head_dim);
  want(&s_->o, t * c.num_heads * c.head_dim);
  want(&s_->o_low, t * c.o_groups * c.o_lora_rank);
  for (float** p : {&s_->comp_kv, &s_->comp_gate}) want(p, t * 2 * c.head_dim);
  for (float** p : {&s_->index_kv, &s_->index_gate}) want(p, t * 2 * c.index_head_dim);
  want(&s_->index_q, t * c.index_num_heads * c.index_head_dim);
  want(&s_->index_w, t * c.index_num_heads);
  want(&s_->topk, t * c.index_topk);
  want(&s_->gate_logits, t * c.num_experts);
  want(&s_->experts, t * c.num_experts_per_token);
  want(&s_->route_weights, t * c.num_experts_per_token);
  for (float** p : {&s_->shared_gate, &s_->shared_up}) want(p, t * c.expert_ffn_dim);
  want(&s_->final_x, r * c.hidden_dim);
  want(&s_->logits, r * c.vocab_size);
  DSV4_ASSIGN_OR_RETURN(scratch_, device_.allocate(total, "step scratch"));
  for (const auto& [pointer, offset] : parts) *pointer = scratch_.as<uint8_t>() + offset;
  return ok_status();
}

Matrix<const float> Model::angles(int32_t ratio) const { return {ratio == 0 ? s_->angle_plain : s_->angle_yarn, rows_, config_.rope_head_dim}; }

Result<Matrix<const float>> Model::forward(const StepView& step, KvCache& cache, StepObserver* observer) {
  const ModelConfig& c = config_;
  rows_ = step.rows.num_rows;
  const int64_t num_logits = step.logits_rows.size;
  if (rows_ > options_.max_step_rows || num_logits > options_.max_logits_rows) {
    return invalid_argument("model: a step of " + std::to_string(rows_) + " rows and " + std::to_string(num_logits) + " logits rows, at most " +
                            std::to_string(options_.max_step_rows) + " and " + std::to_string(options_.max_logits_rows) + " fit");
  }
  if (options_.arithmetic == Arithmetic::kExact && cache.options().format != RowFormat::kF32) {
    return invalid_argument("model: exact arithmetic needs the f32 cache, not fp8_ds_mla");
  }

  const int64_t half = c.rope_head_dim / 2;
  const Vector<const float> plain{frequencies_.as<float>(), half}, yarn{frequencies_.as<float>() + half, half};
  const Vector<const int32_t> positions{step.rows.positions, rows_};
  const auto table = [&](const Vector<const float>& freqs, int32_t offset, float* out) {
    return run<RopeTableArgs>("rope_table", &OpTable::rope_table, {positions, offset, freqs, {out, rows_, c.rope_head_dim}});
  };
  const auto tables = [&]() -> Status {
    DSV4_RETURN_IF_ERROR(table(plain, 0, s_->angle_plain));
    DSV4_RETURN_IF_ERROR(table(yarn, 0, s_->angle_yarn));
    DSV4_RETURN_IF_ERROR(table(yarn, -3, s_->angle_ratio4));
    return table(yarn, -127, s_->angle_ratio128);
  };

  Matrix<float> h = take_rows(s_->h, c.hc_mult * c.hidden_dim), other_h = take_rows(s_->other_h, c.hc_mult * c.hidden_dim);
  const auto layer_at = [&](int64_t layer) -> const LayerWeights& { return weights_.layers[static_cast<size_t>(layer)]; };
  const auto streams = [&](int64_t layer) { return observer == nullptr ? ok_status() : observer->tensor("streams", layer, h); };
  // A sub-block reads x and writes y: hc_pre before it, hc_post behind it. Between two of them both can be one operator, or be left to the next
  // sub-block's first products.
  const Matrix<float> x_in = take_rows(s_->x, c.hidden_dim), post = take_rows(s_->post, c.hc_mult), comb = take_rows(s_->comb, c.hc_mult * c.hc_mult);
  const auto behind = [&] { return HcPostArgs{take_rows(s_->y, c.hidden_dim), post, comb, h}; };
  const auto before = [&](const HyperConnectionWeights& hc, const uint16_t* norm) {
    return HcPreArgs{h, hc.fn, hc.base, hc.scale, norm, c.hc_mult, c.hc_sinkhorn_iters, c.rms_norm_eps, c.hc_eps, x_in, post, comb};
  };
  const auto attn_pre = [&](int64_t layer) { return before(layer_at(layer).hc_attn, layer_at(layer).attn_norm); };
  const auto ffn_pre = [&](int64_t layer) { return before(layer_at(layer).hc_ffn, layer_at(layer).ffn_norm); };
  const bool left = rows_ == 1 && fused_.hc_linear != nullptr && observer == nullptr;
  // What is left to the next sub-block, if anything is.
  HcPostPreArgs open;
  const auto join = [&](const HcPreArgs& next) {
    if (left) {
      open = {behind(), next};
      std::swap(h, other_h);
      open.pre.h = h;
      return ok_status();
    }
    if (fused_.hc_post_pre != nullptr) return run_op("hc_post_pre", device_.context(), fused_.hc_post_pre, HcPostPreArgs{behind(), next});
    DSV4_RETURN_IF_ERROR(run("hc_post", &OpTable::hc_post, behind()));
    return run("hc_pre", &OpTable::hc_pre, next);
  };
  const auto first_rows = [&]() -> Status {
    DSV4_RETURN_IF_ERROR((run<EmbedArgs>("embed", &OpTable::embed, {weights_.embed, step.token_ids, c.hc_mult, h})));
    DSV4_RETURN_IF_ERROR(streams(0));
    return run("hc_pre", &OpTable::hc_pre, attn_pre(0));
  };
  DSV4_RETURN_IF_ERROR(device_.side_by_side(first_rows, tables));
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    DSV4_RETURN_IF_ERROR(attention(layer, step, cache, left && layer > 0 ? &open : nullptr, observer));
    DSV4_RETURN_IF_ERROR(join(ffn_pre(layer)));
    DSV4_RETURN_IF_ERROR(moe(layer, step, left ? &open : nullptr, observer));
    if (layer + 1 == c.num_layers) {
      DSV4_RETURN_IF_ERROR(run("hc_post", &OpTable::hc_post, behind()));
    } else {
      DSV4_RETURN_IF_ERROR(join(attn_pre(layer + 1)));
      DSV4_RETURN_IF_ERROR(streams(layer + 1));
    }
  }

  const Matrix<float> x{s_->final_x, num_logits, c.hidden_dim}, logits{s_->logits, num_logits, c.vocab_size};
  const HyperConnectionWeights& hc = weights_.hc_head;
  DSV4_RETURN_IF_ERROR(
      (run<HcHeadArgs>("hc_head", &OpTable::hc_head, {h, step.logits_rows, hc.fn, hc.base, hc.scale, weights_.norm, c.rms_norm_eps, c.hc_eps, x})));
  DSV4_RETURN_IF_ERROR((run<LinearArgs>("lm_head", &OpTable::linear, {x, ActivationRounding::kNone, 1, {{weights_.head, logits}}})));
  if (observer != nullptr) {
    DSV4_RETURN_IF_ERROR(observer->tensor("final.x", c.num_layers, x));
    DSV4_RETURN_IF_ERROR(observer->tensor("logits", c.num_layers, logits));
  }
  return Matrix<const float>(logits);
}

Status Model::first_products(const char* name, const HcPostPreArgs* join, const LinearArgs& products) {
  if (join == nullptr) return run(name, &OpTable::linear, products);
  return run_op(name, device_.context(), fused_.hc_linear, HcLinearArgs{*join, products});
}

Status Model::attention(int64_t layer, const StepView& step, KvCache& cache, const HcPostPreArgs* join, StepObserver* observer) {
  const ModelConfig& c = config_;
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const bool exact = options_.arithmetic == Arithmetic::kExact;
  const ActivationRounding rounding = activation_rounding(options_.arithmetic);
  const CacheRounding cache_rounding = exact ? CacheRounding::kNone : CacheRounding::kE4M3;
  const auto seen = [&](const char* name, Matrix<const float> values) { return observer == nullptr ? ok_status() : observer->tensor(name, layer, values); };

  const Matrix<float> x = take_rows(s_->x, c.hidden_dim), y = take_rows(s_->y, c.hidden_dim);
  DSV4_RETURN_IF_ERROR(seen("attn.x", x));

  // Everything that reads x, in one product.
  const Matrix<float> qr = take_rows(s_->qr, c.q_lora_rank), kv = take_rows(s_->kv, c.head_dim);
  const int64_t width = w.ratio == 4 ? 2 * c.head_dim : c.head_dim;
  const Matrix<float> comp_kv = take_rows(s_->comp_kv, width), comp_gate = take_rows(s_->comp_gate, width);
  const Matrix<float> index_kv = take_rows(s_->index_kv, 2 * c.index_head_dim), index_gate = take_rows(s_->index_gate, 2 * c.index_head_dim);
  const Matrix<float> index_q = take_rows(s_->index_q, c.index_num_heads * c.index_head_dim), index_w = take_rows(s_->index_w, c.index_num_heads);
  LinearArgs from_x{x, rounding, 2, {{w.wq_a, qr}, {w.wkv, kv}}};
  if (w.ratio != 0) {
    from_x.jobs[from_x.num_jobs++] = {w.compressor.wkv, comp_kv};
    from_x.jobs[from_x.num_jobs++] = {w.compressor.wgate, comp_gate};
  }
  if (w.ratio == 4) {
    from_x.jobs[from_x.num_jobs++] = {w.index_compressor.wkv, index_kv};
    from_x.jobs[from_x.num_jobs++] = {w.index_compressor.wgate, index_gate};
    from_x.jobs[from_x.num_jobs++] = {w.index_weights_proj, index_w};
  }
  DSV4_RETURN_IF_ERROR(first_products("attn_in", join, from_x));
  const Matrix<float> q = take_rows(s_->q, c.num_heads * c.head_dim);
  const Matrix<int32_t> topk = take_rows(s_->topk, c.index_topk);
  const auto queries = [&]() -> Status {
    const RmsNormArgs q_norm{qr, w.q_norm, c.rms_norm_eps, qr};
    LinearArgs from_qr{qr, rounding, 1, {{w.wq_b, q}}};
    if (w.ratio == 4) from_qr.jobs[from_qr.num_jobs++] = {w.index_wq_b, index_q};
    const auto fused = fused_.norm_linear;
    if (fused != nullptr && observer == nullptr) {
      NormLinearArgs normed{q_norm, from_qr};
      if (w.ratio == 4) {
        normed.positions = step.rows.positions;
        normed.all_of = c.index_topk;
      }
      return run_op("wq_b", device_.context(), fused, normed);
    }
    DSV4_RETURN_IF_ERROR(run("q_norm", &OpTable::rms_norm, q_norm));
    DSV4_RETURN_IF_ERROR(seen("attn.qr", qr));
    return run("wq_b", &OpTable::linear, from_qr);
  };
  const auto cache_rows = [&]() -> Status {
    DSV4_RETURN_IF_ERROR(seen("attn.kv_raw", kv));
    DSV4_RETURN_IF_ERROR((run<KvInsertArgs>(
        "kv_insert", &OpTable::kv_insert,
        {kv, w.kv_norm, c.rms_norm_eps, angles(w.ratio), step.rows, cache_rounding, cache.window(layer), cache.window_table(), cache.ring_rows()})));
    if (w.ratio == 0) return ok_status();
    const Matrix<const float> window_angles{w.ratio == 4 ? s_->angle_ratio4 : s_->angle_ratio128, rows_, c.rope_head_dim};
    CompressorStepArgs feed{comp_kv,
                            comp_gate,
                            w.compressor.ape,
                            w.compressor.norm,
                            c.rms_norm_eps,
                            w.ratio,
                            c.head_dim,
                            window_angles,
                            false,
                            step.rows,
                            cache.state(layer),
                            cache_rounding,
                            cache.compressed(layer),
                            cache.compressed_table(w.ratio)};
    DSV4_RETURN_IF_ERROR(run("compressor_step", &OpTable::compressor_step, feed));
    if (w.ratio != 4) return ok_status();
    feed.kv = index_kv;
    feed.gate = index_gate;
    feed.ape = w.index_compressor.ape;
    feed.norm = w.index_compressor.norm;
    feed.head_dim = c.index_head_dim;
    feed.hadamard = true;
    feed.state = cache.index_state(layer);
    feed.out = cache.index_rows(layer);
    return run("index_compressor_step", &OpTable::compressor_step, feed);
  };
  const auto at_most = [&](int64_t bound, int64_t ratio) {  // rows of a sequence: what it can hold, what the longest has where that is known
    return step.longest == 0 ? bound : std::min(bound, std::max<int64_t>(step.longest / ratio, 1));
  };
  const QueryNormRopeArgs norm_rope{q, c.num_heads, angles(w.ratio), c.rms_norm_eps};
  const auto rotate = [&]() -> Status {
    DSV4_RETURN_IF_ERROR(run("query_norm_rope", &OpTable::query_norm_rope, norm_rope));
    return seen("attn.q", q);
  };
  const auto choose_and_rotate = [&]() -> Status {
    const IndexerQueryArgs query{index_q, c.index_num_heads, angles(4), !exact};
    const float weight_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.index_head_dim * c.index_num_heads)));
    const IndexerTopkArgs choice{index_q,
                                 index_w,
                                 weight_scale,
                                 c.index_num_heads,
                                 step.rows,
                                 4,
                                 cache.index_rows(layer),
                                 cache.compressed_table(4),
                                 at_most(cache.max_compressed_rows(4), 4),
                                 topk};
    const auto fused = fused_.choose_rotate;
    if (rows_ == 1 && fused != nullptr && observer == nullptr) {
      return run_op("choose_rotate", device_.context(), fused, ChooseRotateArgs{query, choice, norm_rope});
    }
    const auto choose = [&]() -> Status {
      DSV4_RETURN_IF_ERROR(run("indexer_query", &OpTable::indexer_query, query));
      DSV4_RETURN_IF_ERROR(seen("attn.index_q", index_q));
      DSV4_RETURN_IF_ERROR(run("indexer_topk", &OpTable::indexer_topk, choice));
      return observer == nullptr ? ok_status() : observer->indices("attn.topk", layer, topk);
    };
    return device_.side_by_side(choose, rotate);
  };
  DSV4_RETURN_IF_ERROR(device_.side_by_side(queries, cache_rows));
  DSV4_RETURN_IF_ERROR(w.ratio == 4 ? choose_and_rotate() : rotate());

  SparseAttentionArgs attend;
  const Matrix<float> o = take_rows(s_->o, c.num_heads * c.head_dim), o_low = take_rows(s_->o_low, c.o_groups * c.o_lora_rank);
  attend.q = q;
  attend.heads = c.num_heads;
  attend.rows = step.rows;
  attend.window = cache.window(layer);
  attend.window_table = cache.window_table();
  attend.ring_rows = cache.ring_rows();
  attend.window_tokens = static_cast<int32_t>(at_most(c.window_tokens, 1));
  attend.ratio = w.ratio;
  if (w.ratio != 0) {
    attend.compressed = cache.compressed(layer);
    attend.compressed_table = cache.compressed_table(w.ratio);
    attend.max_compressed_rows = at_most(cache.max_compressed_rows(w.ratio), w.ratio);
  }
  if (w.ratio == 4) attend.topk = topk;
  attend.sink = w.attn_sink;
  attend.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
  attend.cos_sin = angles(w.ratio);
  attend.o = o;
  DSV4_RETURN_IF_ERROR(device_.outside_graph([this, attend] { return run("sparse_attention", &OpTable::sparse_attention, attend); }));
  DSV4_RETURN_IF_ERROR(seen("attn.o", o));
  DSV4_RETURN_IF_ERROR((run<GroupedLinearArgs>("wo_a", &OpTable::grouped_linear, {o, w.wo_a, c.o_groups, o_low})));
  DSV4_RETURN_IF_ERROR(seen("attn.o_low", o_low));
  if (rows_ == 1) hc_soon(device_, w.hc_ffn);
  DSV4_RETURN_IF_ERROR((run<LinearArgs>("wo_b", &OpTable::linear, {o_low, rounding, 1, {{w.wo_b, y}}})));
  return seen("attn.y", y);
}

Status Model::moe(int64_t layer, const StepView& step, const HcPostPreArgs* join, StepObserver* observer) {
  const ModelConfig& c = config_;
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const ActivationRounding rounding = activation_rounding(options_.arithmetic);
  const auto seen = [&](const char* name, Matrix<const float> values) { return observer == nullptr ? ok_status() : observer->tensor(name, layer, values); };

  const Matrix<float> x = take_rows(s_->x, c.hidden_dim), y = take_rows(s_->y, c.hidden_dim);
  DSV4_RETURN_IF_ERROR(seen("ffn.x", x));
  const Matrix<float> gate_logits = take_rows(s_->gate_logits, c.num_experts);
  const Matrix<float> shared_gate = take_rows(s_->shared_gate, c.expert_ffn_dim), shared_up = take_rows(s_->shared_up, c.expert_ffn_dim);
  const Matrix<int32_t> experts = take_rows(s_->experts, c.num_experts_per_token);
  const Matrix<float> weights = take_rows(s_->route_weights, c.num_experts_per_token);
  const auto route = [&]() -> Status {
    DSV4_RETURN_IF_ERROR((
        run<MoeRouteArgs>("moe_route", &OpTable::moe_route, {gate_logits, w.gate_bias, w.tid2eid, step.token_ids, c.routed_scaling_factor, experts, weights})));
    if (observer != nullptr) DSV4_RETURN_IF_ERROR(observer->indices("ffn.experts", layer, experts));
    return seen("ffn.weights", weights);
  };
  const auto shared_expert = [&]() -> Status {
    DSV4_RETURN_IF_ERROR((run<SwigluArgs>("swiglu", &OpTable::swiglu, {shared_gate, shared_up, c.swiglu_limit, shared_gate})));
    DSV4_RETURN_IF_ERROR(seen("ffn.shared_act", shared_gate));
    return run<LinearArgs>("shared_w2", &OpTable::linear, {shared_gate, rounding, 1, {{w.shared_w2, y}}});
  };
  const MoeExpertsArgs routed{x, w.experts, experts, weights, c.swiglu_limit, rounding, y};
  if (rows_ == 1 && fused_.moe_all != nullptr && observer == nullptr) {  // with more rows, one launch for all that reads x is worth more
    DSV4_RETURN_IF_ERROR(first_products("gate", join, {x, rounding, 1, {{w.gate, gate_logits}}}));
    DSV4_RETURN_IF_ERROR(route());
    if (layer + 1 < c.num_layers) hc_soon(device_, weights_.layers[static_cast<size_t>(layer) + 1].hc_attn);
    return run_op("moe_all", device_.context(), fused_.moe_all, MoeAllArgs{routed, w.shared_w1, w.shared_w3, w.shared_w2, shared_gate, shared_up});
  }
  DSV4_RETURN_IF_ERROR(first_products("ffn_in", join, {x, rounding, 3, {{w.gate, gate_logits}, {w.shared_w1, shared_gate}, {w.shared_w3, shared_up}}}));
  DSV4_RETURN_IF_ERROR(seen("ffn.gate_logits", gate_logits));
  DSV4_RETURN_IF_ERROR(device_.side_by_side(shared_expert, route));
  DSV4_RETURN_IF_ERROR(run("moe_experts", &OpTable::moe_experts, routed));
  return seen("ffn.y", y);
}

}  // namespace dsv4

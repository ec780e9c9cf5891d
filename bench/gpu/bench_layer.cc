#include "bench_layer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "ops/compressor_step.h"
#include "ops/fused_ops.h"

namespace dsv4::bench {
namespace {

constexpr int64_t kHidden = 4096, kStreams = 4, kHeads = 64, kHeadDim = 512, kQueryRank = 1024, kOutRank = 8192, kGroups = 8, kExperts = 160, kTopk = 6, kFfn = 2048, kVocab = 129280;
constexpr int64_t kIndexHeads = 64, kIndexDim = 128, kIndexTopk = 512, kRope = 64;
constexpr int32_t kWindow = 128;

struct Shape {
  int64_t rows;
  int64_t seqs;      // decode: one per row; prefill: one
  int32_t position;  // of the first row of each sequence
  int64_t context;   // bound of all positions
};

// Rows of a step, caches of one layer. Contents are random where they are read.
struct Step {
  Step(Arena& a, const Shape& s) : shape(s) {
    std::vector<int32_t> positions, slots, cu{0}, seq_slots, ids;
    for (int64_t q = 0; q < s.seqs; ++q) {
      for (int64_t i = 0; i < s.rows / s.seqs; ++i) {
        positions.push_back(s.position + static_cast<int32_t>(i));
        slots.push_back(static_cast<int32_t>(q));
        ids.push_back(static_cast<int32_t>(q * 31 + i * 17) % 1000);
      }
      cu.push_back(static_cast<int32_t>(positions.size()));
      seq_slots.push_back(static_cast<int32_t>(q));
    }
    rows = {a.upload(positions), a.upload(slots), a.upload(cu), a.upload(seq_slots), s.rows, s.seqs};
    token_ids = a.upload(ids);
    ring = static_cast<int32_t>((kWindow + s.rows / s.seqs + 63) / 64 * 64);
  }
  Shape shape;
  SequenceRows rows;
  int32_t* token_ids;
  int32_t ring;
};

struct Paged {
  Paged(Arena& a, RowFormat format, int32_t dim, int64_t seqs, int64_t rows_per_slot, uint32_t seed) {
    const int64_t blocks = (rows_per_slot + 63) / 64, bytes = block_bytes(format, 64, dim);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < seqs * blocks; ++i) ids.push_back(static_cast<int32_t>(i));
    // Values of a weight filler are valid E4M3 codes, and its scale bytes too, once the scale area is overwritten.
    rows = {format, const_cast<uint8_t*>(a.weight(WeightFormat::kFp8Block, std::max<int64_t>(seqs * blocks, 1), bytes, seed).data), bytes, 64, dim};
    table = {a.upload(ids), blocks};
    std::vector<uint8_t> scales(static_cast<size_t>(format == RowFormat::kFp8DsMla ? 64 * 8 : 64 * dim / 32), 121);
    const int64_t at = format == RowFormat::kFp8DsMla ? 64 * kMlaDataBytes : 64 * dim / 2;
    std::vector<uint16_t> rotated(64, 0x3f00);
    for (int64_t b = 0; b < std::min<int64_t>(seqs * blocks, 4096); ++b) {
      must(a.device().upload(rows.base + b * bytes + at, scales.data(), static_cast<int64_t>(scales.size())));
      if (format != RowFormat::kFp8DsMla) continue;
      for (int r = 0; r < 64; ++r) must(a.device().upload(rows.base + b * bytes + r * kMlaDataBytes + kMlaNopeDim, rotated.data(), 128));
    }
  }
  PagedRows rows;
  BlockTable table;
};

// Buffers shared by layers, as the model has them.
struct Buffers {
  Buffers(Arena& a, int64_t t)
      : h{a.normal(t * kStreams * kHidden, 1, 1), t, kStreams * kHidden}, other_h(a.matrix(t, kStreams * kHidden)), x(a.matrix(t, kHidden)), y(a.matrix(t, kHidden)), post(a.matrix(t, kStreams)), comb(a.matrix(t, 16)), qr(a.matrix(t, kQueryRank)),
        q(a.matrix(t, kHeads * kHeadDim)), kv(a.matrix(t, kHeadDim)), o(a.matrix(t, kHeads * kHeadDim)), o_low(a.matrix(t, kOutRank)), index_q(a.matrix(t, kIndexHeads * kIndexDim)),
        index_w(a.matrix(t, kIndexHeads)), gate(a.matrix(t, kExperts)), shared_gate(a.matrix(t, kFfn)), shared_up(a.matrix(t, kFfn)), route_weights(a.matrix(t, kTopk)),
        experts{a.array<int32_t>(t * kTopk), t, kTopk}, topk{a.array<int32_t>(t * kIndexTopk), t, kIndexTopk}, cos_sin{a.normal(t * kRope, 0.7f, 2), t, kRope}, comp_kv(a.array<float>(t * 1024)),
        comp_gate(a.array<float>(t * 1024)), index_kv(a.matrix(t, 256)), index_gate(a.matrix(t, 256)) {}
  Matrix<float> h, other_h, x, y, post, comb, qr, q, kv, o, o_low, index_q, index_w, gate, shared_gate, shared_up, route_weights;
  Matrix<int32_t> experts, topk;
  Matrix<float> cos_sin;
  float *comp_kv, *comp_gate;
  Matrix<float> index_kv, index_gate;
};

struct Layer {
  int32_t ratio;
  std::unique_ptr<Experts> experts;
  WeightView wq_a, wq_b, wkv, wo_a, wo_b, comp_kv, comp_gate, index_wq_b, index_proj, index_kv, index_gate, gate, w1, w3, w2;
  const float *fn[2], *base, *scale, *sink, *ape, *index_ape, *bias;
  const uint16_t *norm, *head_norm, *index_norm;
  std::unique_ptr<Paged> window, compressed, index;
  float *state, *index_state;

  Layer(Arena& a, int32_t r, const Step& step, int64_t stored_experts, uint32_t s) : ratio(r) {
    constexpr WeightFormat kFp8 = WeightFormat::kFp8Block, kBf16 = WeightFormat::kBF16;
    wq_a = a.weight(kFp8, kQueryRank, kHidden, s);
    wq_b = a.weight(kFp8, kHeads * kHeadDim, kQueryRank, s + 1);
    wkv = a.weight(kFp8, kHeadDim, kHidden, s + 2);
    wo_a = a.weight(kFp8, kOutRank, kHeads * kHeadDim / kGroups, s + 3);
    wo_b = a.weight(kFp8, kHidden, kOutRank, s + 4);
    gate = a.weight(kBf16, kExperts, kHidden, s + 5);
    w1 = a.weight(kFp8, kFfn, kHidden, s + 6);
    w3 = a.weight(kFp8, kFfn, kHidden, s + 7);
    w2 = a.weight(kFp8, kHidden, kFfn, s + 8);
    experts = std::make_unique<Experts>(a, kExperts, kHidden, kFfn, stored_experts, s + 9);
    for (const float*& f : fn) f = a.normal(24 * kStreams * kHidden, 0.01f, s += 20);
    base = a.normal(24, 0.5f, s + 1);
    scale = a.normal(3, 0.5f, s + 2);
    sink = a.normal(kHeads, 1, s + 3);
    bias = a.normal(kExperts, 0.1f, s + 4);
    norm = a.norm_weight(kHidden, s + 5);
    head_norm = a.norm_weight(kHeadDim, s + 6);
    index_norm = a.norm_weight(kIndexDim, s + 7);
    const Shape& shape = step.shape;
    window = std::make_unique<Paged>(a, RowFormat::kFp8DsMla, kHeadDim, shape.seqs, step.ring, s + 8);
    if (ratio == 0) return;
    const int64_t width = ratio == 4 ? 1024 : 512;
    comp_kv = a.weight(kBf16, width, kHidden, s + 9);
    comp_gate = a.weight(kBf16, width, kHidden, s + 10);
    ape = a.normal(ratio * width, 0.5f, s + 11);
    compressed = std::make_unique<Paged>(a, RowFormat::kFp8DsMla, kHeadDim, shape.seqs, shape.context / ratio, s + 12);
    state = a.normal(shape.seqs * compressor_state_floats(ratio, kHeadDim), 1, s + 13);
    if (ratio != 4) return;
    index_wq_b = a.weight(kFp8, kIndexHeads * kIndexDim, kQueryRank, s + 14);
    index_proj = a.weight(kBf16, kIndexHeads, kHidden, s + 15);
    index_kv = a.weight(kBf16, 256, kHidden, s + 16);
    index_gate = a.weight(kBf16, 256, kHidden, s + 17);
    index_ape = a.normal(4 * 256, 0.5f, s + 18);
    index = std::make_unique<Paged>(a, RowFormat::kMxfp4, kIndexDim, shape.seqs, shape.context / 4, s + 19);
    index_state = a.normal(shape.seqs * compressor_state_floats(4, kIndexDim), 1, s + 20);
  }
};

// One operator of a layer, by name, so that it can run alone or in the chain.
struct NamedOp {
  const char* name;
  std::function<Status()> run;
};

std::vector<NamedOp> layer_ops(Arena& a, const Layer& l, const Step& s, const Buffers& b) {
  Device& d = a.device();
  const int64_t t = s.shape.rows;
  const OpTable& ops = d.ops();
  OpContext& c = d.context();
  std::vector<NamedOp> out;
  const auto add = [&]<class Args>(const char* name, OpSlot<Args> slot, const Args& args) { out.push_back({name, [&c, name, slot, args] { return run_op(name, c, slot, args); }}); };
  constexpr ActivationRounding kQat = ActivationRounding::kE4M3;
  const auto pre_args = [&](int which, const Matrix<float>& h) {
    return HcPreArgs{h, Matrix<const float>(l.fn[which], 24, kStreams * kHidden), l.base, l.scale, l.norm, kStreams, 20, 1e-6f, 1e-6f, b.x, b.post, b.comb};
  };
  const auto pre = [&](int which) { add("hc_pre", ops.hc_pre, pre_args(which, b.h)); };
  pre(0);
  if (fused_ops(d).hc_post_pre != nullptr) {  // the layer's last operator does it for the next one; once here, for sensible values
    must(out.back().run());
    out.clear();
  }
  // Or each sub-block's first products do it; then the streams go to and fro between two places.
  const bool with_products = t == 1 && fused_ops(d).hc_linear != nullptr;
  const auto join = [&](int which) {
    return which == 0 ? HcPostPreArgs{{b.y, b.post, b.comb, b.h}, pre_args(0, b.other_h)} : HcPostPreArgs{{b.y, b.post, b.comb, b.other_h}, pre_args(1, b.h)};
  };
  const int64_t width = l.ratio == 4 ? 1024 : 512;
  const Matrix<float> comp_kv{b.comp_kv, t, width}, comp_gate{b.comp_gate, t, width};
  LinearArgs in{b.x, kQat, 2, {{l.wq_a, b.qr}, {l.wkv, b.kv}}};
  if (l.ratio != 0) {
    in.jobs[in.num_jobs++] = {l.comp_kv, comp_kv};
    in.jobs[in.num_jobs++] = {l.comp_gate, comp_gate};
  }
  if (l.ratio == 4) {
    in.jobs[in.num_jobs++] = {l.index_kv, b.index_kv};
    in.jobs[in.num_jobs++] = {l.index_gate, b.index_gate};
    in.jobs[in.num_jobs++] = {l.index_proj, b.index_w};
  }
  if (with_products) {
    add("hc, attn_in", fused_ops(d).hc_linear, HcLinearArgs{join(0), in});
  } else {
    add("attn_in", ops.linear, in);
  }
  const RmsNormArgs q_norm{b.qr, l.norm, 1e-6f, b.qr};
  LinearArgs from_qr{b.qr, kQat, 1, {{l.wq_b, b.q}}};
  if (l.ratio == 4) from_qr.jobs[from_qr.num_jobs++] = {l.index_wq_b, b.index_q};
  if (fused_ops(d).norm_linear != nullptr) {
    NormLinearArgs normed{q_norm, from_qr};
    if (l.ratio == 4) {
      normed.positions = s.rows.positions;
      normed.all_of = kIndexTopk;
    }
    add("wq_b", fused_ops(d).norm_linear, normed);
  } else {
    add("q_norm", ops.rms_norm, q_norm);
    add("wq_b", ops.linear, from_qr);
  }
  const QueryNormRopeArgs rotate{b.q, kHeads, b.cos_sin, 1e-6f};
  const bool choose_too = l.ratio == 4 && t == 1 && fused_ops(d).choose_rotate != nullptr;
  if (!choose_too) add("query_norm_rope", ops.query_norm_rope, rotate);
  add("kv_insert", ops.kv_insert, KvInsertArgs{b.kv, l.head_norm, 1e-6f, b.cos_sin, s.rows, CacheRounding::kE4M3, l.window->rows, l.window->table, s.ring});
  if (l.ratio != 0) {
    CompressorStepArgs feed{comp_kv, comp_gate, l.ape, l.head_norm, 1e-6f, l.ratio, kHeadDim, b.cos_sin, false, s.rows, l.state, CacheRounding::kE4M3, l.compressed->rows, l.compressed->table};
    add("compressor_step", ops.compressor_step, feed);
    if (l.ratio == 4) {
      feed.kv = b.index_kv;
      feed.gate = b.index_gate;
      feed.ape = l.index_ape;
      feed.norm = l.index_norm;
      feed.head_dim = kIndexDim;
      feed.hadamard = true;
      feed.state = l.index_state;
      feed.out = l.index->rows;
      feed.table = l.index->table;
      add("index_compressor_step", ops.compressor_step, feed);
      const IndexerQueryArgs query{b.index_q, kIndexHeads, b.cos_sin, true};
      const IndexerTopkArgs choose{b.index_q, b.index_w, 1.0f / std::sqrt(8192.0f), kIndexHeads, s.rows, 4, l.index->rows, l.index->table, s.shape.context / 4, b.topk};
      if (choose_too) {
        add("choose_rotate", fused_ops(d).choose_rotate, ChooseRotateArgs{query, choose, rotate});
      } else {
        add("indexer_query", ops.indexer_query, query);
        add("indexer_topk", ops.indexer_topk, choose);
      }
    }
  }
  SparseAttentionArgs attend;
  attend.q = b.q;
  attend.heads = kHeads;
  attend.rows = s.rows;
  attend.window = l.window->rows;
  attend.window_table = l.window->table;
  attend.ring_rows = s.ring;
  attend.window_tokens = kWindow;
  attend.ratio = l.ratio;
  if (l.ratio != 0) {
    attend.compressed = l.compressed->rows;
    attend.compressed_table = l.compressed->table;
    attend.max_compressed_rows = s.shape.context / l.ratio;
  }
  if (l.ratio == 4) attend.topk = b.topk;
  attend.sink = l.sink;
  attend.scale = 1.0f / std::sqrt(512.0f);
  attend.cos_sin = b.cos_sin;
  attend.o = b.o;
  add("sparse_attention", ops.sparse_attention, attend);
  add("wo_a", ops.grouped_linear, GroupedLinearArgs{b.o, l.wo_a, kGroups, b.o_low});
  const auto soon = [&](int which) {  // of the operator added last, as the model hints; here the next layer has this one's weights
    if (t == 1 && !out.empty()) {
      out.back().run = [&d, fn = l.fn[which], run = out.back().run] {
        read_soon(d, {fn, 4 * 24 * kStreams * kHidden});
        return run();
      };
    }
  };
  add("wo_b", ops.linear, LinearArgs{b.o_low, kQat, 1, {{l.wo_b, b.y}}});
  soon(1);
  const auto post_and_pre = [&](int which) {
    const HcPostArgs post{b.y, b.post, b.comb, b.h};
    if (fused_ops(d).hc_post_pre != nullptr) {
      add("hc_post_pre", fused_ops(d).hc_post_pre, HcPostPreArgs{post, pre_args(which, b.h)});
    } else {
      add("hc_post", ops.hc_post, post);
      pre(which);
    }
  };
  if (!with_products) post_and_pre(1);
  const MoeRouteArgs route{b.gate, l.bias, nullptr, {s.token_ids, t}, 1.5f, b.experts, b.route_weights};
  const MoeExpertsArgs routed{b.x, l.experts->table(), b.experts, b.route_weights, 10.0f, kQat, b.y};
  if (t == 1 && fused_ops(d).moe_all != nullptr) {
    const LinearArgs gate{b.x, kQat, 1, {{l.gate, b.gate}}};
    if (with_products) {
      add("hc, gate", fused_ops(d).hc_linear, HcLinearArgs{join(1), gate});
    } else {
      add("gate", ops.linear, gate);
    }
    add("moe_route", ops.moe_route, route);
    add("moe_all", fused_ops(d).moe_all, MoeAllArgs{routed, l.w1, l.w3, l.w2, b.shared_gate, b.shared_up});
    soon(0);
  } else {
    add("ffn_in", ops.linear, LinearArgs{b.x, kQat, 3, {{l.gate, b.gate}, {l.w1, b.shared_gate}, {l.w3, b.shared_up}}});
    add("moe_route", ops.moe_route, route);
    add("swiglu", ops.swiglu, SwigluArgs{b.shared_gate, b.shared_up, 10.0f, b.shared_gate});
    add("shared_w2", ops.linear, LinearArgs{b.shared_gate, kQat, 1, {{l.w2, b.y}}});
    add("moe_experts", ops.moe_experts, routed);
  }
  if (!with_products) post_and_pre(0);  // of the next layer
  return out;
}

}  // namespace

Experts::Experts(Arena& arena, int64_t num_experts, int64_t hidden_dim, int64_t ffn_dim, int64_t stored, uint32_t seed) {
  std::vector<const uint8_t*> pointers[6];
  std::vector<WeightView> made[3];
  for (int64_t e = 0; e < stored; ++e) {
    made[0].push_back(arena.weight(WeightFormat::kMxfp4, ffn_dim, hidden_dim, seed += 7));
    made[1].push_back(arena.weight(WeightFormat::kMxfp4, ffn_dim, hidden_dim, seed += 7));
    made[2].push_back(arena.weight(WeightFormat::kMxfp4, hidden_dim, ffn_dim, seed += 7));
  }
  for (int64_t e = 0; e < num_experts; ++e) {
    for (int m = 0; m < 3; ++m) {
      pointers[2 * m].push_back(made[m][static_cast<size_t>(e % stored)].data);
      pointers[2 * m + 1].push_back(made[m][static_cast<size_t>(e % stored)].scale);
    }
  }
  const auto up = [&](int i) { return const_cast<const uint8_t* const*>(arena.upload(pointers[i])); };
  table_ = {WeightFormat::kMxfp4, num_experts, hidden_dim, ffn_dim, up(0), up(1), up(2), up(3), up(4), up(5)};
}

std::vector<LayerTiming> time_layers(Arena& parent, int64_t rows, int32_t position, const std::string& filter) {
  std::vector<LayerTiming> out;
  if (std::string("layer").find(filter) == std::string::npos) return out;
  const bool prefill = rows > 64;
  const Shape shape{rows, prefill ? 1 : rows, prefill ? 0 : position, std::max<int64_t>(4096, position + 96)};
  double total = 0, total_kernels = 0;
  const struct {
    int32_t ratio;
    int count;
  } kinds[] = {{0, 2}, {4, 21}, {128, 20}};
  for (const auto& kind : kinds) {
    Arena a(parent.device());
    const Step step(a, shape);
    const Buffers buffers(a, rows);
    std::vector<std::unique_ptr<Layer>> layers;
    std::vector<std::vector<NamedOp>> chains;
    const int copies = prefill ? 1 : 3;
    for (int i = 0; i < copies; ++i) {
      layers.push_back(std::make_unique<Layer>(a, kind.ratio, step, prefill ? 160 : rows == 1 ? 12 : 160, 1000u * static_cast<uint32_t>(i + 1)));
      chains.push_back(layer_ops(a, *layers.back(), step, buffers));
    }
    // The chain first: it leaves sensible values in the buffers for the operators alone.
    const int replays = prefill ? 3 : 10;
    const Timing chain = time_graph(a, prefill ? 1 : 6, replays, [&](int i) {
      for (const NamedOp& op : chains[static_cast<size_t>(i % copies)]) DSV4_RETURN_IF_ERROR(op.run());
      return ok_status();
    });
    out.push_back({"layer ratio " + std::to_string(kind.ratio), rows, chain.median_us, chain.kernels});
    total += kind.count * chain.median_us;
    total_kernels += kind.count * chain.kernels;
    if (kind.ratio == 0) continue;
    for (size_t i = 0; i < chains[0].size(); ++i) {
      const Timing t = time_graph(a, prefill ? 2 : 12, replays, [&](int k) { return chains[static_cast<size_t>(k % copies)][i].run(); });
      out.push_back({std::string("  ") + chains[0][i].name, rows, t.median_us, t.kernels});
    }
  }
  Arena a(parent.device());
  Device& d = a.device();
  const int64_t wanted = prefill ? 1 : rows;
  const Matrix<float> h{a.normal(rows * kStreams * kHidden, 1, 1), rows, kStreams * kHidden}, x = a.matrix(wanted, kHidden), logits = a.matrix(wanted, kVocab);
  std::vector<int32_t> picked;
  for (int64_t i = 0; i < wanted; ++i) picked.push_back(static_cast<int32_t>(rows - wanted + i));
  const Vector<const int32_t> picked_rows{a.upload(picked), wanted};
  const HcHeadArgs head{h, picked_rows, Matrix<const float>(a.normal(4 * kStreams * kHidden, 0.01f, 3), 4, kStreams * kHidden), a.normal(4, 1, 4), a.normal(1, 1, 5), a.norm_weight(kHidden, 6), 1e-6f, 1e-6f, x};
  const LinearArgs product{x, ActivationRounding::kNone, 1, {{a.weight(WeightFormat::kBF16, kVocab, kHidden, 7), logits}}};
  const ArgmaxArgs pick{logits, {a.array<int32_t>(wanted), wanted}};
  const NamedOp ops[] = {{"hc_head", [&] { return run_op("hc_head", d.context(), d.ops().hc_head, head); }},
                         {"lm_head", [&] { return run_op("lm_head", d.context(), d.ops().linear, product); }},
                         {"argmax", [&] { return run_op("argmax", d.context(), d.ops().argmax, pick); }}};
  for (const NamedOp& op : ops) {
    const Timing t = time_graph(a, 4, 6, [&](int) { return op.run(); });
    out.push_back({op.name, rows, t.median_us, t.kernels});
    total += t.median_us;
    total_kernels += t.kernels;
  }
  out.push_back({"step of 43 layers", rows, total, total_kernels});
  // Not in a greedy step: a draw, which begins with the arg max.
  const std::vector<Draw> draws(static_cast<size_t>(wanted), Draw{.temperature = 1, .top_p = 0.95f, .random = int64_t{1} << 52});
  const SampleArgs draw{logits, a.upload(draws), pick.ids};
  const Timing t = time_graph(a, 4, 6, [&](int) {
    DSV4_RETURN_IF_ERROR(run_op("argmax", d.context(), d.ops().argmax, pick));
    return run_op("sample", d.context(), d.ops().sample, draw);
  });
  out.push_back({"argmax and sample", rows, t.median_us, t.kernels});
  return out;
}

void print_layers(const std::vector<LayerTiming>& timings) {
  for (const LayerTiming& t : timings) {
    std::printf("%-26s %6lld %10.2f us %7.1f kernels", t.name.c_str(), static_cast<long long>(t.rows), t.us, t.kernels);
    if (t.name.rfind("step", 0) == 0) std::printf("   = %.1f tok/s", 1e6 * static_cast<double>(t.rows) / t.us);
    std::printf("\n");
  }
}

}  // namespace dsv4::bench

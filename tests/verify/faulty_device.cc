#include "faulty_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "base/check.h"

namespace dsv4 {
namespace {

struct State {
  OpTable inner;
  FaultPlan plan;
  std::vector<const void*> layers;  // a pointer that tells layers apart, in the order of their first call
  const float* plain_freqs = nullptr;
  int64_t calls = 0;
};

// Operator slots are plain functions; the device they belong to is told by its context.
std::map<const OpContext*, State*> states;

bool spared(State* state) { return ++state->calls <= state->plan.spare_calls; }

int64_t layer_of(State* state, const void* key) {
  auto& seen = state->layers;
  const auto found = std::find(seen.begin(), seen.end(), key);
  if (found == seen.end()) seen.push_back(key);
  return static_cast<int64_t>(std::find(seen.begin(), seen.end(), key) - seen.begin());
}

int64_t num_blocks(const BlockTable& table, const SequenceRows& rows) {
  int32_t last = 0;
  for (int64_t s = 0; s < rows.num_seqs; ++s) {
    for (int64_t i = 0; i < table.stride; ++i) last = std::max(last, table.ids[rows.seq_slots[s] * table.stride + i]);
  }
  return last + 1;
}

uint8_t* row_data(const PagedRows& rows, const BlockTable& table, int32_t slot, int64_t row) {
  const int64_t block = table.ids[slot * table.stride + row / rows.block_rows];
  return rows.base + row_data_offset(rows, block, row % rows.block_rows);
}
uint8_t* row_scales(const PagedRows& rows, const BlockTable& table, int32_t slot, int64_t row) {
  const int64_t block = table.ids[slot * table.stride + row / rows.block_rows];
  return rows.base + row_scale_offset(rows, block, row % rows.block_rows);
}

Status attend_with_wrong_stride(OpContext& context, const SparseAttentionArgs& args) {
  State* state = states.at(&context);
  SparseAttentionArgs wrong = args;
  wrong.window.block_stride_bytes = block_bytes(args.window.format, args.window.block_rows, args.window.row_dim);
  return state->inner.sparse_attention(context, wrong);
}

// What a reader of 584-byte tokens sees, laid out so that the right reader sees the same.
Status attend_584_bytes(OpContext& context, const SparseAttentionArgs& args) {
  State* state = states.at(&context);
  const PagedRows& w = args.window;
  const int64_t bytes = block_bytes(w.format, w.block_rows, w.row_dim), blocks = num_blocks(args.window_table, args.rows);
  std::vector<uint8_t> seen(static_cast<size_t>(blocks * bytes));
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* from = w.base + b * w.block_stride_bytes;
    uint8_t* to = seen.data() + b * bytes;
    for (int64_t t = 0; t < w.block_rows; ++t) {
      std::memcpy(to + t * kMlaDataBytes, from + t * (kMlaDataBytes + kMlaScaleBytes), kMlaDataBytes);
      std::memcpy(to + w.block_rows * kMlaDataBytes + t * kMlaScaleBytes, from + t * (kMlaDataBytes + kMlaScaleBytes) + kMlaDataBytes, kMlaScaleBytes);
    }
  }
  SparseAttentionArgs wrong = args;
  wrong.window.base = seen.data();
  wrong.window.block_stride_bytes = bytes;
  return state->inner.sparse_attention(context, wrong);
}

Status attend_stale(OpContext& context, const SparseAttentionArgs& args) {
  State* state = states.at(&context);
  std::vector<int32_t> positions(args.rows.positions, args.rows.positions + args.rows.num_rows);
  for (int64_t s = 0; s < args.rows.num_seqs; ++s) {
    const int32_t first = args.rows.cu_rows[s];
    if (args.rows.cu_rows[s + 1] - first == 1 && positions[static_cast<size_t>(first)] > 0) --positions[static_cast<size_t>(first)];
  }
  SparseAttentionArgs wrong = args;
  wrong.rows.positions = positions.data();
  return state->inner.sparse_attention(context, wrong);
}

Status attend_without_sink(OpContext& context, const SparseAttentionArgs& args) {
  State* state = states.at(&context);
  const std::vector<float> none(static_cast<size_t>(args.heads), -1e30f);
  SparseAttentionArgs wrong = args;
  wrong.sink = none.data();
  return state->inner.sparse_attention(context, wrong);
}

Status insert_with_nan(OpContext& context, const KvInsertArgs& args) {
  State* state = states.at(&context);
  DSV4_RETURN_IF_ERROR(state->inner.kv_insert(context, args));
  const FaultPlan& p = state->plan;
  if (spared(state) || layer_of(state, args.window.base) != p.layer) return ok_status();
  for (int64_t r = 0; r < args.rows.num_rows; ++r) {
    if (args.rows.slots[r] != p.slot || args.rows.positions[r] != p.position) continue;
    uint8_t* data = row_data(args.window, args.window_table, p.slot, p.position % args.ring_rows);
    if (args.window.format == RowFormat::kF32) {
      reinterpret_cast<float*>(data)[p.channel] = std::numeric_limits<float>::quiet_NaN();
    } else {
      data[p.channel] = 0x7f;
    }
  }
  return ok_status();
}

Status insert_with_swapped_scales(OpContext& context, const KvInsertArgs& args) {
  State* state = states.at(&context);
  DSV4_RETURN_IF_ERROR(state->inner.kv_insert(context, args));
  if (args.window.format != RowFormat::kFp8DsMla) return ok_status();
  for (int64_t r = 0; r < args.rows.num_rows; ++r) {
    if (args.rows.positions[r] < 0) continue;
    uint8_t* scales = row_scales(args.window, args.window_table, args.rows.slots[r], args.rows.positions[r] % args.ring_rows);
    std::swap(scales[0], scales[6]);
  }
  return ok_status();
}

Status insert_584_bytes(OpContext& context, const KvInsertArgs& args) {
  State* state = states.at(&context);
  const PagedRows& w = args.window;
  if (w.format != RowFormat::kFp8DsMla) return state->inner.kv_insert(context, args);
  // The right writer first, on the side: its rows are taken, and the blocks get back what they held.
  const int64_t bytes = num_blocks(args.window_table, args.rows) * w.block_stride_bytes, block_size = block_bytes(w.format, w.block_rows, w.row_dim);
  std::vector<uint8_t> before(static_cast<size_t>(bytes - w.block_stride_bytes + block_size));
  std::memcpy(before.data(), w.base, before.size());
  DSV4_RETURN_IF_ERROR(state->inner.kv_insert(context, args));
  constexpr int64_t kToken = kMlaDataBytes + kMlaScaleBytes;
  std::vector<uint8_t> tokens;
  for (int64_t r = 0; r < args.rows.num_rows; ++r) {
    if (args.rows.positions[r] < 0) continue;
    const int64_t row = args.rows.positions[r] % args.ring_rows;
    const uint8_t *data = row_data(w, args.window_table, args.rows.slots[r], row), *scales = row_scales(w, args.window_table, args.rows.slots[r], row);
    tokens.insert(tokens.end(), data, data + kMlaDataBytes);
    tokens.insert(tokens.end(), scales, scales + kMlaScaleBytes);
  }
  // A block that gets its first row is empty, as memory that was never used.
  for (int64_t r = 0; r < args.rows.num_rows; ++r) {
    if (args.rows.positions[r] < 0 || args.rows.positions[r] >= args.ring_rows || args.rows.positions[r] % w.block_rows != 0) continue;
    const int64_t block = args.window_table.ids[args.rows.slots[r] * args.window_table.stride + args.rows.positions[r] / w.block_rows];
    std::fill_n(before.begin() + block * w.block_stride_bytes, block_size, uint8_t{0});
  }
  for (int64_t b = 0; b * w.block_stride_bytes < bytes; ++b)
    std::memcpy(w.base + b * w.block_stride_bytes, before.data() + b * w.block_stride_bytes, static_cast<size_t>(block_size));
  const uint8_t* token = tokens.data();
  for (int64_t r = 0; r < args.rows.num_rows; ++r) {
    if (args.rows.positions[r] < 0) continue;
    const int64_t row = args.rows.positions[r] % args.ring_rows,
                  block = args.window_table.ids[args.rows.slots[r] * args.window_table.stride + row / w.block_rows];
    std::memcpy(w.base + block * w.block_stride_bytes + row % w.block_rows * kToken, token, kToken);
    token += kToken;
  }
  return ok_status();
}

Status plain_rope_table(OpContext& context, const RopeTableArgs& args) {
  State* state = states.at(&context);
  if (state->plain_freqs == nullptr) state->plain_freqs = args.freqs.data;  // the first table of a step is the plain one
  RopeTableArgs wrong = args;
  wrong.freqs.data = state->plain_freqs;
  return state->inner.rope_table(context, wrong);
}

Status route_unnormalised(OpContext& context, const MoeRouteArgs& args) {
  State* state = states.at(&context);
  DSV4_RETURN_IF_ERROR(state->inner.moe_route(context, args));
  for (int64_t r = 0; r < args.weights.rows; ++r) {
    for (int64_t k = 0; k < args.weights.cols; ++k) {
      const int32_t expert = args.experts.row(r)[k];
      if (expert >= 0) args.weights.row(r)[k] = args.scaling * std::sqrt(std::log1p(std::exp(args.logits.row(r)[expert])));
    }
  }
  return ok_status();
}

Status topk_wrong(OpContext& context, const IndexerTopkArgs& args) {
  State* state = states.at(&context);
  DSV4_RETURN_IF_ERROR(state->inner.indexer_topk(context, args));
  const FaultPlan& p = state->plan;
  if (spared(state) || layer_of(state, args.keys.base) != p.layer) return ok_status();
  for (int64_t r = 0; r < args.indices.rows; ++r) {
    int32_t* row = args.indices.row(r);
    if (args.rows.positions[r] < p.position || row[1] < 0) continue;
    if (p.fault == Fault::kDuplicateTopk) {
      row[1] = row[0];
    } else {
      int64_t last = 0;
      while (last + 1 < args.indices.cols && row[last + 1] >= 0) ++last;
      row[last] = (args.rows.positions[r] + 1) / 4;
    }
  }
  return ok_status();
}

// The model's last product: one BF16 weight, nothing rounded.
Status linear_with_nan(OpContext& context, const LinearArgs& args) {
  State* state = states.at(&context);
  DSV4_RETURN_IF_ERROR(state->inner.linear(context, args));
  const bool head = args.num_jobs == 1 && args.rounding == ActivationRounding::kNone && args.jobs[0].weight.format == WeightFormat::kBF16;
  if (head && args.x.rows > 0 && !spared(state)) args.jobs[0].y.row(args.x.rows - 1)[state->plan.channel] = std::numeric_limits<float>::quiet_NaN();
  return ok_status();
}

// Exponents of wo_a's row blocks, relative to the model's own (whose grids are nearly uniform, so that transposing them does little). With these the
// canaries of the shipped model pass all the same.
constexpr int kVariedExponents[4] = {0, 2, 0, 0};

class FaultyDevice final : public Device {
 public:
  FaultyDevice(std::unique_ptr<Device> inner, const FaultPlan& plan) : inner_(std::move(inner)) {
    DSV4_CHECK(inner_->info().host_memory, "faults are planted in host memory");
    state_.inner = table_ = inner_->ops();
    state_.plan = plan;
    states[&inner_->context()] = &state_;
    switch (plan.fault) {
      case Fault::kNone:
      case Fault::kVariedWoAScales:
      case Fault::kTransposedWoAScales: break;
      case Fault::kReaderStride: table_.sparse_attention = attend_with_wrong_stride; break;
      case Fault::kReader584Bytes: table_.sparse_attention = attend_584_bytes; break;
      case Fault::kStaleLength: table_.sparse_attention = attend_stale; break;
      case Fault::kSkippedSink: table_.sparse_attention = attend_without_sink; break;
      case Fault::kWriter584Bytes: table_.kv_insert = insert_584_bytes; break;
      case Fault::kNanInCacheRow: table_.kv_insert = insert_with_nan; break;
      case Fault::kSwappedScales: table_.kv_insert = insert_with_swapped_scales; break;
      case Fault::kWrongRotaryBase: table_.rope_table = plain_rope_table; break;
      case Fault::kUnnormalisedExperts: table_.moe_route = route_unnormalised; break;
      case Fault::kDuplicateTopk:
      case Fault::kFutureTopk: table_.indexer_topk = topk_wrong; break;
      case Fault::kLogitsNan: table_.linear = linear_with_nan; break;
    }
  }
  ~FaultyDevice() override { states.erase(&inner_->context()); }

  const DeviceInfo& info() const override { return inner_->info(); }
  const OpTable& ops() const override { return table_; }
  OpContext& context() override { return inner_->context(); }
  Result<DeviceBuffer> allocate(int64_t size_bytes, const std::string& what) override { return inner_->allocate(size_bytes, what); }
  Status upload(void* dst, const void* src, int64_t n) override { return inner_->upload(dst, src, n); }
  Status download(void* dst, const void* src, int64_t n) override { return inner_->download(dst, src, n); }
  Status copy(void* dst, const void* src, int64_t n) override { return inner_->copy(dst, src, n); }
  Status zero(void* dst, int64_t n) override { return inner_->zero(dst, n); }
  Status synchronize() override { return inner_->synchronize(); }

  // A scale of 2^e is undone exactly by one of 2^-e: what rounds on the way between wo_a and wo_b rounds relative to each block's own scale.
  Result<WeightView> place_weight(const WeightView& host, const std::string& name, DeviceBuffer* storage) override {
    const bool planted = state_.plan.fault == Fault::kVariedWoAScales || state_.plan.fault == Fault::kTransposedWoAScales;
    const bool wo_a = name.find("wo_a") != std::string::npos, wo_b = name.find("wo_b") != std::string::npos;
    if (!planted || !(wo_a || wo_b)) return inner_->place_weight(host, name, storage);
    const int64_t rows = (host.n + kFp8WeightBlock - 1) / kFp8WeightBlock, cols = (host.k + kFp8WeightBlock - 1) / kFp8WeightBlock;
    DSV4_CHECK(wo_b || rows == cols, "the grid of wo_a is transposed in place");
    std::vector<uint8_t>& grid = *scales_.emplace_back(std::make_unique<std::vector<uint8_t>>(static_cast<size_t>(rows * cols)));
    const bool transpose = wo_a && state_.plan.fault == Fault::kTransposedWoAScales;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const int exponent = wo_a ? kVariedExponents[r % 4] : -kVariedExponents[c % 4];
        grid[static_cast<size_t>(transpose ? c * rows + r : r * cols + c)] = static_cast<uint8_t>(host.scale[r * cols + c] + exponent);
      }
    }
    WeightView wrong = host;
    wrong.scale = grid.data();
    return inner_->place_weight(wrong, name, storage);
  }

 private:
  std::unique_ptr<Device> inner_;
  std::vector<std::unique_ptr<std::vector<uint8_t>>> scales_;
  OpTable table_;
  State state_;
};

}  // namespace

std::optional<Fault> fault_from_name(std::string_view name) {
  constexpr std::pair<std::string_view, Fault> kNames[] = {
      {"none", Fault::kNone},
      {"reader_stride", Fault::kReaderStride},
      {"reader_584_bytes", Fault::kReader584Bytes},
      {"writer_584_bytes", Fault::kWriter584Bytes},
      {"nan_in_cache_row", Fault::kNanInCacheRow},
      {"swapped_scales", Fault::kSwappedScales},
      {"stale_length", Fault::kStaleLength},
      {"skipped_sink", Fault::kSkippedSink},
      {"wrong_rotary_base", Fault::kWrongRotaryBase},
      {"unnormalised_experts", Fault::kUnnormalisedExperts},
      {"varied_wo_a_scales", Fault::kVariedWoAScales},
      {"transposed_wo_a_scales", Fault::kTransposedWoAScales},
      {"logits_nan", Fault::kLogitsNan},
      {"duplicate_topk", Fault::kDuplicateTopk},
      {"future_topk", Fault::kFutureTopk},
  };
  for (const auto& [known, fault] : kNames) {
    if (name == known) return fault;
  }
  return std::nullopt;
}

std::unique_ptr<Device> make_faulty_device(std::unique_ptr<Device> inner, const FaultPlan& plan) {
  return std::make_unique<FaultyDevice>(std::move(inner), plan);
}

}  // namespace dsv4

#include "verify/accuracy_tap.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "ops/rope_table.h"
#include "tensor/dtype.h"
#include "verify/attention_check.h"
#include "verify/cache_reader.h"
#include "verify/numbers.h"

namespace dsv4 {
namespace {

constexpr std::string_view kKept[] = {"streams", "attn.y", "ffn.y", "final.x"};

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

void note(AccuracyTap::Worst* worst, double error, int64_t position, int64_t index) {
  if (worst->position >= 0 && error <= worst->error) return;  // a NaN takes the place of any number
  if (std::isnan(worst->error)) return;
  *worst = {error, position, index};
}

}  // namespace

AccuracyTap::AccuracyTap(Engine& engine, std::vector<int64_t> positions, bool check_self)
    : engine_(engine),
      positions_(std::move(positions)),
      check_self_(check_self),
      cache_(static_cast<size_t>(engine.config().num_layers)),
      attention_(static_cast<size_t>(engine.config().num_layers)) {
  engine_.set_judge(this);
}

AccuracyTap::~AccuracyTap() { engine_.set_judge(nullptr); }

Status AccuracyTap::begin_step(const StepFacts& facts) {
  facts_.emplace(facts);
  return ok_status();
}

std::vector<std::pair<int64_t, int64_t>> AccuracyTap::rows_of_step(bool logits_rows) const {
  std::vector<std::pair<int64_t, int64_t>> out;
  const StepInput& rows = facts_->rows;
  const size_t n = logits_rows ? rows.logits_rows.size() : rows.positions.size();
  for (size_t r = 0; r < n; ++r) {
    const int64_t position = rows.positions[logits_rows ? static_cast<size_t>(rows.logits_rows[r]) : r];
    if (std::binary_search(positions_.begin(), positions_.end(), position)) out.emplace_back(static_cast<int64_t>(r), position);
  }
  return out;
}

Result<std::vector<float>> AccuracyTap::fetch(const float* row, int64_t cols) {
  std::vector<float> out(static_cast<size_t>(cols));
  DSV4_RETURN_IF_ERROR(engine_.device().download(out.data(), row, 4 * cols));
  return out;
}

Status AccuracyTap::tensor(const char* name, int64_t layer, Matrix<const float> values) {
  const std::string_view tensor = name;
  const bool kept = std::find(std::begin(kKept), std::end(kKept), tensor) != std::end(kKept);
  const bool mine = check_self_ && (tensor == "attn.q" || tensor == "attn.kv_raw");
  if (tensor == "streams") topk_.clear();
  for (const auto& [row, position] : kept || mine ? rows_of_step(tensor == "final.x") : std::vector<std::pair<int64_t, int64_t>>()) {
    DSV4_ASSIGN_OR_RETURN(std::vector<float> x, fetch(values.row(row), values.cols));
    if (kept) {
      tensors_[{name, layer}].push_back(std::move(x));
    } else {
      (tensor == "attn.q" ? q_ : kv_raw_)[position] = std::move(x);
    }
  }
  if (!check_self_ || tensor != "attn.o") return ok_status();
  DSV4_RETURN_IF_ERROR(check_cache(layer));
  return check_attention(layer, values);
}

Status AccuracyTap::indices(const char* name, int64_t, Matrix<const int32_t> values) {
  if (!check_self_ || std::string_view(name) != "attn.topk") return ok_status();
  for (const auto& [row, position] : rows_of_step(false)) {
    std::vector<int32_t>& out = topk_[position];
    out.resize(static_cast<size_t>(values.cols));
    DSV4_RETURN_IF_ERROR(engine_.device().download(out.data(), values.row(row), 4 * values.cols));
  }
  return ok_status();
}

// A window row against RMSNorm(kv_raw, kv_norm), rotated (model.md 4, 5), without any rounding.
Status AccuracyTap::check_cache(int64_t layer) {
  const ModelConfig& c = engine_.config();
  DSV4_ASSIGN_OR_RETURN(const uint16_t* norm, engine_.checkpoint().bf16("layers." + std::to_string(layer) + ".attn.kv_norm.weight", c.head_dim));
  const int64_t half = c.rope_head_dim / 2;
  std::vector<float> freqs(static_cast<size_t>(half));
  const YarnScaling yarn{c.yarn_factor, c.yarn_original_positions, c.yarn_beta_fast, c.yarn_beta_slow};
  const bool compressed = c.layer_has_compressor(layer);
  rope_frequencies(c.rope_head_dim, compressed ? c.compress_rope_theta : c.rope_theta, compressed ? &yarn : nullptr, freqs.data());
  CacheReader reader(facts_->cache, engine_.device(), facts_->rows.slots[0]);
  for (const auto& [row, position] : rows_of_step(false)) {
    const std::vector<float>& raw = kv_raw_[position];
    if (!all_finite(raw)) continue;  // the fault lies before the cache
    double sum = 0;
    for (const float v : raw) sum += static_cast<double>(v) * v;
    const double scale = 1 / std::sqrt(sum / static_cast<double>(raw.size()) + static_cast<double>(c.rms_norm_eps));
    std::vector<float> want(raw.size());
    for (size_t i = 0; i < raw.size(); ++i) want[i] = static_cast<float>(static_cast<double>(bf16_to_float(norm[i])) * raw[i] * scale);
    float* tail = want.data() + (c.head_dim - c.rope_head_dim);
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(static_cast<float>(position) * freqs[static_cast<size_t>(i)]), a = tail[2 * i], b = tail[2 * i + 1];
      tail[2 * i] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
      tail[2 * i + 1] = static_cast<float>(a * std::sin(angle) + b * std::cos(angle));
    }
    DSV4_ASSIGN_OR_RETURN(const CacheRow* found, reader.read(CacheRowKind::kWindow, layer, position));
    note(&cache_[static_cast<size_t>(layer)], relative_error(found->values, want), position, 0);
  }
  return ok_status();
}

Status AccuracyTap::check_attention(int64_t layer, const Matrix<const float>& o) {
  const ModelConfig& c = engine_.config();
  DSV4_ASSIGN_OR_RETURN(const float* sink, engine_.checkpoint().f32("layers." + std::to_string(layer) + ".attn.attn_sink", c.num_heads));
  CacheReader reader(facts_->cache, engine_.device(), facts_->rows.slots[0]);
  for (const auto& [row, position] : rows_of_step(false)) {
    if (!all_finite(q_[position])) continue;
    AttentionProblem problem{c, layer, position, q_[position], {}, {sink, static_cast<size_t>(c.num_heads)}, {}};
    if (const auto found = topk_.find(position); found != topk_.end()) problem.topk = found->second;
    // Few heads of large models: the cost is heads x keys x head_dim.
    for (int64_t h = 0; h < std::min<int64_t>(8, c.num_heads); ++h) problem.heads.push_back((position * 8 + h) % c.num_heads);
    DSV4_ASSIGN_OR_RETURN(const std::vector<AttentionHead> want, attend(reader, problem));
    DSV4_ASSIGN_OR_RETURN(const std::vector<float> got, fetch(o.row(row), o.cols));
    const size_t dim = static_cast<size_t>(c.head_dim);
    for (const AttentionHead& head : want) {
      note(&attention_[static_cast<size_t>(layer)], relative_error(std::span(got).subspan(static_cast<size_t>(head.head) * dim, dim), head.o), position,
           head.head);
    }
  }
  return ok_status();
}

}  // namespace dsv4

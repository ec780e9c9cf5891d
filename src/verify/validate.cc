#include "verify/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "checkpoint/safetensors.h"
#include "verify/attention_check.h"
#include "verify/cache_reader.h"
#include "verify/numbers.h"

namespace dsv4 {
namespace {

constexpr float kCacheLimit = 1e5f;  // |value| of a cache row; a normed row times its weights stays far below

// What one observed tensor is: the check it belongs to and the operator that made it.
struct Subject {
  const char* tensor;
  const char* check;
  const char* op;
};
constexpr Subject kSubjects[] = {
    {"streams", "streams", "hc_post"},       {"attn.x", "streams", "hc_pre"},          {"attn.qr", "Q", "q_norm"},
    {"attn.q", "Q", "query_norm_rope"},      {"attn.o_low", "streams", "wo_a"},        {"attn.kv_raw", "decoded K", "attn_in"},
    {"attn.index_q", "Q", "indexer_query"},  {"attn.topk", "indices", "indexer_topk"}, {"attn.o", "attention", "sparse_attention"},
    {"attn.y", "streams", "wo_b"},           {"ffn.x", "streams", "hc_pre"},           {"ffn.gate_logits", "routing", "ffn_in"},
    {"ffn.experts", "routing", "moe_route"}, {"ffn.weights", "routing", "moe_route"},  {"ffn.shared_act", "streams", "swiglu"},
    {"ffn.y", "streams", "moe_experts"},     {"final.x", "streams", "hc_head"},        {"logits", "logits", "lm_head"},
};

Subject subject_of(const std::string& tensor) {
  for (const Subject& s : kSubjects) {
    if (tensor == s.tensor) return s;
  }
  return {"", "streams", "unknown operator"};
}

// A tensor kept for the dump.
struct KeptTensor {
  std::string name;
  int64_t layer = 0, rows = 0, cols = 0;
  DType dtype = DType::kF32;
  std::vector<std::byte> bytes;
};

template <class T>
KeptTensor keep(const std::string& name, int64_t layer, const Matrix<const T>& shape, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {name, layer, shape.rows, shape.cols, std::is_same_v<T, float> ? DType::kF32 : DType::kI32, {bytes.begin(), bytes.end()}};
}

}  // namespace

std::string ValidateFailure::message() const {
  return fmt::format("validate: request {}, position {}, layer {}, {}, rank {}: {}: {}", request, position, layer, op, rank, check, value);
}

class Validator::Judge final : public StepJudge {
 public:
  Judge(Engine& engine, ValidateOptions options) : engine_(engine), options_(std::move(options)), config_(engine.config()) { engine_.set_judge(this); }
  ~Judge() override { engine_.set_judge(nullptr); }

  Status begin_step(const StepFacts& facts) override {
    facts_.emplace(facts);
    failures_.clear();
    kept_.clear();
    failed_layer_ = -1;
    sequences_.clear();
    for (size_t s = 0; s < facts.rows.seq_slots.size(); ++s) {
      sequences_.push_back({facts.rows.cu_rows[s], facts.rows.cu_rows[s + 1] - 1, facts.rows.seq_slots[s]});
    }
    return ok_status();
  }

  Status tensor(const char* name, int64_t layer, Matrix<const float> m) override {
    DSV4_RETURN_IF_ERROR(fetch(m, &floats_));
    remember(name, layer, m, floats_);
    if (options_.dump_dir.empty() && failures_.size() == sequences_.size()) return ok_status();  // nothing is left to judge
    const std::string tensor = name;
    // The output comes last: a NaN in it is a row's, a logit's or a probability's first.
    if (tensor == "attn.o") DSV4_RETURN_IF_ERROR(check_attention(layer, floats_, m.cols));
    const bool picked = tensor == "final.x" || tensor == "logits";
    for (int64_t r = 0; r < m.rows; ++r) {
      const int64_t row = picked ? facts_->rows.logits_rows[static_cast<size_t>(r)] : r;
      if (!has_failed(row)) check_row(tensor, layer, row, std::span(floats_).subspan(static_cast<size_t>(r * m.cols), static_cast<size_t>(m.cols)));
    }
    if (tensor == "attn.q") q_ = floats_;
    if (tensor == "streams") topk_.clear();
    return ok_status();
  }

  Status indices(const char* name, int64_t layer, Matrix<const int32_t> m) override {
    DSV4_RETURN_IF_ERROR(fetch(m, &ints_));
    remember(name, layer, m, ints_);
    const std::string tensor = name;
    for (int64_t r = 0; r < m.rows; ++r) {
      if (has_failed(r)) continue;
      const auto row = std::span(ints_).subspan(static_cast<size_t>(r * m.cols), static_cast<size_t>(m.cols));
      const std::string fault = tensor == "attn.topk" ? topk_fault(row, facts_->rows.positions[static_cast<size_t>(r)]) : experts_fault(row);
      if (!fault.empty()) fail(r, layer, subject_of(tensor), fault);
      values_checked_ += m.cols;
    }
    if (tensor == "attn.topk") topk_ = ints_;
    return ok_status();
  }

  Status verdict(uint64_t request) override {
    const auto found = failures_.find(request);
    if (found == failures_.end()) return ok_status();
    const ValidateFailure& failure = found->second;
    Status status = numerical_error(failure.message());
    if (warmup_) return status;
    ++num_failures_;
    if (!first_) {
      first_ = failure;
      if (!options_.dump_dir.empty()) {
        const Status dumped = dump(failure);
        status = numerical_error(failure.message() + (dumped.ok() ? "; tensors in " + dump_path_ : "; no dump: " + dumped.message()));
      }
    }
    return status;
  }

  Status chosen(uint64_t request, int64_t position, int32_t token) override {
    ++values_checked_;
    if (token >= 0 && token < config_.vocab_size) return ok_status();
    failures_[request] = {request,      position, config_.num_layers,
                          "token",      "argmax", fmt::format("token {} is not below the vocabulary's {}", token, config_.vocab_size),
                          options_.rank};
    return verdict(request);
  }

  void set_warmup(bool on) { warmup_ = on; }
  int64_t num_failures_ = 0;
  int64_t values_checked_ = 0;
  std::optional<ValidateFailure> first_;
  std::string dump_path_;

 private:
  struct SequenceRowsOfStep {
    int64_t first = 0, last = 0;  // rows of the step
    int32_t slot = 0;
  };

  template <class T>
  Status fetch(const Matrix<const T>& m, std::vector<T>* out) {
    out->resize(static_cast<size_t>(m.rows * m.cols));
    for (int64_t r = 0; r < m.rows; ++r) {
      if (m.row_stride == m.cols) return engine_.device().download(out->data(), m.data, m.rows * m.cols * static_cast<int64_t>(sizeof(T)));
      DSV4_RETURN_IF_ERROR(engine_.device().download(out->data() + r * m.cols, m.row(r), m.cols * static_cast<int64_t>(sizeof(T))));
    }
    return ok_status();
  }

  // For the dump: the layer in hand and the one before it, until the failing layer has passed.
  template <class T>
  void remember(const char* name, int64_t layer, const Matrix<const T>& m, const std::vector<T>& values) {
    if (options_.dump_dir.empty() || first_ || warmup_ || (failed_layer_ >= 0 && layer > failed_layer_ + 1)) return;
    if (failed_layer_ < 0) std::erase_if(kept_, [&](const KeptTensor& k) { return k.layer + 1 < layer; });
    kept_.push_back(keep(name, layer, m, values));
  }

  uint64_t request_of(int64_t row) const { return facts_->row_requests[static_cast<size_t>(row)]; }
  int64_t position_of(int64_t row) const { return facts_->rows.positions[static_cast<size_t>(row)]; }
  bool has_failed(int64_t row) const { return !failures_.empty() && failures_.contains(request_of(row)); }

  void fail(int64_t row, int64_t layer, const Subject& subject, std::string value) {
    const uint64_t request = request_of(row);
    if (!failures_.try_emplace(request, ValidateFailure{request, position_of(row), layer, subject.check, subject.op, std::move(value), options_.rank}).second)
      return;
    if (failed_layer_ < 0) failed_layer_ = layer;
  }

  void check_row(const std::string& tensor, int64_t layer, int64_t row, std::span<const float> values) {
    values_checked_ += static_cast<int64_t>(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::fabs(values[i]) <= options_.value_limit) continue;
      return fail(row, layer, subject_of(tensor), fmt::format("{} channel {} is {:g}", tensor, i, values[i]));
    }
    if (tensor == "attn.q") return check_queries(layer, row, values);
    if (tensor == "ffn.weights") return check_weights(layer, row, values);
  }

  // After the per-head norm a query's mean square is at most 1; the rotation keeps it.
  void check_queries(int64_t layer, int64_t row, std::span<const float> q) {
    const size_t dim = static_cast<size_t>(config_.head_dim);
    for (size_t head = 0; head * dim < q.size(); ++head) {
      double sum = 0;
      for (const float v : q.subspan(head * dim, dim)) sum += static_cast<double>(v) * v;
      const double mean = sum / static_cast<double>(dim);
      if (mean > 1.01) return fail(row, layer, subject_of("attn.q"), fmt::format("head {} has mean square {:g}, a normed query at most 1", head, mean));
    }
  }

  void check_weights(int64_t layer, int64_t row, std::span<const float> weights) {
    double sum = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] < 0) return fail(row, layer, subject_of("ffn.weights"), fmt::format("weight {} is {:g}, below 0", i, weights[i]));
      sum += weights[i];
    }
    const double want = config_.routed_scaling_factor;
    if (!(std::fabs(sum - want) <= 1e-3 * want)) {
      fail(row, layer, subject_of("ffn.weights"), fmt::format("the weights of the chosen experts add up to {:g}, normalised they give {:g}", sum, want));
    }
  }

  std::string topk_fault(std::span<const int32_t> row, int64_t position) const {
    const int64_t visible = (position + 1) / 4, want = std::min<int64_t>(visible, static_cast<int64_t>(row.size()));
    int64_t last = -1;
    for (size_t i = 0; i < row.size(); ++i) {
      if (static_cast<int64_t>(i) >= want) {
        if (row[i] != -1) return fmt::format("entry {} is {}, only {} rows can be chosen at position {}", i, row[i], want, position);
        continue;
      }
      if (row[i] < 0 || row[i] >= visible) return fmt::format("entry {} is row {}, position {} sees rows 0 to {}", i, row[i], position, visible - 1);
      if (row[i] <= last) return fmt::format("entry {} is row {} after row {}: {}", i, row[i], last, row[i] == last ? "a duplicate" : "not ascending");
      last = row[i];
    }
    return "";
  }

  std::string experts_fault(std::span<const int32_t> row) const {
    std::set<int32_t> seen;
    for (size_t i = 0; i < row.size(); ++i) {
      if (row[i] < 0 || row[i] >= config_.num_experts) return fmt::format("choice {} is expert {}, the model has {}", i, row[i], config_.num_experts);
      if (!seen.insert(row[i]).second) return fmt::format("expert {} is chosen twice", row[i]);
    }
    return "";
  }

  // By the time the output is seen, the step's rows are in the cache.
  Status check_attention(int64_t layer, const std::vector<float>& o, int64_t o_cols) {
    for (const SequenceRowsOfStep& s : sequences_) {
      if (has_failed(s.last)) continue;
      CacheReader reader(facts_->cache, engine_.device(), s.slot);
      DSV4_RETURN_IF_ERROR(check_cache(reader, layer, s));
      if (has_failed(s.last)) continue;
      DSV4_RETURN_IF_ERROR(check_last_row(reader, layer, s, std::span(o).subspan(static_cast<size_t>(s.last * o_cols), static_cast<size_t>(o_cols))));
    }
    return ok_status();
  }

  Status check_cache(CacheReader& reader, int64_t layer, const SequenceRowsOfStep& s) {
    const int32_t ratio = config_.compress_ratios[static_cast<size_t>(layer)];
    const int64_t first = position_of(s.first), last = position_of(s.last);
    const auto check = [&](CacheRowKind kind, int64_t row) -> Status {
      DSV4_ASSIGN_OR_RETURN(const CacheRow* found, reader.read(kind, layer, row));
      values_checked_ += static_cast<int64_t>(found->values.size() + found->scales.size());
      const char* op = kind == CacheRowKind::kWindow ? "kv_insert" : kind == CacheRowKind::kCompressed ? "compressor_step" : "index_compressor_step";
      const auto where = [&] { return fmt::format("{} row {}", cache_row_kind_name(kind), row); };
      // The position that wrote the row, when that was in this step; else the last, which reads it.
      const int64_t writer = kind == CacheRowKind::kWindow ? row : (row + 1) * ratio - 1;
      const int64_t at = writer >= first && writer <= last ? s.first + (writer - first) : s.last;
      if (const std::string fault = scale_fault(*found); !fault.empty()) {
        fail(at, layer, {"", "scale bytes", op}, where() + ": " + fault);
      } else if (const std::string bad = value_fault(*found, kCacheLimit); !bad.empty()) {
        fail(at, layer, {"", "decoded K", op}, where() + ": " + bad);
      }
      return ok_status();
    };
    for (int64_t p = std::max<int64_t>(0, first - config_.window_tokens + 1); p <= last && !has_failed(s.last); ++p)
      DSV4_RETURN_IF_ERROR(check(CacheRowKind::kWindow, p));
    if (ratio == 0) return ok_status();
    std::set<int64_t> rows;
    for (int64_t j = ratio == 4 ? first / ratio : 0; j < (last + 1) / ratio; ++j) rows.insert(j);
    if (ratio == 4 && !topk_.empty()) {
      const auto chosen =
          std::span(topk_).subspan(static_cast<size_t>(s.first * config_.index_topk), static_cast<size_t>((s.last - s.first + 1) * config_.index_topk));
      rows.insert(chosen.begin(), chosen.end());
      rows.erase(-1);
      for (int64_t j = 0; j < (last + 1) / 4 && !has_failed(s.last); ++j) DSV4_RETURN_IF_ERROR(check(CacheRowKind::kIndex, j));
    }
    for (const int64_t j : rows) {
      if (!has_failed(s.last)) DSV4_RETURN_IF_ERROR(check(CacheRowKind::kCompressed, j));
    }
    return ok_status();
  }

  Status check_last_row(CacheReader& reader, int64_t layer, const SequenceRowsOfStep& s, std::span<const float> o) {
    const size_t q_cols = static_cast<size_t>(config_.num_heads * config_.head_dim), topk = static_cast<size_t>(config_.index_topk);
    DSV4_ASSIGN_OR_RETURN(const float* sink, engine_.checkpoint().f32("layers." + std::to_string(layer) + ".attn.attn_sink", config_.num_heads));
    AttentionProblem problem{config_,
                             layer,
                             position_of(s.last),
                             std::span(q_).subspan(static_cast<size_t>(s.last) * q_cols, q_cols),
                             {},
                             {sink, static_cast<size_t>(config_.num_heads)},
                             {}};
    if (!topk_.empty()) problem.topk = std::span(topk_).subspan(static_cast<size_t>(s.last) * topk, topk);
    const int64_t heads = std::min(options_.heads_per_row, config_.num_heads);
    for (int64_t i = 0; i < heads; ++i) problem.heads.push_back((position_of(s.last) * heads + i) % config_.num_heads);
    DSV4_ASSIGN_OR_RETURN(const std::vector<AttentionHead> want, attend(reader, problem));
    for (const AttentionHead& head : want) {
      values_checked_ += config_.head_dim;
      if (!head.fault.empty()) {
        fail(s.last, layer, {"", head.fault.find("probability") == std::string::npos ? "logits" : "probabilities", "sparse_attention"}, head.fault);
        break;
      }
      const size_t dim = static_cast<size_t>(config_.head_dim);
      const double error = relative_error(o.subspan(static_cast<size_t>(head.head) * dim, dim), head.o);
      if (error <= options_.attention_bound) continue;
      fail(s.last, layer, {"", "attention", "sparse_attention"},
           fmt::format("head {} differs from softmax(QK)V over the cache by {:.2e}, at most {:g} is allowed", head.head, error, options_.attention_bound));
      break;
    }
    return ok_status();
  }

  Status dump(const ValidateFailure& failure) {
    std::error_code error;
    std::filesystem::create_directories(options_.dump_dir, error);
    if (error) return io_error(options_.dump_dir + ": cannot make this directory: " + error.message());
    std::string op = failure.op;
    std::replace(op.begin(), op.end(), ' ', '_');
    const std::string path =
        fmt::format("{}/validate-request{}-position{}-layer{}-{}.safetensors", options_.dump_dir, failure.request, failure.position, failure.layer, op);
    std::vector<SafetensorsEntry> entries;
    std::map<std::string, int> uses;
    for (const KeptTensor& k : kept_) {
      std::string name = fmt::format("layers.{}.{}", k.layer, k.name);
      if (const int n = uses[name]++; n > 0) name += "." + std::to_string(n);
      entries.push_back({name, k.dtype, {k.rows, k.cols}, k.bytes});
    }
    const StepInput& rows = facts_->rows;
    const int64_t n = static_cast<int64_t>(rows.token_ids.size());
    for (const auto& [name, values] :
         {std::pair{"step.token_ids", &rows.token_ids}, std::pair{"step.positions", &rows.positions}, std::pair{"step.slots", &rows.slots}}) {
      entries.push_back({name, DType::kI32, {n}, std::as_bytes(std::span(*values))});
    }
    DSV4_RETURN_IF_ERROR(write_safetensors(path, entries, {{"failure", failure.message()}}));
    dump_path_ = path;
    return ok_status();
  }

  Engine& engine_;
  ValidateOptions options_;
  const ModelConfig& config_;
  std::optional<StepFacts> facts_;
  std::vector<SequenceRowsOfStep> sequences_;
  std::map<uint64_t, ValidateFailure> failures_;  // of the step in hand, by request
  std::vector<float> floats_, q_;
  std::vector<int32_t> ints_, topk_;  // topk_ empty: this layer has no indexer
  std::vector<KeptTensor> kept_;
  int64_t failed_layer_ = -1;
  bool warmup_ = false;
};

Validator::Validator(Engine& engine, ValidateOptions options) : judge_(std::make_unique<Judge>(engine, std::move(options))) {}
Validator::~Validator() = default;
void Validator::begin_warmup() { judge_->set_warmup(true); }
void Validator::end_warmup() { judge_->set_warmup(false); }
int64_t Validator::num_failures() const { return judge_->num_failures_; }
const std::optional<ValidateFailure>& Validator::first_failure() const { return judge_->first_; }
int64_t Validator::values_checked() const { return judge_->values_checked_; }
const std::string& Validator::dump_path() const { return judge_->dump_path_; }

}  // namespace dsv4

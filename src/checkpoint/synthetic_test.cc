#include "checkpoint/synthetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/prefault.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/synthetic_memory.h"

namespace dsv4 {
namespace {

// Known words: any device that regenerates weights must give these. Computed once from the formula in synthetic.h by another
// program (Python integers).
TEST(Synthetic, known_words) {
  EXPECT_EQ(synthetic_mix(0), 0u);
  EXPECT_EQ(synthetic_mix(kSyntheticStep), 0xe220a8397b1dcdafull);  // the first output of splitmix64 from state 0
  EXPECT_EQ(synthetic_base(1, "embed.weight"), 0x8918d62482524797ull);
  const SyntheticRule rule{synthetic_base(1, "embed.weight"), 0x9f9f9f9f9f9f9f9full, 0x2020202020202020ull, 0, 0};
  EXPECT_EQ(synthetic_word(rule, 5), 0x3fa430a831383bb6ull);
}

TEST(Synthetic, any_piece_equals_the_whole) {
  const ModelConfig config = synthetic_config("synthetic:tiny").value();
  for (const ExpectedTensor& t : expected_tensors(config)) {
    if (t.layer > 3 || t.name.find("experts.1") != std::string::npos) continue;
    int64_t size = 0;
    ASSERT_TRUE(tensor_size_bytes(t.dtype, t.shape, &size));
    const SyntheticRule rule = synthetic_rule(config, t, 7);
    std::vector<uint8_t> whole(static_cast<size_t>(size)), pieces(static_cast<size_t>(size));
    fill_synthetic(rule, 0, size, whole.data());
    for (int64_t at = 0; at < size; at += 1000) fill_synthetic(rule, at, std::min<int64_t>(1000, size - at), pieces.data() + at);
    EXPECT_EQ(whole, pieces) << t.name;
    const uint64_t word = synthetic_word(rule, 0);
    EXPECT_EQ(std::memcmp(whole.data(), &word, std::min<size_t>(8, whole.size())), 0) << t.name;
  }
}

TEST(Synthetic, seed_and_name_change_everything) {
  const ModelConfig config = synthetic_config("synthetic:tiny").value();
  const auto tensors = expected_tensors(config);
  std::set<uint64_t> bases;
  for (const ExpectedTensor& t : tensors) {
    for (const uint64_t seed : {1, 2, 3}) EXPECT_TRUE(bases.insert(synthetic_rule(config, t, seed).base).second) << t.name;
  }
}

struct Moments {
  double mean = 0, deviation = 0, low = INFINITY, high = -INFINITY;
};

Moments moments(const WeightView& w) {
  std::vector<float> row(static_cast<size_t>(w.k));
  double sum = 0, squares = 0;
  Moments m;
  for (int64_t r = 0; r < w.n; ++r) {
    decode_weight_row(w, r, row.data());
    for (const float x : row) {
      sum += x;
      squares += static_cast<double>(x) * x;
      m.low = std::min(m.low, static_cast<double>(x));
      m.high = std::max(m.high, static_cast<double>(x));
    }
  }
  const double count = static_cast<double>(w.n * w.k);
  m.mean = sum / count;
  m.deviation = std::sqrt(squares / count - m.mean * m.mean);
  return m;
}

// Weights that keep the size of what they multiply: standard deviation 1/sqrt(K), within the power of two that scales allow.
TEST(Synthetic, weights_have_the_spread_of_a_trained_model) {
  const auto checkpoint = Checkpoint::open("synthetic:tiny", {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  for (const char* name : {"layers.0.attn.wq_a", "layers.0.attn.wq_b", "layers.2.attn.wo_a", "layers.2.attn.indexer.wq_b", "layers.3.attn.compressor.wkv",
                           "layers.4.ffn.gate", "layers.4.ffn.experts.3.w1", "layers.4.ffn.experts.3.w2", "layers.4.ffn.shared_experts.w2"}) {
    const auto w = checkpoint->weight(name);
    ASSERT_TRUE(w.ok()) << name;
    const Moments m = moments(*w);
    const double want = 1 / std::sqrt(static_cast<double>(w->k));
    // A power of two misses by at most sqrt(2). FP8 grids this small may draw the same one of the two scales throughout, where the
    // rule reckons with both: sqrt(1 / 2.5) or sqrt(4 / 2.5) more.
    const bool few_scales = w->format == WeightFormat::kFp8Block;
    EXPECT_GT(m.deviation, want * (few_scales ? 0.44 : 0.69)) << name;
    EXPECT_LT(m.deviation, want * (few_scales ? 1.8 : 1.45)) << name;
    EXPECT_LT(std::abs(m.mean), 0.1 * want) << name;
  }
  for (const char* name : {"norm", "layers.5.attn.q_norm", "layers.5.ffn_norm"}) {
    const Moments m = moments(*checkpoint->weight(name));
    EXPECT_GE(m.low, 0.875) << name;
    EXPECT_LE(m.high, 1.25) << name;
    EXPECT_GT(m.deviation, 0.02) << name;
  }
  for (const char* name : {"layers.1.hc_attn_scale", "hc_head_scale"}) {
    const Moments m = moments(*checkpoint->weight(name));
    EXPECT_GE(m.low, 0.5) << name;
    EXPECT_LT(m.high, 1) << name;
  }
  const Moments sink = moments(*checkpoint->weight("layers.1.attn.attn_sink"));
  EXPECT_LT(std::max(-sink.low, sink.high), 1);
}

TEST(Synthetic, every_value_is_finite) {
  const auto checkpoint = Checkpoint::open("synthetic:tiny", {.seed = 99});
  ASSERT_TRUE(checkpoint.ok());
  FaultList faults;
  read_and_check_values(checkpoint->tensors(), {}, &faults);
  EXPECT_TRUE(faults.empty()) << faults.lines().front();
  const ModelConfig flash = synthetic_config("synthetic:flash").value();
  for (const ExpectedTensor& t : expected_tensors(flash)) {
    if (t.dtype != DType::kF8E8M0) continue;
    const uint64_t scale = synthetic_rule(flash, t, 1).offset & 0xff;
    EXPECT_GT(scale, 110u) << t.name;
    EXPECT_LT(scale, 127u) << t.name;
  }
}

TEST(Synthetic, expert_ids_of_a_row_differ_and_cover_all) {
  for (const auto& [experts, top_k] : {std::pair<int64_t, int64_t>{16, 4}, {160, 6}, {256, 6}, {10, 6}, {6, 6}, {1, 1}}) {
    SyntheticRule rule{synthetic_base(3, "layers.0.ffn.gate.tid2eid"), 0, 0, experts, top_k};
    std::vector<int64_t> table(static_cast<size_t>(4000 * top_k));
    fill_synthetic(rule, 0, static_cast<int64_t>(table.size()) * 8, reinterpret_cast<uint8_t*>(table.data()));
    std::set<int64_t> all;
    for (int64_t row = 0; row < 4000; ++row) {
      std::set<int64_t> ids(table.begin() + row * top_k, table.begin() + (row + 1) * top_k);
      ASSERT_EQ(ids.size(), static_cast<size_t>(top_k));
      ASSERT_GE(*ids.begin(), 0);
      ASSERT_LT(*ids.rbegin(), experts);
      all.insert(ids.begin(), ids.end());
    }
    EXPECT_EQ(all.size(), static_cast<size_t>(experts));
  }
}

TEST(Synthetic, tiny_has_the_shipped_models_tensors) {
  const auto synthetic = Checkpoint::open("synthetic:tiny", {.headers_only = true});
  const auto shipped = Checkpoint::open("models/dsv4-tiny", {.headers_only = true});
  ASSERT_TRUE(synthetic.ok() && shipped.ok());
  ASSERT_EQ(synthetic->tensors().size(), shipped->tensors().size());
  for (const TensorEntry& t : synthetic->tensors()) {
    const TensorEntry* other = shipped->find(t.name);
    ASSERT_NE(other, nullptr) << t.name;
    EXPECT_EQ(t.shape, other->shape) << t.name;
    EXPECT_EQ(t.dtype, other->dtype) << t.name;
  }
  EXPECT_EQ(model_config_to_json(synthetic->config()), model_config_to_json(shipped->config()));
}

// Small tensors are as always; for large ones there is the rule, and it gives the bytes that the host would have made.
TEST(Synthetic, large_tensors_can_be_left_to_a_device) {
  const auto whole = Checkpoint::open("synthetic:tiny", {}), part = Checkpoint::open("synthetic:tiny", {.generate_on_device = true});
  ASSERT_TRUE(whole.ok() && part.ok());
  EXPECT_EQ(whole->identity(), part->identity());
  int64_t left_out = 0;
  for (const TensorEntry& t : part->tensors()) {
    const TensorEntry* all = whole->find(t.name);
    ASSERT_NE(all->data, nullptr);
    EXPECT_EQ(t.data == nullptr, t.size_bytes > kHostSyntheticBytes) << t.name;
    const SyntheticRule* rule = part->generator(t.name);
    ASSERT_NE(rule, nullptr);
    std::vector<uint8_t> bytes(static_cast<size_t>(t.size_bytes));
    fill_synthetic(*rule, 0, t.size_bytes, bytes.data());
    EXPECT_EQ(0, std::memcmp(bytes.data(), all->data, bytes.size())) << t.name;
    if (t.data == nullptr) {
      ++left_out;
    } else {
      EXPECT_EQ(0, std::memcmp(bytes.data(), t.data, bytes.size())) << t.name;
    }
  }
  EXPECT_GT(left_out, 0);
  EXPECT_EQ(whole->generator("no.such"), nullptr);
  EXPECT_EQ(Checkpoint::open("models/dsv4-tiny", {})->generator("embed.weight"), nullptr);
}

TEST(Synthetic, names_and_limits) {
  EXPECT_EQ(Checkpoint::open("synthetic:huge", {}).status().message(),
            "synthetic:huge: no such synthetic model; there are synthetic:flash, synthetic:k160 and synthetic:tiny");
  EXPECT_EQ(synthetic_config("synthetic:k160")->num_experts, 160);
  EXPECT_EQ(Checkpoint::open("synthetic:k160", {.num_layers = 2, .headers_only = true})->config().compress_ratios, (std::vector<int32_t>{0, 0}));
  const auto too_much = AnonymousMemory::allocate(int64_t{1} << 60);
  EXPECT_EQ(too_much.status().code(), StatusCode::kResourceLimit);
}

TEST(Synthetic, progress_reaches_the_end) {
  uint64_t done = 0, total = 1;
  CheckpointOptions options;
  options.progress = [&](const ProgressUpdate& update) {
    done = update.done;
    total = update.total;
  };
  ASSERT_TRUE(Checkpoint::open("synthetic:tiny", options).ok());
  EXPECT_EQ(done, total);
}

}  // namespace
}  // namespace dsv4

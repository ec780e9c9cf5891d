#include "test_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "backends/registry.h"
#include "base/file.h"
#include "checkpoint/synthetic.h"
#include "checkpoint/test_model.h"

namespace dsv4 {

std::unique_ptr<Device> test_device(const std::string& backend) {
  DeviceOptions options;
  options.backend = backend;
  auto device = make_device(options);
  EXPECT_TRUE(device.ok()) << device.status().message();
  return std::move(*device);
}

std::unique_ptr<Engine> test_engine(const std::string& model, const EngineOptions& options, const std::string& backend) {
  auto engine = test_factory(model, backend)(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(*engine);
}

EngineFactory test_factory(const std::string& model, const std::string& backend) {
  return [model, backend](const EngineOptions& options) -> Result<std::unique_ptr<Engine>> {
    DSV4_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(model, {}));
    return Engine::create(std::move(checkpoint), test_device(backend), options);
  };
}

std::vector<int32_t> random_tokens(int64_t n, int64_t vocab, uint64_t seed) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < n; ++i)
    out.push_back(static_cast<int32_t>(synthetic_mix(seed * 1000003 + static_cast<uint64_t>(i) * kSyntheticStep) % static_cast<uint64_t>(vocab)));
  return out;
}

std::vector<int32_t> eval_tokens(int64_t n) {
  const Tokenizer tokenizer = Tokenizer::load(std::string(kTinyModel) + "/tokenizer.json").value();
  std::vector<int32_t> ids = tokenizer.encode(read_file(std::string(kTinyModel) + "/eval.txt").value()).value();
  ids.insert(ids.begin(), 0);
  EXPECT_GE(static_cast<int64_t>(ids.size()), n);
  ids.resize(static_cast<size_t>(n));
  return ids;
}

StepRig::StepRig(const std::string& model, const Options& o, std::unique_ptr<Device> device)
    : checkpoint_(Checkpoint::open(model, {}).value()), device_(std::move(device)) {
  weights_ = std::move(load_weights(checkpoint_, *device_, {}).value());
  model_ = std::move(Model::create(config(), *weights_, {o.arithmetic, o.max_step_rows, o.max_step_rows}, *device_).value());
  KvCacheOptions cache;
  cache.format = o.format;
  cache.num_slots = o.num_slots;
  cache.max_context_tokens = o.max_context_tokens;
  cache.max_step_rows = o.max_step_rows;
  cache_ = std::move(KvCache::create(config(), cache, *device_).value());
  runner_ = std::move(StepRunner::create(*model_, *cache_, *device_, o.graph).value());
}

StepRig::Rows StepRig::step(const std::vector<Piece>& pieces) {
  StepInput in;
  in.cu_rows.push_back(0);
  for (const Piece& piece : pieces) {
    EXPECT_TRUE(cache_->reserve(piece.slot, piece.first + static_cast<int64_t>(piece.tokens.size())).ok());
    for (size_t i = 0; i < piece.tokens.size(); ++i) {
      in.logits_rows.push_back(static_cast<int32_t>(in.token_ids.size()));
      in.token_ids.push_back(piece.tokens[i]);
      in.positions.push_back(static_cast<int32_t>(piece.first + static_cast<int64_t>(i)));
      in.slots.push_back(piece.slot);
    }
    in.cu_rows.push_back(static_cast<int32_t>(in.token_ids.size()));
    in.seq_slots.push_back(piece.slot);
  }
  const auto out = runner_->run(in, true);
  EXPECT_TRUE(out.ok()) << out.status().message();
  Rows rows;
  const int64_t vocab = config().vocab_size;
  for (size_t r = 0; out.ok() && r < in.token_ids.size(); ++r) {
    const auto begin = out->logits.begin() + static_cast<int64_t>(r) * vocab;
    rows.emplace_back(begin, begin + vocab);
  }
  return rows;
}

StepRig::Rows StepRig::feed(int32_t slot, const std::vector<int32_t>& tokens, const std::vector<int64_t>& sizes) {
  Rows rows;
  for (size_t i = 0; rows.size() < tokens.size(); ++i) {
    const size_t size = std::min(static_cast<size_t>(sizes[std::min(i, sizes.size() - 1)]), tokens.size() - rows.size());
    const auto begin = tokens.begin() + static_cast<int64_t>(rows.size());
    Rows more = step({{slot, static_cast<int64_t>(rows.size()), {begin, begin + static_cast<int64_t>(size)}}});
    if (more.empty()) return rows;
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

int64_t first_difference(const StepRig::Rows& a, const StepRig::Rows& b) {
  const size_t n = std::max(a.size(), b.size());
  for (size_t i = 0; i < n; ++i) {
    if (i >= a.size() || i >= b.size() || a[i].size() != b[i].size()) return static_cast<int64_t>(i);
    if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) return static_cast<int64_t>(i);
    if (std::any_of(a[i].begin(), a[i].end(), [](float v) { return v != v; })) return static_cast<int64_t>(i);
  }
  return -1;
}

std::string write_model(const ModelConfig& config, const std::string& tag) { return TestModel::from_config(config).write(tag); }

ModelConfig small_config(int64_t num_experts) { return TestModel::make(num_experts, std::min<int64_t>(6, num_experts)).config; }

ModelConfig random_config(uint64_t seed) {
  uint64_t state = seed * kSyntheticStep;
  const auto draw = [&](std::vector<int64_t> values) { return values[static_cast<size_t>(synthetic_mix(state += kSyntheticStep) % values.size())]; };
  ModelConfig c = small_config(1);
  c.hidden_dim = draw({128, 256, 384});
  c.num_layers = draw({2, 3});
  c.vocab_size = draw({24, 100, 257});
  c.o_groups = draw({1, 2});
  c.num_heads = c.o_groups * draw({1, 2});
  c.q_lora_rank = draw({128, 256});
  c.o_lora_rank = draw({128, 256});
  c.window_tokens = draw({16, 64, 100, 128});
  c.compress_ratios.clear();
  for (int64_t i = 0; i < c.num_layers; ++i) c.compress_ratios.push_back(static_cast<int32_t>(draw({0, 4, 4, 128})));
  c.index_num_heads = draw({1, 2, 8});
  c.index_topk = draw({1, 8, 32, 512});
  c.num_experts = draw({1, 3, 10, 33});
  c.num_experts_per_token = std::min(c.num_experts, draw({1, 2, 6}));
  c.num_hash_layers = draw({0, 1, 2});
  c.hc_sinkhorn_iters = draw({1, 20});
  return c;
}

}  // namespace dsv4

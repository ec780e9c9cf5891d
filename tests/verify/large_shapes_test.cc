// The published models' real layer shapes, with generated weights: three layers load and run. Needs memory; skipped where it is short.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "test_engine.h"
#include "verify/validate.h"

namespace dsv4 {
namespace {

int64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("MemAvailable:", 0) == 0) return 1024 * std::stoll(line.substr(13));
  }
  return 0;
}

void run_four_tokens(const char* model, int64_t needed_gb, int64_t experts) {
  if (available_bytes() < needed_gb << 30)
    GTEST_SKIP() << model << " with 3 layers needs " << needed_gb << " GiB, " << (available_bytes() >> 30) << " are available";
  CheckpointOptions options;
  options.num_layers = 3;
  auto checkpoint = Checkpoint::open(model, options);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->config().num_experts, experts);
  EXPECT_EQ(checkpoint->config().num_layers, 3);
  auto engine = Engine::create(std::move(*checkpoint), test_device(), {.max_context_tokens = 256, .max_seqs = 1, .prefill_chunk = 16});
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  Request request = greedy_request({0, 11, 222, 3333, 44444}, 4);
  request.ignore_eos = true;
  const auto run = generate(**engine, request);
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(run->tokens.size(), 4u);
  // And every tensor of it is sound.
  Validator validator(**engine, {});
  EXPECT_EQ(generate(**engine, request).value().tokens, run->tokens);
  EXPECT_EQ(validator.num_failures(), 0);
  EXPECT_GT(validator.values_checked(), 0);
}

TEST(LargeShapes, flash_with_3_layers) { run_four_tokens("synthetic:flash", 15, 256); }
TEST(LargeShapes, k160_with_3_layers) { run_four_tokens("synthetic:k160", 11, 160); }

}  // namespace
}  // namespace dsv4

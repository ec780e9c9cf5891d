#include "verify/validate.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/safetensors.h"
#include "faulty_device.h"
#include "test_engine.h"
#include "verify/prompts.h"

namespace dsv4 {
namespace {

std::unique_ptr<Engine> faulty_engine(const FaultPlan& plan, EngineOptions options = {}) {
  options.max_context_tokens = 512;
  options.max_seqs = std::min(options.max_seqs, 4);
  auto engine = Engine::create(Checkpoint::open(kTinyModel, {}).value(), make_faulty_device(test_device(), plan), options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(*engine);
}

std::vector<int32_t> ask(Engine& engine, const char* message) { return encode_prompt(engine, {message, {}}).value(); }

// Generates with a validator; the message of the failure, or "".
std::string failure_of(const FaultPlan& plan, ValidateOptions options = {}, int64_t new_tokens = 24) {
  auto engine = faulty_engine(plan);
  Validator validator(*engine, std::move(options));
  const auto run = generate(*engine, greedy_request(ask(*engine, "Tell me a story about an otter and a lantern."), new_tokens));
  EXPECT_EQ(run.ok(), !validator.first_failure().has_value());
  return run.ok() ? "" : run.status().message();
}

TEST(Validate, sound_runs_pass_and_are_looked_at) {
  int64_t new_tokens = 150;  // the first, served configuration goes past the window and a row compressed 128 to 1
  for (const auto& [arithmetic, format] :
       {std::pair{Arithmetic::kQat, RowFormat::kFp8DsMla}, std::pair{Arithmetic::kQat, RowFormat::kF32}, std::pair{Arithmetic::kExact, RowFormat::kF32}}) {
    EngineOptions options;
    options.arithmetic = arithmetic;
    options.cache_format = format;
    options.max_context_tokens = 512;
    const auto engine = test_engine(kTinyModel, options);
    Validator validator(*engine, {});
    const auto run = generate(*engine, greedy_request(ask(*engine, "Tell me a story about an otter and a lantern."), new_tokens));
    EXPECT_TRUE(run.ok()) << run.status().message();
    EXPECT_EQ(validator.num_failures(), 0);
    EXPECT_GT(validator.values_checked(), 10'000 * new_tokens);
    new_tokens = 20;
  }
}

TEST(Validate, the_same_tokens_with_and_without) {
  const auto engine = test_engine(kTinyModel, {.max_context_tokens = 512});
  const auto prompt = ask(*engine, "What is the capital of France?");
  const auto without = generate(*engine, greedy_request(prompt, 16)).value();
  Validator validator(*engine, {});
  EXPECT_EQ(generate(*engine, greedy_request(prompt, 16)).value().tokens, without.tokens);
}

TEST(Validate, nan_in_one_cache_row_names_request_position_layer_operator_and_value) {
  // Position 19 is written by a decode step: the step that writes it is the one that fails.
  EXPECT_EQ(failure_of({.fault = Fault::kNanInCacheRow, .layer = 2, .slot = 0, .position = 19, .channel = 3}),
            "validate: request 1, position 19, layer 2, kv_insert, rank 0: decoded K: window row 19: channel 3 is nan");
  const std::string prompt_row = failure_of({.fault = Fault::kNanInCacheRow, .layer = 0, .slot = 0, .position = 3, .channel = 447}, {.rank = 3});
  EXPECT_NE(prompt_row.find("position 3, layer 0, kv_insert, rank 3: decoded K: window row 3: channel 447 is nan"), std::string::npos) << prompt_row;
}

TEST(Validate, wrong_layout_of_the_writer_shows_in_the_scale_bytes) {
  const std::string message = failure_of({.fault = Fault::kWriter584Bytes});
  EXPECT_NE(
      message.find("position 0, layer 0, kv_insert, rank 0: scale bytes: window row 0: scale byte 0 is 0, no rounding gives less than 105 or more than 142"),
      std::string::npos)
      << message;
}

TEST(Validate, wrong_readers_show_in_the_attention) {
  for (const Fault fault : {Fault::kReaderStride, Fault::kReader584Bytes, Fault::kStaleLength, Fault::kSkippedSink}) {
    const std::string message = failure_of({.fault = fault}, {}, 60);  // into the second block
    EXPECT_NE(message.find("sparse_attention, rank 0: attention: head "), std::string::npos) << static_cast<int>(fault) << ": " << message;
  }
}

TEST(Validate, indices) {
  const std::string duplicate = failure_of({.fault = Fault::kDuplicateTopk, .layer = 1, .position = 12});
  EXPECT_NE(duplicate.find("layer 4, indexer_topk, rank 0: indices: entry 1 is row 0 after row 0: a duplicate"), std::string::npos) << duplicate;
  const std::string future = failure_of({.fault = Fault::kFutureTopk, .layer = 0, .position = 12});
  EXPECT_NE(future.find("layer 2, indexer_topk, rank 0: indices: entry 2 is row 3, position 12 sees rows 0 to 2"), std::string::npos) << future;
}

TEST(Validate, routing_weights_that_do_not_add_up) {
  const std::string message = failure_of({.fault = Fault::kUnnormalisedExperts});
  EXPECT_NE(message.find("layer 0, moe_route, rank 0: routing: the weights of the chosen experts add up to "), std::string::npos) << message;
}

TEST(Validate, nan_logit) {
  const std::string message = failure_of({.fault = Fault::kLogitsNan, .channel = 77});
  EXPECT_NE(message.find("layer 7, lm_head, rank 0: logits: logits channel 77 is nan"), std::string::npos) << message;
}

TEST(Validate, one_request_stops_and_the_others_go_on) {
  const char* messages[] = {"What is 512 + 561?", "What is the capital of France?", "What is 1073 - 636?"};
  std::vector<std::vector<int32_t>> sound;
  {
    const auto engine = test_engine(kTinyModel, {.max_context_tokens = 512});
    for (const char* m : messages) sound.push_back(generate(*engine, greedy_request(ask(*engine, m), 16)).value().tokens);
  }
  auto engine = faulty_engine({.fault = Fault::kNanInCacheRow, .layer = 3, .slot = 1, .position = 8}, {.max_seqs = 4, .prefix_states = 0});
  Validator validator(*engine, {});
  std::vector<std::vector<int32_t>> tokens(3);
  std::vector<TokenOutput> ends(3);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(engine
                    ->submit(greedy_request(ask(*engine, messages[i]), 16),
                             [&tokens, &ends, i](const TokenOutput& o) {
                               if (o.token >= 0) tokens[i].push_back(o.token);
                               ends[i] = o;
                             })
                    .ok());
  }
  while (!engine->idle()) ASSERT_TRUE(engine->step().ok());
  int failed = 0;
  for (size_t i = 0; i < 3; ++i) {
    if (ends[i].finish == FinishReason::kError) {
      ++failed;
      EXPECT_EQ(ends[i].error.code(), StatusCode::kNumerical);
      EXPECT_NE(ends[i].error.message().find("request " + std::to_string(i + 1)), std::string::npos) << ends[i].error.message();
    } else {
      EXPECT_EQ(tokens[i], sound[i]) << "request " << i;
    }
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(validator.num_failures(), 1);
}

TEST(Validate, dump_holds_the_tensors_around_the_failure) {
  const std::string directory = testing::TempDir() + "dsv4_validate_dump";
  std::filesystem::remove_all(directory);
  const std::string message = failure_of({.fault = Fault::kNanInCacheRow, .layer = 2, .slot = 0, .position = 17}, {.dump_dir = directory});
  const std::string path = directory + "/validate-request1-position17-layer2-kv_insert.safetensors";
  EXPECT_NE(message.find("; tensors in " + path), std::string::npos) << message;
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  for (const char* name : {"layers.1.ffn.y", "layers.2.attn.q", "layers.2.attn.kv_raw", "layers.2.attn.o", "step.positions", "step.token_ids"})
    EXPECT_NE(file->find(name), nullptr) << name;
  EXPECT_EQ(file->find("layers.0.attn.q"), nullptr) << "only the layer and its neighbours";
  EXPECT_EQ(file->find("layers.5.attn.q"), nullptr);
  ASSERT_EQ(file->header().metadata.size(), 1u);
  EXPECT_EQ(message.find(file->header().metadata[0].second), 0u);
}

TEST(Validate, a_warm_up_uses_up_nothing) {
  const std::string directory = testing::TempDir() + "dsv4_validate_warmup";
  std::filesystem::remove_all(directory);
  auto engine = faulty_engine({.fault = Fault::kNanInCacheRow, .layer = 2, .slot = 0, .position = 8}, {.max_seqs = 1, .prefix_states = 0});
  Validator validator(*engine, {.dump_dir = directory});
  const auto prompt = ask(*engine, "What is 512 + 561?");
  validator.begin_warmup();
  EXPECT_FALSE(generate(*engine, greedy_request(prompt, 16)).ok()) << "a warm-up stops at a fault, too";
  validator.end_warmup();
  EXPECT_EQ(validator.num_failures(), 0);
  EXPECT_FALSE(validator.first_failure().has_value());
  EXPECT_FALSE(std::filesystem::exists(directory));
  EXPECT_FALSE(generate(*engine, greedy_request(prompt, 16)).ok());
  EXPECT_EQ(validator.num_failures(), 1);
  EXPECT_TRUE(std::filesystem::exists(validator.dump_path()));
  EXPECT_FALSE(generate(*engine, greedy_request(prompt, 16)).ok());
  EXPECT_EQ(validator.num_failures(), 2) << "counted";
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory), {}), 1) << "but dumped once";
}

}  // namespace
}  // namespace dsv4

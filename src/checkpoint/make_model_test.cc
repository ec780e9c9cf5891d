#include "checkpoint/make_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "checkpoint/checkpoint.h"
#include "checkpoint/test_model.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> siblings(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(fs::path(directory).parent_path())) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(fs::path(directory).filename().string(), 0) == 0) names.push_back(name);
  }
  return names;
}

TEST(MakeModel, loads_back_byte_for_byte) {
  const std::string directory = test_path("round_trip");
  uint64_t done = 0, total = 1;
  MakeModelOptions options;
  options.model = "synthetic:tiny";
  options.num_layers = 5;
  options.seed = 4;
  options.shard_bytes = 3'000'000;
  options.progress = [&](const ProgressUpdate& update) {
    done = update.done;
    total = update.total;
  };
  const Status status = make_model(options, directory + "/");
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(done, total);
  EXPECT_TRUE(fs::exists(directory + "/model-00005-of-00006.safetensors"));
  EXPECT_FALSE(fs::exists(directory + "/tokenizer.json"));

  const auto disk = Checkpoint::open(directory, {.prefault = true});
  ASSERT_TRUE(disk.ok()) << disk.status().message();
  EXPECT_THAT(disk->warnings(), testing::ElementsAre());
  const auto memory = Checkpoint::open("synthetic:tiny", {.num_layers = 5, .seed = 4});
  ASSERT_TRUE(memory.ok());
  ASSERT_EQ(disk->tensors().size(), memory->tensors().size());
  for (const TensorEntry& t : disk->tensors()) {
    const TensorEntry* other = memory->find(t.name);
    ASSERT_NE(other, nullptr) << t.name;
    ASSERT_EQ(t.size_bytes, other->size_bytes);
    EXPECT_EQ(std::memcmp(t.data, other->data, static_cast<size_t>(t.size_bytes)), 0) << t.name;
  }
  EXPECT_EQ(model_config_to_json(disk->config()), model_config_to_json(memory->config()));
}

TEST(MakeModel, never_touches_a_directory_in_use) {
  const std::string directory = test_path("in_use");
  fs::create_directories(directory);
  std::ofstream(directory + "/keep") << "x";
  EXPECT_EQ(make_model({.model = "synthetic:tiny", .num_layers = 1}, directory).message(),
            directory + ": the directory is not empty; a model is written to a new or empty one only");
  EXPECT_EQ(siblings(directory), std::vector<std::string>{fs::path(directory).filename().string()});
  fs::remove(directory + "/keep");
  EXPECT_TRUE(make_model({.model = "synthetic:tiny", .num_layers = 1}, directory).ok());
  const std::string file = test_path("file");
  std::ofstream(file) << "x";
  EXPECT_EQ(make_model({.model = "synthetic:tiny"}, file).message(), file + ": exists and is not a directory");
}

TEST(MakeModel, with_tokenizer_of_the_same_vocabulary_only) {
  const std::string directory = test_path("tokenizer");
  ASSERT_TRUE(make_model({.model = "synthetic:tiny", .num_layers = 1, .text_files_from = "models/dsv4-tiny"}, directory).ok());
  EXPECT_EQ(fs::file_size(directory + "/tokenizer.json"), fs::file_size("models/dsv4-tiny/tokenizer.json"));
  EXPECT_TRUE(fs::exists(directory + "/encoding/encoding_dsv4.py"));
  EXPECT_EQ(make_model({.model = "synthetic:k160", .num_layers = 1, .text_files_from = "models/dsv4-tiny"}, test_path("other")).message(),
            "models/dsv4-tiny: its tokenizer has a vocabulary of 2560, the model has 129280");
}

TEST(MakeModel, leaves_nothing_behind_on_failure) {
  const std::string directory = test_path("failure");
  // The tokenizer's directory has a configuration and nothing to copy: everything else is written by then.
  const std::string source = test_path("empty_source");
  fs::create_directories(source);
  fs::copy_file("models/dsv4-tiny/config.json", source + "/config.json");
  EXPECT_THAT(make_model({.model = "synthetic:tiny", .num_layers = 1, .text_files_from = source}, directory).message(),
              testing::HasSubstr("tokenizer.json: cannot copy"));
  EXPECT_TRUE(siblings(directory).empty());
  EXPECT_FALSE(make_model({.model = "synthetic:nothing"}, directory).ok());
  EXPECT_FALSE(make_model({.model = "synthetic:tiny", .num_layers = 0}, directory).ok());
  EXPECT_FALSE(make_model({.model = "synthetic:tiny", .shard_bytes = 0}, directory).ok());
  EXPECT_FALSE(make_model({.model = "synthetic:tiny"}, "").ok());
  EXPECT_FALSE(fs::exists(directory));
}

}  // namespace
}  // namespace dsv4

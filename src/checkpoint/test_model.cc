#include "checkpoint/test_model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/synthetic.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;

ModelConfig mini_config(int64_t num_experts, int64_t num_experts_per_token) {
  ModelConfig c = synthetic_config("synthetic:tiny").value();
  c.hidden_dim = 128;
  c.num_layers = 3;
  c.vocab_size = 24;
  c.num_heads = 2;
  c.o_groups = 2;
  c.compress_ratios = {0, 4, 128};
  c.index_num_heads = 2;
  c.num_experts = num_experts;
  c.num_experts_per_token = num_experts_per_token;
  c.num_hash_layers = 1;
  return c;
}

struct TemporaryRoot {
  fs::path path = fs::path(testing::TempDir()) / ("dsv4_checkpoint_test_" + std::to_string(::getpid()));
  ~TemporaryRoot() {
    std::error_code error;
    fs::remove_all(path, error);
  }
};

}  // namespace

std::string test_path(const std::string& name) {
  static const TemporaryRoot root;
  fs::create_directories(root.path);
  fs::remove_all(root.path / name);
  return root.path / name;
}

std::string with_header(const std::string& json, const std::string& data) {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(static_cast<uint64_t>(json.size()) >> (8 * i));
  return out + json + data;
}

std::string safetensors_bytes(const std::vector<TestTensor>& tensors) {
  SortedJson header = SortedJson::object();  // the order-keeping kind takes quadratic time for thousands of tensors
  std::string data;
  for (const TestTensor& t : tensors) {
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
    data += t.bytes;
  }
  return with_header(header.dump(), data);
}

TestModel TestModel::make(int64_t num_experts, int64_t num_experts_per_token) { return from_config(mini_config(num_experts, num_experts_per_token)); }

TestModel TestModel::from_config(const ModelConfig& config) {
  TestModel model;
  model.config = config;
  model.config_json = model_config_to_json(config);
  for (const ExpectedTensor& t : expected_tensors(config)) {
    int64_t size = 0;
    DSV4_CHECK(tensor_size_bytes(t.dtype, t.shape, &size), "test sizes are small");
    TestTensor tensor{t.name, std::string(dtype_name(t.dtype)), t.shape, std::string(static_cast<size_t>(size), '\0')};
    fill_synthetic(synthetic_rule(config, t, 1), 0, size, reinterpret_cast<uint8_t*>(tensor.bytes.data()));
    model.add(t.layer >= 2 ? "model-00002-of-00002.safetensors" : "model-00001-of-00002.safetensors", tensor);
  }
  return model;
}

void TestModel::add(const std::string& shard, const TestTensor& tensor) {
  shards[shard].push_back(tensor);
  weight_map[tensor.name] = shard;
}

TestTensor& TestModel::tensor(const std::string& name) {
  for (auto& [file, tensors] : shards) {
    for (TestTensor& t : tensors) {
      if (t.name == name) return t;
    }
  }
  DSV4_CHECK(false, ("the test model has no " + name).c_str());
  std::abort();
}

void TestModel::remove(const std::string& name) {
  for (auto& [file, tensors] : shards) std::erase_if(tensors, [&](const TestTensor& t) { return t.name == name; });
  weight_map.erase(name);
}

void TestModel::edit_config(const std::string& key, const std::string& json_value) {
  Json json = Json::parse(config_json);
  json[key] = Json::parse(json_value);
  config_json = json.dump();
}

std::string TestModel::write(const std::string& name) const {
  const std::string directory = test_path(name);
  fs::create_directories(directory);
  std::map<std::string, std::string> files{{"config.json", config_json}};
  int64_t total = 0;
  for (const auto& [file, tensors] : shards) {
    files[file] = safetensors_bytes(tensors);
    for (const TestTensor& t : tensors) total += static_cast<int64_t>(t.bytes.size());
  }
  const SortedJson index = {{"metadata", {{"total_size", total_size < 0 ? total : total_size}}}, {"weight_map", weight_map}};
  if (indexed) files["model.safetensors.index.json"] = index.dump();
  for (const auto& [file, bytes] : raw_files) files[file] = bytes;
  for (const auto& [file, bytes] : files) EXPECT_TRUE(write_file_atomic(directory + "/" + file, bytes).ok()) << file;
  return directory;
}

std::string open_message(const std::string& directory, const CheckpointOptions& options) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(directory, options);
  if (checkpoint.ok()) return "";
  std::string message = checkpoint.status().message();
  for (size_t at = message.find(directory); at != std::string::npos; at = message.find(directory)) message.replace(at, directory.size(), "DIR");
  return message;
}

}  // namespace dsv4

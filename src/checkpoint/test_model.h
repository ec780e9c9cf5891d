// For tests: a valid miniature checkpoint in memory, to be spoilt in one place and written to a directory.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace dsv4 {

struct TestTensor {
  std::string name;
  std::string dtype;  // as spelt in the header
  std::vector<int64_t> shape;
  std::string bytes;
};

// A path that does not exist yet, in a temporary directory of this process that goes away with it.
std::string test_path(const std::string& name);

// A safetensors file as bytes: the tensors in order, packed.
std::string safetensors_bytes(const std::vector<TestTensor>& tensors);
// The same with a header of the caller's own making.
std::string with_header(const std::string& json, const std::string& data);

struct TestModel {
  ModelConfig config;
  std::string config_json;
  std::map<std::string, std::vector<TestTensor>> shards;  // file name -> tensors
  std::map<std::string, std::string> weight_map;          // tensor -> file name
  int64_t total_size = -1;                                // in the index; -1 = the right one
  bool indexed = true;                                    // false: no index file
  std::map<std::string, std::string> raw_files;           // written last, over anything else

  // 3 layers (ratios 0, 4, 128; the first routed by token id), hidden 128, 2 heads, vocabulary 24, in two shards.
  static TestModel make(int64_t num_experts = 3, int64_t num_experts_per_token = 2);
  static TestModel from_config(const ModelConfig& config);

  void add(const std::string& shard, const TestTensor& tensor);  // and to the index
  TestTensor& tensor(const std::string& name);
  void remove(const std::string& name);  // from shard and index
  void edit_config(const std::string& key, const std::string& json_value);
  std::string write(const std::string& name) const;  // to test_path(name)
};

// Opens a directory and returns the Status message with the directory's path replaced by "DIR"; empty when it opens.
std::string open_message(const std::string& directory, const CheckpointOptions& options = {});

}  // namespace dsv4

// One fault planted at a time in a valid miniature checkpoint, and the exact report for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/test_model.h"

namespace dsv4 {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";
const std::string kOne = "DIR: 1 fault\n  ";

TEST(CheckpointFault, the_miniature_opens_clean) {
  const auto checkpoint = Checkpoint::open(TestModel::make().write("clean"), {.prefault = true});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_THAT(checkpoint->warnings(), ElementsAre());
  EXPECT_THAT(checkpoint->unsupported(), ElementsAre());
}

TEST(CheckpointFault, any_number_of_experts) {
  for (const auto& [experts, top_k] : {std::pair{1, 1}, {10, 6}, {144, 6}, {160, 6}, {256, 6}}) {
    const auto checkpoint = Checkpoint::open(TestModel::make(experts, top_k).write("experts"), {});
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_EQ(checkpoint->config().num_experts, experts);
    EXPECT_TRUE(checkpoint->weight("layers.2.ffn.experts." + std::to_string(experts - 1) + ".w2").ok());
    EXPECT_FALSE(checkpoint->weight("layers.2.ffn.experts." + std::to_string(experts) + ".w2").ok());
  }
}

TEST(CheckpointFault, single_file_without_index) {
  TestModel model = TestModel::make();
  model.indexed = false;
  EXPECT_EQ(open_message(model.write("no_index")),
            kOne + "model.safetensors.index.json: no such file, and no model.safetensors; found 2 other .safetensors files, the first is " + kFirst);
  std::vector<TestTensor> all;
  for (const auto& [file, tensors] : model.shards) all.insert(all.end(), tensors.begin(), tensors.end());
  model.shards = {{"model.safetensors", all}};
  EXPECT_EQ(open_message(model.write("single")), "");
  std::erase_if(model.shards["model.safetensors"], [](const TestTensor& t) { return t.name == "head.weight"; });
  EXPECT_EQ(open_message(model.write("single")), kOne + "model.safetensors: head.weight: expected BF16 [24, 128], found none");
}

TEST(CheckpointFault, directory_and_config) {
  EXPECT_EQ(open_message("no/such/model"), "DIR: no such model directory");
  EXPECT_EQ(Checkpoint::open("no/such/model", {}).status().code(), StatusCode::kNotFound);
  TestModel model = TestModel::make();
  const std::string directory = model.write("no_config");
  std::filesystem::remove(directory + "/config.json");
  EXPECT_EQ(open_message(directory), kOne + "config.json: no such file");
  model.raw_files["config.json"] = "{";
  EXPECT_EQ(open_message(model.write("bad_config")), kOne + "config.json: not valid JSON at line 1, column 2");
  EXPECT_EQ(Checkpoint::open("models/dsv4-tiny", {.num_layers = 0}).status().code(), StatusCode::kInvalidArgument);
}

TEST(CheckpointFault, model_that_would_not_run_still_opens_for_inspection) {
  TestModel model = TestModel::make();
  model.edit_config("norm_topk_prob", "false");
  const std::string directory = model.write("would_not_run");
  EXPECT_EQ(open_message(directory), "DIR: would not run: 1 fault\n  config.json: norm_topk_prob is false, the engine computes true");
  EXPECT_EQ(Checkpoint::open(directory, {}).status().code(), StatusCode::kUnsupported);
  const auto checkpoint = Checkpoint::open(directory, {.headers_only = true});
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_THAT(checkpoint->unsupported(), ElementsAre("norm_topk_prob is false, the engine computes true"));
}

TEST(CheckpointFault, index) {
  TestModel model = TestModel::make();
  const auto with_index = [&](const std::string& text) {
    model.raw_files["model.safetensors.index.json"] = text;
    return open_message(model.write("index"));
  };
  EXPECT_EQ(with_index("{"), kOne + "model.safetensors.index.json: not valid JSON at line 1, column 2");
  EXPECT_EQ(with_index("[]"), kOne + "model.safetensors.index.json: weight_map must be an object");
  EXPECT_EQ(with_index("{}"), kOne + "model.safetensors.index.json: weight_map must be an object");
  EXPECT_EQ(with_index(R"({"weight_map":{"a":"x","a":"y"}})"), kOne + "model.safetensors.index.json: duplicate member \"a\"");
  model.raw_files.clear();
  for (const std::string& bad :
       std::vector<std::string>{"../other.safetensors", "/etc/x.safetensors", "notes.txt", "", std::string(200, 'x') + ".safetensors"}) {
    model.weight_map["head.weight"] = bad;
    EXPECT_THAT(
        open_message(model.write("index")),
        HasSubstr("model.safetensors.index.json: head.weight: expected the name of a .safetensors file in this directory, found \"" + bad.substr(0, 100)));
  }
}

TEST(CheckpointFault, index_and_shards_disagree) {
  TestModel model = TestModel::make();
  model.weight_map["norm.weight"] = kSecond;
  EXPECT_EQ(open_message(model.write("disagree")), kOne + kFirst + ": norm.weight: the index places this tensor in " + kSecond);
  model.weight_map.erase("norm.weight");
  EXPECT_EQ(open_message(model.write("disagree")), kOne + kFirst + ": norm.weight: the index does not name this tensor");
  model = TestModel::make();
  model.remove("norm.weight");
  model.weight_map["norm.weight"] = kFirst;
  EXPECT_EQ(open_message(model.write("disagree")), kOne + kFirst + ": norm.weight: the index places this tensor here, the file does not hold it");
  model = TestModel::make();
  model.shards[kSecond].push_back(model.tensor("norm.weight"));
  EXPECT_EQ(open_message(model.write("disagree")), kOne + kSecond + ": norm.weight: expected once, found in " + kFirst + " too");
}

TEST(CheckpointFault, shard_missing_truncated_or_too_long) {
  const TestModel model = TestModel::make();
  std::string directory = model.write("shards");
  std::filesystem::remove(directory + "/" + kSecond);
  // Its 100 tensors are not told one by one: the file is the fault.
  EXPECT_EQ(open_message(directory), kOne + kSecond + ": no such file, the index names it");

  directory = model.write("shards");
  const auto size = std::filesystem::file_size(directory + "/" + kSecond);
  std::filesystem::resize_file(directory + "/" + kSecond, size - 100);
  EXPECT_THAT(open_message(directory),
              testing::MatchesRegex("DIR: 1 fault\n  model-00002-of-00002.safetensors: truncated: the header describes [0-9]+ bytes of tensors, found [0-9]+"));
  std::filesystem::resize_file(directory + "/" + kSecond, size + 3);
  EXPECT_EQ(open_message(directory), kOne + kSecond + ": 3 bytes after the last tensor, expected none");
  std::filesystem::resize_file(directory + "/" + kSecond, 0);
  EXPECT_EQ(open_message(directory), kOne + kSecond + ": not a safetensors file: expected at least 8 bytes, found 0");
}

TEST(CheckpointFault, missing_scale) {
  TestModel model = TestModel::make();
  model.remove("layers.1.attn.wq_b.scale");
  EXPECT_EQ(open_message(model.write("scale")),
            kOne + "model.safetensors.index.json: layers.1.attn.wq_b.scale: expected F8_E8M0 [8, 1] beside its weight, found none");
}

TEST(CheckpointFault, wrong_dtype_or_shape) {
  TestModel model = TestModel::make();
  TestTensor& sink = model.tensor("layers.0.attn.attn_sink");  // F32 logits, never to be read as BF16
  sink.dtype = "BF16";
  sink.bytes.resize(4);
  EXPECT_EQ(open_message(model.write("dtype")), kOne + kFirst + ": layers.0.attn.attn_sink: expected F32 [2], found BF16 [2]");

  model = TestModel::make();
  std::swap(model.tensor("layers.1.attn.wkv.scale").shape[0], model.tensor("layers.1.attn.wkv.scale").shape[1]);
  EXPECT_EQ(open_message(model.write("shape")), kOne + kFirst + ": layers.1.attn.wkv.scale: expected F8_E8M0 [4, 1], found F8_E8M0 [1, 4]");

  model = TestModel::make();
  model.edit_config("index_n_heads", "4");
  EXPECT_EQ(open_message(model.write("heads")),
            "DIR: 3 faults\n"
            "  model-00001-of-00002.safetensors: layers.1.attn.indexer.wq_b.weight: expected F8_E4M3 [512, 128], found F8_E4M3 [256, 128]\n"
            "  model-00001-of-00002.safetensors: layers.1.attn.indexer.wq_b.scale: expected F8_E8M0 [4, 1], found F8_E8M0 [2, 1]\n"
            "  model-00001-of-00002.safetensors: layers.1.attn.indexer.weights_proj.weight: expected BF16 [4, 128], found BF16 [2, 128]");
}

TEST(CheckpointFault, missing_experts_and_layers_are_one_line_each) {
  TestModel model = TestModel::make(10, 6);
  for (const char* part : {"w1.weight", "w1.scale", "w2.weight", "w2.scale", "w3.weight", "w3.scale"}) {
    for (const char* expert : {"7", "8", "9"}) model.remove("layers.1.ffn.experts." + std::string(expert) + "." + part);
  }
  model.remove("layers.0.ffn.experts.4.w2.weight");
  EXPECT_EQ(open_message(model.write("experts_missing")),
            "DIR: 2 faults\n"
            "  model.safetensors.index.json: layers.0.ffn.experts.4.w2.weight: expected I8 [128, 64], found none\n"
            "  model.safetensors.index.json: layers.1.ffn.experts: expected 3 experts from 7 to 9, found none");
  model = TestModel::make();
  model.edit_config("num_hidden_layers", "4");
  model.edit_config("compress_ratios", "[0,4,128,0]");
  EXPECT_EQ(open_message(model.write("layer_missing")), kOne + "model.safetensors.index.json: layers.3: expected 47 tensors, found none");
}

TEST(CheckpointFault, surplus_tensors_are_warnings_and_left_out) {
  TestModel model = TestModel::make(10, 6);
  model.edit_config("n_routed_experts", "9");
  model.add(kSecond, {"layers.2.attn.bias", "F32", {1}, std::string(4, '\0')});
  model.add(kSecond, {"layers.9.attn_norm.weight", "BF16", {1}, std::string(2, '\0')});
  model.tensor("layers.0.ffn.gate.weight").shape[0] = 9;
  for (const char* layer : {"0", "1", "2"}) {
    TestTensor& gate = model.tensor("layers." + std::string(layer) + ".ffn.gate.weight");
    gate.shape = {9, 128};
    gate.bytes.resize(9 * 128 * 2);
  }
  for (const char* layer : {"1", "2"}) {
    TestTensor& bias = model.tensor("layers." + std::string(layer) + ".ffn.gate.bias");
    bias.shape = {9};
    bias.bytes.resize(36);
  }
  std::string& table = model.tensor("layers.0.ffn.gate.tid2eid").bytes;
  std::fill(table.begin(), table.end(), '\0');
  const std::string directory = model.write("surplus");
  std::ofstream(directory + "/old.safetensors") << "x";
  const auto checkpoint = Checkpoint::open(directory, {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_THAT(checkpoint->warnings(),
              ElementsAre("old.safetensors: the index names no tensor in it; the file is not read",
                          "model-00002-of-00002.safetensors: layers.2.attn.bias: F32 [1] is not part of this model; it is not used",
                          "layers.9: not part of this model and not used: 1 tensors", "layers.0.ffn.experts: not part of this model and not used: expert 9",
                          "layers.1.ffn.experts: not part of this model and not used: expert 9",
                          "layers.2.ffn.experts: not part of this model and not used: expert 9"));
  EXPECT_EQ(checkpoint->find("layers.2.attn.bias"), nullptr);
}

TEST(CheckpointFault, stale_total_size_is_a_warning) {
  TestModel model = TestModel::make();
  model.total_size = 5;
  const auto checkpoint = Checkpoint::open(model.write("total"), {.headers_only = true});
  ASSERT_TRUE(checkpoint.ok());
  ASSERT_EQ(checkpoint->warnings().size(), 1u);
  EXPECT_THAT(checkpoint->warnings().front(), HasSubstr("metadata.total_size is 5, the tensors have "));
}

TEST(CheckpointFault, expert_ids_out_of_range) {
  TestModel model = TestModel::make();
  model.tensor("layers.0.ffn.gate.tid2eid").bytes[8 * 5] = 3;  // row 2, slot 1
  EXPECT_EQ(open_message(model.write("ids")), kOne + kFirst + ": layers.0.ffn.gate.tid2eid: row 2: expected expert ids below 3, found 3");
  model.tensor("layers.0.ffn.gate.tid2eid").bytes[8 * 5 + 7] = '\x80';
  EXPECT_THAT(open_message(model.write("ids")), HasSubstr("row 2: expected expert ids below 3, found -9223372036854775805"));
}

TEST(CheckpointFault, values_are_checked_when_every_page_is_read) {
  TestModel model = TestModel::make();
  model.tensor("layers.1.ffn.experts.0.w1.scale").bytes[7] = '\xff';
  model.tensor("layers.1.ffn.experts.0.w1.scale").bytes[9] = '\xff';
  model.tensor("layers.1.attn.wkv.weight").bytes[130] = '\x7f';
  model.tensor("norm.weight").bytes.replace(2, 2, "\x80\x7f");                        // +inf
  model.tensor("hc_head_base").bytes.replace(12, 4, std::string("\0\0\xc0\x7f", 4));  // NaN
  const std::string directory = model.write("values");
  EXPECT_EQ(open_message(directory), "");  // not read, not judged
  EXPECT_EQ(
      open_message(directory, {.prefault = true}),
      "DIR: 4 faults\n"
      "  model-00001-of-00002.safetensors: layers.1.attn.wkv.weight: expected finite F8_E4M3 values, found 1 that are not, the first at element 130\n"
      "  model-00001-of-00002.safetensors: layers.1.ffn.experts.0.w1.scale: expected finite F8_E8M0 values, found 2 that are not, the first at element 7\n"
      "  model-00001-of-00002.safetensors: norm.weight: expected finite BF16 values, found 1 that are not, the first at element 1\n"
      "  model-00001-of-00002.safetensors: hc_head_base: expected finite F32 values, found 1 that are not, the first at element 3");
}

TEST(CheckpointFault, faults_of_all_kinds_in_one_report) {
  TestModel model = TestModel::make();
  model.edit_config("hc_eps", "0");
  model.weight_map.erase("norm.weight");
  const std::string directory = model.write("many");
  std::filesystem::remove(directory + "/" + kSecond);
  EXPECT_EQ(open_message(directory),
            "DIR: 3 faults\n"
            "  config.json: hc_eps must be a number above 0, found 0\n"
            "  model-00002-of-00002.safetensors: no such file, the index names it\n"
            "  model-00001-of-00002.safetensors: norm.weight: the index does not name this tensor");
}

TEST(CheckpointFault, long_reports_are_cut_and_counted) {
  TestModel model = TestModel::make(40, 6);
  for (int e = 0; e < 40; ++e) model.remove("layers.1.ffn.experts." + std::to_string(e) + ".w1.scale");
  for (int e = 0; e < 40; ++e) model.remove("layers.1.ffn.experts." + std::to_string(e) + ".w2.scale");
  const std::string message = open_message(model.write("long"));
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 51);
  EXPECT_THAT(message, testing::StartsWith("DIR: 80 faults\n"));
  EXPECT_THAT(message, testing::EndsWith("\n  and 30 more"));
}

}  // namespace
}  // namespace dsv4

#include "checkpoint/make_model.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/synthetic.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBufferBytes = int64_t{4} << 20;

struct PlannedTensor {
  SafetensorsShape shape;
  SyntheticRule rule;
  int64_t size_bytes = 0;
};

using Shard = std::vector<PlannedTensor>;

// Tensors in forward order, cut where the next one would pass the limit.
std::vector<Shard> plan_shards(const ModelConfig& config, const MakeModelOptions& options) {
  std::vector<Shard> shards;
  int64_t used = 0;
  for (const ExpectedTensor& t : expected_tensors(config)) {
    PlannedTensor planned{{t.name, t.dtype, t.shape}, synthetic_rule(config, t, options.seed), 0};
    DSV4_CHECK(tensor_size_bytes(t.dtype, t.shape, &planned.size_bytes), "a synthetic configuration keeps tensor sizes small");
    if (shards.empty() || (used > 0 && used + planned.size_bytes > options.shard_bytes)) {
      shards.emplace_back();
      used = 0;
    }
    used += planned.size_bytes;
    shards.back().push_back(std::move(planned));
  }
  for (Shard& shard : shards) {
    std::vector<SafetensorsShape> shapes;
    for (const PlannedTensor& t : shard) shapes.push_back(t.shape);
    Shard ordered;
    for (const size_t i : safetensors_layout_order(shapes)) ordered.push_back(std::move(shard[i]));
    shard = std::move(ordered);
  }
  return shards;
}

std::string shard_name(size_t index, size_t count) {
  char text[64];
  std::snprintf(text, sizeof(text), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return text;
}

class Progress {
 public:
  Progress(const ProgressSink& sink, int64_t total) : sink_(sink), total_(static_cast<uint64_t>(total)) {}

  void advance(const std::string& item, int64_t bytes) {
    done_ += static_cast<uint64_t>(bytes);
    const auto now = std::chrono::steady_clock::now();
    if (!sink_ || (done_ < total_ && now - last_ < std::chrono::milliseconds(200))) return;
    sink_({"write", item, done_, total_, "bytes"});
    last_ = now;
  }

 private:
  const ProgressSink& sink_;
  uint64_t total_;
  uint64_t done_ = 0;
  std::chrono::steady_clock::time_point last_{};
};

Status write_shard(const Shard& shard, const fs::path& path, Progress* progress) {
  std::vector<SafetensorsShape> shapes;
  for (const PlannedTensor& t : shard) shapes.push_back(t.shape);
  DSV4_ASSIGN_OR_RETURN(const std::string header, safetensors_header(shapes, {{"format", "pt"}}));
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return io_error(path.string() + ": cannot create: " + std::strerror(errno));
  bool good = std::fwrite(header.data(), 1, header.size(), file) == header.size();
  std::vector<uint8_t> buffer(static_cast<size_t>(kBufferBytes));
  for (const PlannedTensor& t : shard) {
    for (int64_t at = 0; good && at < t.size_bytes; at += kBufferBytes) {
      const int64_t size = std::min(kBufferBytes, t.size_bytes - at);
      fill_synthetic(t.rule, at, size, buffer.data());
      good = std::fwrite(buffer.data(), 1, static_cast<size_t>(size), file) == static_cast<size_t>(size);
      progress->advance(path.filename().string(), size);
    }
  }
  good = std::fclose(file) == 0 && good;
  return good ? ok_status() : io_error(path.string() + ": cannot write: " + std::strerror(errno));
}

Status check_target(const fs::path& directory) {
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (status.type() == fs::file_type::not_found) return ok_status();
  if (status.type() != fs::file_type::directory) return invalid_argument(directory.string() + ": exists and is not a directory");
  const bool empty = fs::is_empty(directory, error);
  if (error) return io_error(directory.string() + ": cannot list: " + error.message());
  return empty ? ok_status() : invalid_argument(directory.string() + ": the directory is not empty; a model is written to a new or empty one only");
}

// A tokenizer serves a model only if both count the same tokens.
Status check_text_files(const std::string& from, const ModelConfig& config) {
  DSV4_ASSIGN_OR_RETURN(const std::string json, read_file(from + "/config.json"));
  DSV4_ASSIGN_OR_RETURN(const ModelConfig source, parse_model_config(json, from + "/config.json"));
  if (source.vocab_size == config.vocab_size) return ok_status();
  return invalid_argument(from + ": its tokenizer has a vocabulary of " + std::to_string(source.vocab_size) + ", the model has " +
                          std::to_string(config.vocab_size));
}

Status copy_text_files(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::copy_file(from / "tokenizer.json", to / "tokenizer.json", error);
  if (error) return io_error((from / "tokenizer.json").string() + ": cannot copy: " + error.message());
  fs::copy(from / "encoding", to / "encoding", fs::copy_options::recursive, error);
  if (error) return io_error((from / "encoding").string() + ": cannot copy: " + error.message());
  return ok_status();
}

Status write_files(const MakeModelOptions& options, const ModelConfig& config, const fs::path& directory) {
  const std::vector<Shard> shards = plan_shards(config, options);
  int64_t total = 0;
  std::vector<std::pair<std::string, std::string>> places;
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const PlannedTensor& t : shards[i]) {
      total += t.size_bytes;
      places.emplace_back(t.shape.name, shard_name(i, shards.size()));
    }
  }
  std::error_code error;
  const fs::space_info space = fs::space(directory, error);
  if (!error && space.available < static_cast<uint64_t>(total)) {
    return resource_limit(directory.parent_path().string() + ": the model needs " + std::to_string(total) + " bytes on disk, " +
                          std::to_string(space.available) + " are free; fewer layers need less");
  }
  Progress progress(options.progress, total);
  for (size_t i = 0; i < shards.size(); ++i) {
    DSV4_RETURN_IF_ERROR(write_shard(shards[i], directory / shard_name(i, shards.size()), &progress));
  }
  // Text by hand: an order-keeping JSON object takes quadratic time for tens of thousands of members. Names are plain.
  std::string index = "{\n \"metadata\": {\"total_size\": " + std::to_string(total) + "},\n \"weight_map\": {";
  for (size_t i = 0; i < places.size(); ++i) index += (i == 0 ? "\n  \"" : ",\n  \"") + places[i].first + "\": \"" + places[i].second + "\"";
  index += "\n }\n}\n";
  DSV4_RETURN_IF_ERROR(write_file_atomic(directory / "model.safetensors.index.json", index));
  DSV4_RETURN_IF_ERROR(write_file_atomic(directory / "config.json", model_config_to_json(config)));
  return options.text_files_from.empty() ? ok_status() : copy_text_files(options.text_files_from, directory);
}

}  // namespace

Status make_model(const MakeModelOptions& options, const std::string& directory) {
  if (directory.empty()) return invalid_argument("make-model: the directory to write is empty");
  if (options.num_layers == 0 || options.num_layers < -1) {
    return invalid_argument("make-model: the number of layers must be at least 1, found " + std::to_string(options.num_layers));
  }
  if (options.shard_bytes < 1) return invalid_argument("make-model: shard bytes must be at least 1, found " + std::to_string(options.shard_bytes));
  DSV4_ASSIGN_OR_RETURN(ModelConfig config, synthetic_config(options.model));
  config = with_first_layers(config, options.num_layers);
  fs::path target = fs::path(directory).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // "dir/"
  DSV4_RETURN_IF_ERROR(check_target(target));
  if (!options.text_files_from.empty()) DSV4_RETURN_IF_ERROR(check_text_files(options.text_files_from, config));

  const fs::path temporary = target.string() + ".tmp." + std::to_string(::getpid());
  std::error_code error;
  fs::create_directories(temporary, error);
  if (error) return io_error(temporary.string() + ": cannot create: " + error.message());
  Status status = write_files(options, config, temporary);
  if (status.ok()) {
    fs::rename(temporary, target, error);
    if (error) status = io_error(target.string() + ": cannot rename " + temporary.string() + " to it: " + error.message());
  }
  if (!status.ok()) fs::remove_all(temporary, error);
  return status;
}

}  // namespace dsv4

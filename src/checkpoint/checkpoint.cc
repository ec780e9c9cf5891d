#include "checkpoint/checkpoint.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "base/file.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/prefault.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_set.h"
#include "checkpoint/synthetic.h"
#include "checkpoint/synthetic_memory.h"
#include "checkpoint/tensor_check.h"

namespace dsv4 {

struct Checkpoint::Impl {
  std::string model;
  std::string directory;
  std::string identity;
  ModelConfig config;
  DraftInfo draft;
  std::vector<std::string> warnings;
  std::vector<std::string> unsupported;
  std::vector<TensorEntry> tensors;       // sorted by name
  std::vector<SyntheticRule> generators;  // synthetic models: of each tensor
  // What the tensors' bytes lie in.
  std::vector<ShardFile> files;
  std::vector<std::vector<uint64_t>> aligned_copies;
  AnonymousMemory generated;

  Status open_directory(const CheckpointOptions& options);
  Status open_synthetic(const CheckpointOptions& options);
  void set_identity(const std::string& source);
  void align_data();
  Status check_hash_tables() const;
  Status pin() const;
};

namespace {

uint64_t fnv1a(const std::string& text) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

std::vector<std::string> lines_of(const FaultList& list) {
  std::vector<std::string> lines = list.lines();
  if (list.count() > lines.size()) lines.push_back("and " + std::to_string(list.count() - lines.size()) + " more");
  return lines;
}

}  // namespace

void Checkpoint::Impl::set_identity(const std::string& source) {
  std::string text = model_config_to_json(config) + source;
  for (const TensorEntry& t : tensors) text += "\n" + t.name + " " + describe_tensor(t.dtype, t.shape) + " " + t.file;
  constexpr char kDigits[] = "0123456789abcdef";
  const uint64_t h = fnv1a(text);
  for (int shift = 60; shift >= 0; shift -= 4) identity += kDigits[h >> shift & 15];
}

// The container promises no alignment; typed pointers need it. Well-made shards sort by element size and need no copy.
void Checkpoint::Impl::align_data() {
  for (TensorEntry& t : tensors) {
    if (reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(dtype_size_bytes(t.dtype)) == 0) continue;
    std::vector<uint64_t>& copy = aligned_copies.emplace_back(static_cast<size_t>((t.size_bytes + 7) / 8));
    std::memcpy(copy.data(), t.data, static_cast<size_t>(t.size_bytes));
    t.data = reinterpret_cast<const uint8_t*>(copy.data());
  }
}

// Expert ids index memory on every device, so they are checked at each open. Repeated ids in a row are allowed: pruned
// checkpoints map removed experts onto kept ones.
Status Checkpoint::Impl::check_hash_tables() const {
  FaultList faults;
  for (int64_t layer = 0; layer < std::min(config.num_hash_layers, config.num_layers); ++layer) {
    const TensorEntry* t = find_tensor(tensors, "layers." + std::to_string(layer) + ".ffn.gate.tid2eid");
    const auto* ids = reinterpret_cast<const int64_t*>(t->data);
    for (int64_t i = 0; i < t->size_bytes / 8; ++i) {
      if (ids[i] >= 0 && ids[i] < config.num_experts) continue;
      const int64_t top_k = config.num_experts_per_token;
      faults.add(t->file + ": " + t->name + ": row " + std::to_string(i / top_k) + ": expected expert ids below " + std::to_string(config.num_experts) +
                 ", found " + std::to_string(ids[i]));
      break;
    }
  }
  return faults.to_status(StatusCode::kInvalidData, model);
}

Status Checkpoint::Impl::pin() const {
  for (const TensorEntry& t : tensors) {
    if (t.data == nullptr) continue;  // left to the device
    // Whole pages; neighbours share one, and locking a page twice is harmless.
    const uintptr_t begin = reinterpret_cast<uintptr_t>(t.data) & ~uintptr_t{4095};
    const size_t size = reinterpret_cast<uintptr_t>(t.data) + static_cast<size_t>(t.size_bytes) - begin;
    if (::mlock(reinterpret_cast<const void*>(begin), size) != 0) {
      return resource_limit(model + ": " + t.name + ": cannot pin " + std::to_string(t.size_bytes) + " bytes in memory (" + std::strerror(errno) +
                            "); the limit is that of `ulimit -l`");
    }
  }
  return ok_status();
}

Status Checkpoint::Impl::open_directory(const CheckpointOptions& options) {
  std::error_code error;
  if (!std::filesystem::is_directory(model, error)) return not_found(model + ": no such model directory");
  directory = model;
  FaultList faults, warned;
  const Result<std::string> json = read_file(directory + "/config.json", uint64_t{1} << 24);
  if (json.ok()) {
    config = read_model_config(*json, "config.json", &faults, &unsupported);
  } else {
    faults.add(json.status().code() == StatusCode::kNotFound ? "config.json: no such file" : json.status().message());
  }
  const bool configured = faults.empty();
  ShardSet shards = read_shards(directory, &faults, &warned);
  std::vector<ExpectedTensor> expected;
  if (configured && shards.complete) {
    expected = expected_tensors(config);
    check_tensors({config, expected, shards.tensors, shards.accounted, shards.source}, &faults, &warned);
  }
  DSV4_RETURN_IF_ERROR(faults.to_status(StatusCode::kInvalidData, model));
  if (!unsupported.empty() && !options.headers_only) {
    for (const std::string& line : unsupported) faults.add("config.json: " + line);
    return faults.to_status(StatusCode::kUnsupported, model + ": would not run");
  }
  warnings = lines_of(warned);
  config = with_first_layers(config, options.num_layers);
  draft = detect_draft(config, shards.tensors);
  files = std::move(shards.files);
  std::string source;
  std::map<std::string, const uint8_t*> file_begins;
  for (const ShardFile& f : files) {
    source += "\n" + f.name + " " + std::to_string(f.map.bytes().size());
    file_begins[f.name] = reinterpret_cast<const uint8_t*>(f.map.bytes().data());
  }
  // Kept: what the (possibly shortened) model calls for, and draft blocks.
  std::vector<std::string> wanted;
  for (const ExpectedTensor& t : expected) {
    if (t.layer < config.num_layers) wanted.push_back(t.name);
  }
  std::sort(wanted.begin(), wanted.end());
  for (TensorEntry& t : shards.tensors) {
    if (is_draft_name(t.name) || std::binary_search(wanted.begin(), wanted.end(), t.name)) tensors.push_back(std::move(t));
  }
  for (const TensorEntry& t : tensors) source += "\n" + std::to_string(t.data - file_begins[t.file]);
  set_identity(source);
  if (options.headers_only) {
    for (TensorEntry& t : tensors) t.data = nullptr;
    return ok_status();
  }
  if (options.prefault) {
    read_and_check_values(tensors, options.progress, &faults);
    DSV4_RETURN_IF_ERROR(faults.to_status(StatusCode::kInvalidData, model));
  }
  align_data();
  DSV4_RETURN_IF_ERROR(check_hash_tables());
  return options.mlock ? pin() : ok_status();
}

Status Checkpoint::Impl::open_synthetic(const CheckpointOptions& options) {
  DSV4_ASSIGN_OR_RETURN(config, synthetic_config(model));
  config = with_first_layers(config, options.num_layers);
  const std::vector<ExpectedTensor> expected = expected_tensors(config);
  tensors = synthetic_entries(expected);
  if (!options.headers_only) {
    const int64_t most = options.generate_on_device ? kHostSyntheticBytes : INT64_MAX;
    DSV4_ASSIGN_OR_RETURN(generated, generate_synthetic({config, expected, options.seed, options.progress, most}, &tensors));
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  generators.resize(tensors.size());
  for (const ExpectedTensor& t : expected)
    generators[static_cast<size_t>(find_tensor(tensors, t.name) - tensors.data())] = synthetic_rule(config, t, options.seed);
  set_identity("\nseed " + std::to_string(options.seed));
  return options.mlock && !options.headers_only ? pin() : ok_status();
}

Result<Checkpoint> Checkpoint::open(const std::string& model, const CheckpointOptions& options) {
  if (options.num_layers == 0 || options.num_layers < -1) {
    return invalid_argument("the number of layers to use must be at least 1, found " + std::to_string(options.num_layers));
  }
  auto impl = std::make_unique<Impl>();
  impl->model = model;
  DSV4_RETURN_IF_ERROR(is_synthetic_model(model) ? impl->open_synthetic(options) : impl->open_directory(options));
  return Checkpoint(std::move(impl));
}

Checkpoint::Checkpoint(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

const ModelConfig& Checkpoint::config() const { return impl_->config; }
const std::string& Checkpoint::model() const { return impl_->model; }
const std::string& Checkpoint::directory() const { return impl_->directory; }
const std::string& Checkpoint::identity() const { return impl_->identity; }
const std::vector<std::string>& Checkpoint::warnings() const { return impl_->warnings; }
const std::vector<std::string>& Checkpoint::unsupported() const { return impl_->unsupported; }
const DraftInfo& Checkpoint::draft() const { return impl_->draft; }
const TensorEntry* Checkpoint::find(std::string_view name) const { return find_tensor(impl_->tensors, name); }
const std::vector<TensorEntry>& Checkpoint::tensors() const { return impl_->tensors; }
const SyntheticRule* Checkpoint::generator(std::string_view name) const {
  const TensorEntry* t = find(name);
  return t == nullptr || impl_->generators.empty() ? nullptr : &impl_->generators[static_cast<size_t>(t - impl_->tensors.data())];
}

Result<WeightView> Checkpoint::weight(const std::string& prefix) const {
  const TensorEntry* t = find(prefix + ".weight");
  if (t == nullptr) t = find(prefix);
  if (t == nullptr) return not_found(model() + ": no tensor " + prefix + ".weight");
  if (t->shape.empty() || t->shape.size() > 2)
    return invalid_data(t->file + ": " + t->name + ": expected a vector or a matrix, found " + describe_tensor(t->dtype, t->shape));
  WeightView view;
  view.data = t->data;
  view.n = t->shape.size() == 2 ? t->shape[0] : 1;
  view.k = t->shape.back();
  switch (t->dtype) {
    case DType::kF32: view.format = WeightFormat::kF32; return view;
    case DType::kBF16: view.format = WeightFormat::kBF16; return view;
    case DType::kF8E4M3: view.format = WeightFormat::kFp8Block; break;
    case DType::kI8:
      view.format = WeightFormat::kMxfp4;
      view.k *= 2;
      break;
    default: return invalid_data(t->file + ": " + t->name + ": " + std::string(dtype_name(t->dtype)) + " is not a weight's format");
  }
  const TensorEntry* scale = find(prefix + ".scale");
  if (scale == nullptr) return not_found(model() + ": no tensor " + prefix + ".scale");
  view.scale = scale->data;
  // Draft tensors are opened unchecked, so the grid is compared here rather than trusted.
  if (static_cast<int64_t>(scale->size_bytes) + t->size_bytes != view.total_bytes()) {
    return invalid_data(scale->file + ": " + scale->name + ": " + describe_tensor(scale->dtype, scale->shape) + " does not suit its weight " +
                        describe_tensor(t->dtype, t->shape));
  }
  return view;
}

namespace {

Result<const uint8_t*> typed_data(const Checkpoint& checkpoint, const std::string& name, DType dtype, int64_t size) {
  const TensorEntry* t = checkpoint.find(name);
  if (t == nullptr) return not_found(checkpoint.model() + ": no tensor " + name);
  if (t->dtype != dtype || t->size_bytes != size * dtype_size_bytes(dtype)) {
    return invalid_data(t->file + ": " + name + ": expected " + std::to_string(size) + " " + std::string(dtype_name(dtype)) + " elements, found " +
                        describe_tensor(t->dtype, t->shape));
  }
  return t->data;
}

}  // namespace

Result<const float*> Checkpoint::f32(const std::string& name, int64_t size) const {
  DSV4_ASSIGN_OR_RETURN(const uint8_t* data, typed_data(*this, name, DType::kF32, size));
  return reinterpret_cast<const float*>(data);
}

Result<const uint16_t*> Checkpoint::bf16(const std::string& name, int64_t size) const {
  DSV4_ASSIGN_OR_RETURN(const uint8_t* data, typed_data(*this, name, DType::kBF16, size));
  return reinterpret_cast<const uint16_t*>(data);
}

}  // namespace dsv4

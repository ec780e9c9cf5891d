#include "checkpoint/shard_set.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "base/json.h"
#include "checkpoint/safetensors.h"

namespace dsv4 {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

bool has_suffix(const std::string& text, std::string_view suffix) {
  return text.size() >= suffix.size() && std::string_view(text).substr(text.size() - suffix.size()) == suffix;
}

std::vector<std::string> safetensors_files(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (has_suffix(name, ".safetensors")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

class Reader {
 public:
  Reader(const std::string& directory, FaultList* faults, FaultList* warnings) : directory_(directory), faults_(faults), warnings_(warnings) {}

  ShardSet read() {
    const Result<std::string> index = read_file(directory_ + "/" + kIndexName);
    if (index.ok()) {
      set_.source = kIndexName;
      read_index(*index);
      read_indexed_files();
    } else if (index.status().code() != StatusCode::kNotFound) {
      faults_->add(index.status().message());
      set_.complete = false;
    } else {
      set_.source = kSingleName;
      read_single_file();
    }
    return std::move(set_);
  }

 private:
  void read_index(const std::string& text) {
    const Result<SortedJson> json = parse_json_sorted(text, kIndexName);
    const std::string file = std::string(kIndexName) + ": ";
    if (!json.ok()) {
      faults_->add(json.status().message());
      set_.complete = false;
      return;
    }
    const auto map = json->is_object() ? json->find("weight_map") : json->end();
    if (map == json->end() || !map->is_object()) {
      faults_->add(file + "weight_map must be an object");
      set_.complete = false;
      return;
    }
    for (const auto& [name, value] : map->items()) {
      // A plain name: the index of a stranger's checkpoint must not lead out of its directory.
      const std::string shard = value.is_string() ? value.get<std::string>() : "";
      if (!has_suffix(shard, ".safetensors") || shard.find('/') != std::string::npos || printable_name(shard) != shard) {
        faults_->add(file + printable_name(name) + ": expected the name of a .safetensors file in this directory, found " +
                     printable_name(value.dump(-1, ' ', false, SortedJson::error_handler_t::replace)));
        set_.accounted.insert(name);
      } else {
        weight_map_[name] = shard;
      }
    }
    const auto metadata = json->find("metadata");
    if (metadata == json->end() || !metadata->is_object()) return;
    const auto total = metadata->find("total_size");
    if (total == metadata->end()) return;
    if (!total->is_number_unsigned()) {
      faults_->add(file + "metadata.total_size must be a number of bytes");
    } else {
      total_size_ = total->get<uint64_t>();
      has_total_size_ = true;
    }
  }

  void read_indexed_files() {
    std::set<std::string> shards;
    for (const auto& [name, shard] : weight_map_) shards.insert(shard);
    for (const std::string& shard : shards) {
      if (!read_shard(shard)) unreadable_.insert(shard);
    }
    for (const std::string& name : safetensors_files(directory_)) {
      if (set_.complete && shards.count(name) == 0) warnings_->add(name + ": the index names no tensor in it; the file is not read");
    }
    sort_tensors();
    compare_with_index();
  }

  void read_single_file() {
    const std::vector<std::string> present = safetensors_files(directory_);
    if (!std::binary_search(present.begin(), present.end(), std::string(kSingleName))) {
      faults_->add(std::string(kIndexName) + ": no such file, and no " + kSingleName + "; found " + std::to_string(present.size()) +
                   " other .safetensors files" + (present.empty() ? "" : ", the first is " + printable_name(present.front())));
      set_.complete = false;
      return;
    }
    for (const std::string& name : present) {
      if (name != kSingleName) warnings_->add(printable_name(name) + ": there is no index that names it; the file is not read");
    }
    set_.complete = read_shard(kSingleName);
    sort_tensors();
  }

  // False when the file could not be read as a whole; its faults are told.
  bool read_shard(const std::string& name) {
    Result<MappedFile> map = MappedFile::open(directory_ + "/" + name);
    if (!map.ok()) {
      faults_->add(name + ": " + (map.status().code() == StatusCode::kNotFound ? "no such file, the index names it" : map.status().message()));
      return false;
    }
    const size_t before = faults_->count();
    const SafetensorsHeader header = parse_safetensors(map->bytes(), name, faults_);
    if (faults_->count() != before) return false;
    const auto* base = reinterpret_cast<const uint8_t*>(map->bytes().data());
    for (const SafetensorsTensor& t : header.tensors) {
      set_.tensors.push_back({t.name, t.dtype, t.shape, base + t.file_offset, t.size_bytes, name});
    }
    set_.files.push_back({name, std::move(*map)});
    return true;
  }

  void sort_tensors() {
    std::vector<TensorEntry>& tensors = set_.tensors;
    std::stable_sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
    const auto same = [](const TensorEntry& a, const TensorEntry& b) { return a.name == b.name; };
    for (auto it = std::adjacent_find(tensors.begin(), tensors.end(), same); it != tensors.end(); it = std::adjacent_find(it + 1, tensors.end(), same)) {
      faults_->add((it + 1)->file + ": " + printable_name(it->name) + ": expected once, found in " + it->file + " too");
    }
  }

  void compare_with_index() {
    uint64_t total = 0;
    for (const TensorEntry& t : set_.tensors) {
      total += static_cast<uint64_t>(t.size_bytes);
      const auto place = weight_map_.find(t.name);
      if (place == weight_map_.end()) {
        if (set_.complete && set_.accounted.count(t.name) == 0) faults_->add(t.file + ": " + printable_name(t.name) + ": the index does not name this tensor");
      } else if (place->second != t.file && unreadable_.count(place->second) == 0 && !find_in(t.name, place->second)) {
        faults_->add(t.file + ": " + printable_name(t.name) + ": the index places this tensor in " + place->second);
      }
    }
    for (const auto& [name, shard] : weight_map_) {
      if (unreadable_.count(shard) != 0) {
        set_.accounted.insert(name);
      } else if (find_tensor(set_.tensors, name) == nullptr) {
        faults_->add(shard + ": " + printable_name(name) + ": the index places this tensor here, the file does not hold it");
        set_.accounted.insert(name);
      }
    }
    // The headers account for every byte, so a stale total is no danger; it still hints at a careless edit.
    if (has_total_size_ && unreadable_.empty() && set_.complete && total != total_size_) {
      warnings_->add(std::string(kIndexName) + ": metadata.total_size is " + std::to_string(total_size_) + ", the tensors have " + std::to_string(total) +
                     " bytes");
    }
  }

  // Whether `shard` holds a tensor of this name (several files may, which is a fault of its own).
  bool find_in(const std::string& name, const std::string& shard) const {
    const auto by_name = [](const TensorEntry& t, const std::string& n) { return t.name < n; };
    for (auto it = std::lower_bound(set_.tensors.begin(), set_.tensors.end(), name, by_name); it != set_.tensors.end() && it->name == name; ++it) {
      if (it->file == shard) return true;
    }
    return false;
  }

  const std::string& directory_;
  FaultList* faults_;
  FaultList* warnings_;
  ShardSet set_;
  std::map<std::string, std::string> weight_map_;  // tensor -> shard
  std::set<std::string> unreadable_;               // shards with faults of their own
  uint64_t total_size_ = 0;
  bool has_total_size_ = false;
};

}  // namespace

const TensorEntry* find_tensor(const std::vector<TensorEntry>& sorted, std::string_view name) {
  const auto it = std::lower_bound(sorted.begin(), sorted.end(), name, [](const TensorEntry& t, std::string_view n) { return t.name < n; });
  return it != sorted.end() && it->name == name ? &*it : nullptr;
}

ShardSet read_shards(const std::string& directory, FaultList* faults, FaultList* warnings) { return Reader(directory, faults, warnings).read(); }

}  // namespace dsv4

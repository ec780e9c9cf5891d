#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <set>

#include "base/json.h"
#include "checkpoint/safetensors.h"

namespace dsv4 {
namespace {

// Bytes that are not UTF-8 become U+FFFD: a JSON text has no way to hold them.
std::string json_text(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::vector<size_t> safetensors_layout_order(const std::vector<SafetensorsShape>& tensors) {
  // Falling element size aligns each tensor to its elements. Within one element size, tensors of whole 64-byte lines go first, so
  // that the many odd-sized scale grids at the end do not push the large ones off a line.
  const auto key = [&](size_t i) {
    int64_t size = 0;
    const bool whole_lines = tensor_size_bytes(tensors[i].dtype, tensors[i].shape, &size) && size % 64 == 0;
    return std::pair(-dtype_size_bytes(tensors[i].dtype), whole_lines ? 0 : 1);
  };
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
  return order;
}

Result<std::string> safetensors_header(const std::vector<SafetensorsShape>& tensors_in_order, const SafetensorsMetadata& metadata) {
  std::set<std::string> names{"__metadata__"};
  std::string json = "{";
  if (!metadata.empty()) {
    Json object = Json::object();
    for (const auto& [key, value] : metadata) object[key] = value;
    json += "\"__metadata__\":" + json_text(object);
  }
  int64_t offset = 0;
  for (const SafetensorsShape& t : tensors_in_order) {
    int64_t size = 0;
    if (!names.insert(t.name).second) return invalid_argument("write_safetensors: tensor name \"" + t.name + "\" is taken");
    if (!tensor_size_bytes(t.dtype, t.shape, &size) || __builtin_add_overflow(offset, size, &size)) {
      return invalid_argument("write_safetensors: " + t.name + ": " + describe_tensor(t.dtype, t.shape) + " is too large for a file");
    }
    if (json.size() > 1) json += ",";
    json += json_text(Json(t.name)) + ":{\"dtype\":\"" + std::string(dtype_name(t.dtype)) + "\",\"shape\":" + Json(t.shape).dump() + ",\"data_offsets\":[" +
            std::to_string(offset) + "," + std::to_string(size) + "]}";
    offset = size;
  }
  json += "}";
  json.resize((8 + json.size() + 63) / 64 * 64 - 8, ' ');
  if (json.size() > kMaxSafetensorsHeaderBytes) return invalid_argument("write_safetensors: the header would be " + std::to_string(json.size()) + " bytes");
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(json.size() >> (8 * i));
  return out + json;
}

Status write_safetensors(const std::string& path, const std::vector<SafetensorsEntry>& entries, const SafetensorsMetadata& metadata) {
  std::vector<SafetensorsShape> shapes;
  for (const SafetensorsEntry& e : entries) {
    int64_t size = 0;
    if (!tensor_size_bytes(e.dtype, e.shape, &size) || static_cast<size_t>(size) != e.data.size()) {
      return invalid_argument("write_safetensors: " + e.name + ": " + describe_tensor(e.dtype, e.shape) + " does not have " + std::to_string(e.data.size()) +
                              " bytes");
    }
    shapes.push_back({e.name, e.dtype, e.shape});
  }
  const std::vector<size_t> order = safetensors_layout_order(shapes);
  std::vector<SafetensorsShape> ordered;
  for (const size_t i : order) ordered.push_back(shapes[i]);
  DSV4_ASSIGN_OR_RETURN(const std::string header, safetensors_header(ordered, metadata));

  const std::string temporary = path + ".tmp." + std::to_string(::getpid());
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) return io_error(temporary + ": cannot create: " + std::strerror(errno));
  bool good = std::fwrite(header.data(), 1, header.size(), file) == header.size();
  for (const size_t i : order) good = good && std::fwrite(entries[i].data.data(), 1, entries[i].data.size(), file) == entries[i].data.size();
  good = std::fclose(file) == 0 && good;
  if (!good || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const Status status = io_error(path + ": cannot write: " + std::strerror(errno));
    std::remove(temporary.c_str());
    return status;
  }
  return ok_status();
}

}  // namespace dsv4

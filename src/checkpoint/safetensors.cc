#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "base/json.h"

namespace dsv4 {
namespace {

constexpr std::array kDTypes = {DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kF8E8M0, DType::kI8, DType::kI32, DType::kI64};

std::optional<DType> dtype_from_name(const std::string& name) {
  for (const DType t : kDTypes) {
    if (dtype_name(t) == name) return t;
  }
  return std::nullopt;
}

// A JSON integer in [0, 2^63).
std::optional<int64_t> size_value(const SortedJson& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const uint64_t u = value.get<uint64_t>();
  if (u > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<int64_t>(u);
}

// Checks one member of the header. `data_size` is the number of bytes after the header.
class EntryReader {
 public:
  EntryReader(const std::string& file_name, int64_t data_begin, FaultList* faults) : file_name_(file_name), data_begin_(data_begin), faults_(faults) {}

  std::optional<SafetensorsTensor> read(const std::string& name, const SortedJson& entry) {
    name_ = printable_name(name);
    if (!entry.is_object()) return fault("the header's entry must be an object");
    SafetensorsTensor tensor;
    tensor.name = name;
    const std::optional<DType> dtype = read_dtype(entry);
    const bool shaped = read_shape(entry, &tensor.shape);
    int64_t begin = 0, end = 0;
    const bool placed = read_offsets(entry, &begin, &end);
    if (!dtype || !shaped || !placed) return std::nullopt;
    tensor.dtype = *dtype;
    int64_t want = 0;
    if (!tensor_size_bytes(*dtype, tensor.shape, &want)) {
      return fault(describe_tensor(*dtype, tensor.shape) + " has more bytes than a file can hold");
    }
    if (end - begin != want) {
      return fault("expected " + std::to_string(want) + " bytes for " + describe_tensor(*dtype, tensor.shape) + ", found data_offsets [" +
                   std::to_string(begin) + ", " + std::to_string(end) + "] = " + std::to_string(end - begin));
    }
    if (end > INT64_MAX - data_begin_) return fault("data_offsets end at " + std::to_string(end) + ", beyond any file");
    tensor.file_offset = data_begin_ + begin;
    tensor.size_bytes = want;
    return tensor;
  }

 private:
  std::nullopt_t fault(const std::string& message) {
    faults_->add(file_name_ + ": " + name_ + ": " + message);
    return std::nullopt;
  }

  std::optional<DType> read_dtype(const SortedJson& entry) {
    const auto it = entry.find("dtype");
    if (it == entry.end() || !it->is_string()) return fault("the header's entry has no dtype string");
    const std::string text = it->get<std::string>();
    const std::optional<DType> dtype = dtype_from_name(text);
    if (!dtype) return fault("expected dtype F32, BF16, F8_E4M3, F8_E8M0, I8, I32 or I64, found \"" + printable_name(text) + "\"");
    return dtype;
  }

  bool read_shape(const SortedJson& entry, std::vector<int64_t>* shape) {
    constexpr size_t kMaxRank = 8;
    const auto it = entry.find("shape");
    if (it == entry.end() || !it->is_array()) {
      fault("the header's entry has no shape array");
      return false;
    }
    if (it->size() > kMaxRank) {
      fault("shape has " + std::to_string(it->size()) + " dimensions, at most 8 are read");
      return false;
    }
    for (const SortedJson& dimension : *it) {
      const std::optional<int64_t> value = size_value(dimension);
      if (!value) {
        fault("shape must hold integers from 0 to 2^63 - 1");
        return false;
      }
      shape->push_back(*value);
    }
    return true;
  }

  bool read_offsets(const SortedJson& entry, int64_t* begin, int64_t* end) {
    const auto it = entry.find("data_offsets");
    if (it != entry.end() && it->is_array() && it->size() == 2) {
      const std::optional<int64_t> b = size_value((*it)[0]), e = size_value((*it)[1]);
      if (b && e && *b <= *e) {
        *begin = *b;
        *end = *e;
        return true;
      }
    }
    fault("data_offsets must be two integers, begin <= end");
    return false;
  }

  const std::string& file_name_;
  int64_t data_begin_;
  FaultList* faults_;
  std::string name_;
};

// `tensors` are in file order: each must begin where the one before it ends, and the last must end with the file.
void check_tiling(const SafetensorsHeader& header, int64_t file_size, const std::string& file_name, FaultList* faults) {
  int64_t position = header.data_begin;
  const SafetensorsTensor* before = nullptr;
  for (const SafetensorsTensor& t : header.tensors) {
    const std::string place = before == nullptr ? "the header" : "the end of " + printable_name(before->name);
    if (t.file_offset > position) {
      faults->add(file_name + ": " + printable_name(t.name) + ": begins " + std::to_string(t.file_offset - position) + " bytes after " + place +
                  ", expected no gap");
    } else if (t.file_offset < position) {
      faults->add(file_name + ": " + printable_name(t.name) + ": begins " + std::to_string(position - t.file_offset) + " bytes before " + place +
                  ", expected no overlap");
    }
    if (t.file_offset + t.size_bytes >= position) {
      position = t.file_offset + t.size_bytes;
      before = &t;
    }
  }
  if (position > file_size) {
    faults->add(file_name + ": truncated: the header describes " + std::to_string(position - header.data_begin) + " bytes of tensors, found " +
                std::to_string(file_size - header.data_begin));
  } else if (position < file_size) {
    faults->add(file_name + ": " + std::to_string(file_size - position) + " bytes after the last tensor, expected none");
  }
}

void read_metadata(const SortedJson& value, const std::string& file_name, SafetensorsHeader* header, FaultList* faults) {
  if (!value.is_object()) {
    faults->add(file_name + ": __metadata__ must be an object of strings");
    return;
  }
  for (const auto& [key, text] : value.items()) {
    if (text.is_string()) {
      header->metadata.emplace_back(key, text.get<std::string>());
    } else {
      faults->add(file_name + ": __metadata__: " + printable_name(key) + " must be a string");
    }
  }
}

}  // namespace

bool tensor_size_bytes(DType dtype, const std::vector<int64_t>& shape, int64_t* size_bytes) {
  int64_t size = dtype_size_bytes(dtype);
  bool empty = false;
  for (const int64_t d : shape) {
    if (d < 0) return false;
    if (d == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(size, d, &size)) {
      return false;
    }
  }
  *size_bytes = empty ? 0 : size;
  return true;
}

std::string describe_tensor(DType dtype, const std::vector<int64_t>& shape) {
  std::string out(dtype_name(dtype));
  out += " [";
  for (size_t i = 0; i < shape.size(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return out + "]";
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& file_name, FaultList* faults) {
  SafetensorsHeader header;
  if (file.size() < 8) {
    faults->add(file_name + ": not a safetensors file: expected at least 8 bytes, found " + std::to_string(file.size()));
    return header;
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint64_t>(file[static_cast<size_t>(i)]);
  if (length < 2 || length > kMaxSafetensorsHeaderBytes) {
    faults->add(file_name + ": header length must be 2 to " + std::to_string(kMaxSafetensorsHeaderBytes) + " bytes, found " + std::to_string(length));
    return header;
  }
  if (length > file.size() - 8) {
    faults->add(file_name + ": truncated: the header is " + std::to_string(length) + " bytes, found " + std::to_string(file.size() - 8) + " after its length");
    return header;
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, length);
  const Result<SortedJson> json = parse_json_sorted(text, file_name + ": header");
  if (!json.ok()) {
    faults->add(json.status().message());
    return header;
  }
  if (!json->is_object()) {
    faults->add(file_name + ": the header must be a JSON object");
    return header;
  }
  header.data_begin = static_cast<int64_t>(8 + length);
  EntryReader reader(file_name, header.data_begin, faults);
  const size_t faults_before = faults->count();
  header.tensors.reserve(json->size());
  for (const auto& [name, entry] : json->items()) {
    if (name == "__metadata__") {
      read_metadata(entry, file_name, &header, faults);
    } else if (std::optional<SafetensorsTensor> tensor = reader.read(name, entry)) {
      header.tensors.push_back(std::move(*tensor));
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
    return std::pair(a.file_offset, a.size_bytes) < std::pair(b.file_offset, b.size_bytes);
  });
  // An unreadable entry would show as a gap that is not there: tiling is judged only when all were read.
  if (faults->count() == faults_before) check_tiling(header, static_cast<int64_t>(file.size()), file_name, faults);
  return header;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  SafetensorsFile out;
  DSV4_ASSIGN_OR_RETURN(out.file_, MappedFile::open(path));
  FaultList faults;
  const size_t slash = path.find_last_of('/');
  out.header_ = parse_safetensors(out.file_.bytes(), slash == std::string::npos ? path : path.substr(slash + 1), &faults);
  DSV4_RETURN_IF_ERROR(faults.to_status(StatusCode::kInvalidData, path));
  return out;
}

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const {
  for (const SafetensorsTensor& t : header_.tensors) {
    if (t.name == name) return &t;
  }
  return nullptr;
}

std::span<const std::byte> SafetensorsFile::bytes(const SafetensorsTensor& tensor) const {
  return file_.bytes().subspan(static_cast<size_t>(tensor.file_offset), static_cast<size_t>(tensor.size_bytes));
}

}  // namespace dsv4

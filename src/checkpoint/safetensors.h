// The safetensors container: u64 little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, tensor bytes
// without gaps. Offsets count from the end of the header. The format promises no alignment of a tensor's first byte.
// Source: the format's published description; the limits here are ours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "checkpoint/fault_list.h"
#include "tensor/dtype.h"

namespace dsv4 {

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // the format's own limit

struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // [] is a scalar; a 0 is an empty tensor
  int64_t file_offset = 0;     // of the first byte, from the start of the file
  int64_t size_bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // in file order
  std::vector<std::pair<std::string, std::string>> metadata;
  int64_t data_begin = 0;  // file offset of the first tensor byte
};

// Parses the header at the start of `file` (the whole file's bytes; only the header's pages are touched) and checks that its
// tensors tile the data exactly. Every fault found is added to `faults`, prefixed with `file_name`; the result is to be used
// only when none was added, but its well-formed tensors are listed even then, so that a caller can go on checking.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& file_name, FaultList* faults);

// One file, mapped. For dumps and goldens; checkpoints go through Checkpoint.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);

  const SafetensorsHeader& header() const { return header_; }
  const SafetensorsTensor* find(std::string_view name) const;  // null when absent
  std::span<const std::byte> bytes(const SafetensorsTensor& tensor) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

// A tensor to write: `data` holds product(shape) * element bytes.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;

// Writes a file (temporary sibling, then rename). Tensors are laid out by falling element size, so that each one lies aligned
// to its elements in a mapping; the header is padded to 64 bytes. Errors: duplicate names, sizes that disagree, I/O.
Status write_safetensors(const std::string& path, const std::vector<SafetensorsEntry>& entries, const SafetensorsMetadata& metadata = {});

// The pieces, for writers that produce data on the fly: the order in which write_safetensors lays tensors out, and the header
// bytes (length word included) for tensors that follow it in the order given.
struct SafetensorsShape {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};
std::vector<size_t> safetensors_layout_order(const std::vector<SafetensorsShape>& tensors);
Result<std::string> safetensors_header(const std::vector<SafetensorsShape>& tensors_in_order, const SafetensorsMetadata& metadata);

// product(shape) * element bytes; false when it does not fit in int64 or a dimension is negative.
bool tensor_size_bytes(DType dtype, const std::vector<int64_t>& shape, int64_t* size_bytes);

// "BF16 [64, 4096]".
std::string describe_tensor(DType dtype, const std::vector<int64_t>& shape);

}  // namespace dsv4

// Whole-file reads and read-only memory maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace dsv4 {

// The file's bytes. Errors: kNotFound (no such file), kIo, kResourceLimit (larger than max_bytes).
Result<std::string> read_file(const std::string& path, uint64_t max_bytes = uint64_t{1} << 31);

// Writes `bytes` to a temporary sibling, then renames it over `path`: readers see the old file or the new one, never half.
Status write_file_atomic(const std::string& path, std::string_view bytes);

// A read-only mapping of a whole file. Pages are read when touched (lazy); moving it does not move the bytes.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace dsv4

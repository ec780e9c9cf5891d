#include "checkpoint/prefault.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>

namespace dsv4 {
namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kBlockBytes = int64_t{16} << 20;  // of a tensor, checked at once; a multiple of every element size
constexpr int64_t kAheadBytes = int64_t{32} << 20;  // asked of the disk before they are needed, across the borders of tensors

template <class T, class IsBad>
int64_t count_bad(const uint8_t* data, int64_t count, const IsBad& is_bad) {
  int64_t bad = 0;
  for (int64_t i = 0; i < count; ++i) {
    T x;
    std::memcpy(&x, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    bad += is_bad(x) ? 1 : 0;
  }
  return bad;
}

template <class T, class IsBad>
int64_t first_bad(const uint8_t* data, int64_t count, const IsBad& is_bad) {
  for (int64_t i = 0; i < count; ++i) {
    T x;
    std::memcpy(&x, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    if (is_bad(x)) return i;
  }
  return -1;
}

struct BadValues {
  int64_t count = 0;
  int64_t first = -1;  // element index in the block
};

template <class T, class IsBad>
BadValues scan(const uint8_t* data, int64_t size_bytes, const IsBad& is_bad) {
  const int64_t count = size_bytes / static_cast<int64_t>(sizeof(T));
  BadValues out;
  out.count = count_bad<T>(data, count, is_bad);
  if (out.count > 0) out.first = first_bad<T>(data, count, is_bad);
  return out;
}

BadValues scan_block(DType dtype, const uint8_t* data, int64_t size_bytes) {
  switch (dtype) {
    case DType::kF8E8M0: return scan<uint8_t>(data, size_bytes, [](uint8_t b) { return b == 255; });
    case DType::kF8E4M3: return scan<uint8_t>(data, size_bytes, [](uint8_t b) { return (b & 0x7f) == 0x7f; });
    case DType::kBF16: return scan<uint16_t>(data, size_bytes, [](uint16_t b) { return (b & 0x7f80) == 0x7f80; });
    case DType::kF32: return scan<uint32_t>(data, size_bytes, [](uint32_t b) { return (b & 0x7f800000u) == 0x7f800000u; });
    case DType::kI8:
    case DType::kI32:
    case DType::kI64: break;  // every code is a value; only the pages are read
  }
  volatile uint8_t sink = 0;
  for (int64_t i = 0; i < size_bytes; i += kPageBytes) sink = sink ^ data[i];
  if (size_bytes > 0) sink = sink ^ data[size_bytes - 1];
  return {};
}

// Keeps the disk busy: what follows in a file is asked for kAheadBytes before it is checked, in blocks.
class ReadAhead {
 public:
  // `data` is about to be checked and lies in a file whose bytes end at `file_end`.
  void advance(const uint8_t* data, const uint8_t* file_end) {
    if (asked_ < data || asked_ > file_end) asked_ = data;
    while (asked_ < file_end && asked_ - data < kAheadBytes) {
      const int64_t size = std::min<int64_t>(kBlockBytes, file_end - asked_);
      const uintptr_t begin = reinterpret_cast<uintptr_t>(asked_) & ~static_cast<uintptr_t>(kPageBytes - 1);
      // A hint: memory that is no file mapping refuses it, and nothing is lost.
      ::madvise(reinterpret_cast<void*>(begin), reinterpret_cast<uintptr_t>(asked_) + static_cast<uintptr_t>(size) - begin, MADV_WILLNEED);
      asked_ += size;
    }
  }

 private:
  const uint8_t* asked_ = nullptr;
};

}  // namespace

void read_and_check_values(const std::vector<TensorEntry>& tensors, const ProgressSink& progress, FaultList* faults) {
  std::vector<const TensorEntry*> in_file_order;
  uint64_t total = 0, done = 0;
  for (const TensorEntry& t : tensors) {
    in_file_order.push_back(&t);
    total += static_cast<uint64_t>(t.size_bytes);
  }
  std::sort(in_file_order.begin(), in_file_order.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return std::pair(std::string_view(a->file), a->data) < std::pair(std::string_view(b->file), b->data);
  });
  std::map<std::string_view, const uint8_t*> file_ends;
  for (const TensorEntry* t : in_file_order) file_ends[t->file] = t->data + t->size_bytes;  // the last one stays
  auto last_report = std::chrono::steady_clock::now() - std::chrono::hours(1);
  ReadAhead ahead;
  for (const TensorEntry* t : in_file_order) {
    BadValues bad;
    for (int64_t offset = 0; offset < t->size_bytes; offset += kBlockBytes) {
      const int64_t size = std::min(kBlockBytes, t->size_bytes - offset);
      ahead.advance(t->data + offset, file_ends[t->file]);
      const BadValues block = scan_block(t->dtype, t->data + offset, size);
      if (bad.count == 0 && block.count > 0) bad.first = offset / dtype_size_bytes(t->dtype) + block.first;
      bad.count += block.count;
      done += static_cast<uint64_t>(size);
      const auto now = std::chrono::steady_clock::now();
      if (progress && now - last_report > std::chrono::milliseconds(200)) {
        progress({"load", t->file, done, total, "bytes"});
        last_report = now;
      }
    }
    if (bad.count > 0) {
      faults->add(t->file + ": " + printable_name(t->name) + ": expected finite " + std::string(dtype_name(t->dtype)) + " values, found " +
                  std::to_string(bad.count) + " that are not, the first at element " + std::to_string(bad.first));
    }
  }
  if (progress) progress({"load", "", total, total, "bytes"});
}

}  // namespace dsv4

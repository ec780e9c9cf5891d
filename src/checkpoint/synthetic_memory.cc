#include "checkpoint/synthetic_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/thread_pool.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/synthetic.h"

namespace dsv4 {
namespace {

constexpr int64_t kAlignment = 256;                 // what device copies and vector loads like best
constexpr int64_t kPieceBytes = int64_t{4} << 20;   // one piece of work: whole huge pages, a millisecond or two
constexpr int64_t kReportBytes = int64_t{1} << 30;  // generated between two progress reports

// What the kernel says can be allocated without swapping; the largest number when it does not say.
int64_t available_bytes() {
  std::FILE* file = std::fopen("/proc/meminfo", "r");
  if (file == nullptr) return INT64_MAX;
  char line[256];
  long long kib = -1;
  while (kib < 0 && std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::sscanf(line, "MemAvailable: %lld kB", &kib) != 1) kib = -1;
  }
  std::fclose(file);
  return kib < 0 ? INT64_MAX : static_cast<int64_t>(kib) * 1024;
}

struct Piece {
  const SyntheticRule* rule;
  uint8_t* out;
  int64_t first_byte;
  int64_t size_bytes;
};

}  // namespace

AnonymousMemory& AnonymousMemory::operator=(AnonymousMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

AnonymousMemory::~AnonymousMemory() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

Result<AnonymousMemory> AnonymousMemory::allocate(int64_t size_bytes) {
  const int64_t available = available_bytes();
  if (size_bytes > available) {
    return resource_limit("synthetic weights need " + std::to_string(size_bytes) + " bytes of memory, " + std::to_string(available) +
                          " are available; fewer layers need less");
  }
  AnonymousMemory memory;
  if (size_bytes == 0) return memory;
  void* p = ::mmap(nullptr, static_cast<size_t>(size_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return resource_limit("synthetic weights: cannot map " + std::to_string(size_bytes) + " bytes: " + std::strerror(errno));
  ::madvise(p, static_cast<size_t>(size_bytes), MADV_HUGEPAGE);  // a hint; small pages only cost time
  memory.data_ = static_cast<uint8_t*>(p);
  memory.size_bytes_ = static_cast<size_t>(size_bytes);
  return memory;
}

std::vector<TensorEntry> synthetic_entries(const std::vector<ExpectedTensor>& expected) {
  std::vector<TensorEntry> entries;
  entries.reserve(expected.size());
  for (const ExpectedTensor& t : expected) {
    TensorEntry entry{t.name, t.dtype, t.shape, nullptr, 0, "synthetic"};
    DSV4_CHECK(tensor_size_bytes(t.dtype, t.shape, &entry.size_bytes), "a validated configuration keeps tensor sizes small");
    entries.push_back(std::move(entry));
  }
  return entries;
}

Result<AnonymousMemory> generate_synthetic(const SyntheticRequest& request, std::vector<TensorEntry>* entries) {
  int64_t total = 0, payload = 0;
  std::vector<int64_t> offsets;
  for (const TensorEntry& e : *entries) {
    offsets.push_back(total);
    if (e.size_bytes > request.most_bytes) continue;
    total += (e.size_bytes + kAlignment - 1) / kAlignment * kAlignment;
    payload += e.size_bytes;
  }
  DSV4_ASSIGN_OR_RETURN(AnonymousMemory memory, AnonymousMemory::allocate(total));
  std::vector<SyntheticRule> rules;
  rules.reserve(entries->size());
  std::vector<Piece> pieces;
  for (size_t i = 0; i < entries->size(); ++i) {
    TensorEntry& e = (*entries)[i];
    rules.push_back(synthetic_rule(request.config, request.expected[i], request.seed));
    if (e.size_bytes > request.most_bytes) continue;
    uint8_t* out = memory.data() + offsets[i];
    e.data = out;
    for (int64_t at = 0; at < e.size_bytes; at += kPieceBytes) {
      pieces.push_back({&rules[i], out + at, at, std::min(kPieceBytes, e.size_bytes - at)});
    }
  }
  ThreadPool pool({});
  uint64_t done = 0;
  auto last_report = std::chrono::steady_clock::now();
  for (size_t begin = 0; begin < pieces.size();) {
    size_t end = begin;
    for (int64_t batch = 0; end < pieces.size() && batch < kReportBytes; ++end) {
      batch += pieces[end].size_bytes;
      done += static_cast<uint64_t>(pieces[end].size_bytes);
    }
    pool.parallel_for(static_cast<int64_t>(end - begin), 4, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const Piece& p = pieces[begin + static_cast<size_t>(i)];
        fill_synthetic(*p.rule, p.first_byte, p.size_bytes, p.out);
      }
    });
    begin = end;
    const auto now = std::chrono::steady_clock::now();
    if (request.progress && begin < pieces.size() && now - last_report > std::chrono::milliseconds(200)) {
      request.progress({"generate", "", done, static_cast<uint64_t>(payload), "bytes"});
      last_report = now;
    }
  }
  if (request.progress) request.progress({"generate", "", static_cast<uint64_t>(payload), static_cast<uint64_t>(payload), "bytes"});
  return memory;
}

}  // namespace dsv4

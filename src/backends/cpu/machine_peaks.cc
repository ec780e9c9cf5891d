#include "backends/cpu/machine_peaks.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "backends/cpu/cpu_context.h"

namespace dsv4 {
namespace {

constexpr int64_t kBufferBytes = int64_t{512} << 20;
constexpr int64_t kPieceBytes = int64_t{4} << 20;
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kStreams = 4;  // the other way to read a piece: so many quarters side by side, a page of each in turn
constexpr int64_t kSteps = 200000;

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The shortest of as many calls as fit, at least three.
template <class Call>
double best_time(double seconds, const Call& call) {
  double best = 1e30;
  const double start = seconds_now();
  for (int i = 0; i < 3 || seconds_now() - start < seconds; ++i) {
    const double t = seconds_now();
    call();
    best = std::min(best, seconds_now() - t);
  }
  return best;
}

}  // namespace

Result<MachinePeaks> measure_machine_peaks(OpContext& context, double seconds) {
  CpuContext& c = cpu_context(context);
  const int threads = c.pool->num_threads();
  std::vector<float> sums(static_cast<size_t>(threads) * 16);

  std::unique_ptr<uint8_t, void (*)(void*)> buffer(static_cast<uint8_t*>(std::aligned_alloc(4096, kBufferBytes)), std::free);
  if (buffer == nullptr) return resource_limit("read bandwidth: " + std::to_string(kBufferBytes) + " bytes of host memory are not to be had");
  (void)madvise(buffer.get(), kBufferBytes, MADV_HUGEPAGE);
  std::memset(buffer.get(), 0x3c, kBufferBytes);

  MachinePeaks peaks;
  const auto read = [&](const uint8_t* bytes, int64_t n, int thread) { sums[static_cast<size_t>(thread) * 16] += c.kernels->read_stream(bytes, n); };
  const double one_stream = best_time(seconds / 2, [&] {
    c.pool->parallel_for(kBufferBytes, kPieceBytes, [&](int64_t begin, int64_t end, int thread) { read(buffer.get() + begin, end - begin, thread); });
  });
  const double several_streams = best_time(seconds / 2, [&] {
    c.pool->parallel_for(kBufferBytes, kPieceBytes, [&](int64_t begin, int64_t end, int thread) {
      const int64_t part = (end - begin) / kStreams;
      for (int64_t at = 0; at < part; at += kPageBytes) {
        for (int64_t s = 0; s < kStreams; ++s) read(buffer.get() + begin + s * part + at, kPageBytes, thread);
      }
    });
  });
  peaks.read_bytes_per_second = kBufferBytes / std::min(one_stream, several_streams);
  peaks.flops_per_second =
      4.0 * threads * static_cast<double>(c.kernels->fma_stream_flops(kSteps)) / best_time(seconds, [&] {
        c.pool->parallel_for(4 * threads, 1, [&](int64_t, int64_t, int thread) { sums[static_cast<size_t>(thread) * 16] += c.kernels->fma_stream(kSteps); });
      });
  return peaks;
}

}  // namespace dsv4

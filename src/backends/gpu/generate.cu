#include "backends/gpu/generate.h"

#include "backends/gpu/runtime/kernel.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 256;

// A thread makes one word. Two multiplies a word against 8 bytes written: the write bounds it.
__global__ void fill_words(SyntheticRule rule, int64_t first_word, int64_t size_bytes, uint8_t* out) {
  wait_previous();
  allow_next();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (8 * i >= size_bytes) return;
  const uint64_t word = synthetic_word(rule, first_word + i);
  if (8 * i + 8 <= size_bytes) {
    reinterpret_cast<uint64_t*>(out)[i] = word;
  } else {
    for (int64_t b = 0; 8 * i + b < size_bytes; ++b) out[8 * i + b] = static_cast<uint8_t>(word >> (8 * b));
  }
}

}  // namespace

Status generate_words(GpuContext& context, const SyntheticRule& rule, int64_t first_byte, int64_t size_bytes, uint8_t* out) {
  DSV4_CHECK(first_byte % 8 == 0 && reinterpret_cast<uintptr_t>(out) % 8 == 0, "generated pieces are whole words");
  return launch(context, "generate", fill_words, {.blocks_x = ceil_div(size_bytes, 8 * kThreads), .threads = kThreads}, rule, first_byte / 8, size_bytes, out);
}

}  // namespace dsv4::gpu

// Lab: do warpgroup products (wgmma m64nNk16) give the bits of warp products (mma.sync m16n8k16)? If they do, kernels may choose either by the
// number of rows and keep a row's bits. Prints, per number of columns, how many of the sums differ after chains of 1, 8 and 64 steps.
#include <cstdint>
#include <cstdio>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

__device__ uint64_t descriptor(const void* p) {
  const uint64_t address = static_cast<uint64_t>(__cvta_generic_to_shared(p));
  return (address & 0x3ffff) >> 4 | static_cast<uint64_t>(128 >> 4) << 16 | static_cast<uint64_t>(256 >> 4) << 32;
}

template <bool kBf16>
__device__ void warpgroup_product_n8(float (&c)[4], const uint32_t (&a)[4], uint64_t b) {
  if (kBf16) {
    asm volatile("{wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1, 0;}"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    asm volatile("{wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1, 0;}"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}
template <bool kBf16>
__device__ void warp_product(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if (kBf16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// a: [steps][128 threads][4] words of operand A; b: [steps][8 columns][16] elements. out: [2][128][4].
template <bool kBf16>
__global__ void compare(const uint32_t* a, const uint16_t* b, int steps, float* out) {
  __shared__ __align__(256) uint16_t tile[128];
  const int tid = threadIdx.x, lane = tid % 32, g = lane / 4, t = lane % 4;
  float wide[4] = {}, narrow[4] = {};
  for (int s = 0; s < steps; ++s) {
    __syncthreads();
    // Core matrices of 8 columns x 8 values of k.
    if (tid < 128) {
      const int column = tid / 16, k = tid % 16;
      tile[k / 8 * 64 + column * 8 + k % 8] = b[s * 128 + column * 16 + k];
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    uint32_t r[4];
    for (int i = 0; i < 4; ++i) r[i] = a[(s * 128 + tid) * 4 + i];
    const uint16_t* column = b + s * 128 + g * 16;
    const uint32_t b0 = column[2 * t] | static_cast<uint32_t>(column[2 * t + 1]) << 16, b1 = column[2 * t + 8] | static_cast<uint32_t>(column[2 * t + 9]) << 16;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    warpgroup_product_n8<kBf16>(wide, r, descriptor(tile));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    warp_product<kBf16>(narrow, r, b0, b1);
  }
  for (int i = 0; i < 4; ++i) {
    out[tid * 4 + i] = wide[i];
    out[512 + tid * 4 + i] = narrow[i];
  }
}

uint32_t state = 1;
float uniform() {
  state = state * 1664525u + 1013904223u;
  return static_cast<float>(state >> 8) * 0x1p-24f;
}

template <bool kBf16>
void run(const char* what, int steps, bool wide_range) {
  const auto element = [&]() -> uint16_t {
    float v = uniform() - 0.5f;
    if (wide_range) v *= exp2f(static_cast<float>(static_cast<int>(uniform() * 16) - 8));
    if (kBf16) return __bfloat16_as_ushort(__float2bfloat16(v));
    return __half_as_ushort(__float2half(v));
  };
  std::vector<uint32_t> a(static_cast<size_t>(steps) * 512);
  std::vector<uint16_t> b(static_cast<size_t>(steps) * 128);
  for (uint32_t& w : a) w = element() | static_cast<uint32_t>(element()) << 16;
  for (uint16_t& v : b) v = element();
  uint32_t* da;
  uint16_t* db;
  float* dout;
  cudaMalloc(&da, a.size() * 4);
  cudaMalloc(&db, b.size() * 2);
  cudaMalloc(&dout, 4096);
  cudaMemcpy(da, a.data(), a.size() * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(db, b.data(), b.size() * 2, cudaMemcpyHostToDevice);
  compare<kBf16><<<1, 128>>>(da, db, steps, dout);
  std::vector<float> out(1024);
  const cudaError_t e = cudaMemcpy(out.data(), dout, 4096, cudaMemcpyDeviceToHost);
  int different = 0;
  double worst = 0, size = 0;
  for (int i = 0; i < 512; ++i) {
    different += out[i] != out[512 + i];
    worst = fmax(worst, fabs(static_cast<double>(out[i]) - out[512 + i]));
    size = fmax(size, fabs(out[i]));
  }
  std::printf("%s %s range, %d steps: %d of 512 differ, largest difference %.3g of %.3g (%s)\n", what, wide_range ? "wide" : "narrow", steps, different, worst, size, cudaGetErrorString(e));
}

}  // namespace

int main() {
  for (const bool wide : {false, true}) {
    for (const int steps : {1, 8, 64}) {
      run<false>("f16", steps, wide);
      run<true>("bf16", steps, wide);
    }
  }
}

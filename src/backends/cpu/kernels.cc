#include "backends/cpu/kernels.h"

namespace dsv4 {

CpuKernels cpu_kernels(CpuIsa isa) {
  CpuKernels kernels;
  kernels.isa = isa;
  add_product_kernels(isa, kernels);
  add_row_kernels(isa, kernels);
  add_cache_kernels(isa, kernels);
  add_attention_kernels(isa, kernels);
  add_hc_kernels(isa, kernels);
  add_index_kernels(isa, kernels);
  return kernels;
}

}  // namespace dsv4

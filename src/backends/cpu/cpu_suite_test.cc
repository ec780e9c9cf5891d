// The shared operator test on the CPU backend, once per instruction set this machine has.
#include "backends/cpu/cpu_device.h"
#include "backends/cpu/cpu_isa.h"
#include "ops/testing/op_suite.h"

namespace dsv4 {
namespace {

template <CpuIsa isa>
Device* make_two_threads() {
  CpuDeviceOptions options;
  options.num_threads = 2;
  options.isa = cpu_isa_name(isa);
  auto device = make_cpu_device(options);
  return device.ok() ? std::move(device).value().release() : nullptr;
}

const bool kRegistered = [] {
  register_op_suite("cpu_scalar", make_two_threads<CpuIsa::kScalar>);
  if (cpu_isa_available(CpuIsa::kAvx2)) register_op_suite("cpu_avx2", make_two_threads<CpuIsa::kAvx2>);
  if (cpu_isa_available(CpuIsa::kAvx512)) register_op_suite("cpu_avx512", make_two_threads<CpuIsa::kAvx512>);
  return true;
}();

}  // namespace
}  // namespace dsv4

#include "backends/cpu/cpu_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "backends/cpu/cpu_context.h"
#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/numa.h"

namespace dsv4 {
namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

class CpuDevice final : public Device {
 public:
  CpuDevice(const CpuDeviceOptions& options, CpuIsa isa)
      : options_(options), pool_({.num_threads = options.num_threads, .pin = options.pin_threads}), kernels_(cpu_kernels(isa)) {
    context_.pool = &pool_;
    context_.kernels = &kernels_;
    const int threads = pool_.num_threads();
    info_.backend = "cpu";
    info_.name = cpu_model_name() + " (" + cpu_isa_name(isa) + ", " + std::to_string(threads) + (threads == 1 ? " thread)" : " threads)");
    info_.memory_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    info_.host_memory = true;
    // An expert's decode is paid off by some thirty rows; more rows only push activations out of the caches.
    info_.prefill_rows = 512;
    info_.expert_rows = 32;
  }

  const DeviceInfo& info() const override { return info_; }
  const OpTable& ops() const override { return cpu_ops(); }
  const OpTable& emulation_ops() const override {
    static const OpTable table = with_products_of(cpu_ops(), reference_ops());
    return table;
  }
  OpContext& context() override { return context_; }

  Result<DeviceBuffer> allocate(int64_t size_bytes, const std::string& what) override {
    const bool large = options_.huge_pages && size_bytes >= kHugePageBytes;
    const int64_t alignment = large ? kHugePageBytes : 256;
    const int64_t rounded = std::max(alignment, (size_bytes + alignment - 1) / alignment * alignment);
    void* p = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(rounded));
    if (p == nullptr) return resource_limit(what + ": " + std::to_string(size_bytes) + " bytes of host memory are not to be had");
    // A wish: a kernel that refuses leaves ordinary pages, which are as correct.
    if (large) (void)madvise(p, static_cast<size_t>(rounded), MADV_HUGEPAGE);
    return DeviceBuffer(p, size_bytes, [](void* q) { std::free(q); });
  }
  Status upload(void* dst, const void* src, int64_t n) override { return copy(dst, src, n); }
  Status download(void* dst, const void* src, int64_t n) override { return copy(dst, src, n); }
  Status copy(void* dst, const void* src, int64_t n) override {
    std::memmove(dst, src, static_cast<size_t>(n));
    return ok_status();
  }
  Status zero(void* dst, int64_t n) override {
    std::memset(dst, 0, static_cast<size_t>(n));
    return ok_status();
  }
  Status synchronize() override { return ok_status(); }
  // Kernels read the checkpoint's own layout, so weights stay where the loader mapped them.
  Result<WeightView> place_weight(const WeightView& host, const std::string&, DeviceBuffer*) override { return host; }

 private:
  CpuDeviceOptions options_;
  ThreadPool pool_;
  CpuKernels kernels_;
  CpuContext context_;
  DeviceInfo info_;
};

}  // namespace

Result<std::unique_ptr<Device>> make_cpu_device(const CpuDeviceOptions& options) {
  DSV4_ASSIGN_OR_RETURN(const CpuIsa isa, choose_cpu_isa(options.isa));
  DSV4_RETURN_IF_ERROR(set_numa_policy(options.numa));  // before the pool: its threads inherit it
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>(options, isa));
}

}  // namespace dsv4

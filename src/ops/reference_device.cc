#include <cstdlib>
#include <cstring>

#include "base/thread_pool.h"
#include "ops/device.h"

namespace dsv4 {
namespace {

class ReferenceDevice final : public Device {
 public:
  explicit ReferenceDevice(int num_threads) : pool_({.num_threads = num_threads}) {
    context_.pool = &pool_;
    info_.backend = "reference";
    info_.name = "host, plain loops, " + std::to_string(pool_.num_threads()) + " threads";
    info_.host_memory = true;
  }

  const DeviceInfo& info() const override { return info_; }
  const OpTable& ops() const override { return reference_ops(); }
  OpContext& context() override { return context_; }

  Result<DeviceBuffer> allocate(int64_t size_bytes, const std::string& what) override {
    const size_t rounded = (static_cast<size_t>(size_bytes) + 255) / 256 * 256;
    void* p = std::aligned_alloc(256, rounded == 0 ? 256 : rounded);
    if (p == nullptr) return resource_limit(what + ": " + std::to_string(size_bytes) + " bytes of host memory are not to be had");
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
  Result<WeightView> place_weight(const WeightView& host, const std::string&, DeviceBuffer*) override { return host; }

 private:
  ThreadPool pool_;
  HostContext context_;
  DeviceInfo info_;
};

}  // namespace

std::unique_ptr<Device> make_reference_device(int num_threads) { return std::make_unique<ReferenceDevice>(num_threads); }

}  // namespace dsv4

// A device: memory, operators, and (where it has them) graphs. The model and the engine know only this.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "ops/op_table.h"
#include "tensor/synthetic_word.h"
#include "tensor/weight.h"

namespace dsv4 {

struct DeviceInfo {
  std::string backend;       // "reference", "cpu", "gpu"
  std::string name;          // e.g. "AMD EPYC (avx2, 2 threads)", "NVIDIA H200"
  std::string driver;        // version text, may be empty
  int64_t memory_bytes = 0;  // total; 0 = unknown
  bool host_memory = false;  // device pointers are host pointers
  // Prompt rows of a step that use the device well (the engine's chunk unless it is told another): as many as give each routed expert
  // expert_rows of them, at most prefill_rows. 0: prefill_rows whatever the experts.
  int64_t prefill_rows = 256;
  int64_t expert_rows = 0;
};

// Owned device memory; freed with the object. Addresses are stable, 256-byte aligned.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(void* data, int64_t size_bytes, std::function<void(void*)> release) : data_(data), size_bytes_(size_bytes), release_(std::move(release)) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(release_, other.release_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) release_(data_);
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  void* data_ = nullptr;
  int64_t size_bytes_ = 0;
  std::function<void(void*)> release_;
};

// A captured step that can be replayed. Addresses and sizes are fixed; what lies behind the addresses may change.
class StepGraph {
 public:
  virtual ~StepGraph() = default;
  virtual Status launch() = 0;
};

// kPieces: in several graphs, for diagnosis. What Device::outside_graph is given lies between them and is run anew at each launch.
enum class CaptureMode : uint8_t { kWhole, kPieces };

// A weight whose bytes are made from the rules of a synthetic model instead of read. `shape` has no pointers; `scale` is unused by formats
// without scales.
struct GeneratedWeight {
  WeightView shape;
  SyntheticRule data, scale;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual const OpTable& ops() const = 0;
  // The same table with plain products (linear, grouped_linear, moe_experts): weights dequantized on use, float32 sums or wider, no fusing. What fast
  // products are judged by on the device itself.
  virtual const OpTable& emulation_ops() const { return ops(); }
  virtual OpContext& context() = 0;
  // Memory that is still free; 0 = unknown.
  virtual int64_t free_bytes() const { return 0; }
  // Kernels started or recorded so far (replays are not counted); 0 on devices without kernels.
  virtual int64_t kernels_launched() const { return 0; }

  // `what` names the purpose in errors: "cache: 12345 bytes do not fit ...". Memory is not cleared.
  virtual Result<DeviceBuffer> allocate(int64_t size_bytes, const std::string& what) = 0;

  // In order with the operators. `upload` may return before the copy ends but src may be reused at once; `download` waits.
  virtual Status upload(void* dst, const void* src, int64_t size_bytes) = 0;
  virtual Status download(void* dst, const void* src, int64_t size_bytes) = 0;
  virtual Status copy(void* dst, const void* src, int64_t size_bytes) = 0;  // device to device
  virtual Status zero(void* dst, int64_t size_bytes) = 0;
  // Waits for all work; reports device faults.
  virtual Status synchronize() = 0;

  // Puts a weight where operators of this device want it, in the layout they want (host devices: the same bytes, no copy). `storage`
  // keeps it alive. Called once per weight at load; addresses are stable afterwards.
  virtual Result<WeightView> place_weight(const WeightView& host, const std::string& name, DeviceBuffer* storage) = 0;

  // Whether this device makes synthetic tensors itself, which only pays where host memory is far or too small. If so: the same bytes as the
  // host's generator (tensor/synthetic_word.h), into device memory and as a placed weight.
  virtual bool generates() const { return false; }
  virtual Status generate(void* dst, const SyntheticRule& rule, int64_t size_bytes) {
    (void)dst, (void)rule, (void)size_bytes;
    return unsupported("backend " + info().backend + " does not make synthetic weights itself");
  }
  virtual Result<WeightView> place_generated(const GeneratedWeight& weight, const std::string& name, DeviceBuffer* storage) {
    (void)weight, (void)storage;
    return unsupported(name + ": backend " + info().backend + " does not make synthetic weights itself");
  }

  // Two groups of operators of which neither reads or writes what the other writes. A device with queues may run them side by side in
  // steps that it captures; elsewhere `first` runs, then `second`.
  virtual Status side_by_side(const std::function<Status()>& first, const std::function<Status()>& second) {
    DSV4_RETURN_IF_ERROR(first());
    return second();
  }

  // Runs `record` once so that its operators are captured instead of executed. Null result = this device has no graphs.
  virtual Result<std::unique_ptr<StepGraph>> capture(const std::function<Status()>& record, CaptureMode mode) {
    (void)record, (void)mode;
    return std::unique_ptr<StepGraph>();
  }
  // Runs an operator; while a step is captured in pieces, cuts the graph here and keeps `op`, with all it holds by value, for the launches. Not within
  // side_by_side.
  virtual Status outside_graph(const std::function<Status()>& op) { return op(); }
};

// The reference device: host memory, reference_ops(), num_threads threads (0 = all cores).
std::unique_ptr<Device> make_reference_device(int num_threads);

}  // namespace dsv4

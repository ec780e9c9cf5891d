#include "backends/gpu/gpu_device.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "backends/gpu/gpu_context.h"
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/repack.h"
#include "backends/gpu/weight_layout.h"

namespace dsv4 {
namespace {

using namespace gpu;

constexpr int64_t kStagingBytes = int64_t{16} << 20;
constexpr int kStagingBuffers = 2;

class GpuStepGraph final : public StepGraph {
 public:
  GpuStepGraph(GpuContext& context, Graph graph) : context_(context), graph_(graph) {}
  ~GpuStepGraph() override { destroy_graph(graph_); }
  Status launch() override {
    DSV4_RETURN_IF_ERROR(bind_device(context_.properties.index));
    return launch_graph(graph_, context_.stream);
  }

 private:
  GpuContext& context_;
  Graph graph_;
};

class GpuDevice final : public Device {
 public:
  ~GpuDevice() override {
    (void)bind_device(context_.properties.index);
    if (context_.stream != nullptr) (void)gpu::synchronize(context_.stream);
    for (Staging& s : staging_) {
      if (s.done != nullptr) destroy_event(s.done);
      if (s.data != nullptr) free_pinned(s.data);
    }
    if (context_.stream != nullptr) destroy_stream(context_.stream);
  }

  Status open(const GpuDeviceOptions& options) {
    DSV4_ASSIGN_OR_RETURN(const int count, count_devices());
    if (options.index < 0 || options.index >= count) {
      return invalid_argument("gpu: index " + std::to_string(options.index) + ", this machine has " + std::to_string(count));
    }
    DSV4_ASSIGN_OR_RETURN(context_.properties, device_properties(options.index));
    DSV4_RETURN_IF_ERROR(bind_device(options.index));
    DSV4_ASSIGN_OR_RETURN(context_.stream, create_stream());
    const bool hopper = context_.properties.arch_major == 9;
    context_.overlap = context_.properties.arch_major >= 9;
    context_.strips = hopper && !options.portable_only && strips_ops() != nullptr;
    ops_ = context_.strips ? strips_ops() : &portable_ops();
    for (Staging& s : staging_) {
      DSV4_ASSIGN_OR_RETURN(s.data, allocate_pinned(kStagingBytes));
      DSV4_ASSIGN_OR_RETURN(s.done, create_event(false));
    }
    info_.backend = "gpu";
    info_.name = context_.properties.name + (context_.strips ? "" : " (portable kernels)");
    info_.driver = context_.properties.driver;
    info_.memory_bytes = context_.properties.memory_bytes;
    return ok_status();
  }

  const DeviceInfo& info() const override { return info_; }
  const OpTable& ops() const override { return *ops_; }
  OpContext& context() override { return context_; }
  GpuContext& gpu() { return context_; }

  Result<DeviceBuffer> allocate(int64_t size_bytes, const std::string& what) override {
    DSV4_RETURN_IF_ERROR(bind_device(context_.properties.index));
    auto memory = allocate_device(std::max<int64_t>(size_bytes, 1));
    if (!memory.ok()) {
      const auto free_now = free_device_bytes();
      return resource_limit(what + ": " + std::to_string(size_bytes) + " bytes do not fit the GPU's memory (" + std::to_string(free_now.ok() ? free_now.value() : 0) + " free)");
    }
    const int index = context_.properties.index;
    return DeviceBuffer(memory.value(), size_bytes, [index](void* p) {
      (void)bind_device(index);
      free_device(p);
    });
  }

  Status upload(void* dst, const void* src, int64_t size_bytes) override {
    DSV4_RETURN_IF_ERROR(bind_device(context_.properties.index));
    for (int64_t at = 0; at < size_bytes; at += kStagingBytes) {
      const int64_t n = std::min(kStagingBytes, size_bytes - at);
      Staging& s = staging_[next_staging_];
      next_staging_ = (next_staging_ + 1) % kStagingBuffers;
      DSV4_RETURN_IF_ERROR(wait_event(s.done));  // its last copy has left
      std::memcpy(s.data, static_cast<const uint8_t*>(src) + at, static_cast<size_t>(n));
      DSV4_RETURN_IF_ERROR(copy_async(static_cast<uint8_t*>(dst) + at, s.data, n, CopyKind::kHostToDevice, context_.stream));
      DSV4_RETURN_IF_ERROR(record_event(s.done, context_.stream));
    }
    return ok_status();
  }

  Status download(void* dst, const void* src, int64_t size_bytes) override {
    DSV4_RETURN_IF_ERROR(bind_device(context_.properties.index));
    for (int64_t at = 0; at < size_bytes; at += kStagingBytes) {
      const int64_t n = std::min(kStagingBytes, size_bytes - at);
      Staging& s = staging_[next_staging_];
      DSV4_RETURN_IF_ERROR(wait_event(s.done));
      DSV4_RETURN_IF_ERROR(copy_async(s.data, static_cast<const uint8_t*>(src) + at, n, CopyKind::kDeviceToHost, context_.stream));
      DSV4_RETURN_IF_ERROR(gpu::synchronize(context_.stream));
      std::memcpy(static_cast<uint8_t*>(dst) + at, s.data, static_cast<size_t>(n));
    }
    return ok_status();
  }

  Status copy(void* dst, const void* src, int64_t size_bytes) override {
    DSV4_RETURN_IF_ERROR(bind_device(context_.properties.index));
    return size_bytes == 0 ? ok_status() : copy_async(dst, src, size_bytes, CopyKind::kDeviceToDevice, context_.stream);
  }
  Status zero(void* dst, int64_t size_bytes) override {
    DSV4_RETURN_IF_ERROR(bind_device(context_.properties.index));
    return size_bytes == 0 ? ok_status() : zero_async(dst, size_bytes, context_.stream);
  }
  Status synchronize() override {
    DSV4_RETURN_IF_ERROR(bind_device(context_.properties.index));
    return gpu::synchronize(context_.stream);
  }

  Result<WeightView> place_weight(const WeightView& host, const std::string& name, DeviceBuffer* storage) override {
    DSV4_RETURN_IF_ERROR(check_weight(name.c_str(), host));
    const int64_t data_bytes = host.n * host.row_bytes(), scale_bytes = host.total_bytes() - data_bytes;
    const int64_t scale_at = (data_bytes + 255) / 256 * 256;
    DSV4_ASSIGN_OR_RETURN(DeviceBuffer placed, allocate(scale_at + scale_bytes, name));
    WeightView view = host;
    view.data = placed.as<uint8_t>();
    view.scale = scale_bytes == 0 ? nullptr : placed.as<uint8_t>() + scale_at;
    if (context_.strips && fits_strips(host.format, host.n, host.k)) {
      // Through scratch in row-major form, then reordered into place. Large weights go in pieces of whole scale blocks of rows.
      const int64_t piece = piece_rows(host);
      for (int64_t first = 0; first < host.n; first += piece) {
        WeightView rows = host;
        rows.n = std::min(piece, host.n - first);
        const int64_t row_scale_bytes = host.format == WeightFormat::kMxfp4 ? host.k / kMxfp4Group : 0;
        rows.data = host.data + first * host.row_bytes();
        DSV4_ASSIGN_OR_RETURN(uint8_t* scratch, context_.scratch(rows.n * (host.row_bytes() + row_scale_bytes)));
        DSV4_RETURN_IF_ERROR(upload(scratch, rows.data, rows.n * host.row_bytes()));
        uint8_t* scratch_scale = scratch + rows.n * host.row_bytes();
        if (row_scale_bytes != 0) DSV4_RETURN_IF_ERROR(upload(scratch_scale, host.scale + first * row_scale_bytes, rows.n * row_scale_bytes));
        WeightView source = rows;
        source.data = scratch;
        source.scale = scratch_scale;
        DSV4_RETURN_IF_ERROR(repack_strips(context_, source, placed.as<uint8_t>() + first * host.row_bytes(), placed.as<uint8_t>() + scale_at + first * row_scale_bytes));
      }
      if (host.format == WeightFormat::kFp8Block) DSV4_RETURN_IF_ERROR(upload(const_cast<uint8_t*>(view.scale), host.scale, scale_bytes));
    } else {
      DSV4_RETURN_IF_ERROR(upload(const_cast<uint8_t*>(view.data), host.data, data_bytes));
      if (scale_bytes != 0) DSV4_RETURN_IF_ERROR(upload(const_cast<uint8_t*>(view.scale), host.scale, scale_bytes));
    }
    *storage = std::move(placed);
    return view;
  }

  Result<std::unique_ptr<StepGraph>> capture(const std::function<Status()>& record) override {
    DSV4_RETURN_IF_ERROR(bind_device(context_.properties.index));
    DSV4_RETURN_IF_ERROR(begin_capture(context_.stream));
    const Status recorded = record();
    auto graph = end_capture(context_.stream, recorded.ok());
    if (!recorded.ok()) return recorded;
    if (!graph.ok()) return graph.status();
    return std::unique_ptr<StepGraph>(std::make_unique<GpuStepGraph>(context_, graph.value()));
  }

 private:
  struct Staging {
    void* data = nullptr;
    Event done = nullptr;
  };

  // Rows that fit 64 MiB, in whole scale blocks.
  static int64_t piece_rows(const WeightView& w) {
    constexpr int64_t kPieceBytes = int64_t{64} << 20;
    return std::max<int64_t>(1, kPieceBytes / w.row_bytes() / kFp8WeightBlock) * kFp8WeightBlock;
  }

  GpuContext context_;
  const OpTable* ops_ = nullptr;
  DeviceInfo info_;
  Staging staging_[kStagingBuffers];
  int next_staging_ = 0;
};

}  // namespace

Result<std::unique_ptr<Device>> make_gpu_device(const GpuDeviceOptions& options) {
  auto device = std::make_unique<GpuDevice>();
  DSV4_RETURN_IF_ERROR(device->open(options));
  return std::unique_ptr<Device>(std::move(device));
}

std::string gpu_unavailable_reason() {
  const auto count = count_devices();
  return count.ok() ? "" : count.status().message();
}

GpuUsage gpu_usage(Device& device) {
  GpuContext& context = static_cast<GpuContext&>(device.context());
  return {context.launches, context.scratch_bytes()};
}

}  // namespace dsv4

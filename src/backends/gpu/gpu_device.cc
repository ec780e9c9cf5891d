#include "backends/gpu/gpu_device.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "backends/gpu/generate.h"
#include "backends/gpu/gpu_context.h"
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/repack.h"
#include "backends/gpu/runtime/branch.h"
#include "backends/gpu/weight_layout.h"
#include "backends/gpu/weight_slabs.h"

namespace dsv4 {
namespace {

using namespace gpu;

constexpr int64_t kStagingBytes = int64_t{16} << 20;
constexpr int kStagingBuffers = 2;

// Graphs, and what runs between them.
class GpuStepGraph final : public StepGraph {
 public:
  explicit GpuStepGraph(GpuContext& context) : context_(context) {}
  ~GpuStepGraph() override {
    for (const Piece& p : pieces_) {
      if (p.graph != nullptr) destroy_graph(p.graph);
    }
  }
  void add(Graph graph) { pieces_.push_back({graph, {}}); }
  void add(std::function<Status()> op) { pieces_.push_back({nullptr, std::move(op)}); }
  Status launch() override {
    DSV4_RETURN_IF_ERROR(bind_device(context_.properties.index));
    for (const Piece& p : pieces_) DSV4_RETURN_IF_ERROR(p.graph != nullptr ? launch_graph(p.graph, context_.stream) : p.op());
    return ok_status();
  }

 private:
  struct Piece {
    Graph graph;  // null: op
    std::function<Status()> op;
  };
  GpuContext& context_;
  std::vector<Piece> pieces_;
};

class GpuDevice final : public Device, public FusedDevice {
 public:
  ~GpuDevice() override {
    (void)bind_device(context_.properties.index);
    if (context_.stream != nullptr) (void)gpu::synchronize(context_.stream);
    for (Staging& s : staging_) {
      if (s.done != nullptr) destroy_event(s.done);
      if (s.data != nullptr) free_pinned(s.data);
    }
    for (Event e : {fork_, join_}) {
      if (e != nullptr) destroy_event(e);
    }
    for (Stream s : {side_.stream, context_.stream}) {
      if (s != nullptr) destroy_stream(s);
    }
  }

  Status open(const GpuDeviceOptions& options) {
    DSV4_ASSIGN_OR_RETURN(const int count, count_devices());
    if (options.index < 0 || options.index >= count) {
      return invalid_argument("gpu: index " + std::to_string(options.index) + ", this machine has " + std::to_string(count));
    }
    DSV4_ASSIGN_OR_RETURN(context_.properties, device_properties(options.index));
    DSV4_RETURN_IF_ERROR(bind_device(options.index));
    DSV4_ASSIGN_OR_RETURN(context_.stream, create_stream());
    DSV4_ASSIGN_OR_RETURN(side_.stream, create_stream());
    DSV4_ASSIGN_OR_RETURN(fork_, create_event(false));
    DSV4_ASSIGN_OR_RETURN(join_, create_event(false));
    const bool hopper = context_.properties.arch_major == 9;
    context_.overlap = context_.properties.arch_major >= 9;
    context_.strips = hopper && !options.portable_only && strips_ops() != nullptr;
    ops_ = context_.strips ? strips_ops() : &portable_ops();
    emulation_ops_ = with_products_of(*ops_, portable_ops());
    branches_ = options.branches;
    side_.properties = context_.properties;
    side_.overlap = context_.overlap;
    side_.strips = context_.strips;
    for (GpuContext* c : {&context_, &side_}) DSV4_RETURN_IF_ERROR(c->open());
    for (Staging& s : staging_) {
      DSV4_ASSIGN_OR_RETURN(s.data, allocate_pinned(kStagingBytes));
      DSV4_ASSIGN_OR_RETURN(s.done, create_event(false));
    }
    info_.backend = "gpu";
    info_.name = context_.properties.name + (context_.strips ? "" : " (portable kernels)");
    info_.driver = context_.properties.driver;
    info_.memory_bytes = context_.properties.memory_bytes;
    info_.prefill_rows = 2048;
    return ok_status();
  }

  const DeviceInfo& info() const override { return info_; }
  const OpTable& ops() const override { return *ops_; }
  const OpTable& emulation_ops() const override { return emulation_ops_; }
  const FusedOps& fused() const override {
    static const FusedOps none;
    return context_.strips ? strips_fused_ops() : none;
  }
  void read_soon(const MemoryRange& range) override { current_->read_soon = range; }
  OpContext& context() override { return *current_; }
  int64_t free_bytes() const override {
    if (!bind_device(context_.properties.index).ok()) return 0;
    const auto bytes = free_device_bytes();
    return bytes.ok() ? *bytes : 0;
  }
  int64_t scratch_bytes() const { return context_.scratch_bytes() + side_.scratch_bytes(); }
  int64_t kernels_launched() const override { return context_.launches + side_.launches; }

  Result<DeviceBuffer> allocate(int64_t size_bytes, const std::string& what) override {
    DSV4_RETURN_IF_ERROR(bind_device(context_.properties.index));
    auto memory = allocate_device(std::max<int64_t>(size_bytes, 1));
    if (!memory.ok()) {
      const auto free_now = free_device_bytes();
      return resource_limit(what + ": " + std::to_string(size_bytes) + " bytes do not fit the GPU's memory (" +
                            std::to_string(free_now.ok() ? free_now.value() : 0) + " free)");
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
    return place(host, name, storage, [&](Plane plane, int64_t first_byte, int64_t size_bytes, uint8_t* dst) {
      return upload(dst, (plane == Plane::kData ? host.data : host.scale) + first_byte, size_bytes);
    });
  }

  bool generates() const override { return true; }
  Status generate(void* dst, const SyntheticRule& rule, int64_t size_bytes) override {
    return generate_words(context_, rule, 0, size_bytes, static_cast<uint8_t*>(dst));
  }
  Result<WeightView> place_generated(const GeneratedWeight& weight, const std::string& name, DeviceBuffer* storage) override {
    DSV4_RETURN_IF_ERROR(check_weight_sizes(name.c_str(), weight.shape));
    return place(weight.shape, name, storage, [&](Plane plane, int64_t first_byte, int64_t size_bytes, uint8_t* dst) {
      return generate_words(context_, plane == Plane::kData ? weight.data : weight.scale, first_byte, size_bytes, dst);
    });
  }

  // The second group is recorded on a stream of its own, with scratch of its own. Its first kernel waits for all of its predecessor and the first
  // one after the join for all of its last, so the rules of overlapping kernels (runtime/kernel.h) hold along every path.
  Status side_by_side(const std::function<Status()>& first, const std::function<Status()>& second) override {
    if (!capturing_ || !branches_ || current_ != &context_) return Device::side_by_side(first, second);
    DSV4_RETURN_IF_ERROR(record_event(fork_, context_.stream));
    DSV4_RETURN_IF_ERROR(wait_on_stream(side_.stream, fork_));
    current_ = &side_;
    const Status branched = second();
    current_ = &context_;
    const Status joined = record_event(join_, side_.stream);  // also after an error: an open branch would spoil the capture's end
    const Status main = branched.ok() ? first() : branched;
    DSV4_RETURN_IF_ERROR(joined);
    const Status waited = wait_on_stream(context_.stream, join_);
    return main.ok() ? waited : main;
  }

  Result<std::unique_ptr<StepGraph>> capture(const std::function<Status()>& record, CaptureMode mode) override {
    DSV4_RETURN_IF_ERROR(bind_device(context_.properties.index));
    auto step = std::make_unique<GpuStepGraph>(context_);
    DSV4_RETURN_IF_ERROR(begin_capture(context_.stream));
    capturing_ = true;
    cut_ = mode == CaptureMode::kPieces ? step.get() : nullptr;
    const Status recorded = record();
    capturing_ = false;
    cut_ = nullptr;
    auto graph = end_capture(context_.stream, recorded.ok());
    if (!recorded.ok()) return recorded;
    if (!graph.ok()) return graph.status();
    step->add(*graph);
    return std::unique_ptr<StepGraph>(std::move(step));
  }
  Status outside_graph(const std::function<Status()>& op) override {
    if (cut_ == nullptr) return op();
    DSV4_ASSIGN_OR_RETURN(const Graph before, end_capture(context_.stream, true));
    cut_->add(before);
    cut_->add(op);
    return begin_capture(context_.stream);
  }

 private:
  struct Staging {
    void* data = nullptr;
    Event done = nullptr;
  };

  // A weight's bytes come in row-major pieces, from wherever they are.
  enum class Plane : uint8_t { kData, kScale };
  using Fill = std::function<Status(Plane plane, int64_t first_byte, int64_t size_bytes, uint8_t* dst)>;

  Result<WeightView> place(const WeightView& shape, const std::string& name, DeviceBuffer* storage, const Fill& fill) {
    const int64_t data_bytes = shape.n * shape.row_bytes(), scale_bytes = shape.total_bytes() - data_bytes;
    const int64_t scale_at = (data_bytes + 255) / 256 * 256;
    DSV4_ASSIGN_OR_RETURN(DeviceBuffer placed, slabs_.take(scale_at + scale_bytes, name));
    WeightView view = shape;
    uint8_t *data = placed.as<uint8_t>(), *scale = scale_bytes == 0 ? nullptr : data + scale_at;
    view.data = data;
    view.scale = scale;
    if (context_.strips && fits_strips(shape.format, shape.n, shape.k)) {
      // Through scratch in row-major form, then reordered into place. Large weights go in pieces of whole scale blocks of rows.
      const int64_t piece = piece_rows(shape), row_scale_bytes = shape.format == WeightFormat::kMxfp4 ? shape.k / kMxfp4Group : 0;
      for (int64_t first = 0; first < shape.n; first += piece) {
        WeightView rows = shape;
        rows.n = std::min(piece, shape.n - first);
        DSV4_ASSIGN_OR_RETURN(uint8_t * scratch, context_.scratch(rows.n * (shape.row_bytes() + row_scale_bytes)));
        uint8_t* scratch_scale = scratch + rows.n * shape.row_bytes();
        DSV4_RETURN_IF_ERROR(fill(Plane::kData, first * shape.row_bytes(), rows.n * shape.row_bytes(), scratch));
        if (row_scale_bytes != 0) DSV4_RETURN_IF_ERROR(fill(Plane::kScale, first * row_scale_bytes, rows.n * row_scale_bytes, scratch_scale));
        rows.data = scratch;
        rows.scale = scratch_scale;
        DSV4_RETURN_IF_ERROR(repack_strips(context_, rows, data + first * shape.row_bytes(), scale + first * row_scale_bytes));
      }
      if (shape.format == WeightFormat::kFp8Block) DSV4_RETURN_IF_ERROR(fill(Plane::kScale, 0, scale_bytes, scale));
    } else {
      DSV4_RETURN_IF_ERROR(fill(Plane::kData, 0, data_bytes, data));
      if (scale_bytes != 0) DSV4_RETURN_IF_ERROR(fill(Plane::kScale, 0, scale_bytes, scale));
    }
    *storage = std::move(placed);
    return view;
  }

  // Rows that fit 64 MiB, in whole scale blocks.
  static int64_t piece_rows(const WeightView& w) {
    constexpr int64_t kPieceBytes = int64_t{64} << 20;
    return std::max<int64_t>(1, kPieceBytes / w.row_bytes() / kFp8WeightBlock) * kFp8WeightBlock;
  }

  GpuContext context_, side_;  // side_: the second group of side_by_side
  GpuContext* current_ = &context_;
  bool capturing_ = false, branches_ = true;
  GpuStepGraph* cut_ = nullptr;  // the step that is being captured in pieces
  Event fork_ = nullptr, join_ = nullptr;
  const OpTable* ops_ = nullptr;
  OpTable emulation_ops_;
  DeviceInfo info_;
  Staging staging_[kStagingBuffers];
  int next_staging_ = 0;
  WeightSlabs slabs_{[this](int64_t size_bytes, const std::string& what) { return allocate(size_bytes, what); }};
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

GpuUsage gpu_usage(Device& device) { return {device.kernels_launched(), static_cast<GpuDevice&>(device).scratch_bytes()}; }

}  // namespace dsv4

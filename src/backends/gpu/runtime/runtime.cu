#include "backends/gpu/runtime/runtime.h"

#include "backends/gpu/runtime/vendor.h"

namespace dsv4::gpu {
namespace {

Status to_status(VendorError error, const char* what) {
  if (error == kVendorSuccess) return ok_status();
  (void)DSV4_GPU_NAME(GetLastError)();  // errors that are not sticky must not meet the next call
  const std::string text = std::string("gpu: ") + what + ": " + DSV4_GPU_NAME(GetErrorString)(error);
  if (error == DSV4_GPU_NAME(ErrorMemoryAllocation)) return resource_limit(text);
  if (error == DSV4_GPU_NAME(ErrorNoDevice) || error == DSV4_GPU_NAME(ErrorInsufficientDriver)) return unsupported(text);
  return device_error(text);
}

VendorStream native(Stream s) { return reinterpret_cast<VendorStream>(s); }
VendorEvent native(Event e) { return reinterpret_cast<VendorEvent>(e); }
VendorGraphExec native(Graph g) { return reinterpret_cast<VendorGraphExec>(g); }

std::string version_text(int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); }

}  // namespace

Result<int> count_devices() {
  int count = 0;
  const VendorError error = DSV4_GPU_NAME(GetDeviceCount)(&count);
  if (error != kVendorSuccess) {
    int driver = 0;
    (void)DSV4_GPU_NAME(DriverGetVersion)(&driver);  // 0 where there is none
    if (driver == 0) return unsupported("gpu: this machine has no GPU driver, so no GPU can be used");
    return unsupported(to_status(error, "looking for devices").message());
  }
  if (count < 1) return unsupported("gpu: the driver reports no device");
  return count;
}

Result<DeviceProperties> device_properties(int index) {
#if defined(__HIP__)
  hipDeviceProp_t native_props{};
  DSV4_RETURN_IF_ERROR(to_status(hipGetDeviceProperties(&native_props, index), "reading device properties"));
#else
  cudaDeviceProp native_props{};
  DSV4_RETURN_IF_ERROR(to_status(cudaGetDeviceProperties(&native_props, index), "reading device properties"));
#endif
  int driver = 0, runtime = 0;
  (void)DSV4_GPU_NAME(DriverGetVersion)(&driver);
  (void)DSV4_GPU_NAME(RuntimeGetVersion)(&runtime);
  DeviceProperties p;
  p.name = native_props.name;
  p.driver = "driver " + version_text(driver) + ", runtime " + version_text(runtime);
  p.index = index;
  p.arch_major = native_props.major;
  p.arch_minor = native_props.minor;
  p.multiprocessors = native_props.multiProcessorCount;
  p.memory_bytes = static_cast<int64_t>(native_props.totalGlobalMem);
  p.l2_bytes = native_props.l2CacheSize;
#if defined(__HIP__)
  p.shared_bytes_per_block = static_cast<int64_t>(native_props.sharedMemPerBlock);
#else
  p.shared_bytes_per_block = static_cast<int64_t>(native_props.sharedMemPerBlockOptin);
#endif
  return p;
}

Status bind_device(int index) { return to_status(DSV4_GPU_NAME(SetDevice)(index), "selecting the device"); }

Result<Stream> create_stream() {
  VendorStream s = nullptr;
  DSV4_RETURN_IF_ERROR(to_status(DSV4_GPU_NAME(StreamCreateWithFlags)(&s, DSV4_GPU_NAME(StreamNonBlocking)), "creating a stream"));
  return reinterpret_cast<Stream>(s);
}
void destroy_stream(Stream s) { (void)DSV4_GPU_NAME(StreamDestroy)(native(s)); }
Status synchronize(Stream s) { return to_status(DSV4_GPU_NAME(StreamSynchronize)(native(s)), "waiting for the device"); }
Status synchronize_device() { return to_status(DSV4_GPU_NAME(DeviceSynchronize)(), "waiting for the device"); }

Result<Event> create_event(bool timing) {
  VendorEvent e = nullptr;
  const unsigned flags = timing ? DSV4_GPU_NAME(EventDefault) : DSV4_GPU_NAME(EventDisableTiming);
  DSV4_RETURN_IF_ERROR(to_status(DSV4_GPU_NAME(EventCreateWithFlags)(&e, flags), "creating an event"));
  return reinterpret_cast<Event>(e);
}
void destroy_event(Event e) { (void)DSV4_GPU_NAME(EventDestroy)(native(e)); }
Status record_event(Event e, Stream s) { return to_status(DSV4_GPU_NAME(EventRecord)(native(e), native(s)), "recording an event"); }
Status wait_event(Event e) { return to_status(DSV4_GPU_NAME(EventSynchronize)(native(e)), "waiting for an event"); }
Result<float> elapsed_ms(Event begin, Event end) {
  float ms = 0;
  DSV4_RETURN_IF_ERROR(to_status(DSV4_GPU_NAME(EventElapsedTime)(&ms, native(begin), native(end)), "reading a timer"));
  return ms;
}

Result<void*> allocate_device(int64_t size_bytes) {
  void* p = nullptr;
  DSV4_RETURN_IF_ERROR(to_status(DSV4_GPU_NAME(Malloc)(&p, static_cast<size_t>(size_bytes)), "allocating memory"));
  return p;
}
void free_device(void* p) { (void)DSV4_GPU_NAME(Free)(p); }

Result<void*> allocate_pinned(int64_t size_bytes) {
  void* p = nullptr;
#if defined(__HIP__)
  const VendorError error = hipHostMalloc(&p, static_cast<size_t>(size_bytes), 0);
#else
  const VendorError error = cudaHostAlloc(&p, static_cast<size_t>(size_bytes), cudaHostAllocDefault);
#endif
  DSV4_RETURN_IF_ERROR(to_status(error, "allocating pinned host memory"));
  return p;
}
void free_pinned(void* p) {
#if defined(__HIP__)
  (void)hipHostFree(p);
#else
  (void)cudaFreeHost(p);
#endif
}

Result<int64_t> free_device_bytes() {
  size_t free_now = 0, total = 0;
  DSV4_RETURN_IF_ERROR(to_status(DSV4_GPU_NAME(MemGetInfo)(&free_now, &total), "asking for free memory"));
  return static_cast<int64_t>(free_now);
}

Status copy_async(void* dst, const void* src, int64_t size_bytes, CopyKind kind, Stream s) {
  const auto native_kind = kind == CopyKind::kHostToDevice   ? DSV4_GPU_NAME(MemcpyHostToDevice)
                           : kind == CopyKind::kDeviceToHost ? DSV4_GPU_NAME(MemcpyDeviceToHost)
                                                             : DSV4_GPU_NAME(MemcpyDeviceToDevice);
  return to_status(DSV4_GPU_NAME(MemcpyAsync)(dst, src, static_cast<size_t>(size_bytes), native_kind, native(s)), "copying");
}
Status zero_async(void* dst, int64_t size_bytes, Stream s) {
  return to_status(DSV4_GPU_NAME(MemsetAsync)(dst, 0, static_cast<size_t>(size_bytes), native(s)), "clearing memory");
}

Status begin_capture(Stream s) {
  // Relaxed: the workspace may have to grow while a step is recorded for the first time.
  return to_status(DSV4_GPU_NAME(StreamBeginCapture)(native(s), DSV4_GPU_NAME(StreamCaptureModeRelaxed)), "starting a capture");
}

Result<Graph> end_capture(Stream s, bool keep) {
  VendorGraph graph = nullptr;
  DSV4_RETURN_IF_ERROR(to_status(DSV4_GPU_NAME(StreamEndCapture)(native(s), &graph), "ending a capture"));
  if (!keep) {
    (void)DSV4_GPU_NAME(GraphDestroy)(graph);
    return device_error("gpu: the capture was abandoned");
  }
  VendorGraphExec exec = nullptr;
#if defined(__HIP__)
  const VendorError error = hipGraphInstantiate(&exec, graph, nullptr, nullptr, 0);
#else
  const VendorError error = cudaGraphInstantiate(&exec, graph, 0);
#endif
  (void)DSV4_GPU_NAME(GraphDestroy)(graph);
  DSV4_RETURN_IF_ERROR(to_status(error, "instantiating a graph"));
  return reinterpret_cast<Graph>(exec);
}
Status launch_graph(Graph g, Stream s) { return to_status(DSV4_GPU_NAME(GraphLaunch)(native(g), native(s)), "launching a graph"); }
void destroy_graph(Graph g) { (void)DSV4_GPU_NAME(GraphExecDestroy)(native(g)); }

}  // namespace dsv4::gpu

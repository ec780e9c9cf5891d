// Own names over the vendor's runtime: devices, streams, memory, events, graphs. No vendor header is needed to use this. Vendor errors come
// back as Status: kUnsupported when there is no device to talk to, kResourceLimit for memory, kDevice for faults.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace dsv4::gpu {

struct StreamTag;
struct EventTag;
struct GraphTag;
using Stream = StreamTag*;
using Event = EventTag*;
using Graph = GraphTag*;  // an instantiated, launchable graph

struct DeviceProperties {
  std::string name;
  std::string driver;  // "driver 13.0, runtime 13.0"
  int index = 0;
  int arch_major = 0;
  int arch_minor = 0;
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes_per_block = 0;  // opt-in maximum
};

// Number of devices, at least 1; else the reason there is none.
Result<int> count_devices();
Result<DeviceProperties> device_properties(int index);
// Makes `index` the calling thread's device. Cheap when it already is.
Status bind_device(int index);

Result<Stream> create_stream();
void destroy_stream(Stream stream);
Status synchronize(Stream stream);
Status synchronize_device();

Result<Event> create_event(bool timing);
void destroy_event(Event event);
Status record_event(Event event, Stream stream);
Status wait_event(Event event);  // the host waits
Result<float> elapsed_ms(Event begin, Event end);

Result<void*> allocate_device(int64_t size_bytes);
void free_device(void* p);
Result<void*> allocate_pinned(int64_t size_bytes);
void free_pinned(void* p);
Result<int64_t> free_device_bytes();

enum class CopyKind { kHostToDevice, kDeviceToHost, kDeviceToDevice };
Status copy_async(void* dst, const void* src, int64_t size_bytes, CopyKind kind, Stream stream);
Status zero_async(void* dst, int64_t size_bytes, Stream stream);

Status begin_capture(Stream stream);
// Ends the capture; the graph when it is whole. `keep` false throws away what was recorded.
Result<Graph> end_capture(Stream stream, bool keep);
Status launch_graph(Graph graph, Stream stream);
void destroy_graph(Graph graph);

}  // namespace dsv4::gpu

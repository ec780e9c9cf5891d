// Where a decode step's time goes: per component and per operator, against what the memory allows.
//
// Steps alternate: one without the profiler, one with it, so that both see the same machine. The former give the headline, the only time
// that other reports may quote; the latter the components. Times of the two are never mixed; the difference of their medians is stated as
// the profiler's overhead. Components are means over the faster half of the profiled steps: what disturbed the others (another program, a
// page fault) belongs to no component. On a device that runs asynchronously the profiler waits after each operator, so its times are of
// operators one by one, launch included.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "verify/manifest.h"

namespace dsv4 {

struct ProfiledOp {
  std::string op;         // the operator's name in the forward pass
  std::string component;  // component_of(op)
  int64_t calls = 0;      // per step
  double seconds = 0;     // per step, mean
  int64_t bytes = 0;      // per step: the least (ops' cost())
  int64_t flops = 0;
};

struct ProfiledComponent {
  std::string name;
  int64_t calls = 0;
  double seconds = 0;
  int64_t bytes = 0;
  double share = 0;      // of the profiled step
  double bandwidth = 0;  // bytes / seconds
  double roofline = 0;   // bandwidth / the measured peak
};

struct ProfileReport {
  Manifest manifest;
  int64_t steps = 0;            // of each kind
  int64_t context_tokens = 0;   // of the sequence at the first measured step
  double headline_seconds = 0;  // per step, without the profiler, median
  double profiled_seconds = 0;  // per step, with it, mean over the steps that the components are of
  double profiled_median = 0;   // per step, over all profiled ones
  double peak_bandwidth = 0;    // bytes/s, measured here
  std::string peak_method;
  std::vector<ProfiledOp> ops;                // in the order of their first call
  std::vector<ProfiledComponent> components;  // largest first
  double gap_seconds = 0;                     // profiled step minus its operators: plan, upload, launch, download, sampling on the host

  double overhead() const { return headline_seconds > 0 ? profiled_median / headline_seconds - 1 : 0; }
  double operators_seconds() const;
};

// "attn_in" -> "dense projections". Names as in the field: dense projections, routed experts, shared expert, router, mHC, indexer,
// compressor, sparse QK+PV (one operator here), cache insert (quantization), norms and rotary, head, sampling, embedding; an operator that
// is not known is "other".
std::string component_of(const std::string& op);

struct ProfileOptions {
  int64_t steps = 32;           // of each kind
  int64_t context_tokens = 64;  // prompt before the first measured step
  std::string command;
};

// The engine must be idle.
Result<ProfileReport> run_profile(Engine& engine, const ProfileOptions& options);

// Bytes per second of reading (host: every thread sums its share of 256 MiB) or copying (other devices: a device-to-device copy, both
// directions counted) that this device reaches, best of several; `method` says which.
Result<double> measure_peak_bandwidth(Device& device, std::string* method);

std::string to_text(const ProfileReport& report);
std::string to_json(const ProfileReport& report);
// Three rows of bars, widths by time: the step; its components; their operators.
std::string to_flame_svg(const ProfileReport& report);

}  // namespace dsv4

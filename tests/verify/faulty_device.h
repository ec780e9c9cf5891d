// Fault injection, for tests only: a device whose operators are those of another one, but for a planted fault. The product needs no
// hook for this, because everything a model does goes through the operator table.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "ops/device.h"

namespace dsv4 {

enum class Fault : uint8_t {
  kNone,
  kReaderStride,         // attention steps from window block to window block by one layer's bytes instead of the arena's
  kReader584Bytes,       // attention takes 584 contiguous bytes per cached token
  kWriter584Bytes,       // rows are written as 584 contiguous bytes per token
  kNanInCacheRow,        // one E4M3 code of one row becomes NaN after it was written
  kSwappedScales,        // the first and the last scale byte of each written row change places
  kStaleLength,          // attention of decode rows does not see the newest row
  kSkippedSink,          // attention without its sink logits
  kWrongRotaryBase,      // layers with a compressor rotate with the plain frequencies
  kUnnormalisedExperts,  // routing weights are not divided by their sum
  kVariedWoAScales,      // no fault, the next one's sound twin: wo_a's row blocks have other scales, which wo_b's column blocks undo exactly
  kTransposedWoAScales,  // kVariedWoAScales, and the loader transposes wo_a's scale grid
  kLogitsNan,            // one logit of one row becomes NaN
  kDuplicateTopk,        // the indexer names one row twice
  kFutureTopk,           // the indexer names a row that is not complete yet
};

// "none", "reader_stride", "transposed_wo_a_scales", ...: the names above without k, in words. Nothing for a name that there is not.
std::optional<Fault> fault_from_name(std::string_view name);

struct FaultPlan {
  Fault fault = Fault::kNone;
  int64_t layer = 1;     // kNanInCacheRow, kDuplicateTopk, kFutureTopk: the layer (its place in the order of calls)
  int32_t slot = 0;      // kNanInCacheRow
  int32_t position = 9;  // kNanInCacheRow, kLogitsNan: from this position on; the others on every row they suit
  int64_t channel = 3;
  // Calls of the faulty operator that are spared first: a warm-up that is sound.
  int64_t spare_calls = 0;
};

// `inner` must be a host device: faults are planted with the host's hands.
std::unique_ptr<Device> make_faulty_device(std::unique_ptr<Device> inner, const FaultPlan& plan);

}  // namespace dsv4

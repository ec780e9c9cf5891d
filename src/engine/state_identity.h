// What a saved state depends on besides its tokens, as text: equal texts, equal bits.
#pragma once

#include <string>

#include "checkpoint/checkpoint.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "ops/device.h"

namespace dsv4 {

// Model (headers, and samples of its weights: a copy fine-tuned elsewhere has the same headers), arithmetic, backend, cache layout.
std::string state_identity(const Checkpoint& checkpoint, const Device& device, Arithmetic arithmetic, const KvCache& cache);

}  // namespace dsv4

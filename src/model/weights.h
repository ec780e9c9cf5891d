// The model's weights bound by name and placed on a device, in the layout its operators want.
#pragma once

#include <memory>
#include <vector>

#include "base/progress.h"
#include "checkpoint/checkpoint.h"
#include "ops/device.h"

namespace dsv4 {

struct HyperConnectionWeights {
  Matrix<const float> fn;
  const float* base = nullptr;
  const float* scale = nullptr;
};

struct CompressorWeights {
  WeightView wkv, wgate;  // BF16 [W, D]
  const float* ape = nullptr;
  const uint16_t* norm = nullptr;
};

struct LayerWeights {
  int32_t ratio = 0;  // compress_ratios[layer]
  const uint16_t* attn_norm = nullptr;
  const uint16_t* ffn_norm = nullptr;
  HyperConnectionWeights hc_attn, hc_ffn;
  WeightView wq_a, wq_b, wkv, wo_a, wo_b;
  const uint16_t* q_norm = nullptr;
  const uint16_t* kv_norm = nullptr;
  const float* attn_sink = nullptr;
  CompressorWeights compressor;               // ratio != 0
  WeightView index_wq_b, index_weights_proj;  // ratio 4
  CompressorWeights index_compressor;         // ratio 4
  WeightView gate;                            // BF16 [E, D]
  const float* gate_bias = nullptr;           // one of gate_bias and tid2eid
  const int64_t* tid2eid = nullptr;
  WeightView shared_w1, shared_w3, shared_w2;
  ExpertTable experts;
};

struct ModelWeights {
  Matrix<const uint16_t> embed;  // [vocab, D]
  WeightView head;               // [vocab, D]
  const uint16_t* norm = nullptr;
  HyperConnectionWeights hc_head;
  std::vector<LayerWeights> layers;
  std::vector<DeviceBuffer> storage;  // whatever had to be copied
};

// Reports progress per layer in bytes. Any missing tensor is an error; nothing is half loaded.
Result<std::unique_ptr<ModelWeights>> load_weights(const Checkpoint& checkpoint, Device& device, const ProgressSink& progress);

}  // namespace dsv4

#include "model/weights.h"

#include <string>

namespace dsv4 {
namespace {

class Binder {
 public:
  Binder(const Checkpoint& checkpoint, Device& device, ModelWeights& out) : checkpoint_(checkpoint), device_(device), out_(out) {}

  Status weight(const std::string& name, WeightView* view) {
    DSV4_ASSIGN_OR_RETURN(const WeightView host, checkpoint_.weight(name));
    DeviceBuffer storage;
    if (host.data != nullptr && (host.scale != nullptr || !has_scales(host.format))) {
      DSV4_ASSIGN_OR_RETURN(*view, device_.place_weight(host, name, &storage));
    } else {
      GeneratedWeight made;
      made.shape = host;
      made.shape.data = made.shape.scale = nullptr;
      DSV4_ASSIGN_OR_RETURN(made.data, rule(checkpoint_.find(name + ".weight") != nullptr ? name + ".weight" : name));
      if (has_scales(host.format)) {
        DSV4_ASSIGN_OR_RETURN(made.scale, rule(name + ".scale"));
      }
      DSV4_ASSIGN_OR_RETURN(*view, device_.place_generated(made, name, &storage));
    }
    keep(std::move(storage));
    bytes_ += host.total_bytes();
    return ok_status();
  }

  // Of a tensor whose bytes are not in host memory.
  Result<SyntheticRule> rule(const std::string& tensor) {
    const SyntheticRule* found = checkpoint_.generator(tensor);
    if (found == nullptr) return invalid_argument("checkpoint: " + tensor + " was opened without its bytes");
    return *found;
  }

  Status f32(const std::string& name, int64_t size, const float** out) {
    DSV4_ASSIGN_OR_RETURN(const float* host, checkpoint_.f32(name, size));
    return place(host, size, name, out);
  }

  Status bf16(const std::string& name, int64_t size, const uint16_t** out) {
    DSV4_ASSIGN_OR_RETURN(const uint16_t* host, checkpoint_.bf16(name, size));
    return place(host, size, name, out);
  }

  // Typed data where the device can read it: host devices use the file's bytes unless they are misaligned for T.
  template <class T>
  Status place(const T* host, int64_t size, const std::string& name, const T** out) {
    const int64_t size_bytes = size * static_cast<int64_t>(sizeof(T));
    bytes_ += size_bytes;
    if (device_.info().host_memory && host != nullptr && reinterpret_cast<uintptr_t>(host) % alignof(T) == 0) {
      *out = host;
      return ok_status();
    }
    DSV4_ASSIGN_OR_RETURN(DeviceBuffer buffer, device_.allocate(size_bytes, name));
    if (host != nullptr) {
      DSV4_RETURN_IF_ERROR(device_.upload(buffer.as<void>(), host, size_bytes));
    } else {
      DSV4_ASSIGN_OR_RETURN(const SyntheticRule made, rule(name));
      DSV4_RETURN_IF_ERROR(device_.generate(buffer.as<void>(), made, size_bytes));
    }
    *out = buffer.as<T>();
    keep(std::move(buffer));
    return ok_status();
  }

  Status hyper_connection(const std::string& name, int64_t rows, int64_t cols, int64_t scales, HyperConnectionWeights* out) {
    const float* fn = nullptr;
    DSV4_RETURN_IF_ERROR(f32(name + "_fn", rows * cols, &fn));
    out->fn = {fn, rows, cols};
    DSV4_RETURN_IF_ERROR(f32(name + "_base", rows, &out->base));
    return f32(name + "_scale", scales, &out->scale);
  }

  Status compressor(const std::string& name, int32_t ratio, int64_t head_dim, CompressorWeights* out) {
    DSV4_RETURN_IF_ERROR(weight(name + ".wkv", &out->wkv));
    DSV4_RETURN_IF_ERROR(weight(name + ".wgate", &out->wgate));
    DSV4_RETURN_IF_ERROR(f32(name + ".ape", ratio * (ratio == 4 ? 2 : 1) * head_dim, &out->ape));
    return bf16(name + ".norm.weight", head_dim, &out->norm);
  }

  Status experts(const std::string& prefix, const ModelConfig& c, ExpertTable* out) {
    // Six pointer arrays, one after the other.
    const size_t n = static_cast<size_t>(c.num_experts);
    std::vector<const uint8_t*> pointers(6 * n);
    for (size_t e = 0; e < n; ++e) {
      const std::string name = prefix + std::to_string(e) + ".";
      size_t plane = 0;
      for (const char* which : {"w1", "w3", "w2"}) {
        WeightView view;
        DSV4_RETURN_IF_ERROR(weight(name + which, &view));
        pointers[plane++ * n + e] = view.data;
        pointers[plane++ * n + e] = view.scale;
        out->format = view.format;
      }
    }
    const int64_t size_bytes = static_cast<int64_t>(pointers.size() * sizeof(pointers[0]));
    DSV4_ASSIGN_OR_RETURN(DeviceBuffer buffer, device_.allocate(size_bytes, prefix + "pointers"));
    DSV4_RETURN_IF_ERROR(device_.upload(buffer.as<void>(), pointers.data(), size_bytes));
    const uint8_t* const* base = buffer.as<const uint8_t*>();
    keep(std::move(buffer));
    out->num_experts = c.num_experts;
    out->hidden_dim = c.hidden_dim;
    out->ffn_dim = c.expert_ffn_dim;
    out->w1 = base;
    out->w1_scale = base + n;
    out->w3 = base + 2 * n;
    out->w3_scale = base + 3 * n;
    out->w2 = base + 4 * n;
    out->w2_scale = base + 5 * n;
    return ok_status();
  }

  int64_t bytes() const { return bytes_; }

 private:
  void keep(DeviceBuffer buffer) {
    if (buffer.as<void>() != nullptr) out_.storage.push_back(std::move(buffer));
  }

  const Checkpoint& checkpoint_;
  Device& device_;
  ModelWeights& out_;
  static bool has_scales(WeightFormat format) { return format == WeightFormat::kFp8Block || format == WeightFormat::kMxfp4; }

  int64_t bytes_ = 0;
};

Status load_attention(Binder& bind, const ModelConfig& c, const std::string& p, LayerWeights* w) {
  DSV4_RETURN_IF_ERROR(bind.weight(p + "wq_a", &w->wq_a));
  DSV4_RETURN_IF_ERROR(bind.weight(p + "wq_b", &w->wq_b));
  DSV4_RETURN_IF_ERROR(bind.weight(p + "wkv", &w->wkv));
  DSV4_RETURN_IF_ERROR(bind.weight(p + "wo_a", &w->wo_a));
  DSV4_RETURN_IF_ERROR(bind.weight(p + "wo_b", &w->wo_b));
  DSV4_RETURN_IF_ERROR(bind.bf16(p + "q_norm.weight", c.q_lora_rank, &w->q_norm));
  DSV4_RETURN_IF_ERROR(bind.bf16(p + "kv_norm.weight", c.head_dim, &w->kv_norm));
  DSV4_RETURN_IF_ERROR(bind.f32(p + "attn_sink", c.num_heads, &w->attn_sink));
  if (w->ratio == 0) return ok_status();
  DSV4_RETURN_IF_ERROR(bind.compressor(p + "compressor", w->ratio, c.head_dim, &w->compressor));
  if (w->ratio != 4) return ok_status();
  DSV4_RETURN_IF_ERROR(bind.weight(p + "indexer.wq_b", &w->index_wq_b));
  DSV4_RETURN_IF_ERROR(bind.weight(p + "indexer.weights_proj", &w->index_weights_proj));
  return bind.compressor(p + "indexer.compressor", 4, c.index_head_dim, &w->index_compressor);
}

Status load_moe(Binder& bind, const Checkpoint& checkpoint, const ModelConfig& c, int64_t layer, const std::string& p, LayerWeights* w) {
  DSV4_RETURN_IF_ERROR(bind.weight(p + "gate", &w->gate));
  if (layer < c.num_hash_layers) {
    const TensorEntry* table = checkpoint.find(p + "gate.tid2eid");
    if (table == nullptr) return not_found("checkpoint: " + p + "gate.tid2eid is missing");
    const int64_t size = c.vocab_size * c.num_experts_per_token;
    DSV4_RETURN_IF_ERROR(check_size("checkpoint", table->name.c_str(), table->size_bytes / 8, size));
    DSV4_RETURN_IF_ERROR(bind.place(reinterpret_cast<const int64_t*>(table->data), size, table->name, &w->tid2eid));
  } else {
    DSV4_RETURN_IF_ERROR(bind.f32(p + "gate.bias", c.num_experts, &w->gate_bias));
  }
  DSV4_RETURN_IF_ERROR(bind.weight(p + "shared_experts.w1", &w->shared_w1));
  DSV4_RETURN_IF_ERROR(bind.weight(p + "shared_experts.w3", &w->shared_w3));
  DSV4_RETURN_IF_ERROR(bind.weight(p + "shared_experts.w2", &w->shared_w2));
  return bind.experts(p + "experts.", c, &w->experts);
}

}  // namespace

Result<std::unique_ptr<ModelWeights>> load_weights(const Checkpoint& checkpoint, Device& device, const ProgressSink& progress) {
  const ModelConfig& c = checkpoint.config();
  auto out = std::make_unique<ModelWeights>();
  Binder bind(checkpoint, device, *out);
  int64_t total_bytes = 0;
  for (const TensorEntry& t : checkpoint.tensors()) total_bytes += t.size_bytes;
  const auto report = [&](const std::string& item) {
    if (progress) progress({"place weights", item, static_cast<uint64_t>(bind.bytes()), static_cast<uint64_t>(total_bytes), "bytes"});
  };

  const uint16_t* embed = nullptr;
  DSV4_RETURN_IF_ERROR(bind.bf16("embed.weight", c.vocab_size * c.hidden_dim, &embed));
  out->embed = {embed, c.vocab_size, c.hidden_dim};
  DSV4_RETURN_IF_ERROR(bind.weight("head", &out->head));
  DSV4_RETURN_IF_ERROR(bind.bf16("norm.weight", c.hidden_dim, &out->norm));
  DSV4_RETURN_IF_ERROR(bind.hyper_connection("hc_head", c.hc_mult, c.hc_mult * c.hidden_dim, 1, &out->hc_head));
  const int64_t mixes = (2 + c.hc_mult) * c.hc_mult;
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    const std::string p = "layers." + std::to_string(layer) + ".";
    report(p);
    LayerWeights w;
    w.ratio = c.compress_ratios[static_cast<size_t>(layer)];
    DSV4_RETURN_IF_ERROR(bind.bf16(p + "attn_norm.weight", c.hidden_dim, &w.attn_norm));
    DSV4_RETURN_IF_ERROR(bind.bf16(p + "ffn_norm.weight", c.hidden_dim, &w.ffn_norm));
    DSV4_RETURN_IF_ERROR(bind.hyper_connection(p + "hc_attn", mixes, c.hc_mult * c.hidden_dim, 3, &w.hc_attn));
    DSV4_RETURN_IF_ERROR(bind.hyper_connection(p + "hc_ffn", mixes, c.hc_mult * c.hidden_dim, 3, &w.hc_ffn));
    DSV4_RETURN_IF_ERROR(load_attention(bind, c, p + "attn.", &w));
    DSV4_RETURN_IF_ERROR(load_moe(bind, checkpoint, c, layer, p + "ffn.", &w));
    out->layers.push_back(w);
  }
  DSV4_RETURN_IF_ERROR(device.synchronize());
  report("done");
  return out;
}

}  // namespace dsv4

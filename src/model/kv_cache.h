// The memory of all sequences' state on a device: cache arenas, compressor states, block tables.
// A slot is a place for one sequence. Its window ring is its own for good; compressed rows take blocks from pools as it grows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/block_pool.h"
#include "cache/kv_layout.h"
#include "checkpoint/model_config.h"
#include "ops/device.h"

namespace dsv4 {

struct KvCacheOptions {
  RowFormat format = RowFormat::kFp8DsMla;
  int32_t num_slots = 1;              // sequences in work, or saved (prefix cache): a saved state is a slot that nobody computes in
  int64_t max_context_tokens = 4096;  // of one sequence
  int64_t total_tokens = 0;           // tokens whose compressed rows fit in all slots together; 0 = num_slots * max_context_tokens
  int64_t max_step_rows = 256;        // most rows of one sequence in a step: the ring holds window + this many
};

class KvCache {
 public:
  static Result<std::unique_ptr<KvCache>> create(const ModelConfig& config, const KvCacheOptions& options, Device& device);

  const KvCacheOptions& options() const { return options_; }
  const KvLayout& layout() const { return layout_; }
  int64_t size_bytes() const;
  int32_t ring_rows() const { return ring_rows_; }

  // Views for the operators.
  PagedRows window(int64_t layer) const;
  PagedRows compressed(int64_t layer) const;
  PagedRows index_rows(int64_t layer) const;
  BlockTable window_table() const;
  BlockTable compressed_table(int32_t ratio) const;
  int64_t max_compressed_rows(int32_t ratio) const;
  float* state(int64_t layer) const;
  float* index_state(int64_t layer) const;

  // Makes room for `tokens` tokens in `slot` (never shrinks). kResourceLimit when the pools are exhausted; then nothing changed.
  Status reserve(int32_t slot, int64_t tokens);
  // Returns the slot's blocks to the pools.
  void clear(int32_t slot);
  // Makes the empty slot `to` hold what `from` holds after its first `tokens` tokens, of which the last is the last one computed
  // there (the compressor states are those of now). Full blocks are shared; the last, part-filled one is copied, for both may
  // append to it. kResourceLimit when no block is free for that; then nothing changed.
  Status copy_slot(int32_t from, int32_t to, int64_t tokens);
  // The same state as bytes, and back into an empty slot of this or another cache that has the same layout_text(): kInvalidArgument when
  // the size is not that of a state of `tokens` tokens, kResourceLimit when blocks lack.
  Result<std::string> save_slot(int32_t slot, int64_t tokens);
  Status load_slot(int32_t slot, int64_t tokens, std::string_view bytes);
  std::string layout_text() const;
  // Sends changed tables to the device; once before each step.
  Status upload_tables();

  // Blocks of compressed rows a sequence of `tokens` tokens needs, in the pool of `ratio`.
  int64_t blocks_needed(int32_t ratio, int64_t tokens) const;
  const BlockPool& pool(int32_t ratio) const { return ratio == 4 ? ratio4_.pool : ratio128_.pool; }

 private:
  // Blocks and tables of one kind of compressed rows.
  struct Kind {
    int32_t ratio = 0;
    int64_t block_bytes = 0;
    int64_t table_stride = 0;  // blocks one slot can hold
    BlockPool pool{0};
    DeviceBuffer arena;
    std::vector<std::vector<int32_t>> slot_blocks;  // [slot]
    std::vector<int32_t> host_table;                // [slot][table_stride]
    DeviceBuffer device_table;
    bool dirty = true;
  };

  KvCache(const KvCacheOptions& options, Device& device) : options_(options), device_(device) {}
  Status create_kind(Kind& kind, int32_t ratio, int64_t block_bytes);
  void append_block(Kind& kind, int32_t slot, int32_t id);
  // The pieces of device memory that are the state of `slot` after `tokens` tokens, in the order of save_slot.
  struct Piece {
    uint8_t* data = nullptr;
    int64_t size_bytes = 0;
  };
  std::vector<Piece> window_pieces(int32_t slot, int64_t tokens) const;
  std::vector<Piece> state_pieces(int32_t slot, int64_t tokens) const;
  Kind& kind(int32_t ratio) { return ratio == 4 ? ratio4_ : ratio128_; }
  const Kind& kind(int32_t ratio) const { return ratio == 4 ? ratio4_ : ratio128_; }

  KvCacheOptions options_;
  Device& device_;
  KvLayout layout_;
  int64_t window_tokens_ = 0;
  int32_t ring_rows_ = 0;
  int64_t ring_blocks_ = 0;
  DeviceBuffer window_arena_;
  DeviceBuffer window_table_;
  DeviceBuffer states_;
  Kind ratio4_, ratio128_;
};

}  // namespace dsv4

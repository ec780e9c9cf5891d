#include "model/kv_cache.h"

#include <algorithm>

namespace dsv4 {

Result<std::unique_ptr<KvCache>> KvCache::create(const ModelConfig& config, const KvCacheOptions& options, Device& device) {
  if (options.num_slots < 1) return invalid_argument("cache: " + std::to_string(options.num_slots) + " slots, at least one is needed");
  if (options.max_context_tokens < 1 || options.max_context_tokens > config.max_positions) {
    return invalid_argument("cache: a context of " + std::to_string(options.max_context_tokens) + " tokens, the model allows 1 to " +
                            std::to_string(config.max_positions));
  }
  if (options.max_step_rows < 1) return invalid_argument("cache: max_step_rows must be positive");
  std::unique_ptr<KvCache> cache(new KvCache(options, device));
  KvCacheOptions& o = cache->options_;
  if (o.total_tokens <= 0) o.total_tokens = o.num_slots * o.max_context_tokens;
  cache->layout_ =
      plan_kv_layout({.compress_ratios = config.compress_ratios, .head_dim = config.head_dim, .index_head_dim = config.index_head_dim, .format = o.format});

  // A row p of a step of n rows still needs p - window + 1 while p + n - 1 is already written.
  const int64_t ring = config.window_tokens + std::min(o.max_step_rows, o.max_context_tokens);
  cache->window_tokens_ = config.window_tokens;
  cache->ring_blocks_ = blocks_for_rows(ring);
  cache->ring_rows_ = static_cast<int32_t>(cache->ring_blocks_ * kCacheBlockRows);
  const int64_t window_blocks = o.num_slots * cache->ring_blocks_;
  DSV4_ASSIGN_OR_RETURN(cache->window_arena_, device.allocate(window_blocks * cache->layout_.window_block_bytes, "window cache"));
  std::vector<int32_t> table(static_cast<size_t>(window_blocks));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  const int64_t table_bytes = static_cast<int64_t>(table.size() * sizeof(int32_t));
  DSV4_ASSIGN_OR_RETURN(cache->window_table_, device.allocate(table_bytes, "window block table"));
  DSV4_RETURN_IF_ERROR(device.upload(cache->window_table_.as<void>(), table.data(), table_bytes));

  DSV4_RETURN_IF_ERROR(cache->create_kind(cache->ratio4_, 4, cache->layout_.ratio4_block_bytes));
  DSV4_RETURN_IF_ERROR(cache->create_kind(cache->ratio128_, 128, cache->layout_.ratio128_block_bytes));
  const int64_t state_bytes = 4 * std::max<int64_t>(1, cache->layout_.state_floats_per_slot) * o.num_slots;
  DSV4_ASSIGN_OR_RETURN(cache->states_, device.allocate(state_bytes, "compressor states"));
  DSV4_RETURN_IF_ERROR(device.zero(cache->states_.as<void>(), state_bytes));
  return cache;
}

Status KvCache::create_kind(Kind& kind, int32_t ratio, int64_t block_bytes) {
  kind.ratio = ratio;
  kind.block_bytes = block_bytes;
  kind.slot_blocks.resize(static_cast<size_t>(options_.num_slots));
  kind.table_stride = std::max<int64_t>(1, blocks_for_rows(compressed_rows(options_.max_context_tokens, ratio)));
  // Every sequence may leave its last block part empty, so each slot gets one block beyond its share of the tokens.
  const int64_t blocks = std::min(options_.num_slots * kind.table_stride, compressed_rows(options_.total_tokens, ratio) / kCacheBlockRows + options_.num_slots);
  kind.pool = BlockPool(static_cast<int32_t>(blocks));
  kind.host_table.assign(static_cast<size_t>(options_.num_slots * kind.table_stride), 0);
  DSV4_ASSIGN_OR_RETURN(kind.arena, device_.allocate(std::max<int64_t>(1, blocks * block_bytes), "compressed cache, ratio " + std::to_string(ratio)));
  DSV4_ASSIGN_OR_RETURN(kind.device_table, device_.allocate(static_cast<int64_t>(4 * kind.host_table.size()), "block table, ratio " + std::to_string(ratio)));
  return ok_status();
}

int64_t KvCache::size_bytes() const { return window_arena_.size_bytes() + ratio4_.arena.size_bytes() + ratio128_.arena.size_bytes() + states_.size_bytes(); }

PagedRows KvCache::window(int64_t layer) const {
  const LayerCachePlace& place = layout_.layers[static_cast<size_t>(layer)];
  return {layout_.format, window_arena_.as<uint8_t>() + place.window_offset, layout_.window_block_bytes, kCacheBlockRows,
          static_cast<int32_t>(layout_.head_dim)};
}

PagedRows KvCache::compressed(int64_t layer) const {
  const LayerCachePlace& place = layout_.layers[static_cast<size_t>(layer)];
  if (place.ratio == 0) return {};
  const Kind& k = kind(place.ratio);
  return {layout_.format, k.arena.as<uint8_t>() + place.compressed_offset, k.block_bytes, kCacheBlockRows, static_cast<int32_t>(layout_.head_dim)};
}

PagedRows KvCache::index_rows(int64_t layer) const {
  const LayerCachePlace& place = layout_.layers[static_cast<size_t>(layer)];
  if (place.ratio != 4) return {};
  return {layout_.index_format, ratio4_.arena.as<uint8_t>() + place.index_offset, ratio4_.block_bytes, kCacheBlockRows,
          static_cast<int32_t>(layout_.index_head_dim)};
}

BlockTable KvCache::window_table() const { return {window_table_.as<int32_t>(), ring_blocks_}; }

BlockTable KvCache::compressed_table(int32_t ratio) const { return {kind(ratio).device_table.as<int32_t>(), kind(ratio).table_stride}; }

int64_t KvCache::max_compressed_rows(int32_t ratio) const { return compressed_rows(options_.max_context_tokens, ratio); }

float* KvCache::state(int64_t layer) const { return states_.as<float>() + layout_.layers[static_cast<size_t>(layer)].state_floats_before * options_.num_slots; }

float* KvCache::index_state(int64_t layer) const {
  return states_.as<float>() + layout_.layers[static_cast<size_t>(layer)].index_state_floats_before * options_.num_slots;
}

int64_t KvCache::blocks_needed(int32_t ratio, int64_t tokens) const {
  return kind(ratio).block_bytes == 0 ? 0 : blocks_for_rows(compressed_rows(tokens, ratio));
}

Status KvCache::reserve(int32_t slot, int64_t tokens) {
  if (tokens > options_.max_context_tokens) {
    return resource_limit("cache: " + std::to_string(tokens) + " tokens in a sequence, at most " + std::to_string(options_.max_context_tokens) + " fit");
  }
  for (const int32_t ratio : {4, 128}) {
    const Kind& k = kind(ratio);
    const int64_t more = blocks_needed(ratio, tokens) - static_cast<int64_t>(k.slot_blocks[static_cast<size_t>(slot)].size());
    if (more > k.pool.num_free()) {
      return resource_limit("cache: " + std::to_string(more) + " more blocks of ratio " + std::to_string(ratio) + " are needed, " +
                            std::to_string(k.pool.num_free()) + " are free");
    }
  }
  for (const int32_t ratio : {4, 128}) {
    Kind& k = kind(ratio);
    const std::vector<int32_t>& blocks = k.slot_blocks[static_cast<size_t>(slot)];
    const int64_t want = blocks_needed(ratio, tokens);
    while (static_cast<int64_t>(blocks.size()) < want) {
      DSV4_ASSIGN_OR_RETURN(const int32_t id, k.pool.take());
      append_block(k, slot, id);
    }
  }
  return ok_status();
}

void KvCache::append_block(Kind& k, int32_t slot, int32_t id) {
  std::vector<int32_t>& blocks = k.slot_blocks[static_cast<size_t>(slot)];
  k.host_table[static_cast<size_t>(slot * k.table_stride) + blocks.size()] = id;
  blocks.push_back(id);
  k.dirty = true;
}

Status KvCache::copy_slot(int32_t from, int32_t to, int64_t tokens) {
  for (const int32_t ratio : {4, 128}) {
    const Kind& k = kind(ratio);
    DSV4_CHECK(k.slot_blocks[static_cast<size_t>(to)].empty(), "a slot to copy into must be empty");
    const bool partial = k.block_bytes > 0 && compressed_rows(tokens, ratio) % kCacheBlockRows != 0;
    if (partial && k.pool.num_free() < 1) return resource_limit("cache: no block of ratio " + std::to_string(ratio) + " is free for a copy");
  }
  for (const int32_t ratio : {4, 128}) {
    Kind& k = kind(ratio);
    const std::vector<int32_t>& source = k.slot_blocks[static_cast<size_t>(from)];
    const int64_t blocks = blocks_needed(ratio, tokens), rows = compressed_rows(tokens, ratio);
    DSV4_CHECK(blocks <= static_cast<int64_t>(source.size()), "a slot holds the blocks of its tokens");
    for (int64_t b = 0; b < blocks; ++b) {
      int32_t id = source[static_cast<size_t>(b)];
      if ((b + 1) * kCacheBlockRows <= rows) {
        k.pool.add_reference(id);
      } else {
        const int32_t original = id;
        DSV4_ASSIGN_OR_RETURN(id, k.pool.take());
        uint8_t* arena = k.arena.as<uint8_t>();
        DSV4_RETURN_IF_ERROR(device_.copy(arena + id * k.block_bytes, arena + original * k.block_bytes, k.block_bytes));
      }
      append_block(k, to, id);
    }
  }
  // The same positions lie at the same ring rows of every slot.
  const std::vector<Piece> source_pieces = window_pieces(from, tokens), pieces = window_pieces(to, tokens);
  for (size_t i = 0; i < pieces.size(); ++i) DSV4_RETURN_IF_ERROR(device_.copy(pieces[i].data, source_pieces[i].data, pieces[i].size_bytes));
  for (size_t layer = 0; layer < layout_.layers.size(); ++layer) {
    const int32_t ratio = layout_.layers[layer].ratio;
    if (ratio == 0) continue;
    const int64_t floats = (ratio == 4 ? 6 : 3) * layout_.head_dim;
    float* base = state(static_cast<int64_t>(layer));
    DSV4_RETURN_IF_ERROR(device_.copy(base + to * floats, base + from * floats, 4 * floats));
    if (ratio != 4) continue;
    const int64_t index_floats = 6 * layout_.index_head_dim;
    base = index_state(static_cast<int64_t>(layer));
    DSV4_RETURN_IF_ERROR(device_.copy(base + to * index_floats, base + from * index_floats, 4 * index_floats));
  }
  return ok_status();
}

// Of the ring, the blocks with the window's rows; nobody reads older ones any more.
std::vector<KvCache::Piece> KvCache::window_pieces(int32_t slot, int64_t tokens) const {
  std::vector<Piece> out;
  const int64_t ring_bytes = ring_blocks_ * layout_.window_block_bytes;
  const int64_t first = std::max<int64_t>(0, tokens - window_tokens_) / kCacheBlockRows;
  for (int64_t b = first; b * kCacheBlockRows < tokens; ++b) {
    out.push_back({window_arena_.as<uint8_t>() + slot * ring_bytes + b % ring_blocks_ * layout_.window_block_bytes, layout_.window_block_bytes});
  }
  return out;
}

std::vector<KvCache::Piece> KvCache::state_pieces(int32_t slot, int64_t tokens) const {
  std::vector<Piece> out = window_pieces(slot, tokens);
  for (const int32_t ratio : {4, 128}) {
    const Kind& k = kind(ratio);
    const std::vector<int32_t>& blocks = k.slot_blocks[static_cast<size_t>(slot)];
    const int64_t count = blocks_needed(ratio, tokens);
    DSV4_CHECK(count <= static_cast<int64_t>(blocks.size()), "a slot holds the blocks of its tokens");
    for (int64_t b = 0; b < count; ++b) out.push_back({k.arena.as<uint8_t>() + blocks[static_cast<size_t>(b)] * k.block_bytes, k.block_bytes});
  }
  for (size_t layer = 0; layer < layout_.layers.size(); ++layer) {
    const int32_t ratio = layout_.layers[layer].ratio;
    const auto add = [&](float* base, int64_t floats) { out.push_back({reinterpret_cast<uint8_t*>(base + slot * floats), 4 * floats}); };
    if (ratio != 0) add(state(static_cast<int64_t>(layer)), (ratio == 4 ? 6 : 3) * layout_.head_dim);
    if (ratio == 4) add(index_state(static_cast<int64_t>(layer)), 6 * layout_.index_head_dim);
  }
  return out;
}

Result<std::string> KvCache::save_slot(int32_t slot, int64_t tokens) {
  const std::vector<Piece> pieces = state_pieces(slot, tokens);
  int64_t size = 0;
  for (const Piece& piece : pieces) size += piece.size_bytes;
  std::string out(static_cast<size_t>(size), '\0');
  char* at = out.data();
  for (const Piece& piece : pieces) {
    DSV4_RETURN_IF_ERROR(device_.download(at, piece.data, piece.size_bytes));
    at += piece.size_bytes;
  }
  return out;
}

Status KvCache::load_slot(int32_t slot, int64_t tokens, std::string_view bytes) {
  DSV4_RETURN_IF_ERROR(reserve(slot, tokens));
  const std::vector<Piece> pieces = state_pieces(slot, tokens);
  int64_t size = 0;
  for (const Piece& piece : pieces) size += piece.size_bytes;
  if (size != static_cast<int64_t>(bytes.size())) {
    return invalid_argument("cache: a state of " + std::to_string(tokens) + " tokens has " + std::to_string(size) + " bytes, not " +
                            std::to_string(bytes.size()));
  }
  const char* at = bytes.data();
  for (const Piece& piece : pieces) {
    DSV4_RETURN_IF_ERROR(device_.upload(piece.data, at, piece.size_bytes));
    at += piece.size_bytes;
  }
  return ok_status();
}

std::string KvCache::layout_text() const {
  std::string out = std::string("rows ") + row_format_name(layout_.format) + " " + std::to_string(layout_.head_dim) + ", index " +
                    row_format_name(layout_.index_format) + " " + std::to_string(layout_.index_head_dim) + ", window " + std::to_string(window_tokens_) +
                    ", ring " + std::to_string(ring_rows_) + ", ratios";
  for (const LayerCachePlace& layer : layout_.layers) out += " " + std::to_string(layer.ratio);
  return out;
}

void KvCache::clear(int32_t slot) {
  for (Kind* k : {&ratio4_, &ratio128_}) {
    std::vector<int32_t>& blocks = k->slot_blocks[static_cast<size_t>(slot)];
    for (const int32_t id : blocks) k->pool.release(id);
    blocks.clear();
  }
}

Status KvCache::upload_tables() {
  for (Kind* k : {&ratio4_, &ratio128_}) {
    if (!k->dirty) continue;
    DSV4_RETURN_IF_ERROR(device_.upload(k->device_table.as<void>(), k->host_table.data(), k->device_table.size_bytes()));
    k->dirty = false;
  }
  return ok_status();
}

}  // namespace dsv4

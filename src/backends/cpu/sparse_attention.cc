// Sparse attention over the packed cache. The keys of a row are cut into chunks of at most 64: window rows by absolute position / 64,
// compressed rows of ratio 128 by index / 64, chosen rows of ratio 4 by place in the list / 64. A chunk is decoded once per batch of rows
// and shared by the rows that see it (neighbouring rows of a sequence share almost all of their window); then each task takes one row and
// eight heads through the row's chunks in order with an online softmax that starts from the sink.
//
// Chunk borders and order depend on the row's position and list alone, so a row's result does not depend on the batch, the prefill chunk or
// the threads; sharing changes who decodes, never what is summed. Bound by the fma units (attention_kernels.cc); the decode adds 4 % at
// 64 heads.
#include <algorithm>

#include "backends/cpu/cpu_context.h"
#include "backends/cpu/cpu_ops.h"

namespace dsv4 {
namespace {

constexpr int64_t kHeadsPerTask = 8;
constexpr int64_t kDecodeKeys = 16;  // keys per decode task
// Decoded chunks of one batch of rows (130 KiB each at 512 values): about what a share of L3 holds.
constexpr int64_t kBatchChunks = 64;

enum class ChunkKind : uint8_t { kWindow, kCompressed, kChosen };

struct Chunk {
  ChunkKind kind = ChunkKind::kWindow;
  int64_t slot = 0;
  int64_t index = 0;                // chunk number; for kChosen unused
  int64_t first = 0, last = 0;      // keys somebody sees
  const int32_t* chosen = nullptr;  // kChosen: compressed row of each key
};

struct ChunkUse {
  int32_t chunk = 0;
  int32_t first = 0, last = 0;
};

int64_t chunks_of(int64_t keys) { return (keys + kChunkKeys - 1) / kChunkKeys; }

class Batch {
 public:
  Batch(const SparseAttentionArgs& args, Chunk* chunks, ChunkUse* uses, int64_t uses_per_row)
      : a_(args), chunks_(chunks), uses_(uses), uses_per_row_(uses_per_row) {}

  void clear() { num_chunks_ = rows_ = 0; }
  int64_t num_chunks() const { return num_chunks_; }
  int64_t rows() const { return rows_; }
  const Chunk& chunk(int64_t i) const { return chunks_[i]; }
  const ChunkUse* uses(int64_t row) const { return uses_ + row * uses_per_row_; }
  int64_t num_uses(int64_t row) const { return uses_[row * uses_per_row_ + uses_per_row_ - 1].chunk; }  // the last entry holds the count

  void add_row(int64_t t) {
    ChunkUse* uses = uses_ + rows_ * uses_per_row_;
    int64_t count = 0;
    const int64_t p = a_.rows.positions[t], slot = a_.rows.slots[t];
    const auto range = [&](ChunkKind kind, int64_t from, int64_t to) {  // absolute keys [from, to)
      for (int64_t c = from / kChunkKeys; c * kChunkKeys < to; ++c) {
        uses[count++] = use(kind, slot, c, std::max(from - c * kChunkKeys, int64_t{0}), std::min(to - c * kChunkKeys, kChunkKeys), nullptr);
      }
    };
    if (p >= 0) {
      range(ChunkKind::kWindow, std::max<int64_t>(0, p - a_.window_tokens + 1), p + 1);
      if (a_.ratio == 128) range(ChunkKind::kCompressed, 0, (p + 1) / 128);
      if (a_.ratio == 4) {
        const int32_t* chosen = a_.topk.row(t);
        const int64_t keys = std::find_if(chosen, chosen + a_.topk.cols, [](int32_t j) { return j < 0; }) - chosen;
        for (int64_t c = 0; c * kChunkKeys < keys; ++c) {
          const int64_t end = std::min(keys - c * kChunkKeys, kChunkKeys);
          const int32_t* ids = chosen + c * kChunkKeys;
          // While a sequence has no more rows than are chosen, the list is 0, 1, 2, ..: then the chunk is shared like ratio 128's.
          bool plain = true;
          for (int64_t i = 0; i < end; ++i) plain &= ids[i] == c * kChunkKeys + i;
          uses[count++] = use(plain ? ChunkKind::kCompressed : ChunkKind::kChosen, slot, c, 0, end, plain ? nullptr : ids);
        }
      }
    }
    uses[uses_per_row_ - 1].chunk = static_cast<int32_t>(count);
    ++rows_;
  }

 private:
  ChunkUse use(ChunkKind kind, int64_t slot, int64_t index, int64_t first, int64_t last, const int32_t* chosen) {
    int64_t i = num_chunks_;
    if (kind != ChunkKind::kChosen) {
      i = 0;
      while (i < num_chunks_ && !(chunks_[i].kind == kind && chunks_[i].slot == slot && chunks_[i].index == index)) ++i;
    }
    if (i == num_chunks_) {
      chunks_[num_chunks_++] = {kind, slot, index, first, last, chosen};
    } else {
      chunks_[i].first = std::min(chunks_[i].first, first);
      chunks_[i].last = std::max(chunks_[i].last, last);
    }
    return {static_cast<int32_t>(i), static_cast<int32_t>(first), static_cast<int32_t>(last)};
  }

  const SparseAttentionArgs& a_;
  Chunk* chunks_;
  ChunkUse* uses_;
  int64_t uses_per_row_;
  int64_t num_chunks_ = 0;
  int64_t rows_ = 0;
};

void decode_key(const SparseAttentionArgs& a, const CpuKernels& kernels, const Chunk& chunk, int64_t key, float* out) {
  const bool window = chunk.kind == ChunkKind::kWindow;
  const PagedRows& rows = window ? a.window : a.compressed;
  const BlockTable& table = window ? a.window_table : a.compressed_table;
  int64_t r = chunk.index * kChunkKeys + key;
  if (window) r %= a.ring_rows;
  if (chunk.kind == ChunkKind::kChosen) r = chunk.chosen[key];
  kernels.read_chunk_key(rows, table.ids[chunk.slot * table.stride + r / rows.block_rows], r % rows.block_rows, out, key);
}

// Most chunks a row can see, from the longest row of the step.
int64_t most_chunks(const SparseAttentionArgs& a) {
  int64_t longest = 0;
  for (int64_t t = 0; t < a.q.rows; ++t) longest = std::max<int64_t>(longest, a.rows.positions[t] + 1);
  int64_t chunks = chunks_of(std::min<int64_t>(longest, a.window_tokens)) + 1;  // a window may start inside a chunk
  if (a.ratio == 128) chunks += chunks_of(longest / 128);
  if (a.ratio == 4) chunks += chunks_of(a.topk.cols);
  return chunks;
}

}  // namespace

Status sparse_attention_cpu(OpContext& context, const SparseAttentionArgs& a) {
  CpuContext& c = cpu_context(context);
  const CpuKernels& kernels = *c.kernels;
  const int64_t dim = a.window.row_dim, padded = padded_dim(dim), rope = a.cos_sin.cols, rows = a.q.rows, heads = a.heads;
  if (rows == 0) return ok_status();

  const int64_t per_row = most_chunks(a), capacity = std::max(per_row, std::min(kBatchChunks, rows * per_row));
  const int64_t task_heads = std::min(heads, kHeadsPerTask), head_tasks = (heads + task_heads - 1) / task_heads;
  const int64_t per_thread = task_heads * (2 * padded + kChunkKeys + 2 * 16);  // q, o, scores, top and sum
  const int64_t threads = c.pool->num_threads();
  const int64_t bytes = CpuScratch::padded<Chunk>(capacity) + CpuScratch::padded<ChunkUse>(rows * (per_row + 1)) +
                        CpuScratch::padded<float>(capacity * chunk_floats(dim)) + CpuScratch::padded<float>(threads * per_thread);
  if (!c.scratch.reset(bytes)) return no_scratch("sparse_attention", bytes);
  Batch batch(a, c.scratch.take<Chunk>(capacity), c.scratch.take<ChunkUse>(rows * (per_row + 1)), per_row + 1);
  float* decoded = c.scratch.take<float>(capacity * chunk_floats(dim));
  float* scratch = c.scratch.take<float>(threads * per_thread);

  for (int64_t start = 0; start < rows; start += batch.rows()) {
    batch.clear();
    while (start + batch.rows() < rows && batch.num_chunks() + per_row <= capacity) batch.add_row(start + batch.rows());

    constexpr int64_t kPieces = kChunkKeys / kDecodeKeys;
    for_ranges(c, batch.num_chunks() * kPieces, 1, kDecodeKeys * dim, [&](int64_t begin, int64_t end, int) {
      for (int64_t task = begin; task < end; ++task) {
        const Chunk& chunk = batch.chunk(task / kPieces);
        const int64_t from = task % kPieces * kDecodeKeys;
        for (int64_t k = std::max(from, chunk.first); k < std::min(from + kDecodeKeys, chunk.last); ++k) {
          decode_key(a, kernels, chunk, k, decoded + task / kPieces * chunk_floats(dim));
        }
      }
    });

    const int64_t task_cost = per_row * kChunkKeys * task_heads * dim / 4;
    for_ranges(c, batch.rows() * head_tasks, 1, task_cost, [&](int64_t begin, int64_t end, int thread) {
      float* q = scratch + thread * per_thread;
      float* o = q + task_heads * padded;
      float* scores = o + task_heads * padded;
      float* top = scores + task_heads * kChunkKeys;
      float* sum = top + task_heads * 16;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t row = task / head_tasks, t = start + row, h0 = task % head_tasks * task_heads, count = std::min(task_heads, heads - h0);
        if (a.rows.positions[t] < 0) {
          std::fill_n(a.o.row(t) + h0 * dim, count * dim, 0.0f);
          continue;
        }
        for (int64_t h = 0; h < count; ++h) {
          std::copy_n(a.q.row(t) + (h0 + h) * dim, dim, q + h * padded);
          std::fill_n(q + h * padded + dim, padded - dim, 0.0f);
          std::fill_n(o + h * padded, padded, 0.0f);
          top[h] = a.sink[h0 + h];
          sum[h] = 1.0f;  // e^(sink - sink); the sink's value is zero
        }
        const ChunkUse* uses = batch.uses(row);
        for (int64_t i = 0; i < batch.num_uses(row); ++i) {
          const float* keys = decoded + uses[i].chunk * chunk_floats(dim);
          kernels.chunk_scores(q, count, padded, keys, uses[i].first, uses[i].last, scores);
          kernels.chunk_attend(scores, count, padded, a.scale, keys, uses[i].first, uses[i].last, o, top, sum);
        }
        for (int64_t h = 0; h < count; ++h) {
          kernels.attention_finish(o + h * padded, sum[h], dim, a.cos_sin.row(t), rope, a.o.row(t) + (h0 + h) * dim);
        }
      }
    });
  }
  return ok_status();
}

}  // namespace dsv4

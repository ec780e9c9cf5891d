// Sparse attention over the packed cache. The keys of a row are cut into chunks of at most 64: window rows by absolute position / 64,
// compressed rows of ratio 128 by index / 64, chosen rows of ratio 4 by place in the list / 64. A row takes its chunks in that order with
// an online softmax that starts from the sink. A task takes up to 32 / heads neighbouring rows of a sequence, or a part of the heads of one
// row where rows are few; it decodes each chunk its rows see once into a buffer of its own (130 KiB at 512 values, in L2 while all use it).
// Nothing is shared between tasks: decoded keys that another core wrote cost more than decoding them again.
//
// Chunk borders and order depend on the row's position and list alone: neither the batch, the prefill chunk nor the threads change a bit.
// Bound by the fma units (attention_kernels.cc); the decode costs as much as one head and a half.
#include <algorithm>

#include "backends/cpu/cpu_context.h"
#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/row_prefetch.h"

namespace dsv4 {
namespace {

constexpr int64_t kTaskHeads = 32;   // rows x heads of a task
constexpr int64_t kValueSlice = 64;  // values of the dimension that all rows of a task take at a time: 16 KiB of a chunk, in L1
constexpr int64_t kRowsAhead = 4;    // packed rows asked for before they are decoded
constexpr int64_t kMaxGroupRows = kTaskHeads;

enum class ChunkKind : uint8_t { kWindow, kCompressed, kChosen };

// The part of a chunk that a row sees.
struct ChunkUse {
  ChunkKind kind = ChunkKind::kWindow;
  int32_t index = 0;
  int32_t first = 0, last = 0;      // keys
  const int32_t* chosen = nullptr;  // kChosen: compressed row of each key

  bool before(const ChunkUse& o) const { return kind != o.kind ? kind < o.kind : index < o.index; }
};

int64_t chunks_of(int64_t keys) { return (keys + kChunkKeys - 1) / kChunkKeys; }

// Most chunks a row can see, from the longest row of the step.
int64_t most_chunks(const SparseAttentionArgs& a) {
  int64_t longest = 0;
  for (int64_t t = 0; t < a.q.rows; ++t) longest = std::max<int64_t>(longest, a.rows.positions[t] + 1);
  int64_t chunks = chunks_of(std::min<int64_t>(longest, a.window_tokens)) + 1;  // a window may start inside a chunk
  if (a.ratio == 128) chunks += chunks_of(longest / 128);
  if (a.ratio == 4) chunks += chunks_of(a.topk.cols);
  return chunks;
}

// The chunks row t sees, in order; their number.
int64_t list_chunks(const SparseAttentionArgs& a, int64_t t, ChunkUse* uses) {
  const int64_t p = a.rows.positions[t];
  if (p < 0) return 0;
  int64_t count = 0;
  const auto range = [&](ChunkKind kind, int64_t from, int64_t to, const int32_t* chosen) {  // keys [from, to)
    for (int64_t c = from / kChunkKeys; c * kChunkKeys < to; ++c) {
      const int64_t start = c * kChunkKeys;
      uses[count++] = {kind, static_cast<int32_t>(c), static_cast<int32_t>(std::max(from - start, int64_t{0})),
                       static_cast<int32_t>(std::min(to - start, kChunkKeys)), chosen == nullptr ? nullptr : chosen + start};
    }
  };
  range(ChunkKind::kWindow, std::max<int64_t>(0, p - a.window_tokens + 1), p + 1, nullptr);
  if (a.ratio == 128) range(ChunkKind::kCompressed, 0, (p + 1) / 128, nullptr);
  if (a.ratio == 4) {
    const int32_t* chosen = a.topk.row(t);
    range(ChunkKind::kChosen, 0, std::find_if(chosen, chosen + a.topk.cols, [](int32_t j) { return j < 0; }) - chosen, chosen);
  }
  return count;
}

// Keys [first, last) of a chunk.
void decode_keys(const SparseAttentionArgs& a, const CpuKernels& kernels, int64_t slot, const ChunkUse& use, int64_t first, int64_t last,
                 const DecodedKeys& out) {
  const bool window = use.kind == ChunkKind::kWindow;
  const PagedRows& rows = window ? a.window : a.compressed;
  const int32_t* blocks = window ? a.window_table.ids + slot * a.window_table.stride : a.compressed_table.ids + slot * a.compressed_table.stride;
  if (use.kind == ChunkKind::kChosen) {
    for (int64_t key = first; key < last; ++key) {
      if (key + kRowsAhead < use.last) {
        const int32_t later = use.chosen[key + kRowsAhead];
        ask_for_row(rows, blocks[later / rows.block_rows], later % rows.block_rows);
      }
      const int32_t r = use.chosen[key];
      kernels.read_key(rows, blocks[r / rows.block_rows], r % rows.block_rows, out, key);
    }
    return;
  }
  int64_t r = use.index * kChunkKeys + first;
  if (window) r %= a.ring_rows;
  RowWalk row(rows.block_rows, r);
  for (int64_t key = first; key < last; ++key) {
    ask_for_row(rows, blocks[row.block], row.place + kRowsAhead);
    kernels.read_key(rows, blocks[row.block], row.place, out, key);
    if (window && ++r == a.ring_rows) {
      r = 0;
      row = RowWalk(rows.block_rows, 0);
    } else {
      row.next();
    }
  }
}

// The heads [first, last) of all rows that a task takes.
struct HeadRange {
  int64_t first = 0, last = 0;
  int64_t count() const { return last - first; }
};

// Scratch of one thread, for `rows` rows of `heads` heads.
struct TaskScratch {
  ChunkUse* uses;       // [rows][chunks of a row]
  DecodedKeys decoded;  // a chunk
  float* q;             // [rows][heads][padded], where queries need padding
  float* o;             // [rows][heads][padded]
  float* p;             // [rows][heads][kChunkKeys] scores, then probabilities
  float* top;           // [rows][heads], as sum and keep
  float* sum;
  float* keep;

  static int64_t floats(int64_t rows, int64_t heads, int64_t dim) {
    return DecodedKeys::floats(kChunkKeys, dim) + rows * heads * (2 * padded_dim(dim) + kChunkKeys + 3);
  }
  TaskScratch(int64_t rows, int64_t heads, int64_t dim, ChunkUse* use_list, float* piece) : uses(use_list), decoded(piece, kChunkKeys) {
    q = piece + DecodedKeys::floats(kChunkKeys, dim);
    o = q + rows * heads * padded_dim(dim);
    p = o + rows * heads * padded_dim(dim);
    top = p + rows * heads * kChunkKeys;
    sum = top + rows * heads;
    keep = sum + rows * heads;
  }
};

// Row t as the r-th of its task: softmax and output at their start. Its queries, padded where they need it.
const float* start_row(const SparseAttentionArgs& a, int64_t t, int64_t r, HeadRange range, const TaskScratch& s) {
  const int64_t dim = a.window.row_dim, padded = padded_dim(dim), heads = range.count();
  const float* queries = a.q.row(t) + range.first * dim;
  float* own = s.q + r * heads * padded;
  for (int64_t h = 0; h < heads; ++h) {
    if (padded != dim) {
      std::copy_n(queries + h * dim, dim, own + h * padded);
      std::fill_n(own + h * padded + dim, padded - dim, 0.0f);
    }
    s.top[r * heads + h] = a.sink[range.first + h];
    s.sum[r * heads + h] = 1.0f;  // e^(sink - sink); the sink's value is zero
  }
  std::fill_n(s.o + r * heads * padded, heads * padded, 0.0f);
  return padded == dim ? queries : own;
}

void finish_row(const SparseAttentionArgs& a, const CpuKernels& kernels, int64_t t, int64_t r, HeadRange range, const TaskScratch& s) {
  const int64_t dim = a.window.row_dim, padded = padded_dim(dim), heads = range.count();
  float* out = a.o.row(t) + range.first * dim;
  if (a.rows.positions[t] < 0) {
    std::fill_n(out, heads * dim, 0.0f);
    return;
  }
  for (int64_t h = 0; h < heads; ++h) {
    kernels.attention_finish(s.o + (r * heads + h) * padded, s.sum[r * heads + h], dim, a.cos_sin.row(t), a.cos_sin.cols, out + h * dim);
  }
}

// Rows [begin, end): one sequence, neighbours in the step.
void attend(const SparseAttentionArgs& a, const CpuKernels& kernels, int64_t begin, int64_t end, HeadRange range, int64_t per_row, const TaskScratch& s) {
  const int64_t padded = padded_dim(a.window.row_dim), heads = range.count(), rows = end - begin;
  const float* q[kMaxGroupRows];
  int64_t count[kMaxGroupRows], at[kMaxGroupRows] = {};
  for (int64_t r = 0; r < rows; ++r) {
    q[r] = start_row(a, begin + r, r, range, s);
    count[r] = list_chunks(a, begin + r, s.uses + r * per_row);
  }

  while (true) {
    // The first chunk that some row still has to take, and the rows that take it. Chosen keys are a row's own.
    const ChunkUse* next = nullptr;
    for (int64_t r = 0; r < rows; ++r) {
      const ChunkUse* use = s.uses + r * per_row + at[r];
      if (at[r] < count[r] && (next == nullptr || use->before(*next))) next = use;
    }
    if (next == nullptr) break;
    int64_t takers[kMaxGroupRows], num_takers = 0;
    int32_t first = next->first, last = next->last;
    for (int64_t r = 0; r < rows; ++r) {
      const ChunkUse* use = s.uses + r * per_row + at[r];
      const bool takes = next->kind == ChunkKind::kChosen ? use == next : at[r] < count[r] && use->kind == next->kind && use->index == next->index;
      if (!takes) continue;
      takers[num_takers++] = r;
      first = std::min(first, use->first);
      last = std::max(last, use->last);
    }
    const auto for_takers = [&](const auto& body) {
      for (int64_t i = 0; i < num_takers; ++i) body(takers[i], s.uses[takers[i] * per_row + at[takers[i]]]);
    };
    for (int32_t from = first; from < last; from += kernels.piece_keys) {
      const int32_t to = std::min(from + kernels.piece_keys, last);
      decode_keys(a, kernels, a.rows.slots[begin], *next, from, to, s.decoded);
      for_takers([&](int64_t r, const ChunkUse& use) {
        kernels.chunk_scores(q[r], heads, padded, s.decoded, std::max(from, use.first), std::min(to, use.last), s.p + r * heads * kChunkKeys);
      });
    }
    for_takers([&](int64_t r, const ChunkUse& use) {
      kernels.chunk_softmax(s.p + r * heads * kChunkKeys, heads, a.scale, use.first, use.last, s.top + r * heads, s.sum + r * heads, s.keep + r * heads);
    });
    for (int64_t d = 0; d < padded; d += kValueSlice) {
      for_takers([&](int64_t r, const ChunkUse& use) {
        kernels.chunk_values(s.p + r * heads * kChunkKeys, s.keep + r * heads, heads, padded, s.decoded, use.first, use.last, d,
                             std::min(d + kValueSlice, padded), s.o + r * heads * padded);
      });
    }
    for (int64_t i = 0; i < num_takers; ++i) ++at[takers[i]];
  }
  for (int64_t r = 0; r < rows; ++r) finish_row(a, kernels, begin + r, r, range, s);
}

}  // namespace

Status sparse_attention_cpu(OpContext& context, const SparseAttentionArgs& a) {
  CpuContext& c = cpu_context(context);
  const int64_t dim = a.window.row_dim, heads = a.heads, rows = a.q.rows, threads = c.pool->num_threads(), per_row = most_chunks(a);
  if (rows == 0) return ok_status();
  // Groups of rows that leave four tasks a thread; where rows are fewer than threads, each row is several tasks.
  const int64_t group_rows = std::clamp<int64_t>(rows / (4 * threads), 1, std::max<int64_t>(1, kTaskHeads / heads));
  const int64_t wanted_parts = std::clamp<int64_t>((threads + rows - 1) / rows, 1, heads);
  const int64_t part_heads = (heads + wanted_parts - 1) / wanted_parts, parts = (heads + part_heads - 1) / part_heads;

  const int64_t uses = group_rows * per_row, floats = TaskScratch::floats(group_rows, part_heads, dim);
  const int64_t bytes = CpuScratch::padded<int32_t>(rows + 1), own_bytes = CpuScratch::padded<ChunkUse>(uses) + CpuScratch::padded<float>(floats);
  if (!c.scratch.reset(bytes) || !c.own.reset(static_cast<int>(threads), own_bytes)) return no_scratch("sparse_attention", bytes + threads * own_bytes);
  int32_t* starts = c.scratch.take<int32_t>(rows + 1);  // first row of each group
  int64_t groups = 0;
  for (int64_t t = 0; t < rows; ++t) {
    const bool goes_on = t > 0 && a.rows.slots[t] == a.rows.slots[t - 1] && t - starts[groups - 1] < group_rows;
    if (!goes_on) starts[groups++] = static_cast<int32_t>(t);
  }
  starts[groups] = static_cast<int32_t>(rows);
  for_ranges(c, groups * parts, 1, uses * kChunkKeys * part_heads * dim / 4, [&](int64_t begin, int64_t end, int thread) {
    CpuScratch& own = c.own[thread];
    ChunkUse* use_list = own.take<ChunkUse>(uses);
    const TaskScratch s(group_rows, part_heads, dim, use_list, own.take<float>(floats));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t g = task / parts, first = task % parts * part_heads;
      attend(a, *c.kernels, starts[g], starts[g + 1], {first, std::min(first + part_heads, heads)}, per_row, s);
    }
  });
  return ok_status();
}

}  // namespace dsv4

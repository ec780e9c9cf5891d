// The indexer's choice. Rows with no more compressed rows than top-k take all of them, without scores. For the others: a task
// takes 192 keys and up to 32 rows of a sequence, decodes 24 keys at a time and scores them for each row: in integers where keys and the row's query are
// E2M1 values (index_scores.h), else in floats (attention_kernels.cc); then each row selects its top-k: no sort
// but of the chosen.
#include <algorithm>
#include <functional>
#include <limits>

#include "backends/cpu/cpu_context.h"
#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/index_scores.h"
#include "backends/cpu/row_prefetch.h"

namespace dsv4 {
namespace {

constexpr int64_t kSegmentRows = 32;
constexpr int64_t kPieceKeys = 24;  // decoded and scored at a time: 12 KiB at 128 values stay in L1, and are eight blocks of three
constexpr int64_t kTaskKeys = 8 * kPieceKeys;
constexpr int64_t kPieceVectors = kPieceKeys / kIndexLanes;
constexpr int64_t kRowsAhead = 16;                  // packed rows asked for before they are decoded
constexpr int64_t kSelectBlock = 32;                // scores of which the largest is known
constexpr int64_t kBatchScores = int64_t{4} << 20;  // scores kept at a time: 16 MiB

struct Scored {
  float score;
  int32_t index;
};
bool better(const Scored& a, const Scored& b) { return a.score != b.score ? a.score > b.score : a.index < b.index; }

// Work area of select_largest for n scores.
struct SelectScratch {
  Scored* kept;   // [n]
  float* maxima;  // [n / kSelectBlock], twice
  float* ordered;

  static int64_t floats(int64_t n) { return 2 * n + 2 * (n / kSelectBlock); }
  SelectScratch(float* memory, int64_t n) : kept(reinterpret_cast<Scored*>(memory)), maxima(memory + 2 * n), ordered(maxima + n / kSelectBlock) {}
};

float largest_of_block(const float* x) {
  float lane[8];  // side by side: one instruction each
  std::copy_n(x, 8, lane);
  for (int64_t i = 8; i < kSelectBlock; i += 8) {
    for (int64_t l = 0; l < 8; ++l) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
  }
  return *std::max_element(lane, lane + 8);
}

// Indices of the k largest of n > k scores (no NaN), ascending; ties go to the lowest index. Where k blocks have a score of at least `least`, so have k
// scores: the k-th largest maximum of a block is a bound below which nothing is chosen, and which most blocks do not reach.
void select_largest(const float* scores, int64_t n, int64_t k, const SelectScratch& s, int32_t* out) {
  const int64_t blocks = n / kSelectBlock;
  float least = -std::numeric_limits<float>::infinity();
  if (blocks >= k) {
    for (int64_t b = 0; b < blocks; ++b) s.maxima[b] = largest_of_block(scores + b * kSelectBlock);
    std::copy_n(s.maxima, blocks, s.ordered);
    std::nth_element(s.ordered, s.ordered + k - 1, s.ordered + blocks, std::greater<>());
    least = s.ordered[k - 1];
  }
  int64_t count = 0;
  for (int64_t b = 0; b * kSelectBlock < n; ++b) {
    if (blocks >= k && b < blocks && s.maxima[b] < least) continue;
    for (int64_t i = b * kSelectBlock; i < std::min(n, (b + 1) * kSelectBlock); ++i) {
      s.kept[count] = {scores[i], static_cast<int32_t>(i)};
      count += scores[i] >= least ? 1 : 0;
    }
  }
  std::nth_element(s.kept, s.kept + k - 1, s.kept + count, better);
  for (int64_t i = 0; i < k; ++i) out[i] = s.kept[i].index;
  std::sort(out, out + k);
}

// Neighbouring rows of one sequence that need scores.
struct Segment {
  int64_t first = 0, last = 0;
  int64_t keys = 0;                       // of its longest row
  bool integers = false, floats = false;  // rows of either kind
};

// Where a task is in a sequence's keys, and the keys asked for meanwhile.
struct KeyWalk {
  RowWalk row, later;
};

// The next `count` keys, from j0 on, in the forms that the segment's rows want.
void read_piece(const CpuKernels& kernels, const PagedRows& keys, const int32_t* blocks, const Segment& s, int64_t j0, int64_t count, KeyWalk& at,
                const DecodedKeys& decoded, const IndexKeys (&index_keys)[kPieceVectors]) {
  const uint8_t *data[kPieceKeys], *scales[kPieceKeys];
  for (int64_t i = 0; i < count; ++i, at.row.next(), at.later.next()) {
    if (j0 + i + kRowsAhead < s.keys) ask_for_row(keys, blocks[at.later.block], at.later.place);
    const int64_t block = blocks[at.row.block];
    if (s.floats) kernels.read_key(keys, block, at.row.place, decoded, i);
    data[i] = keys.base + row_data_offset(keys, block, at.row.place);
    scales[i] = keys.base + row_scale_offset(keys, block, at.row.place);
  }
  if (!s.integers) return;
  // Lanes behind the last key repeat it; nobody reads their scores.
  const int64_t vectors = (count + kIndexLanes - 1) / kIndexLanes;
  std::fill(data + count, data + vectors * kIndexLanes, data[count - 1]);
  std::fill(scales + count, scales + vectors * kIndexLanes, scales[count - 1]);
  for (int64_t v = 0; v < vectors; ++v) kernels.read_index_keys(data + v * kIndexLanes, scales + v * kIndexLanes, keys.row_dim, index_keys[v]);
}

}  // namespace

Status indexer_topk_cpu(OpContext& context, const IndexerTopkArgs& a) {
  CpuContext& c = cpu_context(context);
  const CpuKernels& kernels = *c.kernels;
  const int64_t rows = a.q.rows, topk = a.indices.cols, dim = a.keys.row_dim, padded = padded_dim(dim), heads = a.heads;
  const auto keys_of = [&](int64_t t) -> int64_t { return a.rows.positions[t] < 0 ? 0 : (a.rows.positions[t] + 1) / a.ratio; };
  int64_t longest = 0;
  for (int64_t t = 0; t < rows; ++t) {
    const int64_t keys = keys_of(t);
    longest = std::max(longest, keys);
    if (keys > topk) continue;
    int32_t* out = a.indices.row(t);
    for (int64_t j = 0; j < topk; ++j) out[j] = j < keys ? static_cast<int32_t>(j) : -1;
  }
  if (longest <= topk) return ok_status();

  const int64_t batch_rows = std::clamp<int64_t>(kBatchScores / longest, 1, rows);
  const int threads = c.pool->num_threads();
  const bool integers = integer_keys(a.keys);
  const int64_t select_floats = SelectScratch::floats(longest);
  const int64_t query_bytes = integers ? IndexQuery::bytes(heads, dim) : 0, key_bytes = integers ? IndexKeys::bytes(dim) : 0;
  const int64_t score_floats = DecodedKeys::floats(kPieceKeys, dim) + heads * (padded + kChunkKeys + 1);
  const int64_t bytes = CpuScratch::padded<Segment>(batch_rows) + CpuScratch::padded<float>(batch_rows * longest) +
                        CpuScratch::padded<uint8_t>(batch_rows * query_bytes) + CpuScratch::padded<bool>(batch_rows);
  const int64_t own_bytes =
      std::max(CpuScratch::padded<float>(score_floats) + CpuScratch::padded<uint8_t>(kPieceVectors * key_bytes), CpuScratch::padded<float>(select_floats));
  if (!c.scratch.reset(bytes) || !c.own.reset(threads, own_bytes)) return no_scratch("indexer_topk", bytes + threads * own_bytes);
  Segment* segments = c.scratch.take<Segment>(batch_rows);
  float* totals = c.scratch.take<float>(batch_rows * longest);
  uint8_t* queries = c.scratch.take<uint8_t>(batch_rows * query_bytes);
  bool* in_integers = c.scratch.take<bool>(batch_rows);  // rows of the batch whose queries are
  const auto query_of = [&](int64_t i) { return IndexQuery(queries + i * query_bytes, heads, dim); };

  for (int64_t start = 0; start < rows; start += batch_rows) {
    const int64_t stop = std::min(start + batch_rows, rows);
    for_ranges(c, stop - start, 1, heads * dim, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        in_integers[i] = integers && keys_of(start + i) > topk && make_index_query(a.q.row(start + i), heads, dim, query_of(i));
      }
    });
    int64_t num_segments = 0;
    for (int64_t t = start; t < stop; ++t) {
      if (keys_of(t) <= topk) continue;
      Segment* last = num_segments > 0 ? segments + num_segments - 1 : nullptr;
      if (last != nullptr && last->last == t && a.rows.slots[last->first] == a.rows.slots[t] && t - last->first < kSegmentRows) {
        last->last = t + 1;
        last->keys = std::max(last->keys, keys_of(t));
      } else {
        last = segments + num_segments++;
        *last = {t, t + 1, keys_of(t)};
      }
      (in_integers[t - start] ? last->integers : last->floats) = true;
    }
    const int64_t stretches = (longest + kTaskKeys - 1) / kTaskKeys;
    for_ranges(c, num_segments * stretches, 1, kTaskKeys * heads * dim / 8, [&](int64_t begin, int64_t end, int thread) {
      CpuScratch& own = c.own[thread];
      const DecodedKeys decoded(own.take<float>(score_floats), kPieceKeys);
      uint8_t* key_memory = own.take<uint8_t>(kPieceVectors * key_bytes);
      float* q = decoded.values + DecodedKeys::floats(kPieceKeys, dim);
      float* scores = q + heads * padded;
      float* weights = scores + heads * kChunkKeys;
      IndexKeys index_keys[kPieceVectors];
      for (int64_t v = 0; v < kPieceVectors; ++v) index_keys[v] = IndexKeys(key_memory + v * key_bytes, dim);
      for (int64_t task = begin; task < end; ++task) {
        const Segment& s = segments[task / stretches];
        const int32_t* blocks = a.table.ids + a.rows.slots[s.first] * a.table.stride;
        const int64_t stretch = task % stretches * kTaskKeys, stretch_end = std::min(stretch + kTaskKeys, s.keys);
        KeyWalk at{{a.keys.block_rows, stretch}, {a.keys.block_rows, stretch + kRowsAhead}};
        for (int64_t j0 = stretch; j0 < stretch_end; j0 += kPieceKeys) {
          read_piece(kernels, a.keys, blocks, s, j0, std::min(kPieceKeys, stretch_end - j0), at, decoded, index_keys);
          for (int64_t t = s.first; t < s.last; ++t) {
            const int64_t seen = std::min(std::min(keys_of(t), stretch_end) - j0, kPieceKeys);
            if (seen <= 0) continue;
            if (in_integers[t - start]) {
              for (int64_t v = 0; v * kIndexLanes < seen; ++v) {
                kernels.index_scores(index_keys[v], query_of(t - start), heads, dim, scores + v * kIndexLanes);
              }
            } else {
              const float* query = a.q.row(t);
              if (padded != dim) {
                std::fill_n(q, heads * padded, 0.0f);
                for (int64_t h = 0; h < heads; ++h) std::copy_n(query + h * dim, dim, q + h * padded);
                query = q;
              }
              kernels.chunk_scores(query, heads, padded, decoded, 0, seen, scores);
            }
            for (int64_t h = 0; h < heads; ++h) weights[h] = a.weight_scale * a.w.row(t)[h];
            kernels.indexer_total(scores, weights, heads, 0, seen, totals + (t - start) * longest + j0);
          }
        }
      }
    });
    for_ranges(c, stop - start, 1, longest * 4, [&](int64_t begin, int64_t end, int thread) {
      const SelectScratch select(c.own[thread].take<float>(select_floats), longest);
      for (int64_t i = begin; i < end; ++i) {
        if (const int64_t keys = keys_of(start + i); keys > topk) select_largest(totals + i * longest, keys, topk, select, a.indices.row(start + i));
      }
    });
  }
  return ok_status();
}

}  // namespace dsv4

// The indexer's choice. Rows with no more compressed rows than top-k take all of them, without scores. For the others: a task
// takes 192 keys and up to 32 rows of a sequence, decodes 24 keys at a time and scores them for each row (attention_kernels.cc, bound by
// the fma units); then each row selects its top-k by a radix search for the k-th largest score: three passes of 11, 11 and 10 bits, no
// sort.
#include <algorithm>
#include <array>
#include <bit>

#include "backends/cpu/cpu_context.h"
#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/row_prefetch.h"

namespace dsv4 {
namespace {

constexpr int64_t kSegmentRows = 32;
constexpr int64_t kPieceKeys = 24;  // decoded and scored at a time: 12 KiB at 128 values stay in L1, and are eight blocks of three
constexpr int64_t kTaskKeys = 8 * kPieceKeys;
constexpr int64_t kRowsAhead = 16;                  // packed rows asked for before they are decoded
constexpr int64_t kBatchScores = int64_t{4} << 20;  // scores kept at a time: 16 MiB

// Unsigned integers in the order of the floats (no NaN; -0 equals +0).
uint32_t ordered(float x) {
  uint32_t u = std::bit_cast<uint32_t>(x);
  if (u == 0x80000000u) u = 0;
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

// Indices of the k largest of n > k scores, ascending; ties go to the lowest index.
void select_largest(const float* scores, int64_t n, int64_t k, int32_t* out) {
  uint32_t prefix = 0, mask = 0;
  int64_t wanted = k;  // rank of the k-th largest among the scores whose leading bits are `prefix`
  for (const auto& [shift, bits] : {std::array{21, 11}, std::array{10, 11}, std::array{0, 10}}) {
    std::array<int32_t, 2048> histogram{};
    const uint32_t digits = (1u << bits) - 1;
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t u = ordered(scores[i]);
      if ((u & mask) == prefix) ++histogram[u >> shift & digits];
    }
    uint32_t digit = digits;
    while (histogram[digit] < wanted) wanted -= histogram[digit--];
    prefix |= digit << shift;
    mask |= digits << shift;
  }
  // `prefix` is the k-th largest value itself, and `wanted` of the scores equal to it are chosen.
  int64_t count = 0;
  for (int64_t i = 0; count < k; ++i) {
    const uint32_t u = ordered(scores[i]);
    if (u > prefix || (u == prefix && wanted-- > 0)) out[count++] = static_cast<int32_t>(i);
  }
}

// Neighbouring rows of one sequence that need scores.
struct Segment {
  int64_t first = 0, last = 0;
  int64_t keys = 0;  // of its longest row
};

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

  const int64_t batch_rows = std::clamp<int64_t>(kBatchScores / longest, 1, rows), threads = c.pool->num_threads();
  const int64_t per_thread = DecodedKeys::floats(kPieceKeys, dim) + heads * (padded + kChunkKeys) + (heads + 15) / 16 * 16;
  const int64_t bytes =
      CpuScratch::padded<Segment>(batch_rows) + CpuScratch::padded<float>(batch_rows * longest) + CpuScratch::padded<float>(threads * per_thread);
  if (!c.scratch.reset(bytes)) return no_scratch("indexer_topk", bytes);
  Segment* segments = c.scratch.take<Segment>(batch_rows);
  float* totals = c.scratch.take<float>(batch_rows * longest);
  float* scratch = c.scratch.take<float>(threads * per_thread);

  for (int64_t start = 0; start < rows; start += batch_rows) {
    const int64_t stop = std::min(start + batch_rows, rows);
    int64_t num_segments = 0;
    for (int64_t t = start; t < stop; ++t) {
      if (keys_of(t) <= topk) continue;
      Segment* last = num_segments > 0 ? segments + num_segments - 1 : nullptr;
      if (last != nullptr && last->last == t && a.rows.slots[last->first] == a.rows.slots[t] && t - last->first < kSegmentRows) {
        last->last = t + 1;
        last->keys = std::max(last->keys, keys_of(t));
      } else {
        segments[num_segments++] = {t, t + 1, keys_of(t)};
      }
    }
    const int64_t stretches = (longest + kTaskKeys - 1) / kTaskKeys;
    for_ranges(c, num_segments * stretches, 1, kTaskKeys * heads * dim / 8, [&](int64_t begin, int64_t end, int thread) {
      const DecodedKeys decoded(scratch + thread * per_thread, kPieceKeys);
      float* q = decoded.values + DecodedKeys::floats(kPieceKeys, dim);
      float* scores = q + heads * padded;
      float* weights = scores + heads * kChunkKeys;
      for (int64_t task = begin; task < end; ++task) {
        const Segment& s = segments[task / stretches];
        const int32_t* blocks = a.table.ids + a.rows.slots[s.first] * a.table.stride;
        const int64_t stretch = task % stretches * kTaskKeys, stretch_end = std::min(stretch + kTaskKeys, s.keys);
        for (int64_t j0 = stretch; j0 < stretch_end; j0 += kPieceKeys) {
          for (int64_t r = j0; r < std::min(j0 + kPieceKeys, stretch_end); ++r) {
            const int64_t block = blocks[r / a.keys.block_rows], place = r % a.keys.block_rows;
            ask_for_row(a.keys, block, place + kRowsAhead);
            kernels.read_key(a.keys, block, place, decoded, r - j0);
          }
          for (int64_t t = s.first; t < s.last; ++t) {
            const int64_t seen = std::min(std::min(keys_of(t), stretch_end) - j0, kPieceKeys);
            if (seen <= 0) continue;
            const float* queries = a.q.row(t);
            if (padded != dim) {
              std::fill_n(q, heads * padded, 0.0f);
              for (int64_t h = 0; h < heads; ++h) std::copy_n(queries + h * dim, dim, q + h * padded);
              queries = q;
            }
            for (int64_t h = 0; h < heads; ++h) weights[h] = a.weight_scale * a.w.row(t)[h];
            kernels.chunk_scores(queries, heads, padded, decoded, 0, seen, scores);
            kernels.indexer_total(scores, weights, heads, 0, seen, totals + (t - start) * longest + j0);
          }
        }
      }
    });
    for_ranges(c, stop - start, 1, longest * 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        if (const int64_t keys = keys_of(start + i); keys > topk) select_largest(totals + i * longest, keys, topk, a.indices.row(start + i));
      }
    });
  }
  return ok_status();
}

}  // namespace dsv4

// Wrong operators that the shared operator test must refuse: caches, compressor, indexer, attention.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/testing/faulty_device.h"
#include "tensor/rounding.h"

namespace dsv4::optest {
namespace {

class PlantedCacheFault : public testing::TestWithParam<Fault> {};
TEST_P(PlantedCacheFault, is_refused) { expect_refused(GetParam()); }

// A copy of the step's row arrays that a fault may change.
struct Rows {
  explicit Rows(const SequenceRows& r) : rows(r), positions(r.positions, r.positions + r.num_rows), slots(r.slots, r.slots + r.num_rows) {
    rows.positions = positions.data();
    rows.slots = slots.data();
  }
  SequenceRows rows;
  std::vector<int32_t> positions, slots;
};

// A reader that takes a row for 584 contiguous bytes: row t's scales behind its own data. Rewrites a cache's blocks so that the right
// reader sees what the wrong one would.
std::vector<uint8_t> as_584_byte_rows(const PagedRows& cache, const BlockTable& table, int64_t slots) {
  int64_t last = 0;
  for (int64_t i = 0; i < slots * table.stride; ++i) {
    if (table.ids[i] != 0x7fffffff) last = std::max<int64_t>(last, table.ids[i]);
  }
  const int64_t least = block_bytes(cache.format, cache.block_rows, cache.row_dim);
  std::vector<uint8_t> copy(cache.base, cache.base + last * cache.block_stride_bytes + least);
  for (int64_t b = 0; b <= last; ++b) {
    const uint8_t* from = cache.base + b * cache.block_stride_bytes;
    uint8_t* to = copy.data() + b * cache.block_stride_bytes;
    for (int64_t t = 0; t < cache.block_rows; ++t) {
      std::copy_n(from + t * 584, 576, to + t * 576);
      std::copy_n(from + t * 584 + 576, 8, to + cache.block_rows * 576 + t * 8);
    }
  }
  return copy;
}

const Fault kAttentionFaults[] = {
    {"forgets_the_sink", "sparse_attention", "fp8_ds_mla_window_boundary", "",
     [](OpTable& t) {
       t.sparse_attention = [](OpContext& c, const SparseAttentionArgs& a) {
         const std::vector<float> none(static_cast<size_t>(a.heads), -1e30f);
         SparseAttentionArgs b = a;
         b.sink = none.data();
         return sparse_attention_reference(c, b);
       };
     }},
    {"window_one_too_short", "sparse_attention", "f32_window_boundary", "",
     [](OpTable& t) {
       t.sparse_attention = [](OpContext& c, const SparseAttentionArgs& a) {
         SparseAttentionArgs b = a;
         --b.window_tokens;
         return sparse_attention_reference(c, b);
       };
     }},
    {"window_one_too_long", "sparse_attention", "f32_window_boundary", "",
     [](OpTable& t) {
       t.sparse_attention = [](OpContext& c, const SparseAttentionArgs& a) {
         SparseAttentionArgs b = a;
         ++b.window_tokens;
         return sparse_attention_reference(c, b);
       };
     }},
    {"sees_the_row_in_hand", "sparse_attention", "fp8_ds_mla_ratio128_boundary", "",
     [](OpTable& t) {
       t.sparse_attention = [](OpContext& c, const SparseAttentionArgs& a) {
         // One compressed row fewer for a token that ends a window: as if row j existed after the window, not with its last token.
         Rows r(a.rows);
         for (int32_t& p : r.positions) p -= p >= 127 && (p + 1) % 128 == 0 ? 1 : 0;
         SparseAttentionArgs b = a;
         b.rows = r.rows;
         return sparse_attention_reference(c, b);
       };
     }},
    {"does_not_rotate_back", "sparse_attention", "fp8_ds_mla_window_boundary", "",
     [](OpTable& t) {
       t.sparse_attention = [](OpContext& c, const SparseAttentionArgs& a) {
         SparseAttentionArgs b = a;
         b.cos_sin.cols = 0;
         return sparse_attention_reference(c, b);
       };
     }},
    {"rotates_forward", "sparse_attention", "fp8_ds_mla_window_boundary", "",
     [](OpTable& t) {
       t.sparse_attention = [](OpContext& c, const SparseAttentionArgs& a) {
         std::vector<float> turn;
         for (int64_t r = 0; r < a.cos_sin.rows; ++r) {
           for (int64_t i = 0; i < a.cos_sin.cols; ++i) turn.push_back(i % 2 == 0 ? a.cos_sin.row(r)[i] : -a.cos_sin.row(r)[i]);
         }
         SparseAttentionArgs b = a;
         b.cos_sin = {turn.data(), a.cos_sin.rows, a.cos_sin.cols};
         return sparse_attention_reference(c, b);
       };
     }},
    {"takes_the_least_block_stride", "sparse_attention", "stride_of_a_shared_arena", "",
     [](OpTable& t) {
       t.sparse_attention = [](OpContext& c, const SparseAttentionArgs& a) {
         SparseAttentionArgs b = a;
         b.window.block_stride_bytes = block_bytes(a.window.format, a.window.block_rows, a.window.row_dim);
         return sparse_attention_reference(c, b);
       };
     }},
    {"takes_584_byte_rows", "sparse_attention", "fp8_ds_mla_window_boundary", "",
     [](OpTable& t) {
       t.sparse_attention = [](OpContext& c, const SparseAttentionArgs& a) {
         std::vector<uint8_t> copy = as_584_byte_rows(a.window, a.window_table, 1);
         SparseAttentionArgs b = a;
         b.window.base = copy.data();
         return sparse_attention_reference(c, b);
       };
     }},
    {"ignores_the_block_table", "sparse_attention", "fp8_ds_mla_ratio4_topk", "",
     [](OpTable& t) {
       t.sparse_attention = [](OpContext& c, const SparseAttentionArgs& a) {
         std::vector<int32_t> ids;
         for (int32_t i = 0; i < a.compressed_table.stride; ++i) ids.push_back(i);
         SparseAttentionArgs b = a;
         b.compressed_table.ids = ids.data();
         return sparse_attention_reference(c, b);
       };
     }},
    {"takes_all_compressed_rows", "sparse_attention", "f32_ratio4_topk", "",
     [](OpTable& t) {
       t.sparse_attention = [](OpContext& c, const SparseAttentionArgs& a) {
         std::vector<int32_t> all;
         for (int64_t r = 0; r < a.topk.rows; ++r) {
           for (int32_t i = 0; i < a.topk.cols; ++i) all.push_back(i);
         }
         SparseAttentionArgs b = a;
         b.topk = {all.data(), a.topk.rows, a.topk.cols};
         return sparse_attention_reference(c, b);
       };
     }},
    {"computes_padding_rows", "sparse_attention", "fp8_ds_mla_sequences_and_padding", "",
     [](OpTable& t) {
       t.sparse_attention = [](OpContext& c, const SparseAttentionArgs& a) {
         DSV4_RETURN_IF_ERROR(sparse_attention_reference(c, a));
         for (int64_t r = 0; r < a.q.rows; ++r) {
           if (a.rows.positions[r] < 0) std::copy_n(a.q.row(r), a.q.cols, a.o.row(r));
         }
         return ok_status();
       };
     }},
    {"depends_on_the_batch", "sparse_attention", "f32_window_boundary", "leaves the same bits",
     [](OpTable& t) {
       t.sparse_attention = [](OpContext& c, const SparseAttentionArgs& a) {
         DSV4_RETURN_IF_ERROR(sparse_attention_reference(c, a));
         for (int64_t i = 0; a.q.rows > 3 && i < a.o.cols; ++i) a.o.row(0)[i] *= 1 + 0x1p-23f;
         return ok_status();
       };
     }},
};
INSTANTIATE_TEST_SUITE_P(Attention, PlantedCacheFault, testing::ValuesIn(kAttentionFaults), fault_name);

const Fault kCacheFaults[] = {
    {"ignores_the_ring", "kv_insert", "fp8_ds_mla_ring_wraps", "",
     [](OpTable& t) {
       t.kv_insert = [](OpContext& c, const KvInsertArgs& a) {
         Rows r(a.rows);
         for (int32_t& p : r.positions) p = std::min(p, a.ring_rows - 1);
         KvInsertArgs b = a;
         b.rows = r.rows;
         return kv_insert_reference(c, b);
       };
     }},
    {"writes_padding_rows", "kv_insert", "only_padding", "window: memory outside the results was written",
     [](OpTable& t) {
       t.kv_insert = [](OpContext& c, const KvInsertArgs& a) {
         Rows r(a.rows);
         for (int64_t i = 0; i < a.rows.num_rows; ++i) {
           if (r.positions[static_cast<size_t>(i)] < 0) r.positions[static_cast<size_t>(i)] = 0, r.slots[static_cast<size_t>(i)] = 0;
         }
         KvInsertArgs b = a;
         b.rows = r.rows;
         return kv_insert_reference(c, b);
       };
     }},
    {"takes_the_least_block_stride", "kv_insert", "stride_of_a_shared_arena", "memory outside the results was written",
     [](OpTable& t) {
       t.kv_insert = [](OpContext& c, const KvInsertArgs& a) {
         KvInsertArgs b = a;
         b.window.block_stride_bytes = block_bytes(a.window.format, a.window.block_rows, a.window.row_dim);
         return kv_insert_reference(c, b);
       };
     }},
    {"leaves_the_pad_byte", "kv_insert", "fp8_ds_mla_one_row", "pad byte",
     [](OpTable& t) {
       t.kv_insert = [](OpContext& c, const KvInsertArgs& a) {
         DSV4_RETURN_IF_ERROR(kv_insert_reference(c, a));
         a.window.base[row_scale_offset(a.window, a.window_table.ids[0], 0) + 7] = 1;
         return ok_status();
       };
     }},
    {"rounds_in_an_exact_cache", "kv_insert", "f32_exact_one_row", "",
     [](OpTable& t) {
       t.kv_insert = [](OpContext& c, const KvInsertArgs& a) {
         KvInsertArgs b = a;
         b.rounding = CacheRounding::kE4M3;
         return kv_insert_reference(c, b);
       };
     }},
    {"forgets_the_rounding", "kv_insert", "f32_rounded_one_row", "no rounding of",
     [](OpTable& t) {
       t.kv_insert = [](OpContext& c, const KvInsertArgs& a) {
         KvInsertArgs b = a;
         b.rounding = CacheRounding::kNone;
         return kv_insert_reference(c, b);
       };
     }},
    {"rounds_toward_zero", "kv_insert", "fp8_ds_mla_one_row", "no rounding of",
     [](OpTable& t) {
       t.kv_insert = [](OpContext& c, const KvInsertArgs& a) {
         DSV4_RETURN_IF_ERROR(kv_insert_reference(c, a));
         for (int64_t i = 0; i < 448; ++i) {  // one step down, in every code that has one
           uint8_t& code = a.window.base[row_data_offset(a.window, a.window_table.ids[0], 0) + i];
           if ((code & 127) > 1) --code;
         }
         return ok_status();
       };
     }},
    {"ignores_the_chunk_state", "compressor_step", "ratio4_fp8_ds_mla_starts_on_a_window", "",
     [](OpTable& t) {
       t.compressor_step = [](OpContext& c, const CompressorStepArgs& a) {
         const int64_t floats = compressor_state_floats(a.ratio, a.head_dim);
         for (int64_t s = 0; s < a.rows.num_seqs; ++s) {
           float* state = a.state + a.rows.seq_slots[s] * floats;
           for (int64_t i = 0; i < floats; ++i) state[i] = i / a.head_dim % 3 == 0 ? -std::numeric_limits<float>::infinity() : 0.0f;
         }
         return compressor_step_reference(c, a);
       };
     }},
    {"never_resets_its_state", "compressor_step", "ratio128_fp8_ds_mla_first_window", "",
     [](OpTable& t) {
       t.compressor_step = [](OpContext& c, const CompressorStepArgs& a) {
         Rows r(a.rows);
         for (int32_t& p : r.positions) p += p >= 0 && p % 128 == 0 ? 1 : 0;
         CompressorStepArgs b = a;
         b.rows = r.rows;
         return compressor_step_reference(c, b);
       };
     }},
    {"takes_the_halves_the_wrong_way", "compressor_step", "ratio4_f32_exact_first_window", "",
     [](OpTable& t) {
       t.compressor_step = [](OpContext& c, const CompressorStepArgs& a) {
         std::vector<float> kv;
         for (int64_t r = 0; r < a.kv.rows; ++r) {
           kv.insert(kv.end(), a.kv.row(r) + a.head_dim, a.kv.row(r) + 2 * a.head_dim);
           kv.insert(kv.end(), a.kv.row(r), a.kv.row(r) + a.head_dim);
         }
         CompressorStepArgs b = a;
         b.kv = {kv.data(), a.kv.rows, a.kv.cols};
         return compressor_step_reference(c, b);
       };
     }},
    {"forgets_hadamard", "compressor_step", "indexer_f32_exact_first_window", "",
     [](OpTable& t) {
       t.compressor_step = [](OpContext& c, const CompressorStepArgs& a) {
         CompressorStepArgs b = a;
         b.hadamard = false;
         return compressor_step_reference(c, b);
       };
     }},
    {"chunk_changes_a_bit", "compressor_step", "ratio4_sixty_five_rows", "leaves the same bits",
     [](OpTable& t) {
       t.compressor_step = [](OpContext& c, const CompressorStepArgs& a) {
         DSV4_RETURN_IF_ERROR(compressor_step_reference(c, a));
         // A last-place change of one sum, as another order of summation in long chunks gives.
         if (a.rows.num_rows > 64) a.state[a.rows.seq_slots[0] * compressor_state_floats(a.ratio, a.head_dim) + a.head_dim] *= 1 + 0x1p-23f;
         return ok_status();
       };
     }},
};
INSTANTIATE_TEST_SUITE_P(Caches, PlantedCacheFault, testing::ValuesIn(kCacheFaults), fault_name);

// Runs the reference and lets `change` edit each row's list.
Status with_indices(OpContext& c, const IndexerTopkArgs& a, void (*change)(int32_t* list, int64_t topk, int64_t count)) {
  DSV4_RETURN_IF_ERROR(indexer_topk_reference(c, a));
  for (int64_t r = 0; r < a.indices.rows; ++r) {
    if (a.rows.positions[r] >= 0) change(a.indices.row(r), a.indices.cols, (a.rows.positions[r] + 1) / a.ratio);
  }
  return ok_status();
}

const Fault kIndexerFaults[] = {
    {"is_not_causal", "indexer_topk", "fewer_rows_than_topk", "ascending rows below",
     [](OpTable& t) {
       t.indexer_topk = [](OpContext& c, const IndexerTopkArgs& a) {
         return with_indices(c, a, [](int32_t* list, int64_t topk, int64_t count) {
           if (count < topk) list[count] = static_cast<int32_t>(count);
         });
       };
     }},
    {"orders_by_score", "indexer_topk", "fewer_rows_than_topk", "ascending rows below",
     [](OpTable& t) {
       t.indexer_topk = [](OpContext& c, const IndexerTopkArgs& a) {
         return with_indices(c, a, [](int32_t* list, int64_t, int64_t count) { std::swap(list[0], list[count - 1]); });
       };
     }},
    {"takes_a_row_twice", "indexer_topk", "decode_many_rows", "ascending rows below",
     [](OpTable& t) {
       t.indexer_topk = [](OpContext& c, const IndexerTopkArgs& a) { return with_indices(c, a, [](int32_t* list, int64_t, int64_t) { list[1] = list[0]; }); };
     }},
    {"breaks_ties_upwards", "indexer_topk", "all_scores_equal_takes_the_lowest", "is left out",
     [](OpTable& t) {
       t.indexer_topk = [](OpContext& c, const IndexerTopkArgs& a) {
         return with_indices(c, a, [](int32_t* list, int64_t topk, int64_t count) {
           for (int64_t i = 0; i < topk; ++i) list[i] = static_cast<int32_t>(count - topk + i);
         });
       };
     }},
    {"takes_the_worst_instead_of_the_best", "indexer_topk", "decode_many_rows", "is left out",
     [](OpTable& t) {
       t.indexer_topk = [](OpContext& c, const IndexerTopkArgs& a) {
         std::vector<float> w;
         for (int64_t r = 0; r < a.w.rows; ++r) {
           for (int64_t h = 0; h < a.w.cols; ++h) w.push_back(-a.w.row(r)[h]);
         }
         IndexerTopkArgs b = a;
         b.w = {w.data(), a.w.rows, a.w.cols};
         return indexer_topk_reference(c, b);
       };
     }},
    {"misses_the_last_best_row", "indexer_topk", "v4_flash_long_context", "is left out",
     [](OpTable& t) {
       t.indexer_topk = [](OpContext& c, const IndexerTopkArgs& a) {
         return with_indices(c, a, [](int32_t* list, int64_t topk, int64_t count) {  // trades its highest row for one it left out
           if (count <= topk) return;
           for (int32_t j = 0; j < count; ++j) {
             if (std::find(list, list + topk, j) != list + topk) continue;
             list[topk - 1] = j;
             std::sort(list, list + topk);
             return;
           }
         });
       };
     }},
    {"forgets_the_rounding", "indexer_query", "one_row_tiny_model", "no rounding of",
     [](OpTable& t) {
       t.indexer_query = [](OpContext& c, const IndexerQueryArgs& a) {
         IndexerQueryArgs b = a;
         b.round_e2m1 = false;
         return indexer_query_reference(c, b);
       };
     }},
    {"scales_before_rounding", "indexer_query", "one_row_tiny_model", "no rounding of",
     [](OpTable& t) {
       t.indexer_query = [](OpContext& c, const IndexerQueryArgs& a) {
         for (int64_t r = 0; r < a.q.rows; ++r) {
           for (int64_t i = 0; i < a.q.cols; ++i) a.q.row(r)[i] *= 1.02f;
         }
         return indexer_query_reference(c, a);
       };
     }},
    {"forgets_the_rotation", "indexer_query", "unrounded", "",
     [](OpTable& t) {
       t.indexer_query = [](OpContext& c, const IndexerQueryArgs& a) {
         IndexerQueryArgs b = a;
         b.cos_sin.cols = 0;
         return indexer_query_reference(c, b);
       };
     }},
};
INSTANTIATE_TEST_SUITE_P(Indexer, PlantedCacheFault, testing::ValuesIn(kIndexerFaults), fault_name);

}  // namespace
}  // namespace dsv4::optest

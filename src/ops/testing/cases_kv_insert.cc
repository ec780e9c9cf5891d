// kv_insert: norm, rotation and rounding of the step's rows, and where they land in the ring.
#include <algorithm>

#include "ops/testing/cache_tools.h"
#include "ops/testing/case_lists.h"

namespace dsv4::optest {
namespace {

struct KvInsert {
  std::vector<SeqSpec> seqs = {};
  int32_t ring_rows = 192;
  CacheSpec cache = {};
  CacheRounding rounding = CacheRounding::kE4M3;
  int64_t pad = 0;
  double scale = 1;
  int64_t rope_dim = 64;
};

void build_kv_insert(Problem& p, const KvInsert& c) {
  const StepRows step = add_step(p, c.seqs);
  const int64_t dim = c.cache.row_dim;
  const std::vector<float> kv = p.rng.activations(p.num_rows * dim, c.scale), turn = random_rotations(p.rng, p.num_rows, c.rope_dim);
  const std::vector<uint16_t> norm = norm_weight(p.rng, dim);
  const int kt = p.add_rows("kv", dim, c.pad, kv), nt = p.add_vector("norm", norm), ct = p.add_rows("cos_sin", c.rope_dim, c.pad, turn);
  const Cache cache = add_cache(p, "window", Role::kUpdated, c.cache, std::vector<int64_t>(static_cast<size_t>(step.num_slots()), c.ring_rows));
  p.call = [=, ring = c.ring_rows, rounding = c.rounding](Device& d, const Bound& b) {
    const KvInsertArgs args{b.matrix<float>(kt), b.pointer<uint16_t>(nt), 1e-6f, b.matrix<float>(ct), step.bind(b), rounding,
                            cache.bind(b),       cache.table(b),          ring};
    return run_op("kv_insert", d.context(), d.ops().kv_insert, args);
  };
  p.state_units = [=, ring = c.ring_rows](RowRange range) {
    std::vector<Unit> units;
    for (int64_t t = range.begin; t < range.end; ++t) {
      const int32_t position = step.positions[static_cast<size_t>(t)];
      if (position >= 0) units.push_back(cache.unit(step.slots[static_cast<size_t>(t)], position % ring));
    }
    return units;
  };
  std::vector<Row> truths;
  for (int64_t t = 0; t < p.num_rows; ++t) {
    Row row = normed(exact_row(kv.data() + t * dim, dim), norm.data(), 1e-6f);
    rotate(row, dim, turn.data() + t * c.rope_dim, c.rope_dim, 1);
    truths.push_back(std::move(row));
  }
  const RowRounding how = row_rounding(c.cache.format, c.rounding, dim, c.rope_dim, false);
  p.judge = [=, ring = c.ring_rows](const Images& actual, const Images* reference, Verdict& v) {
    for (size_t t = 0; t < truths.size(); ++t) {
      if (step.positions[t] >= 0) judge_cache_row(cache, step.slots[t], step.positions[t] % ring, truths[t], how, actual, reference, v);
    }
    judge_flips(v.compared, v);
  };
}

}  // namespace

void add_kv_insert_cases(std::vector<OpCase>& cases) {
  const auto add = [&](const std::string& name, KvInsert c, bool odd = false) { add_case(cases, "kv_insert", name, build_kv_insert, std::move(c), odd); };
  constexpr CacheSpec kPacked = {};
  constexpr CacheSpec kPlain = {.format = RowFormat::kF32};
  for (const auto& [name, spec, rounding] : {std::tuple("fp8_ds_mla", kPacked, CacheRounding::kE4M3), std::tuple("f32_rounded", kPlain, CacheRounding::kE4M3),
                                             std::tuple("f32_exact", kPlain, CacheRounding::kNone)}) {
    const std::string n = name;
    add(n + "_zero_tokens", {.seqs = {}, .cache = spec, .rounding = rounding});
    add(n + "_one_row", {.seqs = {{0, 0, 1}}, .cache = spec, .rounding = rounding});
    add(n + "_block_boundary", {.seqs = {{0, 62, 4}}, .cache = spec, .rounding = rounding});
    add(n + "_ring_wraps", {.seqs = {{0, 185, 20}}, .cache = spec, .rounding = rounding});
    add(n + "_sequences_and_padding", {.seqs = {{3, 1000, 7, 2}, {-1, 0, 0, 3}, {1, 0, 2}, {0, 5, 0}, {2, 190, 3}}, .cache = spec, .rounding = rounding});
    add(n + "_sixty_five_rows", {.seqs = {{0, 100, 65}}, .cache = spec, .rounding = rounding, .pad = 4});
  }
  add("strided_rows_odd", {.seqs = {{0, 3, 5}}, .pad = 3});
  add("ring_not_a_multiple_of_a_block", {.seqs = {{0, 131, 40}, {1, 0, 64}}, .ring_rows = 135});
  add("stride_of_a_shared_arena", {.seqs = {{0, 60, 9}, {1, 3, 2}}, .ring_rows = 128, .cache = {.extra_stride = 1002240 - 37376, .base_offset = 37376 * 3}});
  add("small_values_at_the_scale_floor", {.seqs = {{0, 0, 5}}, .scale = 1e-9});
  add("only_padding", {.seqs = {{-1, 0, 0, 5}, {0, 2, 1}}});
  add("blocks_of_16_rows", {.seqs = {{0, 14, 40}, {1, 0, 3}}, .ring_rows = 50, .cache = {.block_rows = 16}}, true);
  add("rope_free_rows_f32", {.seqs = {{0, 14, 4}}, .cache = {.format = RowFormat::kF32, .row_dim = 128}, .rounding = CacheRounding::kNone, .rope_dim = 0},
      true);
}

}  // namespace dsv4::optest

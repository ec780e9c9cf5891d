// indexer_query and indexer_topk.
#include <algorithm>
#include <cmath>

#include "ops/testing/cache_tools.h"
#include "ops/testing/case_lists.h"
#include "tensor/rounding.h"

namespace dsv4::optest {
namespace {

struct Query {
  int64_t rows = 1, heads = 8, head_dim = 128, rope_dim = 64, pad = 0;
  bool round = true;
  double scale = 1;
};

void build_query(Problem& p, const Query& c) {
  p.num_rows = c.rows;
  const int64_t cols = c.heads * c.head_dim;
  const std::vector<float> q = p.rng.activations(c.rows * cols, c.scale), turn = random_rotations(p.rng, c.rows, c.rope_dim);
  const int qt = p.add("q", Role::kUpdated, true, c.rows, cols, c.pad, q), ct = p.add_rows("cos_sin", c.rope_dim, c.pad, turn);
  p.call = [=, heads = c.heads, round = c.round](Device& d, const Bound& b) {
    const IndexerQueryArgs args{b.matrix<float>(qt), heads, b.matrix<float>(ct), round};
    return run_op("indexer_query", d.context(), d.ops().indexer_query, args);
  };
  std::vector<Row> truths;
  for (int64_t t = 0; t < c.rows; ++t) {
    Row row = exact_row(q.data() + t * cols, cols);
    rotate(row, c.head_dim, turn.data() + t * c.rope_dim, c.rope_dim, 1);
    hadamard(row, c.head_dim);
    truths.push_back(std::move(row));
  }
  const RowRounding how = c.round ? RowRounding{RowRounding::Grid::kE2M1, cols, 32, false} : RowRounding{};
  p.judge = [=, &p](const Images& actual, const Images* reference, Verdict& v) {
    for (size_t t = 0; t < truths.size(); ++t) {
      const float* got = image_row<float>(p, actual, qt, static_cast<int64_t>(t));
      judge_rounded_row("q row " + std::to_string(t), truths[t], how, got, v);
      if (reference == nullptr) continue;
      for (int64_t i = 0; i < how.rounded; ++i) v.flips += got[i] != image_row<float>(p, *reference, qt, static_cast<int64_t>(t))[i];
    }
    judge_flips(v.compared, v);
  };
}

enum class Keys { kRandom, kAllEqual, kPairsEqual, kNeverPositive };

struct Topk {
  std::vector<SeqSpec> seqs = {};
  int64_t heads = 8, topk = 32;
  CacheSpec cache = {.format = RowFormat::kMxfp4, .row_dim = 128};
  int32_t ratio = 4;
  Keys keys = Keys::kRandom;
  bool negative_weights = false;
  bool rounded = false;  // queries as indexer_query rounds them
  int64_t extra_max_rows = 0, pad = 0;
};

// Scores of the rows a token may choose from.
struct Scores {
  int64_t count = 0;
  std::vector<double> value, error;
  std::vector<int32_t> same_as;  // the lowest row with the same key: equal scores on every device
};

void build_topk(Problem& p, const Topk& c) {
  const StepRows step = add_step(p, c.seqs);
  const int64_t dim = c.cache.row_dim, cols = c.heads * dim;
  std::vector<float> q = p.rng.activations(p.num_rows * cols, 1), w = p.rng.activations(p.num_rows * c.heads, 1);
  if (c.keys == Keys::kNeverPositive) {
    for (float& x : q) x = std::fabs(x) + 0.1f;
  }
  for (float& x : w) x = c.negative_weights ? -std::fabs(x) : x;
  if (c.rounded) round_e2m1(q.data(), static_cast<int64_t>(q.size()), kIndexGroup, q.data());
  const float weight_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dim * c.heads)));
  std::vector<int64_t> rows_per_slot(static_cast<size_t>(step.num_slots()), 0);
  for (const SeqSpec& s : c.seqs) {
    if (s.slot >= 0 && s.rows > 0) rows_per_slot[static_cast<size_t>(s.slot)] = (s.first + s.rows) / c.ratio;
  }
  const int qt = p.add_rows("q", cols, c.pad, q), wt = p.add_rows("w", c.heads, c.pad, w);
  const Cache cache = add_cache(p, "keys", Role::kInput, c.cache, rows_per_slot);
  const int64_t topk = c.topk, max_rows = *std::max_element(rows_per_slot.begin(), rows_per_slot.end()) + c.extra_max_rows;
  const int out = p.add_output<int32_t>("indices", topk, c.pad);

  std::vector<std::vector<std::vector<double>>> keys(rows_per_slot.size());  // [slot][row][dim], as the cache holds them
  std::vector<std::vector<int32_t>> same_as(rows_per_slot.size());
  const Images none;
  for (size_t slot = 0; slot < rows_per_slot.size(); ++slot) {
    std::vector<float> key;
    for (int64_t j = 0; j < rows_per_slot[slot]; ++j) {
      const bool repeat = j > 0 && (c.keys == Keys::kAllEqual || (c.keys == Keys::kPairsEqual && j % 2 == 1));
      if (!repeat) key = p.rng.activations(dim, 1);
      if (c.keys == Keys::kNeverPositive && !repeat && j % 5 != 3) {
        for (float& x : key) x = -std::fabs(x) - 0.1f;
      }
      same_as[slot].push_back(repeat ? same_as[slot].back() : static_cast<int32_t>(j));
      cache.write(p, static_cast<int32_t>(slot), j, key.data());
    }
    const Images images = p.images();
    for (int64_t j = 0; j < rows_per_slot[slot]; ++j) {
      const std::vector<float> stored = cache.read(images, static_cast<int32_t>(slot), j);
      keys[slot].emplace_back(stored.begin(), stored.end());
    }
  }
  p.call = [=, heads = c.heads, ratio = c.ratio](Device& d, const Bound& b) {
    IndexerTopkArgs args;
    args.q = b.matrix<float>(qt);
    args.w = b.matrix<float>(wt);
    args.weight_scale = weight_scale;
    args.heads = heads;
    args.rows = step.bind(b);
    args.ratio = ratio;
    args.keys = cache.bind(b);
    args.table = cache.table(b);
    args.max_rows = max_rows;
    args.indices = b.matrix<int32_t>(out);
    return run_op("indexer_topk", d.context(), d.ops().indexer_topk, args);
  };

  std::vector<Scores> scores(static_cast<size_t>(p.num_rows));
  for (int64_t t = 0; t < p.num_rows; ++t) {
    Scores& s = scores[static_cast<size_t>(t)];
    const int32_t position = step.positions[static_cast<size_t>(t)];
    if (position < 0) continue;
    const size_t slot = static_cast<size_t>(step.slots[static_cast<size_t>(t)]);
    s.count = (position + 1) / c.ratio;
    s.same_as.assign(same_as[slot].begin(), same_as[slot].begin() + s.count);
    if (s.count <= topk) continue;  // all of them; nobody needs a score
    for (int64_t j = 0; j < s.count; ++j) {
      Sum total;
      double own = 0;
      for (int64_t h = 0; h < c.heads; ++h) {
        const Sum product = dot(q.data() + t * cols + h * dim, keys[slot][static_cast<size_t>(j)].data(), dim);
        if (product.value < -product.error()) continue;  // relu gives 0 on every device
        const double weight = double{weight_scale} * w[static_cast<size_t>(t * c.heads + h)];
        total.add(weight * std::max(product.value, 0.0));
        own += std::fabs(weight) * (product.error() + 3 * kUnit * std::fabs(product.value));  // 3: the two products and the stored scale
      }
      s.value.push_back(total.value);
      s.error.push_back(own + total.error());
    }
  }
  p.judge = [=, &p](const Images& actual, const Images*, Verdict& v) {
    for (size_t t = 0; t < scores.size(); ++t) {
      const Scores& s = scores[t];
      const int32_t* got = image_row<int32_t>(p, actual, out, static_cast<int64_t>(t));
      const auto refuse = [&](const std::string& what) { v.refuse([&] { return "indices of row " + std::to_string(t) + ": " + what; }); };
      v.compared += topk;
      const int64_t expected = std::min(s.count, topk);
      bool valid = true;
      std::vector<bool> chosen(static_cast<size_t>(s.count));
      for (int64_t i = 0; i < topk && valid; ++i) {
        if (i >= expected) {
          valid = got[i] == -1;
        } else {
          valid = got[i] >= 0 && got[i] < s.count && (i == 0 || got[i] > got[i - 1]);
          if (valid) chosen[static_cast<size_t>(got[i])] = true;
        }
        if (!valid)
          refuse("entry " + std::to_string(i) + " is " + std::to_string(got[i]) + "; wanted: " + std::to_string(expected) + " ascending rows below " +
                 std::to_string(s.count) + ", then -1");
      }
      if (!valid || s.count <= topk) continue;
      // Of every left-out row i and chosen row j: i must not be better than j by more than the errors, nor equal and lower.
      for (int64_t i = 0; i < s.count; ++i) {
        if (chosen[static_cast<size_t>(i)]) continue;
        for (int64_t k = 0; k < topk; ++k) {
          const size_t a = static_cast<size_t>(i), b = static_cast<size_t>(got[k]);
          const bool exactly_equal = s.same_as[a] == s.same_as[b] || (s.error[a] == 0 && s.error[b] == 0 && s.value[a] == s.value[b]);
          if (exactly_equal ? a < b : s.value[a] > s.value[b] + s.error[a] + s.error[b]) {
            refuse("row " + std::to_string(i) + " (score " + std::to_string(s.value[a]) + ") is left out, row " + std::to_string(got[k]) + " (score " +
                   std::to_string(s.value[b]) + ") is in");
            i = s.count;
            break;
          }
        }
      }
    }
  };
}

}  // namespace

void add_indexer_cases(std::vector<OpCase>& cases) {
  const auto query = [&](const char* name, Query c, bool odd = false) { add_case(cases, "indexer_query", name, build_query, c, odd); };
  query("zero_tokens", {.rows = 0});
  query("one_row_tiny_model", {});
  query("seven_rows_rand_model", {.rows = 7, .heads = 2});
  query("sixty_five_rows", {.rows = 65, .heads = 2});
  query("unrounded", {.rows = 9, .heads = 3, .round = false});
  query("strided_rows", {.rows = 5, .heads = 2, .pad = 8});
  query("strided_rows_odd", {.rows = 5, .heads = 1, .pad = 3});
  query("small_values", {.rows = 3, .scale = 1e-20});
  query("head_of_32", {.rows = 3, .heads = 4, .head_dim = 32, .rope_dim = 16}, true);
  query("v4_flash_heads", {.rows = 2, .heads = 64});

  const auto topk = [&](const char* name, Topk c, bool odd = false) { add_case(cases, "indexer_topk", name, build_topk, std::move(c), odd); };
  topk("zero_tokens", {.seqs = {}});
  topk("one_row_sees_nothing_yet", {.seqs = {{0, 2, 1}}});
  topk("fewer_rows_than_topk", {.seqs = {{0, 100, 7}}});
  topk("exactly_topk_rows_then_one_more", {.seqs = {{0, 126, 10}}});
  topk("decode_many_rows", {.seqs = {{0, 4 * 300, 1}}});
  topk("block_boundaries", {.seqs = {{0, 4 * 63 - 2, 12}, {1, 4 * 128 - 2, 4}}});
  topk("rand_model_top_8_of_2_heads", {.seqs = {{0, 60, 65}}, .heads = 2, .topk = 8});
  topk("sequences_and_padding", {.seqs = {{3, 500, 3, 2}, {-1, 0, 0, 4}, {1, 0, 5}, {0, 5, 0}, {2, 301, 1}}, .topk = 8});
  topk("f32_keys", {.seqs = {{0, 200, 9}}, .topk = 8, .cache = {.format = RowFormat::kF32, .row_dim = 128}});
  topk("all_scores_equal_takes_the_lowest", {.seqs = {{0, 400, 3}}, .topk = 8, .keys = Keys::kAllEqual});
  topk("equal_pairs_take_the_lower", {.seqs = {{0, 400, 5}, {1, 700, 2}}, .topk = 9, .keys = Keys::kPairsEqual});
  topk("zero_scores_take_the_lowest", {.seqs = {{0, 500, 5}}, .keys = Keys::kNeverPositive});
  topk("negative_weights_zero_scores_win", {.seqs = {{0, 500, 5}}, .keys = Keys::kNeverPositive, .negative_weights = true});
  topk("rounded_queries", {.seqs = {{0, 333, 7}, {1, 1200, 1}}, .rounded = true});
  topk("rounded_queries_equal_pairs", {.seqs = {{0, 400, 5}, {1, 700, 2}}, .topk = 9, .keys = Keys::kPairsEqual, .rounded = true});
  topk("rounded_queries_zero_scores", {.seqs = {{0, 500, 5}}, .keys = Keys::kNeverPositive, .rounded = true});
  topk("rounded_queries_v4_flash", {.seqs = {{0, 4 * 2100 + 1, 2}}, .heads = 64, .topk = 512, .rounded = true});
  topk("top_1", {.seqs = {{0, 333, 7}}, .topk = 1});
  topk("max_rows_beyond_the_longest", {.seqs = {{0, 300, 2}}, .extra_max_rows = 5000});
  topk("strided_rows", {.seqs = {{0, 300, 5}}, .pad = 4});
  topk("strided_rows_odd", {.seqs = {{0, 300, 5}}, .topk = 17, .pad = 3});
  topk("stride_of_a_shared_arena",
       {.seqs = {{0, 4 * 130, 2}}, .cache = {.format = RowFormat::kMxfp4, .row_dim = 128, .extra_stride = 37376, .base_offset = 37376}});
  topk("v4_flash_long_context", {.seqs = {{0, 4 * 5000 + 1, 1}, {1, 4 * 600, 1}}, .heads = 64, .topk = 512});
  topk("longest_of_many_chunks", {.seqs = {{0, 4 * 9000, 2}}, .heads = 2, .topk = 64});
}

}  // namespace dsv4::optest

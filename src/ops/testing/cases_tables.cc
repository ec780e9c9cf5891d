// Operators that look things up: embed, rope_table, argmax. All exact but rope_table.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/testing/case_lists.h"
#include "ops/testing/case_tools.h"

namespace dsv4::optest {
namespace {

struct Embed {
  int64_t rows = 1, vocab = 50, dim = 128, streams = 4, pad = 0;
};

void build_embed(Problem& p, const Embed& c) {
  p.num_rows = c.rows;
  std::vector<uint16_t> table(static_cast<size_t>(c.vocab * c.dim));
  for (uint16_t& v : table) v = float_to_bf16(static_cast<float>(p.rng.normal()));
  std::vector<int32_t> ids;
  for (int64_t r = 0; r < c.rows; ++r) ids.push_back(r % 5 == 3 ? -1 : static_cast<int32_t>(p.rng.below(c.vocab)));
  if (c.rows > 1) ids[0] = 0, ids[1] = static_cast<int32_t>(c.vocab - 1);
  const int tt = p.add("table", Role::kInput, false, c.vocab, c.dim, c.pad, table);
  const int it = p.add_rows("token_ids", 1, 0, ids);
  const int h = p.add_output<float>("h", c.streams * c.dim, c.pad);
  p.call = [=, streams = c.streams](Device& d, const Bound& b) {
    const EmbedArgs args{b.matrix<uint16_t>(tt), b.vector<int32_t>(it), streams, b.matrix<float>(h)};
    return run_op("embed", d.context(), d.ops().embed, args);
  };
  Truth truth;
  for (const int32_t id : ids) {
    for (int64_t i = 0; i < c.streams * c.dim; ++i) truth.push(id < 0 ? 0 : bf16_value(table[static_cast<size_t>(id * c.dim + i % c.dim)]), 0);
  }
  p.judge = [&p, h, truth](const Images& actual, const Images*, Verdict& v) { judge_floats(p, h, truth, actual, v); };
}

struct RopeTable {
  int64_t rows = 1, rope_dim = 64, pad = 0;
  int32_t offset = 0;
  int32_t first = 0;  // positions ascend from here, with padding and far positions between them
  double base = 10000;
};

void build_rope_table(Problem& p, const RopeTable& c) {
  p.num_rows = c.rows;
  std::vector<int32_t> positions;
  for (int64_t r = 0; r < c.rows; ++r)
    positions.push_back(r % 7 == 5 ? -1 : r % 7 == 6 ? 1048575 - static_cast<int32_t>(r) : c.first + static_cast<int32_t>(r));
  std::vector<float> freqs;
  for (int64_t i = 0; i < c.rope_dim / 2; ++i)
    freqs.push_back(static_cast<float>(std::pow(c.base, -2.0 * static_cast<double>(i) / static_cast<double>(c.rope_dim))));
  const int pt = p.add_rows("positions", 1, 0, positions);
  const int ft = p.add_vector("freqs", freqs);
  const int out = p.add_output<float>("out", c.rope_dim, c.pad);
  p.call = [=, offset = c.offset](Device& d, const Bound& b) {
    const RopeTableArgs args{b.vector<int32_t>(pt), offset, b.vector<float>(ft), b.matrix<float>(out)};
    return run_op("rope_table", d.context(), d.ops().rope_table, args);
  };
  Truth truth;
  truth.global = 2 * kUnit;
  for (const int32_t position : positions) {
    const int32_t at = position + c.offset;
    for (const float f : freqs) {
      const float angle = position < 0 || at < 0 ? 0.0f : static_cast<float>(at) * f;  // rounded to float32: part of the definition
      // sine and cosine of 2 units in the last place (4 kUnit below 1), with the whole range of angles reduced correctly
      const double bound = angle == 0 ? 0 : 4 * kUnit;
      truth.push(std::cos(double{angle}), bound);
      truth.push(std::sin(double{angle}), bound);
    }
  }
  p.judge = [&p, out, truth](const Images& actual, const Images*, Verdict& v) { judge_floats(p, out, truth, actual, v); };
}

struct Argmax {
  int64_t rows = 1, vocab = 256, pad = 0;
  bool hard = false;  // ties, NaN, infinities, signed zeros
};

// The definition, on its own: first the largest value, then its first place.
int32_t argmax_of(const float* x, int64_t n) {
  float best = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    if (std::isnan(x[i])) return -1;
    best = std::max(best, x[i]);
  }
  return static_cast<int32_t>(std::find(x, x + n, best) - x);
}

void build_argmax(Problem& p, const Argmax& c) {
  p.num_rows = c.rows;
  std::vector<float> logits = p.rng.activations(c.rows * c.vocab, 3);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto row = [&](int64_t r) { return logits.data() + r * c.vocab; };
  const int64_t n = c.vocab;
  if (c.hard) {
    DSV4_CHECK(c.rows >= 12 && n >= 100, "the hard argmax case has 12 kinds of rows");
    row(0)[n - 1] = row(0)[n / 2] = row(0)[3] = 100;                                    // ties: the lowest
    row(1)[n - 1] = 100;                                                                // the last column
    row(2)[0] = 100;                                                                    // the first column
    row(3)[n - 1] = nan;                                                                // a NaN behind the largest
    row(4)[0] = nan;                                                                    // a NaN in front
    std::fill(row(5), row(5) + n, -inf);                                                // nothing above -inf: column 0
    row(6)[7] = inf;                                                                    // +inf is the largest
    std::fill(row(7), row(7) + n, -1.0f), row(7)[n - 2] = -0.0f, row(7)[n - 1] = 0.0f;  // -0 ties with +0
    std::fill(row(8), row(8) + n, 2.0f);                                                // all equal
    for (int64_t i = 0; i < n; ++i) row(9)[i] = -1 - std::fabs(row(9)[i]);              // all negative
    row(10)[5] = -nan;                                                                  // the sign of a NaN does not matter
    row(11)[20] = inf, row(11)[90] = nan;                                               // NaN beats infinity
  }
  const int lt = p.add_rows("logits", n, c.pad, logits);
  const int out = p.add_output<int32_t>("ids", 1, 0);
  p.call = [=](Device& d, const Bound& b) {
    const ArgmaxArgs args{b.matrix<float>(lt), b.vector<int32_t>(out)};
    return run_op("argmax", d.context(), d.ops().argmax, args);
  };
  std::vector<int32_t> expected;
  for (int64_t r = 0; r < c.rows; ++r) expected.push_back(argmax_of(row(r), n));
  p.judge = [&p, out, expected](const Images& actual, const Images*, Verdict& v) { judge_ints(p, out, expected, actual, v); };
}

}  // namespace

void add_table_cases(std::vector<OpCase>& cases) {
  const auto embed = [&](const char* name, Embed c) { add_case(cases, "embed", name, build_embed, c); };
  embed("zero_tokens", {.rows = 0});
  embed("one_row", {});
  embed("padding_rows_are_zero", {.rows = 12});
  embed("sixty_five_rows_odd_width", {.rows = 65, .dim = 131});
  embed("strided_rows", {.rows = 9, .dim = 96, .pad = 8});
  embed("one_stream", {.rows = 7, .streams = 1});
  embed("v4_flash_hidden", {.rows = 3, .vocab = 20, .dim = 4096});

  const auto rope = [&](const char* name, RopeTable c) { add_case(cases, "rope_table", name, build_rope_table, c); };
  rope("zero_tokens", {.rows = 0});
  rope("one_row_position_0", {});
  rope("far_positions_and_padding", {.rows = 65, .first = 100});
  rope("first_token_of_a_window_of_4", {.rows = 13, .offset = -3});
  rope("first_token_of_a_window_of_128", {.rows = 64, .offset = -127, .first = 100, .base = 160000});
  rope("strided_rows", {.rows = 9, .pad = 6, .first = 4000});
  rope("narrow", {.rows = 7, .rope_dim = 2});

  const auto argmax = [&](const char* name, Argmax c) { add_case(cases, "argmax", name, build_argmax, c); };
  argmax("zero_tokens", {.rows = 0});
  argmax("one_row", {});
  argmax("one_column", {.rows = 3, .vocab = 1});
  argmax("ties_nan_infinities", {.rows = 13, .vocab = 1000, .hard = true});
  argmax("ties_nan_infinities_strided", {.rows = 12, .vocab = 257, .pad = 3, .hard = true});
  argmax("v4_flash_vocabulary", {.rows = 2, .vocab = 129280});
}

}  // namespace dsv4::optest

// What must hold for every model, to the last bit: a row's logits depend on its own sequence up to its own position, and on nothing else.
// On the random test model, on random shapes, on every count of experts that published models have; on the fast backend, and on the
// reference for a few.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "test_engine.h"
#include "verify/numbers.h"

namespace dsv4 {
namespace {

StepRig rig_of(const std::string& model, StepRig::Options options = {}, const std::string& backend = tested_backend()) {
  return StepRig(model, options, test_device(backend));
}

// prefill(N + 1) = prefill(N) + one step, for N = 1 .. n - 1: one sequence fed token by token has at each position what one long prefill
// has there, and a prefill's rows do not see what follows them (causality, below).
void expect_steps_equal_prefill(StepRig& rig, int64_t n, uint64_t seed) {
  const auto tokens = random_tokens(n, rig.config().vocab_size, seed);
  const auto whole = rig.feed(0, tokens, {n});
  ASSERT_EQ(static_cast<int64_t>(whole.size()), n);
  EXPECT_EQ(first_difference(rig.feed(1, tokens, {1}), whole), -1) << "token by token";
  // And literally: a prefill of N, then one step.
  for (const int64_t prefill : {1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 127, 128, 129, 255, 256, 299}) {
    if (prefill + 1 > n) break;
    const std::vector<int32_t> head(tokens.begin(), tokens.begin() + prefill + 1);
    const auto got = rig.feed(2, head, {prefill, 1});
    EXPECT_EQ(first_difference({got.back()}, {whole[static_cast<size_t>(prefill)]}), -1) << "prefill " << prefill << " + 1";
  }
}

void expect_causal(StepRig& rig, int64_t n, uint64_t seed) {
  const auto tokens = random_tokens(n, rig.config().vocab_size, seed);
  const auto want = rig.feed(0, tokens, {n});
  for (const int64_t at : {int64_t{1}, int64_t{4}, n / 2, n - 1}) {
    auto changed = tokens;
    changed[static_cast<size_t>(at)] = static_cast<int32_t>((changed[static_cast<size_t>(at)] + 1) % rig.config().vocab_size);
    EXPECT_EQ(first_difference(rig.feed(1, changed, {n}), want), at) << "the first moved logits after a change at " << at;
  }
}

void expect_company_does_not_matter(StepRig& rig, uint64_t seed) {
  std::vector<std::vector<int32_t>> sequences;
  std::vector<StepRig::Rows> alone, together(8);
  for (int64_t i = 0; i < 8; ++i) {
    sequences.push_back(random_tokens(5 + 17 * i, rig.config().vocab_size, seed + static_cast<uint64_t>(i)));
    alone.push_back(rig.feed(0, sequences.back(), {64}));
  }
  // Each sequence advances by its own pace, in changing company.
  for (int64_t step = 0; step < 200; ++step) {
    std::vector<StepRig::Piece> pieces;
    for (size_t i = 0; i < 8; ++i) {
      const size_t done = together[i].size(), size = std::min(sequences[i].size() - done, 1 + (i * 5 + static_cast<size_t>(step)) % 7);
      const auto begin = sequences[i].begin() + static_cast<int64_t>(done);
      if (size > 0) pieces.push_back({static_cast<int32_t>(7 - i), static_cast<int64_t>(done), {begin, begin + static_cast<int64_t>(size)}});
    }
    if (pieces.empty()) break;
    const auto rows = rig.step(pieces);
    size_t row = 0;
    for (const auto& piece : pieces) {
      for (size_t k = 0; k < piece.tokens.size(); ++k) together[static_cast<size_t>(7 - piece.slot)].push_back(rows[row++]);
    }
  }
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(first_difference(together[i], alone[i]), -1) << "sequence " << i;
}

TEST(Properties, steps_equal_prefill_to_300_on_rand) {
  auto rig = rig_of(kRandModel);
  expect_steps_equal_prefill(rig, 301, 1);
}

TEST(Properties, steps_equal_prefill_in_exact_arithmetic) {
  auto rig = rig_of(kRandModel, {.arithmetic = Arithmetic::kExact, .format = RowFormat::kF32});
  expect_steps_equal_prefill(rig, 140, 2);
}

TEST(Properties, steps_equal_prefill_in_w8a16_and_in_emulation) {
  for (const Arithmetic arithmetic : {Arithmetic::kW8A16, Arithmetic::kEmulation}) {
    SCOPED_TRACE(arithmetic_name(arithmetic));
    auto rig = rig_of(kRandModel, {.arithmetic = arithmetic});
    expect_steps_equal_prefill(rig, arithmetic == Arithmetic::kEmulation ? 12 : 70, 11);  // plain products are slow
  }
}

TEST(Properties, steps_equal_prefill_on_the_reference) {
  auto rig = rig_of(write_model(small_config(10), "verify_small_reference"), {}, "reference");
  expect_steps_equal_prefill(rig, 40, 3);
}

TEST(Properties, every_chunk_size_from_1_to_130) {
  auto rig = rig_of(write_model(small_config(3), "verify_small_chunks"));
  const auto tokens = random_tokens(131, rig.config().vocab_size, 4);
  const auto whole = rig.feed(0, tokens, {131});
  for (int64_t chunk = 1; chunk <= 130; ++chunk) EXPECT_EQ(first_difference(rig.feed(1, tokens, {chunk}), whole), -1) << "chunks of " << chunk;
}

TEST(Properties, chunk_sizes_on_rand) {
  auto rig = rig_of(kRandModel);
  const auto tokens = random_tokens(300, rig.config().vocab_size, 5);
  const auto whole = rig.feed(0, tokens, {300});
  for (const int64_t chunk : {3, 5, 17, 63, 64, 65, 100, 127, 128, 129, 130})
    EXPECT_EQ(first_difference(rig.feed(1, tokens, {chunk}), whole), -1) << "chunks of " << chunk;
  EXPECT_EQ(first_difference(rig.feed(1, tokens, {1, 130, 2, 7, 64, 31}), whole), -1);
}

TEST(Properties, a_token_never_moves_earlier_logits) {
  auto rig = rig_of(kRandModel);
  expect_causal(rig, 150, 6);
}

TEST(Properties, alone_equals_batch_of_8) {
  auto rig = rig_of(kRandModel);
  expect_company_does_not_matter(rig, 7);
}

// Emulation differs from the fast products by the order of sums, so by single roundings that fall the other way; BF16 activations in every value, but little.
TEST(Properties, arithmetics_agree_as_far_as_they_should) {
  const auto tokens = eval_tokens(120);
  std::map<Arithmetic, StepRig::Rows> rows;
  for (const Arithmetic a : {Arithmetic::kQat, Arithmetic::kEmulation, Arithmetic::kW8A16})
    rows[a] = rig_of(kTinyModel, {.arithmetic = a}).feed(0, tokens, {120});
  const auto median_error = [&](Arithmetic a) {
    std::vector<double> errors;
    for (size_t i = 0; i < tokens.size(); ++i) errors.push_back(relative_error(rows[a][i], rows[Arithmetic::kQat][i]));
    return median(errors);
  };
  EXPECT_LE(median_error(Arithmetic::kEmulation), 1e-4);
  EXPECT_LE(median_error(Arithmetic::kW8A16), 5e-2);
  EXPECT_GE(median_error(Arithmetic::kW8A16), 1e-3) << "another rounding of every activation would be seen";
}

// On devices without graphs all three are eager.
TEST(Properties, graph_modes_give_the_same_bits) {
  const auto tokens = eval_tokens(60);
  const auto eager = rig_of(kTinyModel, {.graph = GraphMode::kEager}).feed(0, tokens, {20, 1});
  for (const GraphMode mode : {GraphMode::kPiecewise, GraphMode::kFull}) {
    auto rig = rig_of(kTinyModel, {.graph = mode});
    EXPECT_EQ(first_difference(rig.feed(0, tokens, {20, 1}), eager), -1) << graph_mode_name(mode);
    EXPECT_EQ(first_difference(rig.feed(1, tokens, {31, 1}), eager), -1) << graph_mode_name(mode) << ", the same graph for another sequence";
  }
}

TEST(Properties, random_shapes) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("shape " + std::to_string(seed));
    auto rig = rig_of(write_model(random_config(seed), "verify_shape_" + std::to_string(seed)));
    expect_steps_equal_prefill(rig, 140, seed);
    expect_causal(rig, 70, seed);
    expect_company_does_not_matter(rig, seed);
  }
}

TEST(Properties, expert_counts) {
  for (const int64_t experts : {1, 10, 144, 160, 256}) {
    SCOPED_TRACE(std::to_string(experts) + " experts");
    const std::string model = write_model(small_config(experts), "verify_experts_" + std::to_string(experts));
    auto rig = rig_of(model);
    expect_steps_equal_prefill(rig, 20, 8);
    // And right, not only the same: against the reference in exact arithmetic.
    const StepRig::Options exact{.arithmetic = Arithmetic::kExact, .format = RowFormat::kF32};
    auto fast = rig_of(model, exact), reference = rig_of(model, exact, "reference");
    const auto tokens = random_tokens(12, rig.config().vocab_size, 9);
    const auto got = fast.feed(0, tokens, {12}), want = reference.feed(0, tokens, {12});
    for (size_t i = 0; i < want.size(); ++i) EXPECT_LE(relative_error(got[i], want[i]), 2e-5) << "position " << i;
  }
}

// The comparison itself must be able to fail.
TEST(Properties, first_difference_sees_one_bit_and_nans) {
  const StepRig::Rows a{{1, 2}, {3, 4}};
  StepRig::Rows b = a;
  EXPECT_EQ(first_difference(a, b), -1);
  b[1][1] = std::nextafter(4.0f, 5.0f);
  EXPECT_EQ(first_difference(a, b), 1);
  b = a;
  b[0][0] = std::nanf("");
  EXPECT_EQ(first_difference(b, b), 0);
  b = a;
  b.pop_back();
  EXPECT_EQ(first_difference(a, b), 1);
  EXPECT_EQ(first_difference({{0.0f}}, {{-0.0f}}), 0);
}

}  // namespace
}  // namespace dsv4

#include "backends/gpu/kernel_plan.h"

#include <algorithm>

namespace dsv4::gpu {
namespace {

// From kWideRows on a row's bits may depend on how many rows there are: prefill. Products wait until kFoldedRows: their long sums are less exact, and between
// the two they gain little.
constexpr int64_t kWideRows = 256, kFoldedRows = 512;

const char* kernel_name(ProductKernel k) {
  switch (k) {
    case ProductKernel::kPortable: return "portable";
    case ProductKernel::kRowStrip: return "row_strip";
    case ProductKernel::kTile: return "tile";
    case ProductKernel::kFolded: return "folded";
  }
  return "?";
}

std::string shape_text(const ProductShape& s) {
  const char* rounding = s.rounding == ActivationRounding::kE4M3 ? " e4m3" : s.rounding == ActivationRounding::kBF16 ? " bf16" : " f32";
  return "M=" + std::to_string(s.rows) + " N=" + std::to_string(s.n) + " K=" + std::to_string(s.k) + " " + weight_format_name(s.format) + rounding;
}

std::string terms_text(Operand operand) {
  const int terms = operand_terms(operand);
  return ", " + std::to_string(terms) + (terms == 1 ? " term" : " terms");
}

}  // namespace

Operand operand_of(WeightFormat format, ActivationRounding rounding) {
  if (format == WeightFormat::kBF16) return Operand::kBf16x3;
  if (rounding == ActivationRounding::kBF16) return Operand::kBf16;
  return rounding == ActivationRounding::kE4M3 ? Operand::kE4M3 : Operand::kF16x2;
}

ProductPlan plan_product(const ProductShape& s, bool strips, int multiprocessors) {
  ProductPlan plan;
  if (!strips || !fits_strips(s.format, s.n, s.k) || s.k > kMaxK) {
    plan.blocks = (s.n + 7) / 8 * ((s.rows + 3) / 4);
    return plan;
  }
  plan.operand = operand_of(s.format, s.rounding);
  if (s.rows == 1) {
    plan.kernel = ProductKernel::kRowStrip;
    // Two blocks to a multiprocessor, a third of the next kernel may wait beside them.
    plan.blocks = std::min<int64_t>(s.n / kStripRows, 2 * multiprocessors);
    return plan;
  }
  const int64_t tiles = (s.n + 127) / 128;
  if (s.format != WeightFormat::kMxfp4 && s.rows >= kFoldedRows) {
    plan.kernel = ProductKernel::kFolded;
    if (plan.operand == Operand::kF16x2) plan.operand = Operand::kBf16x3;
    plan.rows_per_pass = folded_pass_rows(operand_terms(plan.operand));
    plan.blocks = (tiles + 1) / 2 * ((s.rows + plan.rows_per_pass - 1) / plan.rows_per_pass);
    return plan;
  }
  plan.kernel = ProductKernel::kTile;
  // Row tiles of 8: powers of two. Registers bound them: 32 rows of one term, so that two blocks share a multiprocessor and one multiplies while the
  // other waits; 32 of two; 64 of three, whose weights are the widest to read again.
  const int64_t most = plan.operand == Operand::kBf16x3 ? 64 : 32;
  plan.rows_per_pass = 8;
  while (plan.rows_per_pass < most && plan.rows_per_pass < s.rows) plan.rows_per_pass *= 2;
  const int64_t passes = (s.rows + plan.rows_per_pass - 1) / plan.rows_per_pass;
  // Clusters must all be under way together: a second wave of a few would double the time. They lie within groups of 14 to 18 multiprocessors, so not all
  // the room serves: an H200 places 14, 30 and 45 clusters of eight at one, two and three blocks a multiprocessor, and 30, 66 and 96 of four.
  const int per = tile_blocks_per_multiprocessor(static_cast<int>(plan.rows_per_pass / 8) * operand_terms(plan.operand));
  const int64_t room = static_cast<int64_t>(per) * multiprocessors, clusters = tiles * passes;
  plan.k_split = clusters * 8 * 8 <= room * 7 ? 8 : clusters * 4 <= (per == 1 ? room * 7 / 8 : room) ? 4 : 1;
  plan.blocks = tiles * plan.k_split * passes;
  return plan;
}

std::string describe_plan(const ProductShape& s, bool strips, int multiprocessors) {
  const ProductPlan plan = plan_product(s, strips, multiprocessors);
  std::string text = shape_text(s) + ": " + kernel_name(plan.kernel);
  if (plan.kernel != ProductKernel::kPortable) text += terms_text(plan.operand);
  if (plan.kernel == ProductKernel::kTile) text += ", " + std::to_string(plan.rows_per_pass) + " rows a pass, k split " + std::to_string(plan.k_split);
  return text + ", " + std::to_string(plan.blocks) + " blocks";
}

std::string describe_experts(const ProductShape& s, bool strips) {
  if (!strips || !fits_strips(s.format, s.n, s.k) || s.k > kMaxK) return shape_text(s) + ": portable";
  const bool served = s.format == WeightFormat::kMxfp4 && s.rounding == ActivationRounding::kE4M3;
  const char* kernel = s.rows == 1                     ? ": experts_row"
                       : served && s.rows <= 64        ? ": experts_stream, rows gathered by expert"
                       : served && s.rows >= kWideRows ? ": experts_wide, rows gathered by expert"
                                                       : ": experts_tile, rows gathered by expert";
  return shape_text(s) + kernel + terms_text(operand_of(s.format, s.rounding));
}

}  // namespace dsv4::gpu

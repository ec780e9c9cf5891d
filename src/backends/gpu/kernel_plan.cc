#include "backends/gpu/kernel_plan.h"

#include <algorithm>

namespace dsv4::gpu {
namespace {

const char* kernel_name(ProductKernel k) {
  switch (k) {
    case ProductKernel::kPortable: return "portable";
    case ProductKernel::kRowStrip: return "row_strip";
    case ProductKernel::kTile: return "tile";
    case ProductKernel::kWide: return "wide";
  }
  return "?";
}

std::string shape_text(const ProductShape& s) {
  return "M=" + std::to_string(s.rows) + " N=" + std::to_string(s.n) + " K=" + std::to_string(s.k) + " " + weight_format_name(s.format) +
         (s.rounding == ActivationRounding::kE4M3 ? " e4m3" : " f32");
}

std::string terms_text(Operand operand) {
  const int terms = operand_terms(operand);
  return ", " + std::to_string(terms) + (terms == 1 ? " term" : " terms");
}

}  // namespace

Operand operand_of(WeightFormat format, ActivationRounding rounding) {
  if (format == WeightFormat::kBF16) return Operand::kBf16x3;
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
  plan.kernel = ProductKernel::kTile;
  // Row tiles of 8: powers of two, at most 64 rows for one term (128 beyond 64 rows), 32 for two or three.
  const int64_t most = plan.operand != Operand::kE4M3 ? 32 : s.format == WeightFormat::kFp8Block && s.rows > 64 ? 128 : 64;
  plan.rows_per_pass = 8;
  while (plan.rows_per_pass < most && plan.rows_per_pass < s.rows) plan.rows_per_pass *= 2;
  const int64_t passes = (s.rows + plan.rows_per_pass - 1) / plan.rows_per_pass, tiles = (s.n + 127) / 128;
  plan.k_split = tiles * passes < multiprocessors ? kKGroups : 1;
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
  return shape_text(s) + (s.rows == 1 ? ": experts_row" : ": experts_tile, rows gathered by expert") + terms_text(operand_of(s.format, s.rounding));
}

}  // namespace dsv4::gpu

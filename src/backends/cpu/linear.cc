// Dense products: linear (several weights share x) and grouped_linear (block-diagonal). The kernels are in product_kernels.cc; here x is
// packed once per form the weights ask for, and everything becomes one list of tasks.
#include "backends/cpu/cpu_context.h"
#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/product.h"

namespace dsv4 {
namespace {

// The forms x can be needed in: rounded or not, in the order of the weight's format.
constexpr int kForms = 6;
struct Form {
  ActivationRounding rounding = ActivationRounding::kNone;
  PackOrder order = PackOrder::kNatural;
  int index() const { return (rounding == ActivationRounding::kNone ? 0 : 3) + static_cast<int>(order); }
};

Form form_of(const LinearArgs& a, WeightFormat f) { return {takes_rounding(f) ? a.rounding : ActivationRounding::kNone, pack_order(f)}; }

// Few rows, no rounding, natural order: x is used where it lies. More rows would fall into the same L1 sets (rows of K = 4096 lie 16 KiB apart).
constexpr int64_t kInPlaceRows = 4;
bool usable_in_place(const Form& form, int64_t rows, int64_t k) { return form.index() == 0 && k % 32 == 0 && rows <= kInPlaceRows; }

}  // namespace

Status linear_cpu(OpContext& context, const LinearArgs& a) {
  CpuContext& c = cpu_context(context);
  const int64_t rows = a.x.rows, k = a.x.cols;
  if (rows == 0) return ok_status();

  bool wanted[kForms] = {};
  Form forms[kForms];
  int64_t bytes = 0;
  for (int j = 0; j < a.num_jobs; ++j) {
    const Form form = form_of(a, a.jobs[j].weight.format);
    if (wanted[form.index()] || usable_in_place(form, rows, k)) continue;
    wanted[form.index()] = true;
    forms[form.index()] = form;
    bytes += CpuScratch::padded<float>(PackedRows::floats(rows, k));
  }
  if (!c.scratch.reset(bytes)) return no_scratch("linear", bytes);

  PackedRows packed[kForms];
  packed[0] = PackedRows::in_place(a.x.data, a.x.row_stride);
  for (int f = 0; f < kForms; ++f) {
    if (!wanted[f]) continue;
    packed[f] = PackedRows::blocked(c.scratch.take<float>(PackedRows::floats(rows, k)), rows);
    for_ranges(c, rows, 1, k, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) c.kernels->pack_row(a.x.row(t), k, forms[f].rounding, forms[f].order, packed[f], t);
    });
  }

  Product products[kMaxLinearJobs];
  for (int j = 0; j < a.num_jobs; ++j) {
    const LinearJob& job = a.jobs[j];
    products[j] = {.weight = job.weight,
                   .weight_row_bytes = job.weight.row_bytes(),
                   .x = packed[form_of(a, job.weight.format).index()],
                   .rows = rows,
                   .y = job.y.data,
                   .y_stride = job.y.row_stride};
  }
  run_products(c, products, a.num_jobs);
  return ok_status();
}

Status grouped_linear_cpu(OpContext& context, const GroupedLinearArgs& a) {
  CpuContext& c = cpu_context(context);
  const int64_t rows = a.x.rows, k = a.weight.k, per_group = a.weight.n / a.groups;
  if (rows == 0) return ok_status();
  const PackOrder order = pack_order(a.weight.format);
  const bool in_place = usable_in_place({ActivationRounding::kNone, order}, rows, k);
  const int64_t floats = in_place ? 0 : PackedRows::floats(rows, k);
  const int64_t bytes = CpuScratch::padded<Product>(a.groups) + a.groups * CpuScratch::padded<float>(floats);
  if (!c.scratch.reset(bytes)) return no_scratch("grouped_linear", bytes);

  // FP8 scales are a grid of 128 x 128 over the stacked matrix: a group that does not start on a multiple of 128 rows shares its first
  // grid row with the group before, so products keep the whole matrix and take a range of outputs each.
  Product* products = c.scratch.take<Product>(a.groups);
  for (int64_t g = 0; g < a.groups; ++g) {
    const PackedRows x = in_place ? PackedRows::in_place(a.x.data + g * k, a.x.row_stride) : PackedRows::blocked(c.scratch.take<float>(floats), rows);
    products[g] = {.weight = a.weight,
                   .weight_row_bytes = a.weight.row_bytes(),
                   .first = g * per_group,
                   .last = (g + 1) * per_group,
                   .x = x,
                   .rows = rows,
                   .y = a.y.data,
                   .y_stride = a.y.row_stride};
  }
  if (!in_place) {
    for_ranges(c, rows * a.groups, 1, k, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t t = i / a.groups, g = i % a.groups;
        c.kernels->pack_row(a.x.row(t) + g * k, k, ActivationRounding::kNone, order, products[g].x, t);
      }
    });
  }
  run_products(c, products, a.groups);
  return ok_status();
}

}  // namespace dsv4

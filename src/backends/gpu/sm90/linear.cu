// linear and grouped_linear on strips: groups the jobs of a call into launches. Jobs the strip kernels cannot take go to the portable ones.
#include <algorithm>

#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/sm90/products.h"

namespace dsv4::gpu {
namespace {

// The M = 1 kernel keeps x of the whole call in shared memory; beyond this the call is cut by format.
constexpr int64_t kMaxRowTermChunks = 256;  // 64 KiB

// The jobs of a call on one row as arguments of one launch.
RowProductArgs row_args(const LinearArgs& a, const LinearJob* const* jobs, int count) {
  RowProductArgs args{};
  args.chunks = static_cast<int>(a.x.cols / kChunkColumns);
  args.x = a.x.data;
  for (int j = 0; j < count; ++j) {
    const WeightView& w = jobs[j]->weight;
    const Operand operand = operand_of(w.format, a.rounding);
    int o = 0;
    while (o < args.num_operands && args.operands[o] != operand) ++o;
    if (o == args.num_operands) args.operands[args.num_operands++] = operand;
    args.jobs[args.num_jobs++] = {w.data, w.scale, jobs[j]->y.data, args.strips, o, w.format};
    args.strips += static_cast<int>(w.n / kStripRows);
  }
  return args;
}
int row_blocks(const GpuContext& gpu, const RowProductArgs& args, const LinearArgs& a) {
  return static_cast<int>(plan_product({1, args.strips * kStripRows, a.x.cols, args.jobs[0].format, a.rounding}, true, gpu.properties.multiprocessors).blocks);
}

Status row_call(GpuContext& gpu, const LinearArgs& a, const LinearJob* const* jobs, int count) {
  const RowProductArgs args = row_args(a, jobs, count);
  return launch_row_product(gpu, args, row_blocks(gpu, args, a));
}

bool one_row_in_strips(const LinearArgs& a, WeightFormat format) {
  bool fits = a.x.rows == 1;
  for (int j = 0; j < a.num_jobs; ++j) {
    const WeightView& w = a.jobs[j].weight;
    fits = fits && w.format == format && fits_strips(w.format, w.n, w.k) && w.k <= kMaxK;
  }
  return fits;
}

Status folded_call(GpuContext& gpu, Rows<const float> x, int64_t rows, int64_t groups, const ProductPlan& plan, const LinearJob* const* jobs, int count) {
  FoldedArgs args{};
  args.chunks = static_cast<int>(jobs[0]->weight.k / kChunkColumns);
  args.x_chunks = static_cast<int>(args.chunks * groups);
  args.operand = plan.operand;
  args.terms = operand_terms(plan.operand);
  args.passes = static_cast<int>(ceil_div(rows, plan.rows_per_pass));
  args.rows = rows;
  for (int j = 0; j < count; ++j) {
    const WeightView& w = jobs[j]->weight;
    const int strips_per_group = static_cast<int>(w.n / kStripRows / groups), tiles_per_group = static_cast<int>(ceil_div(strips_per_group, kFoldedTileStrips));
    args.jobs[args.num_jobs++] = {w.data, w.scale, rows_of(jobs[j]->y), args.weight_tiles, tiles_per_group, strips_per_group};
    args.weight_tiles += tiles_per_group * static_cast<int>(groups);
  }
  DSV4_ASSIGN_OR_RETURN(args.x, gpu.scratch(folded_bytes(args.passes, args.x_chunks, args.terms)));
  return launch_folded_product(gpu, jobs[0]->weight.format, x, args);
}

Status tile_call(GpuContext& gpu, Rows<const float> x, int64_t rows, int64_t groups, ActivationRounding rounding, const LinearJob* const* jobs, int count) {
  const WeightFormat format = jobs[0]->weight.format;
  const int64_t k = jobs[0]->weight.k;
  int64_t n = 0;
  for (int j = 0; j < count; ++j) n += jobs[j]->weight.n;
  const ProductPlan plan = plan_product({rows, n, k, format, rounding}, true, gpu.properties.multiprocessors);
  const int terms = operand_terms(plan.operand);
  if (plan.kernel == ProductKernel::kFolded) return folded_call(gpu, x, rows, groups, plan, jobs, count);

  TileProductArgs args{};
  args.chunks = static_cast<int>(k / kChunkColumns);
  args.x_chunks = static_cast<int>(args.chunks * groups);
  args.terms = terms;
  args.rows = rows;
  for (int j = 0; j < count; ++j) {
    const WeightView& w = jobs[j]->weight;
    const int strips_per_group = static_cast<int>(w.n / kStripRows / groups), tiles_per_group = (strips_per_group + 7) / 8;
    args.jobs[args.num_jobs++] = {w.data, w.scale, rows_of(jobs[j]->y), w.n, args.weight_tiles, tiles_per_group, strips_per_group};
    args.weight_tiles += tiles_per_group * static_cast<int>(groups);
  }
  args.x.tiles = static_cast<int>(plan.rows_per_pass / 8) * terms;
  args.x.halves = format == WeightFormat::kBF16 ? 2 : 1;
  const int64_t passes = ceil_div(rows, plan.rows_per_pass);
  const auto cut = [&](ScratchPlan scratch) {
    args.x.terms = scratch.take<uint8_t>(packed_terms_bytes(passes, args.x_chunks, args.x.tiles));
    args.x.scales = scratch.take<float>(packed_scales_floats(passes, args.x_chunks, args.x.tiles));
    return scratch.used_bytes();
  };
  DSV4_ASSIGN_OR_RETURN(uint8_t * scratch, gpu.scratch(cut(ScratchPlan())));
  cut(ScratchPlan(scratch));
  DSV4_RETURN_IF_ERROR(pack_activations(gpu, x, rows, args.x_chunks, plan.operand, args.x));
  return launch_tile_product(gpu, format, args, plan.k_split);
}

}  // namespace

Status linear_strips(OpContext& context, const LinearArgs& a) {
  if (a.x.rows == 0) return ok_status();
  GpuContext& gpu = gpu_context(context);
  const LinearJob* strip_jobs[kMaxLinearJobs];
  int strip_count = 0;
  LinearArgs rest = a;
  rest.num_jobs = 0;
  for (int j = 0; j < a.num_jobs; ++j) {
    const WeightView& w = a.jobs[j].weight;
    if (fits_strips(w.format, w.n, w.k) && w.k <= kMaxK) {
      strip_jobs[strip_count++] = &a.jobs[j];
    } else {
      rest.jobs[rest.num_jobs++] = a.jobs[j];
    }
  }
  // One launch per weight format; M = 1 takes all formats in one when x fits.
  std::stable_sort(strip_jobs, strip_jobs + strip_count, [](const LinearJob* x, const LinearJob* y) { return x->weight.format < y->weight.format; });
  int begin = 0;
  while (begin < strip_count) {
    int end = begin;
    int term_chunks = 0;
    WeightFormat last = WeightFormat::kF32;
    while (end < strip_count) {
      const WeightFormat f = strip_jobs[end]->weight.format;
      if (f != last) {
        const int64_t more = operand_terms(operand_of(f, a.rounding)) * (a.x.cols / kChunkColumns);
        if (end != begin && (a.x.rows > 1 || term_chunks + more > kMaxRowTermChunks)) break;
        term_chunks += static_cast<int>(more);
        last = f;
      }
      ++end;
    }
    if (a.x.rows == 1) {
      DSV4_RETURN_IF_ERROR(row_call(gpu, a, strip_jobs + begin, end - begin));
    } else {
      DSV4_RETURN_IF_ERROR(tile_call(gpu, rows_of(a.x), a.x.rows, 1, a.rounding, strip_jobs + begin, end - begin));
    }
    begin = end;
  }
  return rest.num_jobs == 0 ? ok_status() : linear_portable(context, rest);
}

Status norm_linear_strips(OpContext& context, const NormLinearArgs& a) {
  if (one_row_in_strips(a.linear, WeightFormat::kFp8Block)) {
    const LinearJob* jobs[kMaxLinearJobs];
    for (int j = 0; j < a.linear.num_jobs; ++j) jobs[j] = &a.linear.jobs[j];
    RowProductArgs args = row_args(a.linear, jobs, a.linear.num_jobs);
    if (row_takes_norm(args)) {
      args.x = a.norm.x.data;
      args.norm = a.norm.weight;
      args.norm_eps = a.norm.eps;
      if (a.positions != nullptr && args.num_jobs > 1) {
        args.positions = a.positions;
        args.sure_strips = args.jobs[args.num_jobs - 1].first_strip;
        args.ratio = a.ratio;
        args.all_of = static_cast<int>(a.all_of);
      }
      GpuContext& gpu = gpu_context(context);
      return launch_row_product(gpu, args, row_blocks(gpu, args, a.linear));
    }
  }
  DSV4_RETURN_IF_ERROR(rms_norm_portable(context, a.norm));
  return linear_strips(context, a.linear);
}

Status grouped_linear_strips(OpContext& context, const GroupedLinearArgs& a) {
  if (a.x.rows == 0) return ok_status();
  GpuContext& gpu = gpu_context(context);
  const WeightView& w = a.weight;
  const int64_t per_group = w.n / a.groups;
  if (!fits_strips(w.format, w.n, w.k) || per_group % kStripRows != 0 || w.k > kMaxK) return grouped_linear_portable(context, a);
  const LinearJob job{w, a.y};
  if (a.x.rows == 1) {
    RowProductArgs args{};
    args.chunks = static_cast<int>(w.k / kChunkColumns);
    args.x = a.x.data;
    args.operands[0] = operand_of(w.format, ActivationRounding::kNone);
    args.num_operands = 1;
    args.strips = static_cast<int>(w.n / kStripRows);
    args.strips_per_group = static_cast<int>(per_group / kStripRows);
    args.jobs[0] = {w.data, w.scale, a.y.data, 0, 0, w.format};
    args.num_jobs = 1;
    return launch_row_product(gpu, args, static_cast<int>(std::min<int64_t>(args.strips, 2 * gpu.properties.multiprocessors)));
  }
  const LinearJob* jobs[] = {&job};
  return tile_call(gpu, rows_of(a.x), a.x.rows, a.groups, ActivationRounding::kNone, jobs, 1);
}

}  // namespace dsv4::gpu

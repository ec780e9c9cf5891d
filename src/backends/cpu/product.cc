#include "backends/cpu/product.h"

#include <algorithm>

#include "backends/cpu/cpu_context.h"

namespace dsv4 {
namespace {

// Direct tasks: packed bytes that keep a core busy for some ten microseconds, since a task asks for bytes beyond its own.
constexpr int64_t kTaskBytes = 524288;

struct Cut {
  int64_t outputs = 0;  // per task
  int64_t output_tasks = 0;
  int64_t row_tasks = 0;

  Cut(const CpuKernels& kernels, const Product& p, int64_t total_bytes, int threads) {
    if (p.rows > kernels.direct_rows(p.weight.format)) {
      row_tasks = (p.rows + kPanelRows - 1) / kPanelRows;
      // A whole tile per task, less when there would be too few tasks.
      const int64_t wanted = (16 * threads + row_tasks - 1) / row_tasks;
      outputs = std::clamp(p.outputs() / wanted / kOutputStep * kOutputStep, kOutputStep, p.rows > kPanelRows ? kTileOutputs : 2 * kTileOutputs);
    } else {
      // At least four tasks per thread over the whole list, so that a slow thread does not hold up the end.
      const int64_t bytes = std::min(kTaskBytes, total_bytes / (4 * threads) + 1);
      outputs = std::max<int64_t>(kOutputStep, bytes / p.weight.row_bytes() / kOutputStep * kOutputStep);
      row_tasks = 1;
    }
    output_tasks = (p.outputs() + outputs - 1) / outputs;
  }
  int64_t tasks() const { return output_tasks * row_tasks; }
};

}  // namespace

void run_products(CpuContext& context, const Product* products, int64_t count) {
  int64_t total_bytes = 0, work = 0;
  for (int64_t j = 0; j < count; ++j) {
    total_bytes += products[j].outputs() * products[j].weight.row_bytes();
    work += products[j].outputs() * products[j].weight.k * products[j].rows;
  }
  if (work == 0) return;
  const CpuKernels& kernels = *context.kernels;
  const auto kernel = kernels.product;
  if (work < kParallelThreshold) {
    for (int64_t j = 0; j < count; ++j) kernel(products[j], products[j].first, products[j].end(), 0, products[j].rows);
    return;
  }
  const int threads = context.pool->num_threads();
  int64_t tasks = 0;
  for (int64_t j = 0; j < count; ++j) tasks += Cut(kernels, products[j], total_bytes, threads).tasks();
  context.pool->parallel_for(tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      int64_t index = task;
      for (int64_t j = 0; j < count; ++j) {
        const Product& p = products[j];
        const Cut cut(kernels, p, total_bytes, threads);
        if (index >= cut.tasks()) {
          index -= cut.tasks();
          continue;
        }
        // All tiles of outputs pass one panel of rows, then the next panel: 64 rows of float32 (1 MiB at K = 4096) stay in L3, and what is
        // read again is the packed side.
        const int64_t n = p.first + index % cut.output_tasks * cut.outputs, r = index / cut.output_tasks * kPanelRows;
        kernel(p, n, std::min(n + cut.outputs, p.end()), r, cut.row_tasks == 1 ? p.rows : std::min(r + kPanelRows, p.rows));
        break;
      }
    }
  });
}

}  // namespace dsv4

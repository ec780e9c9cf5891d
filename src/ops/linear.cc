#include "ops/linear.h"

#include <vector>

#include "ops/host.h"
#include "tensor/rounding.h"

namespace dsv4 {
Status check(const LinearArgs& a) {
  const char* op = "linear";
  if (a.num_jobs < 1 || a.num_jobs > kMaxLinearJobs) return invalid_argument("linear: " + std::to_string(a.num_jobs) + " jobs, 1 to 8 are supported");
  for (int j = 0; j < a.num_jobs; ++j) {
    const LinearJob& job = a.jobs[j];
    DSV4_RETURN_IF_ERROR(check_weight(op, job.weight));
    DSV4_RETURN_IF_ERROR(check_shape(op, "weight", job.weight.n, job.weight.k, job.y.cols, a.x.cols));
    DSV4_RETURN_IF_ERROR(check_shape(op, "y", job.y.rows, job.y.cols, a.x.rows, job.weight.n));
    if (a.rounding == ActivationRounding::kE4M3 && takes_rounding(job.weight.format) && a.x.cols % kActivationGroup != 0) {
      return invalid_argument("linear: k is " + std::to_string(a.x.cols) + ", rounded activations need a multiple of 128");
    }
  }
  return ok_status();
}

OpCost cost(const LinearArgs& a) {
  OpCost c{4 * a.x.rows * a.x.cols, 0};
  for (int j = 0; j < a.num_jobs; ++j) {
    c.bytes += a.jobs[j].weight.total_bytes() + 4 * a.x.rows * a.jobs[j].y.cols;
    c.flops += 2 * a.x.rows * a.x.cols * a.jobs[j].y.cols;
  }
  return c;
}

Status linear_reference(OpContext& context, const LinearArgs& a) {
  const int64_t rows = a.x.rows, k = a.x.cols;
  std::vector<float> plain(static_cast<size_t>(rows * k)), rounded(a.rounding == ActivationRounding::kNone ? 0 : plain.size());
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < k; ++i) plain[static_cast<size_t>(t * k + i)] = a.x.row(t)[i];
  }
  bool any_rounded = false;
  for (int j = 0; j < a.num_jobs; ++j) any_rounded |= takes_rounding(a.jobs[j].weight.format);
  if (any_rounded) reference::round_activations(a.rounding, plain.data(), rows * k, rounded.data());
  for (int j = 0; j < a.num_jobs; ++j) {
    const LinearJob& job = a.jobs[j];
    const float* x = takes_rounding(job.weight.format) && !rounded.empty() ? rounded.data() : plain.data();
    reference::pool(context).parallel_for(job.weight.n, 8, [&](int64_t begin, int64_t end) {
      std::vector<float> w(static_cast<size_t>(k));
      for (int64_t n = begin; n < end; ++n) {
        decode_weight_row(job.weight, n, w.data());
        for (int64_t t = 0; t < rows; ++t) job.y.row(t)[n] = reference::dot(x + t * k, w.data(), k);
      }
    });
  }
  return ok_status();
}

}  // namespace dsv4

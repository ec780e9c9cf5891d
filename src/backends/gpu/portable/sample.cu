// sample: a block per row. Weights are 41-bit integers and candidates have an order, so the one at a given place of the cumulative weight is found digit by
// digit, seven bits at a time, of the weight and then, among equals, of the id: each pass adds up what the candidates with the digits found so far weigh
// by their next digit. The lowest digit's share is summed in registers, as most tokens weigh next to nothing; the others go through shared memory. A pass
// computes exact weights only for logits between bounds that no candidate with those digits exceeds. Sums are integers: no order of threads shows.
// Bound by the first pass of a row: 30 double operations a token on one multiprocessor; later passes read the row from the L2.
#include "backends/gpu/gpu_ops.h"
#include "backends/gpu/runtime/kernel.h"
#include "ops/sample.h"

namespace dsv4::gpu {
namespace {

constexpr int kThreads = 1024;
constexpr int kDigitBits = 7, kDigits = 1 << kDigitBits;
constexpr int kTopWeightShift = 35, kTopIdShift = 14;  // digits of 41 and of 18 bits
constexpr uint32_t kLastId = (1u << (kTopIdShift + kDigitBits)) - 1;
constexpr int kLimbBits = 14;  // 2^18 tokens of such parts of a weight fit 32 bits
constexpr uint32_t kLimbMask = (1u << kLimbBits) - 1;

struct Bins {
  uint32_t limb[3][kDigits];
  uint32_t count[kDigits];
  uint64_t wanted, before;  // place of the candidate looked for; of the pass: the candidates ahead of the digit chosen
  uint64_t weight;
  int32_t id;
  int digit;
};

// The candidates of a row.
struct Row {
  const float* logits;
  int n;
  float best;
  double temperature, inverse;
  uint64_t least;        // weight
  uint64_t last_weight;  // and place of the last candidate in order
  int last_id;

  __device__ uint64_t weight(float logit, int i) const {
    const uint64_t w = sample_weight(logit, best, inverse);
    return w < least || w < last_weight || (w == last_weight && i > last_id) ? 0 : w;
  }
};

__device__ void add(Bins& bins, int digit, uint64_t value, uint32_t count) {
  atomicAdd(&bins.limb[0][digit], static_cast<uint32_t>(value) & kLimbMask);
  atomicAdd(&bins.limb[1][digit], static_cast<uint32_t>(value >> kLimbBits) & kLimbMask);
  atomicAdd(&bins.limb[2][digit], static_cast<uint32_t>(value >> (2 * kLimbBits)));
  atomicAdd(&bins.count[digit], count);
}
__device__ uint64_t bin_value(const Bins& bins, int digit) {
  return bins.limb[0][digit] + (static_cast<uint64_t>(bins.limb[1][digit]) << kLimbBits) + (static_cast<uint64_t>(bins.limb[2][digit]) << (2 * kLimbBits));
}

// What is known of the candidate: its weight's digits above `weight_shift`, and, once that is all of them, its id's.
struct Prefix {
  uint64_t weight = 0;
  int weight_shift = kTopWeightShift + kDigitBits;
  uint32_t turned_id = 0;  // kLastId - id: of equals the lowest id comes first
  int id_shift = kTopIdShift + kDigitBits;

  __device__ bool holds(uint64_t w, int i) const {
    return w != 0 && w >> weight_shift == weight && (weight_shift != 0 || (kLastId - static_cast<uint32_t>(i)) >> id_shift == turned_id);
  }
};

// Logits that a candidate with these digits can have, a little wider.
__device__ void logit_bounds(const Row& row, const Prefix& prefix, float* low, float* high) {
  const double first = static_cast<double>(prefix.weight << prefix.weight_shift), end = static_cast<double>((prefix.weight + 1) << prefix.weight_shift);
  const auto logit_of = [&row](double weight) { return row.best + row.temperature * (log(weight) - kSampleWeightBits * 0.6931471805599453); };
  const double slack = 1e-6 * (fabs(static_cast<double>(row.best)) + 28 * row.temperature) + 1e-30;
  *low = first > 2 ? static_cast<float>(logit_of(first - 2) - slack) : -INFINITY;
  *high = static_cast<float>(logit_of(end + 2) + slack);
}

// visit(i, weight) for this thread's share of the candidates that `prefix` holds.
template <class Visit>
__device__ void each_candidate(const Row& row, const Prefix& prefix, const Visit& visit) {
  constexpr int kTogether = 8;  // loads under way
  float low, high;
  logit_bounds(row, prefix, &low, &high);
  for (int first = static_cast<int>(threadIdx.x); first < row.n; first += kTogether * kThreads) {
    float logit[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int i = first + j * kThreads;
      logit[j] = i < row.n ? row.logits[i] : -INFINITY;
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (!(logit[j] >= low && logit[j] <= high)) continue;
      const int i = first + j * kThreads;
      const uint64_t w = row.weight(logit[j], i);
      if (prefix.holds(w, i)) visit(i, w);
    }
  }
}

// Adds up the candidates that `prefix` holds by their next digit and chooses the digit in whose share `target` lies, `before` being ahead of them all.
// All threads of the block call.
template <class Target>
__device__ void choose_digit(const Row& row, bool by_count, const Prefix& prefix, const Target& target, uint64_t before, Bins& bins) {
  for (int d = static_cast<int>(threadIdx.x); d < kDigits; d += kThreads) bins.limb[0][d] = bins.limb[1][d] = bins.limb[2][d] = bins.count[d] = 0;
  __syncthreads();
  uint64_t lowest = 0;
  uint32_t lowest_count = 0;
  each_candidate(row, prefix, [&](int i, uint64_t w) {
    const uint64_t value = by_count ? 1 : w;
    const int digit = prefix.weight_shift != 0 ? static_cast<int>(w >> (prefix.weight_shift - kDigitBits)) & (kDigits - 1)
                                               : static_cast<int>((kLastId - static_cast<uint32_t>(i)) >> (prefix.id_shift - kDigitBits)) & (kDigits - 1);
    if (digit == 0) {
      lowest += value;
      ++lowest_count;
    } else {
      add(bins, digit, value, 1);
    }
  });
  for (int m = kGroupLanes / 2; m > 0; m /= 2) {
    lowest += shuffle_xor(lowest, m);
    lowest_count += shuffle_xor(lowest_count, m);
  }
  if (group_lane() == 0 && lowest_count != 0) add(bins, 0, lowest, lowest_count);
  __syncthreads();
  if (group_index() == 0) {
    // Lane l has the digits 4 l to 4 l + 3 from the top.
    constexpr int kOwn = kDigits / kGroupLanes;
    const int lane = group_lane(), first = kDigits - 1 - lane * kOwn;
    uint64_t own = 0;
    for (int d = 0; d < kOwn; ++d) own += bin_value(bins, first - d);
    uint64_t through = own;  // of the lanes up to this one
    for (int m = 1; m < kGroupLanes; m *= 2) {
      const uint64_t other = shuffle_from(through, lane >= m ? lane - m : lane);
      if (lane >= m) through += other;
    }
    const uint64_t total = shuffle_from(through, kGroupLanes - 1), wanted = target(total);
    uint64_t ahead = before + through - own;
    if (lane == 0) {
      bins.wanted = wanted;
      bins.digit = -1;
    }
    group_sync();
    for (int d = 0; d < kOwn; ++d) {
      const uint64_t value = bin_value(bins, first - d);
      if (ahead <= wanted && wanted < ahead + value) {
        bins.digit = first - d;
        bins.before = ahead;
      }
      ahead += value;
    }
  }
  __syncthreads();
}

struct Found {
  bool any = false;  // false: there are not so many candidates
  uint64_t weight = 0, before = 0;
  int id = 0;
};

// The candidate in whose share target(sum of all) lies; a share is the weight, or 1.
template <class Target>
__device__ Found find(const Row& row, bool by_count, const Target& target, Bins& bins) {
  Prefix prefix;
  uint64_t wanted = 0;
  Found found;
  while (prefix.weight_shift > 0 || prefix.id_shift > 0) {
    const bool first = prefix.weight_shift > kTopWeightShift;
    choose_digit(
        row, by_count, prefix, [&](uint64_t total) { return first ? target(total) : wanted; }, found.before, bins);
    if (bins.digit < 0) return found;
    wanted = bins.wanted;
    found.before = bins.before;
    const bool alone = bins.count[bins.digit] == 1;
    if (prefix.weight_shift > 0) {
      prefix.weight = prefix.weight << kDigitBits | static_cast<uint32_t>(bins.digit);
      prefix.weight_shift -= kDigitBits;
    } else {
      prefix.turned_id = prefix.turned_id << kDigitBits | static_cast<uint32_t>(bins.digit);
      prefix.id_shift -= kDigitBits;
    }
    __syncthreads();  // the bins have been read
    if (alone) break;
  }
  each_candidate(row, prefix, [&](int i, uint64_t w) {  // there is one
    bins.weight = w;
    bins.id = i;
  });
  __syncthreads();
  found.any = true;
  found.weight = bins.weight;
  found.id = bins.id;
  return found;
}

__global__ void __launch_bounds__(kThreads) sample_rows(Rows<const float> logits, int n, const Draw* draws, int32_t* ids) {
  __shared__ Bins bins;
  wait_previous();
  allow_next();
  const Draw draw = draws[blockIdx.x];
  const int32_t best = ids[blockIdx.x];
  if (!(draw.temperature > 0) || best < 0) return;
  Row row{logits.row(blockIdx.x), n, 0, static_cast<double>(draw.temperature), 1.0 / static_cast<double>(draw.temperature), 1, 0, n};
  row.best = row.logits[best];
  __syncthreads();  // everyone has read ids
  if (!(fabsf(row.best) < INFINITY)) {
    if (threadIdx.x == 0) ids[blockIdx.x] = -1;
    return;
  }
  if (draw.top_k > 0) {
    const Found last = find(
        row, true, [&](uint64_t) { return static_cast<uint64_t>(draw.top_k) - 1; }, bins);
    if (last.any) {
      row.last_weight = last.weight;
      row.last_id = last.id;
    }
  }
  const auto least = static_cast<uint64_t>(ceil(static_cast<double>(draw.min_p) * static_cast<double>(uint64_t{1} << kSampleWeightBits)));
  if (least > row.least) row.least = least;
  uint64_t mass = 0;
  if (draw.top_p < 1) {
    const auto reached = [&](uint64_t total) {
      const auto wanted = static_cast<uint64_t>(static_cast<double>(draw.top_p) * static_cast<double>(total));
      return wanted > 0 ? wanted - 1 : 0;
    };
    const Found last = find(row, false, reached, bins);
    mass = last.before + last.weight;
  }
  const Found drawn = find(
      row, false, [&](uint64_t total) { return __umul64hi(static_cast<uint64_t>(draw.random) << 11, mass != 0 ? mass : total); }, bins);
  if (threadIdx.x == 0) ids[blockIdx.x] = drawn.id;
}

}  // namespace

Status sample_portable(OpContext& context, const SampleArgs& a) {
  if (a.logits.rows == 0) return ok_status();
  return launch(gpu_context(context), "sample", sample_rows, {.blocks_x = a.logits.rows, .threads = kThreads}, rows_of(a.logits),
                static_cast<int>(a.logits.cols), a.draws, a.ids.data);
}

}  // namespace dsv4::gpu

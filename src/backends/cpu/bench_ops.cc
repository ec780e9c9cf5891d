// Operators of the CPU backend at V4-Flash / K160 shapes, verified and then timed in one run, against what this machine can do: its read
// bandwidth (plain streaming of a buffer far larger than L3) and its fma peak, both measured here, by the same threads.
//
//   cpu_bench_ops [--threads N] [--isa NAME] [--rows 1,8,512] [--only TEXT] [--seconds S] [--pin]
//
// Weights are cold: each call takes the next copy from a pool much larger than L3. Activations are warm. Times are wall-clock per call.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/machine_peaks.h"
#include "ops/op_table.h"
#include "tensor/dtype.h"

namespace dsv4 {
namespace {

constexpr int64_t kPoolBytes = int64_t{1} << 30;
constexpr int64_t kHidden = 4096, kFfn = 2048, kExperts = 160, kTopK = 6, kHeads = 64, kHeadDim = 512;

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Weights for one call after another. The bytes are E4M3 codes of normal values whose largest in a few thousand is about 448, as a
// quantizer leaves them (uniform codes would have a hundred times as many subnormals); as nibbles they are any values. BF16 has its own.
class WeightPool {
 public:
  WeightPool() : bytes_(static_cast<size_t>(kPoolBytes)), bf16_(static_cast<size_t>(kPoolBytes / 4)), scales_(int64_t{8} << 20) {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal(0.0f, 100.0f);
    std::vector<uint8_t> codes(65536);
    for (uint8_t& c : codes) c = float_to_e4m3(normal(random));
    for (uint16_t& b : bf16_) b = static_cast<uint16_t>(0x3c00u + (random() & 0x83ffu));  // magnitudes 2^-7 to 2
    for (size_t i = 0; i < bytes_.size(); i += 4) {
      const uint64_t word = random();
      for (size_t j = 0; j < 4; ++j) bytes_[i + j] = codes[word >> (16 * j) & 0xffff];
    }
    for (uint8_t& s : scales_) s = static_cast<uint8_t>(112 + random() % 5);
  }
  WeightView next(WeightFormat format, int64_t n, int64_t k) {
    WeightView w{format, nullptr, scales_.data(), n, k};
    const bool bf16 = format == WeightFormat::kBF16;
    const int64_t bytes = (n * w.row_bytes() + 4095) / 4096 * 4096;
    int64_t& used = used_[bf16 ? 1 : 0];
    if (used + bytes > (bf16 ? kPoolBytes / 2 : kPoolBytes)) used = 0;
    w.data = (bf16 ? reinterpret_cast<const uint8_t*>(bf16_.data()) : bytes_.data()) + used;
    used += bytes;
    return w;
  }

 private:
  std::vector<uint8_t> bytes_;
  std::vector<uint16_t> bf16_;
  std::vector<uint8_t> scales_;
  int64_t used_[2] = {};
};

std::vector<float> normal_values(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = normal(random);
  return v;
}

struct Options {
  int threads = 0;
  std::string isa;
  std::vector<int64_t> rows = {1, 8, 512};
  std::string only;
  double seconds = 0.5;
  bool pin = false;
};

// Relative error of y[t][n] against a double sum, over a spread of outputs.
double product_error(const Matrix<const float>& x, const WeightView& w, const Matrix<float>& y, int64_t x_offset, int64_t n_first, int64_t n_count) {
  std::vector<float> row(static_cast<size_t>(w.k));
  double worst = 0;
  for (int64_t i = 0; i < 16; ++i) {
    const int64_t n = n_first + i * (n_count - 1) / 15, t = i % x.rows;
    decode_weight_row(w, n, row.data());
    double sum = 0, size = 0;
    for (int64_t k = 0; k < w.k; ++k) {
      const double term = static_cast<double>(row[static_cast<size_t>(k)]) * x.row(t)[x_offset + k];
      sum += term;
      size += term * term;
    }
    worst = std::max(worst, std::fabs(sum - y.row(t)[n]) / std::sqrt(size));
  }
  return worst;
}

// Buffers a case keeps alive and the operator calls it makes.
class Suite {
 public:
  Suite(Device& device, const Options& options) : device_(device), options_(options) {}

  void linear(const std::string& name, WeightFormat format, std::vector<std::array<int64_t, 2>> shapes, int64_t rows) {
    auto x = floats(rows * shapes[0][1], 2);
    LinearArgs a{{x->data(), rows, shapes[0][1]}, ActivationRounding::kNone, static_cast<int>(shapes.size()), {}};
    for (size_t j = 0; j < shapes.size(); ++j) a.jobs[j].y = {floats(rows * shapes[j][0], 3)->data(), rows, shapes[j][0]};
    auto args = std::make_shared<LinearArgs>(a);
    run(
        {name, rows},
        [=, this] {
          for (size_t j = 0; j < shapes.size(); ++j) args->jobs[j].weight = pool_.next(format, shapes[j][0], shapes[j][1]);
          return cost(*args);
        },
        [=, this] { return device_.ops().linear(device_.context(), *args); },
        [=] { return product_error(args->x, args->jobs[0].weight, args->jobs[0].y, 0, 0, shapes[0][0]); });
  }

  void grouped_linear(int64_t rows) {
    constexpr int64_t kGroups = 8, kOut = 1024, kIn = 4096;
    auto args = std::make_shared<GroupedLinearArgs>();
    args->x = {floats(rows * kGroups * kIn, 2)->data(), rows, kGroups * kIn};
    args->y = {floats(rows * kGroups * kOut, 3)->data(), rows, kGroups * kOut};
    args->groups = kGroups;
    run(
        {"grouped_linear wo_a", rows},
        [=, this] {
          args->weight = pool_.next(WeightFormat::kFp8Block, kGroups * kOut, kIn);
          return cost(*args);
        },
        [=, this] { return device_.ops().grouped_linear(device_.context(), *args); },
        [=] { return product_error(args->x, args->weight, args->y, 3 * kIn, 3 * kOut, kOut); });
  }

  void moe_experts(int64_t rows) {
    struct State {
      std::vector<const uint8_t*> pointers[6];
      std::vector<int32_t> experts;
      std::vector<float> weights;
      MoeExpertsArgs args;
    };
    auto s = std::make_shared<State>();
    std::mt19937 random(4);
    for (int64_t t = 0; t < rows; ++t) {
      std::vector<int32_t> all(kExperts);
      for (int32_t e = 0; e < kExperts; ++e) all[static_cast<size_t>(e)] = e;
      std::shuffle(all.begin(), all.end(), random);
      s->experts.insert(s->experts.end(), all.begin(), all.begin() + kTopK);
    }
    s->weights.assign(s->experts.size(), 0.25f);
    std::vector<int32_t> distinct = s->experts;
    std::sort(distinct.begin(), distinct.end());
    const int64_t num_distinct = std::unique(distinct.begin(), distinct.end()) - distinct.begin();
    for (auto& p : s->pointers) p.resize(kExperts);
    auto y = floats(rows * kHidden, 3);
    s->args = {{floats(rows * kHidden, 2)->data(), rows, kHidden},
               {WeightFormat::kMxfp4, kExperts, kHidden, kFfn, s->pointers[0].data(), s->pointers[1].data(), s->pointers[2].data(), s->pointers[3].data(),
                s->pointers[4].data(), s->pointers[5].data()},
               {s->experts.data(), rows, kTopK},
               {s->weights.data(), rows, kTopK},
               10.0f,
               ActivationRounding::kE4M3,
               {y->data(), rows, kHidden}};
    // Verified against the reference on one row.
    run(
        {"moe_experts", rows},
        [=, this] {
          for (size_t e = 0; e < kExperts; ++e) {
            for (int m = 0; m < 3; ++m) {
              const WeightView w = m < 2 ? pool_.next(WeightFormat::kMxfp4, kFfn, kHidden) : pool_.next(WeightFormat::kMxfp4, kHidden, kFfn);
              s->pointers[2 * m][e] = w.data;
              s->pointers[2 * m + 1][e] = w.scale;
            }
          }
          std::fill(y->begin(), y->end(), 0.0f);
          OpCost c = cost(s->args);
          const WeightView w{WeightFormat::kMxfp4, nullptr, nullptr, kFfn, kHidden};
          c.bytes = num_distinct * 3 * w.total_bytes() + 12 * rows * kHidden;
          return c;
        },
        [=, this] { return device_.ops().moe_experts(device_.context(), s->args); },
        [=, this] {
          std::vector<float> expected(kHidden);
          MoeExpertsArgs one = s->args;
          one.x = one.x.first_rows(1);
          one.experts = one.experts.first_rows(1);
          one.weights = one.weights.first_rows(1);
          one.y = {expected.data(), 1, kHidden};
          if (!reference_ops().moe_experts(device_.context(), one).ok()) return 1.0;
          double error = 0, size = 0;
          for (size_t d = 0; d < kHidden; ++d) {
            error += std::pow(expected[d] - (*y)[d], 2.0);
            size += std::pow(expected[d], 2.0);
          }
          return std::sqrt(error / size);
        });
  }

  void sparse_attention(int64_t rows, int64_t chosen) {
    constexpr int64_t kRing = 1024, kCompressed = 16384;
    auto s = std::make_shared<SparseAttentionArgs>();
    auto window = bytes(block_bytes(RowFormat::kFp8DsMla, 64, kHeadDim) * kRing / 64),
         compressed = bytes(block_bytes(RowFormat::kFp8DsMla, 64, kHeadDim) * kCompressed / 64);
    auto ids = std::make_shared<std::vector<int32_t>>(kCompressed / 64), topk = std::make_shared<std::vector<int32_t>>();
    auto rows_of = sequence(rows, 4 * kCompressed - rows);
    for (size_t i = 0; i < ids->size(); ++i) (*ids)[i] = static_cast<int32_t>(i);
    std::mt19937 random(5);
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t i = 0; i < chosen; ++i) topk->push_back(static_cast<int32_t>(i * (kCompressed - 64) / chosen + static_cast<int64_t>(random() % 8)));
    }
    const int64_t stride = block_bytes(RowFormat::kFp8DsMla, 64, kHeadDim);
    s->q = {floats(rows * kHeads * kHeadDim, 2)->data(), rows, kHeads * kHeadDim};
    s->o = {floats(rows * kHeads * kHeadDim, 3)->data(), rows, kHeads * kHeadDim};
    s->heads = kHeads;
    s->rows = rows_of->view();
    s->window = {RowFormat::kFp8DsMla, window->data(), stride, 64, kHeadDim};
    s->window_table = {ids->data(), kRing / 64};
    s->ring_rows = kRing;
    s->window_tokens = 128;
    s->ratio = 4;
    s->compressed = {RowFormat::kFp8DsMla, compressed->data(), stride, 64, kHeadDim};
    s->compressed_table = {ids->data(), kCompressed / 64};
    s->max_compressed_rows = kCompressed;
    s->topk = {topk->data(), rows, chosen};
    s->sink = floats(kHeads, 6)->data();
    s->scale = 1.0f / std::sqrt(512.0f);
    s->cos_sin = {floats(rows * 64, 7)->data(), rows, 64};
    keep_.push_back(std::make_shared<std::tuple<decltype(window), decltype(compressed), decltype(ids), decltype(topk), decltype(rows_of)>>(window, compressed,
                                                                                                                                           ids, topk, rows_of));
    run(
        {"sparse_attention 128+" + std::to_string(chosen), rows}, [=] { return cost(*s); },
        [=, this] { return device_.ops().sparse_attention(device_.context(), *s); },
        [=, this] {
          std::vector<float> expected(static_cast<size_t>(kHeads * kHeadDim));
          SparseAttentionArgs one = *s;
          one.q = one.q.first_rows(1);
          one.topk = one.topk.first_rows(1);
          one.cos_sin = one.cos_sin.first_rows(1);
          one.o = {expected.data(), 1, kHeads * kHeadDim};
          one.rows.num_rows = 1;
          if (!reference_ops().sparse_attention(device_.context(), one).ok()) return 1.0;
          return relative_error(s->o.row(0), expected);
        });
  }

  void indexer_topk(int64_t rows) {
    constexpr int64_t kKeys = 16384, kDim = 128, kChosen = 512;
    auto s = std::make_shared<IndexerTopkArgs>();
    auto keys = bytes(block_bytes(RowFormat::kMxfp4, 64, kDim) * kKeys / 64);
    auto ids = std::make_shared<std::vector<int32_t>>(kKeys / 64), out = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(rows * kChosen));
    for (size_t i = 0; i < ids->size(); ++i) (*ids)[i] = static_cast<int32_t>(i);
    auto rows_of = sequence(rows, 4 * kKeys - rows);
    s->q = {floats(rows * kHeads * kDim, 2)->data(), rows, kHeads * kDim};
    s->w = {floats(rows * kHeads, 3)->data(), rows, kHeads};
    s->weight_scale = 0.01f;
    s->heads = kHeads;
    s->rows = rows_of->view();
    s->keys = {RowFormat::kMxfp4, keys->data(), block_bytes(RowFormat::kMxfp4, 64, kDim), 64, kDim};
    s->table = {ids->data(), kKeys / 64};
    s->max_rows = kKeys;
    s->indices = {out->data(), rows, kChosen};
    keep_.push_back(std::make_shared<std::tuple<decltype(keys), decltype(ids), decltype(out), decltype(rows_of)>>(keys, ids, out, rows_of));
    run(
        {"indexer_topk 16384", rows}, [=] { return cost(*s); }, [=, this] { return device_.ops().indexer_topk(device_.context(), *s); },
        [=, this] {
          std::vector<int32_t> expected(kChosen);
          IndexerTopkArgs one = *s;
          one.q = one.q.first_rows(1);
          one.w = one.w.first_rows(1);
          one.rows.num_rows = 1;
          one.indices = {expected.data(), 1, kChosen};
          if (!reference_ops().indexer_topk(device_.context(), one).ok()) return 1.0;
          std::vector<int32_t> both;
          std::set_intersection(expected.begin(), expected.end(), out->begin(), out->begin() + kChosen, std::back_inserter(both));
          return both.size() + 1 >= expected.size() ? 0.0 : 1.0;  // scores near the border may fall either way
        });
  }

  void hc(int64_t rows) {
    auto h = floats(rows * 4 * kHidden, 2), fn = floats(24 * 4 * kHidden, 3);
    auto norm = std::make_shared<std::vector<uint16_t>>(kHidden, uint16_t{0x3f80});
    keep_.push_back(norm);
    HcPreArgs a;
    a.h = {h->data(), rows, 4 * kHidden};
    a.fn = {fn->data(), 24, 4 * kHidden};
    a.base = floats(24, 4)->data();
    a.scale = floats(3, 5)->data();
    a.norm = norm->data();
    a.x = {floats(rows * kHidden, 6)->data(), rows, kHidden};
    a.post = {floats(rows * 4, 7)->data(), rows, 4};
    a.comb = {floats(rows * 16, 8)->data(), rows, 16};
    run(
        {"hc_pre", rows}, [=] { return cost(a); }, [=, this] { return device_.ops().hc_pre(device_.context(), a); },
        [=, this] {
          std::vector<float> expected(kHidden), post(4), comb(16);
          HcPreArgs one = a;
          one.h = one.h.first_rows(1);
          one.x = {expected.data(), 1, kHidden};
          one.post = {post.data(), 1, 4};
          one.comb = {comb.data(), 1, 16};
          if (!reference_ops().hc_pre(device_.context(), one).ok()) return 1.0;
          return relative_error(a.x.row(0), expected);
        });
    HcPostArgs b{{a.x.data, rows, kHidden}, {a.post.data, rows, 4}, {a.comb.data, rows, 16}, {h->data(), rows, 4 * kHidden}};
    run(
        {"hc_post", rows}, [=] { return cost(b); }, [=, this] { return device_.ops().hc_post(device_.context(), b); }, [] { return 0.0; });
  }

  void header(double bandwidth, double peak) {
    bandwidth_ = bandwidth;
    peak_ = peak;
    std::printf("%-28s %5s %9s %9s %9s %8s %6s %9s %6s %9s\n", "operator", "rows", "min ms", "med ms", "max ms", "GB/s", "% bw", "GFLOP/s", "% fma", "error");
  }
  int failures() const { return failures_; }

 private:
  struct Rows {
    std::vector<int32_t> positions, slots, cu_rows, seq_slots;
    SequenceRows view() const { return {positions.data(), slots.data(), cu_rows.data(), seq_slots.data(), static_cast<int64_t>(positions.size()), 1}; }
  };
  static std::shared_ptr<Rows> sequence(int64_t rows, int64_t first) {
    auto r = std::make_shared<Rows>();
    for (int64_t t = 0; t < rows; ++t) r->positions.push_back(static_cast<int32_t>(first + t));
    r->slots.assign(static_cast<size_t>(rows), 0);
    r->cu_rows = {0, static_cast<int32_t>(rows)};
    r->seq_slots = {0};
    return r;
  }
  std::shared_ptr<std::vector<float>> floats(int64_t n, unsigned seed) {
    auto v = std::make_shared<std::vector<float>>(normal_values(std::min<int64_t>(n, 1 << 20), seed));
    v->reserve(static_cast<size_t>(n));
    while (static_cast<int64_t>(v->size()) < n) v->push_back((*v)[v->size() - (1 << 20)]);
    keep_.push_back(v);
    return v;
  }
  static std::shared_ptr<std::vector<uint8_t>> bytes(int64_t n) {
    auto v = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(n));
    std::mt19937_64 random(9);
    for (uint8_t& b : *v) b = static_cast<uint8_t>(random() % 64 + 64);  // E4M3 codes and BF16 halves of moderate size; scales 2^-63 .. 1
    for (uint8_t& b : *v) b = b > 124 ? 100 : b;
    return v;
  }
  static double relative_error(const float* actual, const std::vector<float>& expected) {
    double error = 0, size = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      error += std::pow(expected[i] - actual[i], 2.0);
      size += std::pow(expected[i], 2.0);
    }
    return std::sqrt(error / size);
  }

  void run(const std::pair<std::string, int64_t>& title, const std::function<OpCost()>& prepare, const std::function<Status()>& call,
           const std::function<double()>& verify) {
    if (title.first.find(options_.only) == std::string::npos) return;
    prepare();
    const Status status = call();
    const double error = status.ok() ? verify() : 1.0;
    if (!(error < 1e-2)) {
      ++failures_;
      std::printf("%-28s %5ld WRONG: error %g %s\n", title.first.c_str(), static_cast<long>(title.second), error, status.message().c_str());
      return;
    }
    OpCost c;
    std::vector<double> times;
    const double start = seconds_now();
    while (times.size() < 3 || (seconds_now() - start < options_.seconds && times.size() < 1000)) {
      c = prepare();
      const double t = seconds_now();
      (void)call();
      times.push_back(seconds_now() - t);
    }
    std::sort(times.begin(), times.end());
    const double best = times.front();
    std::printf("%-28s %5ld %9.3f %9.3f %9.3f %8.2f %5.0f%% %9.1f %5.0f%% %9.1e\n", title.first.c_str(), static_cast<long>(title.second), 1e3 * best,
                1e3 * times[times.size() / 2], 1e3 * times.back(), c.bytes / best / 1e9, 100 * c.bytes / best / bandwidth_, c.flops / best / 1e9,
                100 * c.flops / best / peak_, error);
    std::fflush(stdout);
  }

  Device& device_;
  Options options_;
  WeightPool pool_;
  std::vector<std::shared_ptr<void>> keep_;
  double bandwidth_ = 1, peak_ = 1;
  int failures_ = 0;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--pin") {
      o.pin = true;
      continue;
    }
    ++i;
    if (flag == "--threads") o.threads = std::stoi(value);
    if (flag == "--isa") o.isa = value;
    if (flag == "--only") o.only = value;
    if (flag == "--seconds") o.seconds = std::stod(value);
    if (flag == "--rows") {
      o.rows.clear();
      for (size_t at = 0; at < value.size(); at = value.find(',', at) == std::string::npos ? value.size() : value.find(',', at) + 1)
        o.rows.push_back(std::stoll(value.substr(at)));
    }
  }
  return o;
}

int run_benchmark(int argc, char** argv) {
  const Options options = parse(argc, argv);
  CpuDeviceOptions device_options;
  device_options.num_threads = options.threads;
  device_options.isa = options.isa;
  device_options.pin_threads = options.pin;
  auto made = make_cpu_device(device_options);
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().message().c_str());
    return 2;
  }
  Device& device = **made;
  Suite suite(device, options);
  const auto peaks = measure_machine_peaks(device.context(), options.seconds);
  if (!peaks.ok()) {
    std::fprintf(stderr, "%s\n", peaks.status().message().c_str());
    return 1;
  }
  std::printf("%s: read bandwidth %.2f GB/s, fma peak %.1f GFLOP/s\n", device.info().name.c_str(), peaks->read_bytes_per_second / 1e9,
              peaks->flops_per_second / 1e9);
  suite.header(peaks->read_bytes_per_second, peaks->flops_per_second);
  constexpr auto kFp8 = WeightFormat::kFp8Block, kBf16 = WeightFormat::kBF16;
  for (const int64_t rows : options.rows) {
    suite.linear("linear wq_a+wkv fp8", kFp8, {{1024, kHidden}, {512, kHidden}}, rows);
    suite.linear("linear wq_b fp8", kFp8, {{kHeads * kHeadDim, 1024}}, rows);
    suite.linear("linear wo_b fp8", kFp8, {{kHidden, 8192}}, rows);
    suite.linear("linear shared w1+w3 fp8", kFp8, {{kFfn, kHidden}, {kFfn, kHidden}}, rows);
    suite.linear("linear compressor bf16", kBf16, {{1024, kHidden}, {1024, kHidden}}, rows);
    suite.linear("linear head/4 bf16", kBf16, {{32320, kHidden}}, rows);
    suite.grouped_linear(rows);
    suite.moe_experts(rows);
    suite.sparse_attention(rows, 512);
    suite.indexer_topk(rows);
    suite.hc(rows);
  }
  return suite.failures() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace dsv4

int main(int argc, char** argv) { return dsv4::run_benchmark(argc, argv); }

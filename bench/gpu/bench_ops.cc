// Verifies, then times, the GPU operators at the sizes of V4 Flash pruned to 160 experts. Every operator is first compared with the portable kernel on
// the same inputs; then many calls over weights that do not fit L2 are recorded into one graph and replayed. Shares are of the read ceiling measured
// in the same run. Usage: bench_ops [--rows=1,8,16,64] [--prefill=512,2048] [--position=4000] [--json=FILE] [--filter=TEXT] [--skip-verify]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "backends/gpu/gpu_device.h"
#include "backends/gpu/gpu_ops.h"
#include "bench_layer.h"
#include "bench_support.h"

namespace dsv4::bench {
namespace {

struct Line {
  std::string name;
  int64_t rows;
  Timing timing;
  OpCost cost;
  double difference;  // from the portable kernel; negative = not compared
  bool same_alone;    // row 0 alone gives the bits it has in the batch
};

struct Options {
  std::vector<int64_t> rows = {1, 8, 16, 64};
  std::vector<int64_t> prefill = {512, 2048};
  std::string json, filter;
  int32_t position = 4000;  // of decoded rows
  bool verify = true;
};

class Bench {
 public:
  Bench(Arena& arena, const Options& options) : arena_(arena), options_(options) {}

  // `make` builds one instance; outputs are `out_rows` x `out_cols` floats at `out` of instance 0.
  template <class Args>
  void op(const std::string& name, int64_t rows, OpSlot<Args> OpTable::* slot, int copies, const std::function<Args(int)>& make, const std::function<Matrix<float>(const Args&)>& output,
          const std::function<Args(const Args&)>& first_row, double bound) {
    if (name.find(options_.filter) == std::string::npos) return;
    std::vector<Args> instances;
    for (int i = 0; i < copies; ++i) instances.push_back(make(i));
    Device& d = arena_.device();
    const auto call = [&](const OpTable& ops, const Args& a) { return run_op(name.c_str(), d.context(), ops.*slot, a); };
    Line line{name, rows, {}, cost(instances[0]), -1, true};
    const Matrix<float> out = output(instances[0]);
    const std::vector<float> before = download(d, out.data, out.rows * out.cols);
    const auto reset = [&] { must(d.upload(out.data, before.data(), static_cast<int64_t>(before.size()) * 4)); };
    if (options_.verify) {
      must(call(gpu::portable_ops(), instances[0]));
      const std::vector<float> want = download(d, out.data, out.rows * out.cols);
      reset();
      must(call(d.ops(), instances[0]));
      const std::vector<float> got = download(d, out.data, out.rows * out.cols);
      reset();
      line.difference = relative_l2(got, want);
      if (!(line.difference <= bound)) {
        std::printf("WRONG %s rows %lld: differs from the portable kernel by %.3g (bound %.3g)\n", name.c_str(), static_cast<long long>(rows), line.difference, bound);
        ++wrong_;
      }
      if (rows > 1 && rows < 256 && first_row) {  // from 256 rows on bits may differ
        must(call(d.ops(), first_row(instances[0])));
        const std::vector<float> alone = download(d, out.data, out.cols);
        reset();
        line.same_alone = std::memcmp(alone.data(), got.data(), alone.size() * 4) == 0;
        if (!line.same_alone) {
          std::printf("WRONG %s rows %lld: row 0 alone has other bits\n", name.c_str(), static_cast<long long>(rows));
          ++wrong_;
        }
      }
    }
    line.timing = time_graph(arena_, std::max(copies, rows <= 64 ? 24 : copies), rows <= 64 ? 10 : 4, [&](int i) { return call(d.ops(), instances[static_cast<size_t>(i % copies)]); });
    lines.push_back(line);
  }

  int wrong() const { return wrong_; }
  std::vector<Line> lines;

 private:
  Arena& arena_;
  const Options& options_;
  int wrong_ = 0;
};

int copies_for(int64_t bytes) { return static_cast<int>(std::clamp<int64_t>((int64_t{320} << 20) / std::max<int64_t>(bytes, 1), 1, 24)); }

void bench_products(Arena& parent, Bench& bench, int64_t rows) {
  Arena a(parent.device());
  struct Product {
    const char* name;
    int64_t k;
    std::vector<std::pair<WeightFormat, int64_t>> jobs;
  };
  constexpr WeightFormat kFp8 = WeightFormat::kFp8Block, kBf16 = WeightFormat::kBF16;
  const Product products[] = {{"attn_in ratio 4", 4096, {{kFp8, 1024}, {kFp8, 512}, {kBf16, 1024}, {kBf16, 1024}, {kBf16, 256}, {kBf16, 256}, {kBf16, 64}}},
                              {"attn_in ratio 128", 4096, {{kFp8, 1024}, {kFp8, 512}, {kBf16, 512}, {kBf16, 512}}},
                              {"wq_b", 1024, {{kFp8, 32768}, {kFp8, 8192}}},
                              {"wo_b", 8192, {{kFp8, 4096}}},
                              {"ffn_in", 4096, {{kBf16, 160}, {kFp8, 2048}, {kFp8, 2048}}},
                              {"shared_w2", 2048, {{kFp8, 4096}}},
                              {"lm_head", 4096, {{kBf16, 129280}}}};
  uint32_t seed = 100;
  for (const Product& p : products) {
    if (rows > 64 && std::string(p.name) == "lm_head") continue;
    int64_t bytes = 0;
    for (const auto& [format, n] : p.jobs) bytes += WeightView{format, nullptr, nullptr, n, p.k}.total_bytes();
    Arena own(parent.device());
    const float* x = own.normal(rows * p.k, 1, 5);
    // One buffer for all outputs, so that one comparison sees them all.
    int64_t n_all = 0;
    for (const auto& job : p.jobs) n_all += job.second;
    const Matrix<float> y = own.matrix(rows, n_all);
    bench.op<LinearArgs>(
        p.name, rows, &OpTable::linear, copies_for(bytes),
        [&](int) {
          LinearArgs args{Matrix<const float>(x, rows, p.k), ActivationRounding::kE4M3, 0, {}};
          int64_t at = 0;
          for (const auto& [format, n] : p.jobs) {
            args.jobs[args.num_jobs++] = {own.weight(format, n, p.k, seed += 3), Matrix<float>(y.data + at, rows, n, n_all)};
            at += n;
          }
          return args;
        },
        [&](const LinearArgs&) { return y; },
        [](const LinearArgs& full) {
          LinearArgs one = full;
          one.x = full.x.first_rows(1);
          for (int j = 0; j < one.num_jobs; ++j) one.jobs[j].y = full.jobs[j].y.first_rows(1);
          return one;
        },
        3e-6);
  }
  Arena own(parent.device());
  const float* x = own.normal(rows * 32768, 1, 6);
  const Matrix<float> y = own.matrix(rows, 8192);
  bench.op<GroupedLinearArgs>(
      "wo_a", rows, &OpTable::grouped_linear, 9, [&](int i) { return GroupedLinearArgs{Matrix<const float>(x, rows, 32768), own.weight(WeightFormat::kFp8Block, 8192, 4096, 900u + i), 8, y}; },
      [&](const GroupedLinearArgs&) { return y; },
      [](const GroupedLinearArgs& full) { return GroupedLinearArgs{full.x.first_rows(1), full.weight, full.groups, full.y.first_rows(1)}; }, 3e-6);
}

void bench_experts(Arena& parent, Bench& bench, int64_t rows) {
  Arena a(parent.device());
  const Experts experts(a, 160, 4096, 2048, 160, 40);
  const float* x = a.normal(rows * 4096, 1, 8);
  float* y = a.normal(rows * 4096, 1, 9);
  const float* weights = a.upload(std::vector<float>(static_cast<size_t>(rows * 6), 0.25f));
  std::vector<int32_t> ids;
  uint32_t state = 12345;
  constexpr int kSteps = 4;
  for (int64_t i = 0; i < kSteps * rows; ++i) {
    std::vector<int32_t> row;
    while (row.size() < 6) {
      state = state * 1664525u + 1013904223u;
      const int32_t e = static_cast<int32_t>((state >> 8) % 160);
      if (std::find(row.begin(), row.end(), e) == row.end()) row.push_back(e);
    }
    ids.insert(ids.end(), row.begin(), row.end());
  }
  const int32_t* device_ids = a.upload(ids);
  const int copies = rows > 64 ? 1 : kSteps;
  bench.op<MoeExpertsArgs>(
      "moe_experts", rows, &OpTable::moe_experts, copies,
      [&](int i) {
        return MoeExpertsArgs{Matrix<const float>(x, rows, 4096), experts.table(), Matrix<const int32_t>(device_ids + i * rows * 6, rows, 6), Matrix<const float>(weights, rows, 6), 10.0f,
                              ActivationRounding::kE4M3, Matrix<float>(y, rows, 4096)};
      },
      [&](const MoeExpertsArgs& args) { return args.y; },
      [](const MoeExpertsArgs& full) {
        MoeExpertsArgs one = full;
        one.x = full.x.first_rows(1);
        one.experts = full.experts.first_rows(1);
        one.weights = full.weights.first_rows(1);
        one.y = full.y.first_rows(1);
        return one;
      },
      2e-3);
  // cost() counts distinct experts as if none were shared; count them.
  if (!bench.lines.empty() && bench.lines.back().name == "moe_experts") {
    std::vector<int32_t> first(ids.begin(), ids.begin() + rows * 6);
    std::sort(first.begin(), first.end());
    const int64_t distinct = std::unique(first.begin(), first.end()) - first.begin();
    bench.lines.back().cost.bytes = distinct * (3 * WeightView{WeightFormat::kMxfp4, nullptr, nullptr, 2048, 4096}.total_bytes()) + 12 * rows * 4096;
  }
}

std::vector<int64_t> numbers(const char* text) {
  std::vector<int64_t> out;
  std::stringstream s(text);
  for (std::string part; std::getline(s, part, ',');) out.push_back(std::stoll(part));
  return out;
}

void print(const std::vector<Line>& lines, double ceiling) {
  std::printf("%-28s %6s %9s %9s %9s %8s %9s %6s %9s %s\n", "operator", "rows", "min us", "median", "max", "kernels", "MB", "share", "vs port.", "alone");
  for (const Line& l : lines) {
    std::printf("%-28s %6lld %9.2f %9.2f %9.2f %8.1f %9.2f %5.0f%% %9.1e %s\n", l.name.c_str(), static_cast<long long>(l.rows), l.timing.min_us, l.timing.median_us, l.timing.max_us, l.timing.kernels,
                static_cast<double>(l.cost.bytes) * 1e-6, 100 * static_cast<double>(l.cost.bytes) / (l.timing.median_us * 1e-6) / ceiling, l.difference, l.same_alone ? "same" : "DIFFERS");
  }
}

void write_json(const std::string& path, const std::vector<Line>& lines, double ceiling, const DeviceInfo& info) {
  std::ofstream f(path);
  f << "{\"device\": \"" << info.name << "\", \"driver\": \"" << info.driver << "\", \"read_ceiling_bytes_per_s\": " << ceiling << ", \"operators\": [";
  for (size_t i = 0; i < lines.size(); ++i) {
    const Line& l = lines[i];
    f << (i == 0 ? "\n" : ",\n") << "  {\"name\": \"" << l.name << "\", \"rows\": " << l.rows << ", \"min_us\": " << l.timing.min_us << ", \"median_us\": " << l.timing.median_us
      << ", \"max_us\": " << l.timing.max_us << ", \"kernels\": " << l.timing.kernels << ", \"bytes\": " << l.cost.bytes << ", \"flops\": " << l.cost.flops << ", \"difference\": " << l.difference
      << ", \"same_alone\": " << (l.same_alone ? "true" : "false") << "}";
  }
  f << "\n]}\n";
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.rfind("--rows=", 0) == 0) options.rows = numbers(argv[i] + 7);
    else if (arg.rfind("--prefill=", 0) == 0) options.prefill = numbers(argv[i] + 10);
    else if (arg.rfind("--position=", 0) == 0) options.position = static_cast<int32_t>(numbers(argv[i] + 11).at(0));
    else if (arg.rfind("--json=", 0) == 0) options.json = arg.substr(7);
    else if (arg.rfind("--filter=", 0) == 0) options.filter = arg.substr(9);
    else if (arg == "--skip-verify") options.verify = false;
    else {
      std::fprintf(stderr, "bench_ops: unknown flag %s\n", argv[i]);
      return 2;
    }
  }
  auto device = must(make_gpu_device({}));
  Arena arena(*device);
  const double ceiling = read_ceiling(arena, int64_t{8} << 30);
  std::printf("%s, %s; read ceiling %.2f TB/s\n", device->info().name.c_str(), device->info().driver.c_str(), ceiling * 1e-12);
  Bench bench(arena, options);
  std::vector<int64_t> all = options.rows;
  all.insert(all.end(), options.prefill.begin(), options.prefill.end());
  for (const int64_t rows : all) {
    bench_products(arena, bench, rows);
    bench_experts(arena, bench, rows);
  }
  std::vector<LayerTiming> layers;
  for (const int64_t rows : all) {
    for (const LayerTiming& t : time_layers(arena, rows, options.position, options.filter)) layers.push_back(t);
  }
  print(bench.lines, ceiling);
  print_layers(layers);
  if (!options.json.empty()) write_json(options.json, bench.lines, ceiling, device->info());
  return bench.wrong() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) { return dsv4::bench::run(argc, argv); }

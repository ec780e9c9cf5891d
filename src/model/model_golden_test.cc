// The whole forward pass against the goldens, one prefill step per case. verify/golden judges the engine the same way, with
// chunks and greedy sequences; this test stands closer to the formulas.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "model/model.h"

namespace dsv4 {
namespace {

template <class T>
std::vector<T> read_values(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsTensor* t = file.find(name);
  EXPECT_NE(t, nullptr) << name;
  std::vector<T> out(static_cast<size_t>(t->size_bytes) / sizeof(T));
  std::memcpy(out.data(), file.bytes(*t).data(), static_cast<size_t>(t->size_bytes));
  return out;
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double diff = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    diff += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    norm += double{want[i]} * want[i];
  }
  return got.size() == want.size() ? std::sqrt(diff / norm) : INFINITY;
}

// Collects the streams of some rows.
struct StreamTap : StepObserver {
  std::vector<int32_t> positions;
  std::vector<std::vector<float>> layers;
  Status tensor(const char* name, int64_t, Matrix<const float> v) override {
    if (std::string(name) != "streams" && std::string(name) != "final.x") return ok_status();
    layers.emplace_back();
    for (size_t i = 0; i < positions.size(); ++i) {
      const float* row = v.row(v.rows == static_cast<int64_t>(positions.size()) ? static_cast<int64_t>(i) : positions[i]);
      layers.back().insert(layers.back().end(), row, row + v.cols);
    }
    return ok_status();
  }
  Status indices(const char*, int64_t, Matrix<const int32_t>) override { return ok_status(); }
};

class Fixture {
 public:
  Fixture(const std::string& model, Arithmetic arithmetic, RowFormat format, int64_t max_rows) : device_(make_reference_device(0)) {
    checkpoint_ = std::make_unique<Checkpoint>(Checkpoint::open(model, {}).value());
    weights_ = std::move(load_weights(*checkpoint_, *device_, {}).value());
    model_ = std::move(Model::create(checkpoint_->config(), *weights_, {arithmetic, max_rows, 16}, *device_).value());
    cache_ = std::move(KvCache::create(checkpoint_->config(), {format, 1, 2048, 0, max_rows}, *device_).value());
  }

  // Logits of rows `wanted` of the ids, in one step.
  std::vector<float> forward(const std::vector<int32_t>& ids, const std::vector<int32_t>& wanted, StepObserver* observer) {
    const int32_t n = static_cast<int32_t>(ids.size());
    std::vector<int32_t> positions(ids.size()), slots(ids.size(), 0), cu{0, n}, seq_slots{0};
    for (int32_t i = 0; i < n; ++i) positions[static_cast<size_t>(i)] = i;
    EXPECT_TRUE(cache_->reserve(0, n).ok());
    EXPECT_TRUE(cache_->upload_tables().ok());
    const StepView step{
        {positions.data(), slots.data(), cu.data(), seq_slots.data(), n, 1}, {ids.data(), n}, {wanted.data(), static_cast<int64_t>(wanted.size())}};
    const auto logits = model_->forward(step, *cache_, observer);
    EXPECT_TRUE(logits.ok()) << logits.status().message();
    return {logits->data, logits->data + logits->rows * logits->cols};
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
};

constexpr const char* kTiny = "models/dsv4-tiny";
constexpr const char* kRand = "tests/data/models/dsv4-rand";

void expect_last_logits(const char* model, const char* golden, const std::string& kind, Arithmetic arithmetic, RowFormat format, double bound,
                        std::vector<int> lengths) {
  const auto file = SafetensorsFile::open(golden).value();
  Fixture fixture(model, arithmetic, format, 1024);
  for (const int n : lengths) {
    const auto ids = read_values<int32_t>(file, "tokens/" + std::to_string(n));
    const auto got = fixture.forward(ids, {n - 1}, nullptr);
    const double error = relative_error(got, read_values<float>(file, kind + "/logits/" + std::to_string(n)));
    EXPECT_LE(error, bound) << kind << " " << n;
  }
}

TEST(ModelGolden, exact_logits_tiny) {
  expect_last_logits(kTiny, "tests/data/tiny-1.safetensors", "exact", Arithmetic::kExact, RowFormat::kF32, 2e-5, {1, 5, 64, 129, 257});
}
TEST(ModelGolden, exact_logits_rand) {
  expect_last_logits(kRand, "tests/data/rand-1.safetensors", "exact", Arithmetic::kExact, RowFormat::kF32, 2e-5, {1, 5, 64, 129, 257});
}
TEST(ModelGolden, qat_logits_tiny) {
  expect_last_logits(kTiny, "tests/data/tiny-1.safetensors", "qat", Arithmetic::kQat, RowFormat::kF32, 5e-2, {1, 5, 64, 129});
}
TEST(ModelGolden, served_logits_tiny) {
  expect_last_logits(kTiny, "tests/data/tiny-served-1.safetensors", "served", Arithmetic::kQat, RowFormat::kFp8DsMla, 5e-2, {1, 5, 64, 129});
}
TEST(ModelGolden, short_qat_and_served_logits_rand) {
  expect_last_logits(kRand, "tests/data/rand-1.safetensors", "qat", Arithmetic::kQat, RowFormat::kF32, 2e-5, {1, 2, 3});
  expect_last_logits(kRand, "tests/data/rand-served-1.safetensors", "served", Arithmetic::kQat, RowFormat::kFp8DsMla, 2e-5, {1, 2, 3});
}

TEST(ModelGolden, exact_hidden_per_layer) {
  for (const auto& [model, golden] : {std::pair{kTiny, "tests/data/tiny-1.safetensors"}, std::pair{kRand, "tests/data/rand-1.safetensors"}}) {
    const auto file = SafetensorsFile::open(golden).value();
    Fixture fixture(model, Arithmetic::kExact, RowFormat::kF32, 300);
    StreamTap tap;
    tap.positions = read_values<int32_t>(file, "hidden/positions");
    auto ids = read_values<int32_t>(file, "tokens/384");
    ids.resize(300);
    fixture.forward(ids, tap.positions, &tap);
    for (size_t i = 0; i < tap.layers.size(); ++i) {
      EXPECT_LE(relative_error(tap.layers[i], read_values<float>(file, "exact/hidden/" + std::to_string(i))), 2e-5) << model << " hidden " << i;
    }
    EXPECT_EQ(file.find("exact/hidden/" + std::to_string(tap.layers.size())), nullptr);
  }
}

}  // namespace
}  // namespace dsv4

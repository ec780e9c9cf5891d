// The promise of docs/numerics.md: the same bytes from every instruction set and any number of threads. Every case of the shared operator
// test runs on one scalar thread and on each other combination, and every byte of every tensor must agree. (That a row does not depend on
// its batch is checked by the shared test itself.)
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/cpu_isa.h"
#include "ops/testing/executor.h"
#include "ops/testing/op_cases.h"
#include "ops/testing/problem.h"

namespace dsv4 {
namespace {

using optest::Executor;
using optest::Images;

struct Configuration {
  CpuIsa isa;
  int threads;
};

std::unique_ptr<Device> make(const Configuration& s) {
  CpuDeviceOptions options;
  options.num_threads = s.threads;
  options.isa = cpu_isa_name(s.isa);
  auto device = make_cpu_device(options);
  EXPECT_TRUE(device.ok()) << device.status().message();
  return std::move(device).value();
}

std::vector<Configuration> other_configurations() {
  std::vector<Configuration> configurations = {{CpuIsa::kScalar, 3}};
  for (const CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    if (!cpu_isa_available(isa)) continue;
    for (const int threads : {1, 2, 3, 8}) configurations.push_back({isa, threads});
  }
  return configurations;
}

Images run(const optest::Problem& problem, Device& device, bool& ran) {
  Images images = problem.images();
  Executor executor(problem, device);
  EXPECT_TRUE(executor.placement().ok()) << executor.placement().message();
  std::vector<std::string> violations;
  ran = executor.run(problem.all_rows(), 0xdeadbeefu, images, violations).ok();
  EXPECT_TRUE(violations.empty()) << violations.front();
  return images;
}

TEST(BitIdentity, every_operator_case_on_every_isa_and_thread_count) {
  const std::unique_ptr<Device> base = make({CpuIsa::kScalar, 1});
  std::vector<std::unique_ptr<Device>> others;
  for (const Configuration& s : other_configurations()) {
    others.push_back(make(s));
  }
  int compared = 0;
  for (const OpCase& op_case : all_op_cases()) {
    const std::unique_ptr<optest::Problem> problem = op_case.build(7);
    bool base_ran = false;
    const Images expected = run(*problem, *base, base_ran);
    for (const auto& device : others) {
      bool ran = false;
      const Images actual = run(*problem, *device, ran);
      ASSERT_EQ(ran, base_ran) << op_case.full_name();
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t t = 0; t < actual.size(); ++t) {
        ASSERT_TRUE(actual[t] == expected[t]) << op_case.full_name() << ": tensor " << problem->tensors[t].name << " on " << device->info().name;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 500);
}

// The comparison above can fail: another seed gives other bytes.
TEST(BitIdentity, another_input_is_noticed) {
  const std::unique_ptr<Device> device = make({CpuIsa::kScalar, 1});
  const std::vector<OpCase> cases = all_op_cases();
  int tried = 0, different = 0;
  for (size_t i = 0; i < cases.size(); i += 16) {
    bool ran = false;
    const auto first = cases[i].build(7), second = cases[i].build(8);
    ++tried;
    if (run(*first, *device, ran) != run(*second, *device, ran)) ++different;
  }
  EXPECT_GT(tried, 10);
  EXPECT_GT(different, tried / 2);
}

}  // namespace
}  // namespace dsv4

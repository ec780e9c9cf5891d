#include <cmath>

#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

using Argmax = ReferenceOps;

TEST_F(Argmax, by_hand) {
  const std::vector<float> logits = {1, 3, 3, -5, -2, -2, 0, std::nanf(""), 9, -INFINITY, -INFINITY, -INFINITY};
  std::vector<int32_t> ids(4);
  ASSERT_TRUE(run(ops().argmax, ArgmaxArgs{matrix(logits, 4, 3), {ids.data(), 4}}).ok());
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 1, -1, 0}));
}

TEST_F(Argmax, refuses_bad_shapes) {
  const std::vector<float> logits(6);
  std::vector<int32_t> ids(4);
  expect_refused(check(ArgmaxArgs{matrix(logits, 2, 3), {ids.data(), 4}}), "argmax: ids has 4 elements, expected 2");
  expect_refused(check(ArgmaxArgs{matrix(logits, 2, 0), {ids.data(), 2}}), "argmax: the logits have no columns");
}

}  // namespace
}  // namespace dsv4

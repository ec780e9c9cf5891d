#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

using HcPost = ReferenceOps;

TEST_F(HcPost, by_hand_with_an_asymmetric_matrix) {
  const std::vector<float> y = {10, 20}, post = {1, 0.5f}, comb = {1, 2, 3, 4};
  std::vector<float> h = {1, 2, 3, 4};  // stream 0 = (1, 2), stream 1 = (3, 4)
  ASSERT_TRUE(run(ops().hc_post, HcPostArgs{matrix(y, 1, 2), matrix(post, 1, 2), matrix(comb, 1, 4), matrix(h, 1, 4)}).ok());
  // h'[0] = y + 1 h[0] + 3 h[1];  h'[1] = y / 2 + 2 h[0] + 4 h[1]
  EXPECT_EQ(h, (std::vector<float>{20, 34, 19, 30}));
}

TEST_F(HcPost, refuses_bad_shapes) {
  const std::vector<float> f(100);
  std::vector<float> h(100);
  expect_refused(check(HcPostArgs{matrix(f, 2, 3), matrix(f, 2, 4), matrix(f, 2, 4), matrix(h, 2, 12)}), "hc_post: comb is [2, 4], expected [2, 16]");
  expect_refused(check(HcPostArgs{matrix(f, 2, 3), matrix(f, 2, 4), matrix(f, 2, 16), matrix(h, 2, 6)}), "hc_post: h is [2, 6], expected [2, 12]");
  expect_refused(check(HcPostArgs{matrix(f, 2, 3), matrix(f, 2, 9), matrix(f, 2, 16), matrix(h, 2, 6)}), "hc_post: 9 streams, 1 to 8 are supported");
}

}  // namespace
}  // namespace dsv4

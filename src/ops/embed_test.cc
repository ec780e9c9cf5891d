#include "ops/reference_fixture.h"

namespace dsv4 {
namespace {

using Embed = ReferenceOps;

TEST_F(Embed, by_hand) {
  const std::vector<uint16_t> table = bf16({1, 2, 3, 4, 5, 6});
  const std::vector<int32_t> ids = {2, -1, 0};
  std::vector<float> h(12, 9);
  ASSERT_TRUE(run(ops().embed, EmbedArgs{matrix(table, 3, 2), {ids.data(), 3}, 2, matrix(h, 3, 4)}).ok());
  EXPECT_EQ(h, (std::vector<float>{5, 6, 5, 6, 0, 0, 0, 0, 1, 2, 1, 2}));
}

TEST_F(Embed, refuses_bad_shapes) {
  const std::vector<uint16_t> table(6);
  const std::vector<int32_t> ids(3);
  std::vector<float> h(12);
  expect_refused(check(EmbedArgs{{nullptr, 3, 2}, {ids.data(), 3}, 2, matrix(h, 3, 4)}), "embed: table is missing");
  expect_refused(check(EmbedArgs{matrix(table, 3, 2), {ids.data(), 2}, 2, matrix(h, 3, 4)}), "embed: token_ids has 2 elements, expected 3");
  expect_refused(check(EmbedArgs{matrix(table, 3, 2), {ids.data(), 3}, 3, matrix(h, 3, 4)}), "embed: h is [3, 4], expected [3, 6]");
}

}  // namespace
}  // namespace dsv4

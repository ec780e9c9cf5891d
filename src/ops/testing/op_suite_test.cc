// The reference runs the shared operator test against itself: one thread under test, every core as the reference, the same bits.
#include "ops/testing/op_suite.h"

namespace dsv4 {
namespace {

const bool kRegistered = [] {
  register_op_suite("reference", [] { return make_reference_device(1).release(); }, {.same_bits_as_reference = true});
  return true;
}();

}  // namespace
}  // namespace dsv4

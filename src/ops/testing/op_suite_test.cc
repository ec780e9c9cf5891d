// The reference runs the shared operator test against itself: one thread under test, every core as the reference.
#include "ops/testing/op_suite.h"

namespace dsv4 {
namespace {

const bool kRegistered = [] {
  register_op_suite("reference", [] { return make_reference_device(1).release(); });
  return true;
}();

}  // namespace
}  // namespace dsv4

// The shared operator test on the reference: one thread against all.
#include "ops/testing/op_contract.h"

int main(int argc, char** argv) {
  return dsv4::run_op_contract(argc, argv, "reference", [] { return dsv4::make_reference_device(1); });
}

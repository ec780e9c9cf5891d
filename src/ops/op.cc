#include "ops/op.h"

namespace dsv4 {

Status check_present(const char* op, const char* name, const void* p) {
  if (p != nullptr) return ok_status();
  return invalid_argument(std::string(op) + ": " + name + " is missing");
}

}  // namespace dsv4

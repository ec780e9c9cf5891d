#include "tensor/view.h"

namespace dsv4 {

Status check_shape(const char* op, const char* name, int64_t rows, int64_t cols, int64_t want_rows, int64_t want_cols) {
  if (rows == want_rows && cols == want_cols) return ok_status();
  return invalid_argument(std::string(op) + ": " + name + " is [" + std::to_string(rows) + ", " + std::to_string(cols) + "], expected [" +
                          std::to_string(want_rows) + ", " + std::to_string(want_cols) + "]");
}

Status check_size(const char* op, const char* name, int64_t size, int64_t want) {
  if (size == want) return ok_status();
  return invalid_argument(std::string(op) + ": " + name + " has " + std::to_string(size) + " elements, expected " + std::to_string(want));
}

}  // namespace dsv4

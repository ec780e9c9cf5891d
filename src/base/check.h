// DSV4_CHECK: for our own bugs only. A request or a file must never be able to reach one.
#pragma once

namespace dsv4 {

// Writes "FILE:LINE: check failed: CONDITION: MESSAGE" to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* message);

}  // namespace dsv4

#define DSV4_CHECK(condition, message)                                               \
  do {                                                                               \
    if (!(condition)) ::dsv4::check_failed(__FILE__, __LINE__, #condition, message); \
  } while (false)

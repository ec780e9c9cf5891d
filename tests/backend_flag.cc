#include "backend_flag.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string_view>

namespace dsv4 {
namespace {

std::string& backend() {
  static std::string name = "cpu";
  return name;
}

}  // namespace

const std::string& tested_backend() { return backend(); }

}  // namespace dsv4

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);  // takes its own flags out
  constexpr std::string_view kFlag = "--backend=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag.substr(0, kFlag.size()) != kFlag) {
      std::fprintf(stderr, "%s: unknown flag %s; --backend=NAME and GoogleTest's exist\n", argv[0], argv[i]);
      return 2;
    }
    dsv4::backend() = flag.substr(kFlag.size());
  }
  return RUN_ALL_TESTS();
}

// How this program was built: written by cmake/build_info.cmake at each build.
#pragma once

namespace dsv4 {

struct BuildInfo {
  const char* commit;      // full hash, or "unknown" outside a repository
  bool dirty;              // tracked files differed from the commit
  const char* compiler;    // "GNU 12.2.0"
  const char* flags;       // of C++ for this build type
  const char* build_type;  // "Release", "RelWithDebInfo"
  const char* version;     // of the project
};

const BuildInfo& build_info();

}  // namespace dsv4

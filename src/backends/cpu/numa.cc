#include "backends/cpu/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

namespace dsv4 {
namespace {

constexpr int kMaxNodes = 64;  // bits of one node mask

bool node_exists(int node) {
  std::error_code ignored;
  return node == 0 || std::filesystem::exists("/sys/devices/system/node/node" + std::to_string(node), ignored);
}

}  // namespace

Status set_numa_policy(const std::string& policy) {
  if (policy.empty()) return ok_status();
  int mode = MPOL_INTERLEAVE;
  unsigned long nodes = 0;
  if (policy == "interleave") {
    for (int node = 0; node < kMaxNodes; ++node) nodes |= static_cast<unsigned long>(node_exists(node)) << node;
  } else {
    int node = -1;
    const auto [end, error] = std::from_chars(policy.data(), policy.data() + policy.size(), node);
    if (error != std::errc() || end != policy.data() + policy.size() || node < 0) {
      return invalid_argument("numa policy '" + policy + "' is unknown; interleave and a node's number exist");
    }
    if (node >= kMaxNodes || !node_exists(node)) return invalid_argument("numa policy: this machine has no node " + policy);
    mode = MPOL_BIND;
    nodes = 1ul << node;
  }
  // The kernel reads maxnode - 1 bits.
  if (syscall(SYS_set_mempolicy, mode, &nodes, kMaxNodes + 1) == 0) return ok_status();
  return unsupported("numa policy '" + policy + "': the kernel refuses set_mempolicy: " + std::strerror(errno));
}

}  // namespace dsv4

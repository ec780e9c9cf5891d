#include "backends/cpu/cpu_isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <cstring>

#include "backends/cpu/dispatch.h"

namespace dsv4 {
namespace {

int64_t target_bit(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kScalar: return HWY_STATIC_TARGET;
    case CpuIsa::kAvx2: return HWY_AVX2;
    case CpuIsa::kAvx512: return HWY_AVX3;
  }
  return 0;
}

}  // namespace

const char* cpu_isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kScalar: return "scalar";
    case CpuIsa::kAvx2: return "avx2";
    case CpuIsa::kAvx512: return "avx512";
  }
  return "?";
}

bool cpu_isa_available(CpuIsa isa) {
  if (isa == CpuIsa::kScalar) return true;
  return (target_bit(isa) & HWY_TARGETS & hwy::SupportedTargets()) != 0;
}

size_t dispatch_index(CpuIsa isa) {
  hwy::ChosenTarget chosen;  // a local one: the process-wide choice of the library is left alone
  chosen.Update(target_bit(isa));
  return chosen.GetIndex();
}

Result<CpuIsa> choose_cpu_isa(const std::string& forced) {
  if (forced.empty()) {
    for (const CpuIsa isa : {CpuIsa::kAvx512, CpuIsa::kAvx2}) {
      if (cpu_isa_available(isa)) return isa;
    }
    return CpuIsa::kScalar;
  }
  for (const CpuIsa isa : kAllCpuIsas) {
    if (forced != cpu_isa_name(isa)) continue;
    if (!cpu_isa_available(isa)) return unsupported("isa: this machine has no " + forced);
    return isa;
  }
  return invalid_argument("isa: '" + forced + "' is unknown; scalar, avx2 and avx512 exist");
}

std::string cpu_model_name() {
#if defined(__x86_64__)
  std::array<unsigned, 12> words{};
  unsigned highest = 0, unused = 0;
  if (__get_cpuid(0x80000000u, &highest, &unused, &unused, &unused) != 0 && highest >= 0x80000004u) {
    for (unsigned i = 0; i < 3; ++i) __get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]);
    char text[49] = {};
    std::memcpy(text, words.data(), 48);
    std::string name = text;
    while (!name.empty() && name.back() == ' ') name.pop_back();
    if (const size_t first = name.find_first_not_of(' '); first != std::string::npos) return name.substr(first);
  }
#endif
  return "unknown CPU";
}

}  // namespace dsv4

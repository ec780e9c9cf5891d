#include "model/arithmetic.h"

namespace dsv4 {

const char* arithmetic_name(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kQat: return "qat";
    case Arithmetic::kW8A16: return "w8a16";
    case Arithmetic::kEmulation: return "emulation";
    case Arithmetic::kExact: return "exact";
  }
  return "";
}

std::optional<Arithmetic> arithmetic_named(std::string_view name) {
  if (name == "w8a8") return Arithmetic::kQat;
  for (const Arithmetic a : {Arithmetic::kQat, Arithmetic::kW8A16, Arithmetic::kEmulation, Arithmetic::kExact}) {
    if (name == arithmetic_name(a)) return a;
  }
  return std::nullopt;
}

ActivationRounding activation_rounding(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kQat:
    case Arithmetic::kEmulation: return ActivationRounding::kE4M3;
    case Arithmetic::kW8A16: return ActivationRounding::kBF16;
    case Arithmetic::kExact: break;
  }
  return ActivationRounding::kNone;
}

}  // namespace dsv4

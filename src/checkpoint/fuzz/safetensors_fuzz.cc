// libFuzzer: any bytes as a safetensors file. Corpus: tests/fuzz/safetensors.
#include "checkpoint/fuzz/properties.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dsv4::check_safetensors_bytes(data, size);
  return 0;
}

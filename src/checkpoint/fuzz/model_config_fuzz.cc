// libFuzzer: any bytes as a config.json. Corpus: tests/fuzz/model_config.
#include "checkpoint/fuzz/properties.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dsv4::check_model_config_bytes(data, size);
  return 0;
}

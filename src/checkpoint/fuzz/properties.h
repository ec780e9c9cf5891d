// What must hold of any bytes at all; shared by the fuzz programs and by the test that replays their corpora. A violation aborts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv4 {

// As a safetensors file: no fault told means that the tensors tile the data exactly.
void check_safetensors_bytes(const uint8_t* data, size_t size);

// As config.json: no fault told means that the text form parses back to the same and every tensor's size can be computed.
void check_model_config_bytes(const uint8_t* data, size_t size);

}  // namespace dsv4

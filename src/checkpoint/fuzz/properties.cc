#include "checkpoint/fuzz/properties.h"

#include <string>

#include "base/check.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"

namespace dsv4 {

void check_safetensors_bytes(const uint8_t* data, size_t size) {
  FaultList faults;
  const SafetensorsHeader header = parse_safetensors({reinterpret_cast<const std::byte*>(data), size}, "x.safetensors", &faults);
  for (const std::string& line : faults.lines()) DSV4_CHECK(line.find('\n') == std::string::npos, "a fault is one line");
  if (!faults.empty()) return;
  int64_t position = header.data_begin;
  for (const SafetensorsTensor& t : header.tensors) {
    int64_t want = 0;
    DSV4_CHECK(tensor_size_bytes(t.dtype, t.shape, &want) && want == t.size_bytes, "a tensor has the bytes of its shape");
    DSV4_CHECK(t.file_offset == position, "tensors follow each other");
    position += t.size_bytes;
  }
  DSV4_CHECK(position == static_cast<int64_t>(size), "the last tensor ends the file");
}

void check_model_config_bytes(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  FaultList faults;
  std::vector<std::string> unsupported;
  const ModelConfig config = read_model_config(text, "config.json", &faults, &unsupported);
  for (const std::string& line : faults.lines()) DSV4_CHECK(line.find('\n') == std::string::npos, "a fault is one line");
  if (!faults.empty()) return;
  const std::string written = model_config_to_json(config);
  FaultList none;
  const ModelConfig again = read_model_config(written, "again", &none, &unsupported);
  DSV4_CHECK(none.empty(), "the text form of a valid configuration is valid");
  DSV4_CHECK(model_config_to_json(again) == written, "the text form parses back to the same");
  if (config.num_layers * config.num_experts > 4096) return;  // the table would take seconds
  for (const ExpectedTensor& t : expected_tensors(config)) {
    int64_t bytes = 0;
    DSV4_CHECK(tensor_size_bytes(t.dtype, t.shape, &bytes) && bytes > 0, "every tensor of a valid configuration has a size");
  }
}

}  // namespace dsv4

// Fuzzes tokenizer.json (any bytes: a Tokenizer or an error, never a crash) and encoding: text that encodes decodes to itself.
#include <cstdlib>

#include "text/tokenizer.h"

namespace {

void check_round_trip(const dsv4::Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse_special : {true, false}) {
    const auto ids = tokenizer.encode(text, {.parse_special = parse_special});
    if (!ids.ok()) continue;  // invalid UTF-8, or a pattern that gave up
    const auto decoded = tokenizer.decode(*ids);
    if (!decoded.ok() || *decoded != text) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  static const dsv4::Result<dsv4::Tokenizer> tiny = dsv4::Tokenizer::load("models/dsv4-tiny/tokenizer.json");
  if (!tiny.ok()) std::abort();  // run from the source root
  check_round_trip(*tiny, input);
  const auto tokenizer = dsv4::Tokenizer::from_json(input, "fuzz");
  if (tokenizer.ok()) {
    check_round_trip(*tokenizer, input.substr(0, 2000));
    check_round_trip(*tokenizer, "abc ab<s>c  123\n\t你好 don't");
  }
  return 0;
}

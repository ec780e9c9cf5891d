// Fuzzes schemas as grammars. The input is a schema, a zero byte, and choices. Checked: nothing crashes or runs away; a text that is
// put together by the grammar, the choices picking among the bytes it allows, is JSON once the grammar calls it whole, and never runs
// into a dead end.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "engine/constraint/automaton.h"
#include "engine/constraint/json_schema.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsv4;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(input.find('\0'), input.size());
  const auto schema = read_json(input.substr(0, cut), "schema");
  if (!schema.ok()) return 0;
  auto grammar = std::make_shared<Grammar>();
  const auto root = JsonSchemaGrammar(*grammar, *schema).json();
  if (!root.ok() || !grammar->check(*root).ok()) return 0;
  Automaton automaton(grammar, *root);
  if (automaton.exhausted()) return 0;
  automaton.set_budget(2000000);
  int32_t state = automaton.start();
  std::string text;
  for (size_t i = cut + 1; i < input.size(); ++i) {
    std::string allowed;
    for (int b = 0; b < 256; ++b) {
      if (automaton.step(state, static_cast<unsigned char>(b)) >= 0) allowed += static_cast<char>(b);
    }
    if (automaton.exhausted()) return 0;
    if (automaton.accepts(state) && !read_json(text, "text", {.repeated_members = true}).ok()) std::abort();
    if (allowed.empty()) {
      if (!automaton.accepts(state)) std::abort();
      return 0;
    }
    text += allowed[static_cast<unsigned char>(input[i]) % allowed.size()];
    state = automaton.step(state, static_cast<unsigned char>(text.back()));
  }
  return 0;
}

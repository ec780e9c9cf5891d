// A model's tool calls as a grammar: the markup of a call, its arguments by their schema.
#pragma once

#include <string>
#include <vector>

#include "engine/constraint/grammar.h"
#include "text/chat_markup.h"
#include "text/json_value.h"

namespace dsv4 {

struct CallableTool {
  std::string name;
  const JsonValue* parameters = nullptr;  // JSON schema of the arguments; null or JSON null = none
};

// One call or more (one only unless `several`), each of one of `tools`. Errors as those of JsonSchemaGrammar, with the tool's name before them.
Result<GrammarNode> tool_calls_grammar(Grammar& g, const std::vector<CallableTool>& tools, bool several, const ChatMarkup& markup);

}  // namespace dsv4

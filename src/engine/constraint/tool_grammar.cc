#include "engine/constraint/tool_grammar.h"

#include <fmt/format.h>

#include "engine/constraint/json_schema.h"

namespace dsv4 {
namespace {

// PARAMETER*: <DSMLparameter name="KEY" string="true">RAW</DSMLparameter>\n, or string="false" and JSON.
class ParametersGrammar {
 public:
  ParametersGrammar(Grammar& g, const JsonValue& schema, const ChatMarkup& markup)
      : g_(g), schema_(schema), open_("<" + markup.dsml + "parameter name=\""), close_("</" + markup.dsml + "parameter>"), json_(g, schema) {}

  Result<GrammarNode> make() {
    DSV4_ASSIGN_OR_RETURN(const JsonValue* object, json_.resolve(schema_, "#"));
    if (const JsonValue* type = object->find("type"); type != nullptr && type->text != "object") return unsupported("#: the arguments' type must be object");
    for (const char* keyword : {"anyOf", "oneOf", "allOf", "enum", "const"}) {
      if (object->find(keyword) != nullptr) return unsupported(fmt::format("#/{}: cannot be enforced for arguments", keyword));
    }
    DSV4_ASSIGN_OR_RETURN(const auto shape, json_.shape_of(*object, "#"));
    std::vector<GrammarNode> parts;
    for (const auto& p : shape.properties) {
      if (p.name.find_first_of("\"<>\n") != std::string::npos)
        return unsupported(fmt::format("#/properties/{}: a name with quotes, brackets or line ends cannot be written", p.name));
      DSV4_ASSIGN_OR_RETURN(const GrammarNode value, value_of(p.schema, "#/properties/" + p.name));
      const GrammarNode one = g_.sequence({g_.literal(open_ + p.name), value});
      parts.push_back(p.required ? one : g_.optional(one));
    }
    if (shape.more) {
      // Plain names, none of the known ones.
      std::vector<std::string> known;
      for (const auto& p : shape.properties) known.push_back(p.name);
      DSV4_ASSIGN_OR_RETURN(const GrammarNode value, value_of(shape.more_schema, "#/additionalProperties"));
      parts.push_back(g_.repeat(g_.sequence({g_.literal(open_), other_name(known), value}), 0));
    }
    return g_.sequence(std::move(parts));
  }

 private:
  // From the quote behind the name to the line's end.
  Result<GrammarNode> value_of(const JsonValue* schema, const std::string& where) {
    static const JsonValue anything{JsonKind::kTrue, {}, {}, {}};
    const std::string end = close_ + "\n";
    DSV4_ASSIGN_OR_RETURN(const auto split, json_.split(schema == nullptr ? anything : *schema, where, close_));
    std::vector<GrammarNode> options;
    if (split.raw) options.push_back(g_.sequence({g_.literal("\" string=\"true\">"), *split.raw, g_.literal("\n")}));
    if (split.json) options.push_back(g_.sequence({g_.literal("\" string=\"false\">"), *split.json, g_.literal(end)}));
    return g_.choice(std::move(options));
  }

  // A word of letters, digits and _ that is none of `known`: longer than the longest of them, or beginning otherwise.
  GrammarNode other_name(const std::vector<std::string>& known) {
    const Grammar::CodePoints letters = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    Grammar::CodePoints taken;
    for (const std::string& name : known) {
      const auto first = static_cast<unsigned char>(name.empty() ? 0 : name[0]);
      if (first < 0x80) taken.push_back({first, first});
    }
    const Grammar::CodePoints first = intersect(letters, complement(taken));
    size_t longest = 0;
    for (const std::string& name : known) longest = std::max(longest, name.size());
    const GrammarNode letter = g_.code_point(letters);
    std::vector<GrammarNode> options = {g_.repeat(letter, static_cast<int32_t>(longest) + 1, static_cast<int32_t>(longest) + 64)};
    if (!first.empty()) options.push_back(g_.sequence({g_.code_point(first), g_.repeat(letter, 0, 63)}));
    return g_.choice(std::move(options));
  }

  Grammar& g_;
  const JsonValue& schema_;
  const std::string open_, close_;
  JsonSchemaGrammar json_;
};

}  // namespace

Result<GrammarNode> tool_calls_grammar(Grammar& g, const std::vector<CallableTool>& tools, bool several, const ChatMarkup& markup) {
  std::vector<GrammarNode> calls;
  for (const CallableTool& tool : tools) {
    std::vector<GrammarNode> parts = {g.literal(fmt::format("<{}invoke name=\"{}\">\n", markup.dsml, tool.name))};
    if (tool.parameters != nullptr && !tool.parameters->is(JsonKind::kNull)) {
      auto parameters = ParametersGrammar(g, *tool.parameters, markup).make();
      if (!parameters.ok()) return parameters.status().with_context(tool.name);
      parts.push_back(*parameters);
    }
    parts.push_back(g.literal(fmt::format("</{}invoke>\n", markup.dsml)));
    calls.push_back(g.sequence(std::move(parts)));
  }
  const GrammarNode call = g.choice(std::move(calls));
  return g.sequence({g.literal(fmt::format("\n\n<{}{}>\n", markup.dsml, markup.tool_calls_block_name)), several ? g.repeat(call, 1) : call,
                     g.literal(fmt::format("</{}{}>", markup.dsml, markup.tool_calls_block_name))});
}

}  // namespace dsv4

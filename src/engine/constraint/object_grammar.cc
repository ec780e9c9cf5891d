// Objects of a JSON schema: members in the order of "properties", optional ones left out or not, then others if they may be.
#include <algorithm>

#include <fmt/format.h>

#include "engine/constraint/json_schema.h"
#include "text/python_json.h"

namespace dsv4 {
namespace {

Status cannot(const std::string& where, const std::string& rule) { return unsupported(fmt::format("{}: {}", where, rule)); }
Status wrong(const std::string& where, const std::string& rule) { return invalid_argument(fmt::format("{}: {}", where, rule)); }

}  // namespace

Result<JsonSchemaGrammar::ObjectShape> JsonSchemaGrammar::shape_of(const JsonValue& schema, const std::string& where) {
  ObjectShape out;
  const JsonValue* properties = schema.find("properties");
  if (properties != nullptr && !properties->is(JsonKind::kObject)) return wrong(where + "/properties", "must be an object");
  if (properties != nullptr) {
    for (size_t i = 0; i < properties->items.size(); ++i) out.properties.push_back({properties->names[i], &properties->items[i], false});
  }
  if (const JsonValue* unevaluated = schema.find("unevaluatedProperties"); unevaluated != nullptr && !unevaluated->is(JsonKind::kFalse)) {
    return cannot(where + "/unevaluatedProperties", "only false can be enforced");
  }
  const JsonValue* more = schema.find("additionalProperties");
  if (more != nullptr && !more->is_bool() && !more->is(JsonKind::kObject)) return wrong(where + "/additionalProperties", "must be a schema");
  // An object that says nothing about its members may have any; one that names some has those alone.
  out.more = more != nullptr ? !more->is(JsonKind::kFalse) : properties == nullptr;
  if (more != nullptr && more->is(JsonKind::kObject)) out.more_schema = more;

  if (const JsonValue* required = schema.find("required")) {
    if (!required->is(JsonKind::kArray)) return wrong(where + "/required", "must be an array of names");
    for (const JsonValue& name : required->items) {
      if (!name.is(JsonKind::kString)) return wrong(where + "/required", "must be an array of names");
      const auto found = std::find_if(out.properties.begin(), out.properties.end(), [&](const Property& p) { return p.name == name.text; });
      if (found != out.properties.end()) {
        found->required = true;
      } else if (out.more) {
        out.properties.push_back({name.text, out.more_schema, true});
      } else {
        return wrong(where + "/required", "\"" + name.text + "\" is none of the properties, and no others may be");
      }
    }
  }
  return out;
}

Result<GrammarNode> JsonSchemaGrammar::object(const JsonValue& schema, const std::string& where) {
  DSV4_ASSIGN_OR_RETURN(const ObjectShape shape, shape_of(schema, where));
  if (shape.properties.empty() && shape.more && shape.more_schema == nullptr) return any_object();

  const auto value_of = [&](const JsonValue* s, const std::string& place) -> Result<std::optional<GrammarNode>> {
    if (s == nullptr) return std::optional<GrammarNode>(any_value());
    return build(*s, place, Form::kJson);
  };
  const GrammarNode comma = g_.sequence({g_.literal(","), space()});
  const auto after_comma = [&](bool preceded, GrammarNode member) { return preceded ? g_.sequence({comma, member}) : member; };

  // rest[p]: what may follow, given that a member stands before (p = 1) or none does (p = 0). From the back.
  GrammarNode rest[2] = {g_.literal(""), g_.literal("")};
  if (shape.more) {
    std::vector<std::string> names;
    for (const Property& p : shape.properties) names.push_back(p.name);
    DSV4_ASSIGN_OR_RETURN(const auto v, value_of(shape.more_schema, where + "/additionalProperties"));
    if (v) {
      const GrammarNode name = names.empty() ? string_of_any() : g_.sequence({g_.literal("\""), json_text_except(g_, names), g_.literal("\"")});
      const GrammarNode member = g_.sequence({name, g_.literal(":"), space(), *v});
      rest[1] = g_.repeat(g_.sequence({comma, member}), 0);
      rest[0] = g_.optional(g_.sequence({member, rest[1]}));
    }
  }
  for (size_t i = shape.properties.size(); i-- > 0;) {
    const Property& p = shape.properties[i];
    DSV4_ASSIGN_OR_RETURN(const auto v, value_of(p.schema, where + "/properties/" + p.name));
    if (!v && p.required) return wrong(where + "/properties/" + p.name, "no value satisfies this schema");
    if (!v) continue;
    const GrammarNode member = g_.sequence({g_.literal(python_json_string(p.name) + ":"), space(), *v});
    GrammarNode next[2];
    for (const bool preceded : {false, true}) {
      const GrammarNode with = g_.sequence({after_comma(preceded, member), rest[1]});
      next[preceded] = p.required ? with : g_.choice({with, rest[preceded]});
    }
    rest[0] = next[0];
    rest[1] = next[1];
  }
  return g_.sequence({g_.literal("{"), space(), rest[0], space(), g_.literal("}")});
}

}  // namespace dsv4

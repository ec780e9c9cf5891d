// JSON schema as a grammar: every text of the grammar is JSON that the schema accepts. What a grammar cannot enforce is refused, never
// ignored; docs/api.md lists the keywords.
//
// The grammar is narrower than the schema where that costs nothing: members stand in the order of "properties"; without
// "additionalProperties" there are no others; blank space is at most one blank or one line end with indentation; numbers have at most
// 18 digits; JSON that no schema describes nests at most 24 deep.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/constraint/grammar.h"
#include "engine/constraint/text_grammar.h"
#include "text/json_value.h"

namespace dsv4 {

class JsonSchemaGrammar {
 public:
  // `root` is what "$ref" looks into. Both must outlive this object.
  JsonSchemaGrammar(Grammar& grammar, const JsonValue& root) : g_(grammar), root_(root) {}

  // Any JSON text of the schema. Errors (kUnsupported, kInvalidArgument) name the place, as in "#/properties/age/multipleOf", and the rule.
  Result<GrammarNode> json() { return value(root_, "#", true); }

  // A schema split for text formats that write strings raw: its non-string JSON texts, and its strings as raw text that does not hold
  // `end`, followed by `end`. Either may be empty.
  struct Split {
    std::optional<GrammarNode> json;
    std::optional<GrammarNode> raw;
  };
  Result<Split> split(const JsonValue& schema, const std::string& where, const std::string& end);

  GrammarNode any_value();  // JSON of any kind
  GrammarNode any_object();
  GrammarNode string_of_any();  // with its quotes
  GrammarNode space();          // optional blank space

  // The properties of an object schema, in order, with "$ref" followed.
  struct Property {
    std::string name;
    const JsonValue* schema = nullptr;
    bool required = false;
  };
  struct ObjectShape {
    std::vector<Property> properties;
    bool more = false;                       // others may follow
    const JsonValue* more_schema = nullptr;  // null: of any kind
  };
  Result<ObjectShape> shape_of(const JsonValue& schema, const std::string& where);
  // Follows "$ref" until there is none.
  Result<const JsonValue*> resolve(const JsonValue& schema, const std::string& where);

 private:
  enum class Form { kJson, kJsonNoString, kRaw };

  Result<GrammarNode> value(const JsonValue& schema, const std::string& where, bool strings);
  Result<std::optional<GrammarNode>> build(const JsonValue& schema, const std::string& where, Form form);
  Result<std::optional<GrammarNode>> build_type(const JsonValue& schema, const std::string& type, const std::string& where, Form form);
  Result<std::optional<GrammarNode>> build_choices(const JsonValue& options, const std::string& where, Form form);
  std::optional<GrammarNode> fixed_value(const JsonValue& value, Form form);
  Result<GrammarNode> object(const JsonValue& schema, const std::string& where);
  Result<GrammarNode> array(const JsonValue& schema, const std::string& where);
  Result<GrammarNode> string(const JsonValue& schema, const std::string& where, TextForm form);
  Result<std::optional<GrammarNode>> number(const JsonValue& schema, const std::string& where, bool integer);
  Result<const JsonValue*> find_ref(const std::string& ref, const std::string& where);
  Status check_disjoint(const JsonValue& options, const std::string& where);
  Result<std::vector<std::string>> types_of(const JsonValue& schema, const std::string& where);
  GrammarNode any_value(int depth);

  Grammar& g_;
  const JsonValue& root_;
  std::map<int, GrammarNode> any_;  // by depth
  std::optional<GrammarNode> space_, any_string_;
  std::map<std::pair<const JsonValue*, Form>, std::optional<GrammarNode>> refs_;  // rules of schemas that "$ref" names
  std::string raw_end_;                                                           // of the split at hand
  int depth_ = 0;
};

}  // namespace dsv4

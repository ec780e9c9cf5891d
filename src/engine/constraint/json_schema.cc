#include "engine/constraint/json_schema.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "engine/constraint/number_grammar.h"
#include "text/python_json.h"

namespace dsv4 {
namespace {

constexpr int kAnyDepth = 24;
constexpr int kMaxSchemaDepth = 100;
constexpr int64_t kMaxCount = 10000;  // minLength, maxItems, ...: each count is a state

const std::set<std::string, std::less<>> kAnnotations = {
    "title",      "description", "default",   "examples",        "$schema",          "$id",      "$comment", "$defs", "definitions",
    "deprecated", "readOnly",    "writeOnly", "contentEncoding", "contentMediaType", "nullable", "strict"};
const std::map<std::string, std::set<std::string, std::less<>>, std::less<>> kTypeKeywords = {
    {"object", {"properties", "required", "additionalProperties", "unevaluatedProperties"}},
    {"array", {"items", "prefixItems", "minItems", "maxItems"}},
    {"string", {"minLength", "maxLength", "pattern", "format"}},
    {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
};

// Formats that are enforced, as patterns; others are annotations.
const std::map<std::string, const char*, std::less<>> kFormats = {
    {"date", "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$"},  // days that every month has
    {"time", "^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"},
    {"date-time",
     "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"},
    {"duration", "^P([0-9]{1,6}W|[0-9]{1,6}D|[0-9]{1,6}DT[0-9]{1,6}[HMS]|T[0-9]{1,6}[HMS])$"},
    {"email",
     "^[A-Za-z0-9_%+-]{1,32}(\\.[A-Za-z0-9_%+-]{1,32}){0,3}@[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?){1,3}$"},
    {"hostname", "^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?){0,3}$"},
    {"ipv4", "^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])$"},
    {"ipv6", "^([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}$"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
};

std::string type_of(const JsonValue& v) {
  switch (v.kind) {
    case JsonKind::kNull: return "null";
    case JsonKind::kFalse:
    case JsonKind::kTrue: return "boolean";
    case JsonKind::kNumber: return v.text.find_first_of(".eE") == std::string::npos ? "integer" : "number";
    case JsonKind::kString: return "string";
    case JsonKind::kArray: return "array";
    case JsonKind::kObject: return "object";
  }
  return "?";
}

bool has_type(const std::vector<std::string>& types, const JsonValue& v) {
  const std::string type = type_of(v);
  return std::any_of(types.begin(), types.end(), [&](const std::string& t) { return t == type || (t == "number" && type == "integer"); });
}

Status cannot(const std::string& where, const std::string& rule) { return unsupported(fmt::format("{}: {}", where, rule)); }
Status wrong(const std::string& where, const std::string& rule) { return invalid_argument(fmt::format("{}: {}", where, rule)); }

// A count keyword: absent, or an integer from 0 to the limit.
Result<std::optional<int32_t>> count_of(const JsonValue& schema, const char* name, const std::string& where) {
  const JsonValue* v = schema.find(name);
  if (v == nullptr) return std::optional<int32_t>();
  const auto bound = v->is(JsonKind::kNumber) ? read_bound(v->text, false) : std::nullopt;
  if (!bound || bound->negative || !bound->fraction.empty()) return wrong(where + "/" + name, "must be a count");
  const int64_t n = std::stoll(bound->whole);
  if (n > kMaxCount) return cannot(where + "/" + name, fmt::format("counts above {} cannot be enforced", kMaxCount));
  return std::optional<int32_t>(static_cast<int32_t>(n));
}

}  // namespace

GrammarNode JsonSchemaGrammar::space() {
  if (!space_) {
    ByteSet indent;
    indent.set(' ');
    indent.set('\t');
    space_ = g_.optional(g_.choice({g_.literal(" "), g_.sequence({g_.literal("\n"), g_.repeat(g_.bytes(indent), 0, 40)})}));
  }
  return *space_;
}

GrammarNode JsonSchemaGrammar::string_of_any() {
  if (!any_string_) any_string_ = g_.sequence({g_.literal("\""), g_.repeat(character(g_, TextForm::kJson, any_code_point()), 0), g_.literal("\"")});
  return *any_string_;
}

GrammarNode JsonSchemaGrammar::any_value() { return any_value(kAnyDepth); }

GrammarNode JsonSchemaGrammar::any_value(int depth) {
  if (const auto known = any_.find(depth); known != any_.end()) return known->second;
  std::vector<GrammarNode> options = {string_of_any(), *number_grammar(g_, {}), g_.literal("true"), g_.literal("false"), g_.literal("null")};
  if (depth > 0) {
    const GrammarNode inner = any_value(depth - 1);
    const GrammarNode comma = g_.sequence({g_.literal(","), space()});
    const GrammarNode pair = g_.sequence({string_of_any(), g_.literal(":"), space(), inner});
    const auto list = [&](const char* open, GrammarNode item, const char* close) {
      return g_.sequence({g_.literal(open), space(), g_.optional(g_.sequence({item, g_.repeat(g_.sequence({comma, item}), 0), space()})), g_.literal(close)});
    };
    options.push_back(list("[", inner, "]"));
    options.push_back(list("{", pair, "}"));
  }
  return any_.emplace(depth, g_.choice(std::move(options))).first->second;
}

GrammarNode JsonSchemaGrammar::any_object() {
  const GrammarNode pair = g_.sequence({string_of_any(), g_.literal(":"), space(), any_value(kAnyDepth - 1)});
  const GrammarNode comma = g_.sequence({g_.literal(","), space()});
  return g_.sequence({g_.literal("{"), space(), g_.optional(g_.sequence({pair, g_.repeat(g_.sequence({comma, pair}), 0), space()})), g_.literal("}")});
}

Result<GrammarNode> JsonSchemaGrammar::value(const JsonValue& schema, const std::string& where, bool strings) {
  DSV4_ASSIGN_OR_RETURN(const auto made, build(schema, where, strings ? Form::kJson : Form::kJsonNoString));
  if (!made) return wrong(where, "no value satisfies this schema");
  return *made;
}

Result<JsonSchemaGrammar::Split> JsonSchemaGrammar::split(const JsonValue& schema, const std::string& where, const std::string& end) {
  Split out;
  raw_end_ = end;
  DSV4_ASSIGN_OR_RETURN(out.json, build(schema, where, Form::kJsonNoString));
  DSV4_ASSIGN_OR_RETURN(out.raw, build(schema, where, Form::kRaw));
  if (!out.json && !out.raw) return wrong(where, "no value satisfies this schema");
  return out;
}

Result<const JsonValue*> JsonSchemaGrammar::find_ref(const std::string& ref, const std::string& where) {
  if (ref.empty() || ref[0] != '#') return cannot(where + "/$ref", "\"" + ref + "\" lies outside this schema");
  const JsonValue* at = &root_;
  for (size_t i = 1; i < ref.size();) {
    if (ref[i] != '/') return cannot(where + "/$ref", "\"" + ref + "\" is no JSON pointer");
    const size_t end = std::min(ref.find('/', i + 1), ref.size());
    std::string name;
    for (size_t c = i + 1; c < end; ++c) {
      if (ref[c] == '~' && c + 1 < end) {
        name += ref[++c] == '1' ? '/' : '~';
      } else {
        name += ref[c];
      }
    }
    const JsonValue* next = at->find(name);
    if (next == nullptr && at->is(JsonKind::kArray) && !name.empty() && name.size() < 6 && name.find_first_not_of("0123456789") == std::string::npos) {
      const size_t index = std::stoul(name);
      if (index < at->items.size()) next = &at->items[index];
    }
    if (next == nullptr) return wrong(where + "/$ref", "\"" + ref + "\" is not in this schema");
    at = next;
    i = end;
  }
  return at;
}

Result<const JsonValue*> JsonSchemaGrammar::resolve(const JsonValue& schema, const std::string& where) {
  const JsonValue* at = &schema;
  for (int hops = 0; hops < 50; ++hops) {
    const JsonValue* ref = at->find("$ref");
    if (ref == nullptr) return at;
    if (!ref->is(JsonKind::kString)) return wrong(where + "/$ref", "must be a string");
    DSV4_ASSIGN_OR_RETURN(at, find_ref(ref->text, where));
  }
  return cannot(where, "$ref leads in a circle");
}

Result<std::vector<std::string>> JsonSchemaGrammar::types_of(const JsonValue& schema, const std::string& where) {
  std::vector<std::string> types;
  if (const JsonValue* type = schema.find("type")) {
    if (type->is(JsonKind::kString)) {
      types.push_back(type->text);
    } else if (type->is(JsonKind::kArray) && !type->items.empty()) {
      for (const JsonValue& t : type->items) types.push_back(t.text);
    } else {
      return wrong(where + "/type", "must be a type or an array of types");
    }
    for (const std::string& t : types) {
      if (t != "null" && t != "boolean" && t != "integer" && t != "number" && t != "string" && t != "array" && t != "object")
        return wrong(where + "/type", "\"" + t + "\" is no type");
    }
  } else {
    for (const std::string& name : schema.names) {  // keywords of one type mean that type
      for (const auto& [t, keywords] : kTypeKeywords) {
        if (keywords.count(name) != 0 && std::find(types.begin(), types.end(), t) == types.end()) types.push_back(t);
      }
    }
  }
  const JsonValue* nullable = schema.find("nullable");
  if (nullable != nullptr && nullable->is(JsonKind::kTrue) && !types.empty() && std::find(types.begin(), types.end(), "null") == types.end())
    types.push_back("null");
  return types;
}

std::optional<GrammarNode> JsonSchemaGrammar::fixed_value(const JsonValue& value, Form form) {
  const bool is_string = value.is(JsonKind::kString);
  if (form == Form::kRaw) {
    if (!is_string || value.text.find(raw_end_) != std::string::npos) return std::nullopt;
    return g_.literal(value.text + raw_end_);
  }
  if (form == Form::kJsonNoString && is_string) return std::nullopt;
  return g_.literal(to_python_json(value));
}

Result<std::optional<GrammarNode>> JsonSchemaGrammar::build_choices(const JsonValue& options, const std::string& where, Form form) {
  if (!options.is(JsonKind::kArray) || options.items.empty()) return wrong(where, "must be an array of schemas");
  std::vector<GrammarNode> nodes;
  for (size_t i = 0; i < options.items.size(); ++i) {
    DSV4_ASSIGN_OR_RETURN(const auto node, build(options.items[i], fmt::format("{}/{}", where, i), form));
    if (node) nodes.push_back(*node);
  }
  if (nodes.empty()) return std::optional<GrammarNode>();
  return std::optional<GrammarNode>(g_.choice(std::move(nodes)));
}

Result<std::optional<GrammarNode>> JsonSchemaGrammar::build(const JsonValue& schema, const std::string& where, Form form) {
  const std::optional<GrammarNode> nothing;
  if (schema.is(JsonKind::kFalse)) return nothing;
  if (!schema.is(JsonKind::kObject) && !schema.is(JsonKind::kTrue)) return wrong(where, "a schema must be an object or a boolean, it is " + schema.kind_name());
  if (depth_ >= kMaxSchemaDepth) return cannot(where, "the schema is nested too deep");
  struct Depth {
    explicit Depth(int& d) : depth(d) { ++depth; }
    ~Depth() { --depth; }
    int& depth;
  } deeper(depth_);

  // Keywords that say it all; beside them only annotations may stand.
  for (const char* whole : {"$ref", "enum", "const", "anyOf", "oneOf", "allOf"}) {
    const JsonValue* v = schema.find(whole);
    if (v == nullptr) continue;
    const std::string name = whole, place = where + "/" + name;
    const bool with_type = name == "enum" || name == "const" || name == "anyOf";
    for (const std::string& other : schema.names) {
      if (other != name && kAnnotations.count(other) == 0 && !(with_type && other == "type"))
        return cannot(place, "beside it, \"" + other + "\" cannot be enforced");
    }
    DSV4_ASSIGN_OR_RETURN(const std::vector<std::string> types, types_of(schema, where));
    if (name == "$ref") {
      if (!v->is(JsonKind::kString)) return wrong(place, "must be a string");
      DSV4_ASSIGN_OR_RETURN(const JsonValue* target, find_ref(v->text, where));
      const auto key = std::make_pair(target, form);
      if (const auto known = refs_.find(key); known != refs_.end()) return known->second;
      const GrammarNode rule = g_.rule();
      refs_[key] = rule;
      DSV4_ASSIGN_OR_RETURN(const auto body, build(*target, v->text, form));
      if (!body) {
        refs_[key] = nothing;
        return nothing;
      }
      g_.define(rule, *body);
      return std::optional<GrammarNode>(rule);
    }
    if (name == "const") {
      if (!types.empty() && !has_type(types, *v)) return wrong(place, "is of no type that \"type\" allows");
      return fixed_value(*v, form);
    }
    if (name == "enum") {
      if (!v->is(JsonKind::kArray) || v->items.empty()) return wrong(place, "must be an array of values");
      std::vector<GrammarNode> nodes;
      for (const JsonValue& item : v->items) {
        if (!types.empty() && !has_type(types, item)) continue;
        if (const auto node = fixed_value(item, form)) nodes.push_back(*node);
      }
      if (nodes.empty()) return nothing;
      return std::optional<GrammarNode>(g_.choice(std::move(nodes)));
    }
    if (name == "anyOf") {
      if (!types.empty()) {  // a type beside anyOf: it must hold for each option by itself
        for (const JsonValue& option : v->items) {
          DSV4_ASSIGN_OR_RETURN(const JsonValue* target, resolve(option, place));
          DSV4_ASSIGN_OR_RETURN(const std::vector<std::string> own, types_of(*target, place));
          const bool within = !own.empty() && std::all_of(own.begin(), own.end(),
                                                          [&](const std::string& t) { return std::find(types.begin(), types.end(), t) != types.end(); });
          if (!within) return cannot(place, "beside it, \"type\" cannot be enforced unless every option has a type of its own");
        }
      }
      return build_choices(*v, place, form);
    }
    if (name == "oneOf") {
      DSV4_RETURN_IF_ERROR(check_disjoint(*v, place));
      return build_choices(*v, place, form);
    }
    if (!v->is(JsonKind::kArray) || v->items.size() != 1) return cannot(place, "only one schema can be enforced here");
    return build(v->items[0], place + "/0", form);
  }

  for (const std::string& name : schema.names) {
    if (name == "type" || kAnnotations.count(name) != 0) continue;
    const bool known = std::any_of(kTypeKeywords.begin(), kTypeKeywords.end(), [&](const auto& t) { return t.second.count(name) != 0; });
    if (!known) return cannot(where, "the keyword \"" + name + "\" cannot be enforced");
  }
  DSV4_ASSIGN_OR_RETURN(const std::vector<std::string> types, types_of(schema, where));
  if (types.empty()) {  // anything
    if (form == Form::kRaw) return std::optional<GrammarNode>(text_up_to(g_, raw_end_));
    if (form == Form::kJson) return std::optional<GrammarNode>(any_value());
    std::vector<GrammarNode> nodes = {*number_grammar(g_, {}), g_.literal("true"), g_.literal("false"), g_.literal("null"), any_object()};
    const GrammarNode comma = g_.sequence({g_.literal(","), space()});
    nodes.push_back(g_.sequence(
        {g_.literal("["), space(), g_.optional(g_.sequence({any_value(), g_.repeat(g_.sequence({comma, any_value()}), 0), space()})), g_.literal("]")}));
    return std::optional<GrammarNode>(g_.choice(std::move(nodes)));
  }
  std::vector<GrammarNode> nodes;
  for (const std::string& type : types) {
    DSV4_ASSIGN_OR_RETURN(const auto node, build_type(schema, type, where, form));
    if (node) nodes.push_back(*node);
  }
  if (nodes.empty()) return nothing;
  return std::optional<GrammarNode>(g_.choice(std::move(nodes)));
}

// oneOf is anyOf when no value can satisfy two options: told by their types, or by a member that is a different constant in each.
Status JsonSchemaGrammar::check_disjoint(const JsonValue& options, const std::string& where) {
  if (!options.is(JsonKind::kArray)) return wrong(where, "must be an array of schemas");
  std::vector<const JsonValue*> schemas;
  for (const JsonValue& option : options.items) {
    DSV4_ASSIGN_OR_RETURN(const JsonValue* target, resolve(option, where));
    schemas.push_back(target);
  }
  const auto constants = [](const JsonValue* v) {
    std::set<std::string> out;
    if (v == nullptr) return out;
    if (const JsonValue* c = v->find("const")) out.insert(to_python_json(*c));
    if (const JsonValue* e = v->find("enum")) {
      for (const JsonValue& item : e->items) out.insert(to_python_json(item));
    }
    return out;
  };
  const auto apart = [](const std::set<std::string>& a, const std::set<std::string>& b) {
    return !a.empty() && !b.empty() && std::none_of(a.begin(), a.end(), [&](const std::string& x) { return b.count(x) != 0; });
  };
  for (size_t i = 0; i < schemas.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      DSV4_ASSIGN_OR_RETURN(std::vector<std::string> a, types_of(*schemas[i], where));
      DSV4_ASSIGN_OR_RETURN(const std::vector<std::string> b, types_of(*schemas[j], where));
      bool disjoint = !a.empty() && !b.empty();
      for (const std::string& t : a) {
        for (const std::string& u : b) disjoint &= t != u && !(t == "integer" && u == "number") && !(t == "number" && u == "integer");
      }
      disjoint |= apart(constants(schemas[i]), constants(schemas[j]));
      const JsonValue* p = schemas[i]->find("properties");
      const JsonValue* q = schemas[j]->find("properties");
      const auto is_required = [](const JsonValue* schema, const std::string& name) {
        const JsonValue* required = schema->find("required");
        return required != nullptr && std::any_of(required->items.begin(), required->items.end(), [&](const JsonValue& r) { return r.text == name; });
      };
      if (!disjoint && p != nullptr && q != nullptr) {
        for (const std::string& name : p->names) {
          disjoint |= is_required(schemas[i], name) && is_required(schemas[j], name) && apart(constants(p->find(name)), constants(q->find(name)));
        }
      }
      if (!disjoint) return cannot(where, fmt::format("options {} and {} may both hold; use anyOf", j, i));
    }
  }
  return ok_status();
}

Result<std::optional<GrammarNode>> JsonSchemaGrammar::build_type(const JsonValue& schema, const std::string& type, const std::string& where, Form form) {
  using Maybe = std::optional<GrammarNode>;
  if (type == "string") {
    if (form == Form::kJsonNoString) return Maybe();
    DSV4_ASSIGN_OR_RETURN(const GrammarNode node, string(schema, where, form == Form::kRaw ? TextForm::kRaw : TextForm::kJson));
    return Maybe(node);
  }
  if (form == Form::kRaw) return Maybe();
  if (type == "null") return Maybe(g_.literal("null"));
  if (type == "boolean") return Maybe(g_.choice({g_.literal("true"), g_.literal("false")}));
  if (type == "integer" || type == "number") return number(schema, where, type == "integer");
  DSV4_ASSIGN_OR_RETURN(const GrammarNode node, type == "object" ? object(schema, where) : array(schema, where));
  return Maybe(node);
}

Result<GrammarNode> JsonSchemaGrammar::string(const JsonValue& schema, const std::string& where, TextForm form) {
  DSV4_ASSIGN_OR_RETURN(const auto min, count_of(schema, "minLength", where));
  DSV4_ASSIGN_OR_RETURN(const auto max, count_of(schema, "maxLength", where));
  const JsonValue* pattern = schema.find("pattern");
  const JsonValue* format = schema.find("format");
  if (pattern != nullptr && !pattern->is(JsonKind::kString)) return wrong(where + "/pattern", "must be a string");
  if (format != nullptr && !format->is(JsonKind::kString)) return wrong(where + "/format", "must be a string");
  std::string regex = pattern != nullptr ? pattern->text : "";
  if (format != nullptr) {
    if (const auto known = kFormats.find(format->text); known != kFormats.end()) {
      if (pattern != nullptr) return cannot(where + "/format", "beside it, \"pattern\" cannot be enforced");
      regex = known->second;
    }
  }
  const bool has_regex = pattern != nullptr || !regex.empty();
  if (has_regex && (min || max)) return cannot(where, "a length cannot be enforced together with a pattern or format");
  const GrammarNode end = form == TextForm::kRaw ? g_.literal(raw_end_) : g_.literal("\"");
  const GrammarNode begin = form == TextForm::kRaw ? g_.literal("") : g_.literal("\"");
  if (has_regex) {
    auto inside = pattern_grammar(g_, form, regex);
    if (!inside.ok()) return inside.status().with_context(where);
    return g_.sequence({begin, *inside, end});
  }
  if (form == TextForm::kRaw && !min && !max) return text_up_to(g_, raw_end_);
  if (form == TextForm::kJson && !min && !max) return string_of_any();
  if (max && *max < min.value_or(0)) return wrong(where, "minLength is above maxLength");
  // Counted raw text has no "<": it could turn into markup.
  const GrammarNode one = character(g_, form, form == TextForm::kRaw ? complement({{'<', '<'}}) : any_code_point());
  return g_.sequence({begin, g_.repeat(one, min.value_or(0), max.value_or(-1)), end});
}

Result<std::optional<GrammarNode>> JsonSchemaGrammar::number(const JsonValue& schema, const std::string& where, bool integer) {
  NumberRange range;
  if (integer) range.fraction_digits = 0;
  const auto tighten = [&](const char* name, bool low, bool exclusive) -> Status {
    const JsonValue* v = schema.find(name);
    if (v == nullptr) return ok_status();
    if (!v->is(JsonKind::kNumber)) return wrong(where + "/" + name, "must be a number");
    const auto bound = read_bound(v->text, exclusive);
    if (!bound) return cannot(where + "/" + name, "a bound of more than 15 digits cannot be enforced");
    std::optional<DecimalBound>& side = low ? range.low : range.high;
    if (side) return cannot(where + "/" + name, "beside it, the other bound of this side cannot be enforced");
    side = bound;
    return ok_status();
  };
  DSV4_RETURN_IF_ERROR(tighten("minimum", true, false));
  DSV4_RETURN_IF_ERROR(tighten("exclusiveMinimum", true, true));
  DSV4_RETURN_IF_ERROR(tighten("maximum", false, false));
  DSV4_RETURN_IF_ERROR(tighten("exclusiveMaximum", false, true));
  if (const JsonValue* step = schema.find("multipleOf")) {
    const auto bound = step->is(JsonKind::kNumber) ? read_bound(step->text, false) : std::nullopt;
    const bool one = bound && !bound->negative && bound->whole == "1" && bound->fraction.empty();
    const bool decimal = bound && !bound->negative && bound->whole == "0" && !bound->fraction.empty() &&
                         bound->fraction.find_first_not_of('0') == bound->fraction.size() - 1 && bound->fraction.back() == '1';
    if (!one && !decimal) return cannot(where + "/multipleOf", "only 1, 0.1, 0.01 and so on can be enforced");
    range.fraction_digits = std::min(range.fraction_digits, one ? 0 : static_cast<int>(bound->fraction.size()));
  }
  return number_grammar(g_, range);
}

Result<GrammarNode> JsonSchemaGrammar::array(const JsonValue& schema, const std::string& where) {
  DSV4_ASSIGN_OR_RETURN(const auto min, count_of(schema, "minItems", where));
  DSV4_ASSIGN_OR_RETURN(const auto max, count_of(schema, "maxItems", where));
  if (max && *max < min.value_or(0)) return wrong(where, "minItems is above maxItems");
  const int32_t least = min.value_or(0);
  std::vector<GrammarNode> prefix;
  if (const JsonValue* items = schema.find("prefixItems")) {
    if (!items->is(JsonKind::kArray)) return wrong(where + "/prefixItems", "must be an array of schemas");
    for (size_t i = 0; i < items->items.size(); ++i) {
      DSV4_ASSIGN_OR_RETURN(const GrammarNode node, value(items->items[i], fmt::format("{}/prefixItems/{}", where, i), true));
      prefix.push_back(node);
    }
  }
  std::optional<GrammarNode> item;
  const JsonValue* items = schema.find("items");
  if (items != nullptr && !items->is(JsonKind::kFalse)) {
    DSV4_ASSIGN_OR_RETURN(item, build(*items, where + "/items", Form::kJson));
  } else if (items == nullptr && prefix.empty()) {
    item = any_value();
  }
  const GrammarNode comma = g_.sequence({g_.literal(","), space()});
  const int32_t fixed = static_cast<int32_t>(prefix.size());
  if (!item && least > fixed) return wrong(where, "minItems is above the number of items there can be");
  // From the back: what follows the first i items.
  std::optional<GrammarNode> rest;  // nothing may follow
  const auto may_end = [&](int32_t i) { return i >= least; };
  if (item && (!max || *max > fixed)) {
    const int32_t more_min = std::max(0, least - fixed), more_max = max ? *max - fixed : -1;
    if (fixed > 0) {
      rest = g_.repeat(g_.sequence({comma, *item}), more_min, more_max);
    } else {
      const GrammarNode list =
          g_.sequence({*item, g_.repeat(g_.sequence({comma, *item}), std::max(0, more_min - 1), more_max < 0 ? -1 : more_max - 1), space()});
      return g_.sequence({g_.literal("["), space(), least == 0 ? g_.optional(list) : list, g_.literal("]")});
    }
  }
  for (int32_t i = fixed; i-- > 0;) {
    if (max && i >= *max) continue;
    std::vector<GrammarNode> parts;
    if (i > 0) parts.push_back(comma);
    parts.push_back(prefix[static_cast<size_t>(i)]);
    if (rest) parts.push_back(*rest);
    const GrammarNode here = g_.sequence(std::move(parts));
    rest = may_end(i) ? g_.optional(here) : here;
  }
  return g_.sequence({g_.literal("["), space(), rest ? *rest : g_.literal(""), space(), g_.literal("]")});
}

}  // namespace dsv4

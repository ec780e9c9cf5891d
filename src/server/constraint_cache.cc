#include "server/constraint_cache.h"

#include <algorithm>

#include "engine/constraint/json_schema.h"
#include "engine/constraint/tool_grammar.h"
#include "text/python_json.h"

namespace dsv4 {
namespace {

constexpr size_t kKept = 32;
constexpr size_t kMaxStates = 50000;  // 1 KiB each

bool is_forced(const ChatSpec& spec) { return spec.tool_choice == ToolChoice::kRequired || spec.tool_choice == ToolChoice::kNamed; }

// Equal for requests whose grammars are equal.
std::string key_of(const ChatSpec& spec) {
  if (spec.format == OutputFormat::kJsonObject) return "object";
  if (spec.format == OutputFormat::kJsonSchema) return "schema " + to_python_json(spec.schema);
  std::string key = spec.parallel_tool_calls ? "calls" : "call";
  for (const ToolSpec& tool : spec.tools) {
    if (spec.tool_choice == ToolChoice::kNamed && tool.name != spec.named_tool) continue;
    key += "\n" + tool.name + " " + to_python_json(tool.parameters);
  }
  return key;
}

}  // namespace

ConstraintCache::ConstraintCache(const Tokenizer& tokenizer, const ChatMarkup& markup, int32_t eos_token)
    : tokenizer_(tokenizer), markup_(markup), eos_token_(eos_token), plain_(std::make_shared<TokenTrie>(tokenizer, std::vector<int32_t>())) {
  const auto dsml = tokenizer.id_of(markup.dsml);
  with_markup_ = dsml ? std::make_shared<TokenTrie>(tokenizer, std::vector<int32_t>{*dsml}) : plain_;
}

Result<std::shared_ptr<CompiledGrammar>> ConstraintCache::compile(const ChatSpec& spec) const {
  auto grammar = std::make_shared<Grammar>();
  if (is_forced(spec)) {
    std::vector<CallableTool> tools;
    for (const ToolSpec& tool : spec.tools) {
      if (spec.tool_choice != ToolChoice::kNamed || tool.name == spec.named_tool) tools.push_back({tool.name, &tool.parameters});
    }
    DSV4_ASSIGN_OR_RETURN(const GrammarNode root, tool_calls_grammar(*grammar, tools, spec.parallel_tool_calls, markup_));
    return CompiledGrammar::create(std::move(grammar), root, with_markup_);
  }
  const JsonValue anything{JsonKind::kTrue, {}, {}, {}};
  JsonSchemaGrammar schema(*grammar, spec.format == OutputFormat::kJsonSchema ? spec.schema : anything);
  if (spec.format == OutputFormat::kJsonObject) {
    const GrammarNode root = schema.any_object();
    return CompiledGrammar::create(std::move(grammar), root, plain_);
  }
  DSV4_ASSIGN_OR_RETURN(const GrammarNode root, schema.json());
  return CompiledGrammar::create(std::move(grammar), root, plain_);
}

ApiResult<std::vector<std::shared_ptr<TokenConstraint>>> ConstraintCache::make(const ChatSpec& spec, int32_t start_after, int count) {
  std::vector<std::shared_ptr<TokenConstraint>> out;
  if (!is_forced(spec) && spec.format == OutputFormat::kText) return out;
  const std::string key = key_of(spec);
  std::shared_ptr<CompiledGrammar> grammar;
  {
    std::lock_guard lock(mutex_);
    const auto found = std::find_if(recent_.begin(), recent_.end(), [&](const auto& entry) { return entry.first == key; });
    if (found != recent_.end()) {
      if (found->second->num_states() > kMaxStates) {
        recent_.erase(found);
      } else {
        recent_.splice(recent_.begin(), recent_, found);
        grammar = recent_.front().second;
      }
    }
  }
  if (grammar == nullptr) {
    auto compiled = compile(spec);
    if (!compiled.ok()) {
      return ApiError{
          .status = 400, .message = compiled.status().message(), .param = is_forced(spec) ? "tools" : "response_format", .code = "unsupported_schema"};
    }
    grammar = std::move(*compiled);
    std::lock_guard lock(mutex_);
    ++compilations_;
    recent_.emplace_front(key, grammar);
    if (recent_.size() > kKept) recent_.pop_back();
  }
  for (int i = 0; i < count; ++i) out.push_back(make_grammar_constraint(grammar, tokenizer_, {eos_token_, start_after}));
  return out;
}

size_t ConstraintCache::compilations() const {
  std::lock_guard lock(mutex_);
  return compilations_;
}

}  // namespace dsv4

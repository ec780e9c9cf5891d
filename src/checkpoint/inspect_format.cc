#include <cstdio>

#include "base/json.h"
#include "checkpoint/inspect.h"

namespace dsv4 {
namespace {

constexpr int64_t kCacheExamples[] = {4096, 131072, 1048576};  // tokens

std::string human_bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  int unit = 0;
  for (; bytes >= 1000 && unit < 4; ++unit) bytes /= 1000;
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.2f %s", bytes, kUnits[unit]);
  return text;
}

std::string n(int64_t value) { return std::to_string(value); }

// "  name               1.23 GB" with the amounts right-aligned.
std::string amount_line(const std::string& name, const std::string& amounts) {
  char text[160];
  std::snprintf(text, sizeof(text), "  %-16s %s\n", name.c_str(), amounts.c_str());
  return text;
}

std::string right(const std::string& text, size_t width) { return text.size() >= width ? text : std::string(width - text.size(), ' ') + text; }

std::string field(const char* name, const std::string& value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%-13s ", name);
  return text + value + "\n";
}

void list(const char* title, const std::vector<std::string>& lines, std::string* out) {
  if (lines.empty()) return;
  *out += std::string(title) + "\n";
  for (const std::string& line : lines) *out += "  " + line + "\n";
}

}  // namespace

std::string summary_to_text(const ModelSummary& s) {
  const ModelConfig& c = s.config;
  std::string out;
  out += field("model", s.model);
  out += field("identity", s.identity);
  out += field("sizes", n(c.num_layers) + " layers, hidden " + n(c.hidden_dim) + ", " + n(c.num_heads) + " heads x " + n(c.head_dim) + ", vocabulary " +
                            n(c.vocab_size) + ", " + n(c.hc_mult) + " residual streams");
  out += field("layers", n(s.window_layers) + " window only, " + n(s.ratio4_layers) + " ratio 4 (indexer, top " + n(c.index_topk) + " rows), " +
                             n(s.ratio128_layers) + " ratio 128; window " + n(c.window_tokens) + " tokens");
  out += field("experts", n(c.num_experts) + " routed (" + n(c.num_experts_per_token) + " per token), " + n(c.num_shared_experts) + " shared, ffn " +
                              n(c.expert_ffn_dim) + "; " + n(s.hash_layers) + " layers route by token id");
  out += field("positions", n(c.max_positions));
  std::string draft = draft_kind_name(s.draft.kind);
  if (s.draft.kind != DraftKind::kNone) draft += ", " + n(s.draft.num_blocks) + " blocks, " + (s.draft.usable() ? "usable" : "not used");
  out += field("speculation", draft);
  out += field("tensors", n(s.num_tensors) + ", " + human_bytes(static_cast<double>(s.total_bytes)) + " (" + n(s.total_bytes) + " bytes)");
  for (const DTypeTotal& d : s.dtypes) {
    out += amount_line(std::string(dtype_name(d.dtype)), right(n(d.tensors), 7) + " tensors " + right(human_bytes(static_cast<double>(d.bytes)), 10));
  }
  out += "weights           stored    read per decoded token\n";
  for (const GroupTotal& g : s.groups) {
    out += amount_line(tensor_group_name(g.group),
                       right(human_bytes(static_cast<double>(g.stored_bytes)), 10) + right(human_bytes(static_cast<double>(g.token_bytes)), 12));
  }
  out += amount_line("sum", right(human_bytes(static_cast<double>(s.total_bytes)), 10) + right(human_bytes(static_cast<double>(s.token_bytes)), 12));
  out += "cache of one sequence\n";
  out += amount_line("window", human_bytes(static_cast<double>(s.cache.window_bytes_per_token)) + " per token, " +
                                   human_bytes(static_cast<double>(s.cache.window_bytes)) + " when full");
  out += amount_line("compressed rows", human_bytes(s.cache.compressed_bytes_per_token) + " per token");
  out += amount_line("indexer rows", human_bytes(s.cache.indexer_bytes_per_token) + " per token");
  for (const int64_t tokens : kCacheExamples) {
    if (tokens <= c.max_positions) out += amount_line("at " + n(tokens), human_bytes(static_cast<double>(cache_bytes_at(c, tokens))));
  }
  list("speculation is off", s.draft.problems, &out);
  list("would not run", s.unsupported, &out);
  list("warnings", s.warnings, &out);
  return out;
}

std::string summary_to_json(const ModelSummary& s) {
  Json json;
  json["model"] = s.model;
  json["ok"] = true;
  json["identity"] = s.identity;
  json["config"] = Json::parse(model_config_to_json(s.config));
  json["layers"] = {{"window_only", s.window_layers}, {"ratio_4", s.ratio4_layers}, {"ratio_128", s.ratio128_layers}, {"hash_routed", s.hash_layers}};
  json["num_tensors"] = s.num_tensors;
  json["total_bytes"] = s.total_bytes;
  json["dtypes"] = Json::object();
  for (const DTypeTotal& d : s.dtypes) json["dtypes"][std::string(dtype_name(d.dtype))] = {{"tensors", d.tensors}, {"bytes", d.bytes}};
  json["components"] = Json::object();
  for (const GroupTotal& g : s.groups) json["components"][tensor_group_name(g.group)] = {{"stored_bytes", g.stored_bytes}, {"token_bytes", g.token_bytes}};
  json["token_bytes"] = s.token_bytes;
  json["cache"] = {{"window_bytes_per_token", s.cache.window_bytes_per_token},
                   {"window_bytes", s.cache.window_bytes},
                   {"compressed_bytes_per_token", s.cache.compressed_bytes_per_token},
                   {"indexer_bytes_per_token", s.cache.indexer_bytes_per_token}};
  for (const int64_t tokens : kCacheExamples) json["cache"]["bytes_at"][n(tokens)] = cache_bytes_at(s.config, tokens);
  json["speculation"] = {{"kind", draft_kind_name(s.draft.kind)}, {"blocks", s.draft.num_blocks}, {"usable", s.draft.usable()}, {"problems", s.draft.problems}};
  json["would_run"] = s.unsupported.empty();
  json["unsupported"] = s.unsupported;
  json["warnings"] = s.warnings;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace dsv4

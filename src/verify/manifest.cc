#include "verify/manifest.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "base/json.h"
#include "verify/build_info.h"

namespace dsv4 {
namespace {

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

}  // namespace

const std::string* Manifest::find(std::string_view field) const {
  for (const auto& [name, value] : fields) {
    if (name == field) return &value;
  }
  return nullptr;
}

Manifest make_manifest(Engine& engine, const std::string& command) {
  const BuildInfo& build = build_info();
  const DeviceInfo& device = engine.device().info();
  const EngineOptions& o = engine.options();
  Manifest m;
  m.fields = {
      {"commit", build.commit},
      {"dirty", build.dirty ? "yes" : "no"},
      {"compiler", build.compiler},
      {"flags", build.flags},
      {"build_type", build.build_type},
      {"backend", device.backend},
      {"device", device.name},
      {"driver", device.driver},
      {"model_identity", engine.checkpoint().identity()},
      {"option.arithmetic", arithmetic_name(o.arithmetic)},
      {"option.cache_format", row_format_name(o.cache_format)},
      {"option.layers", std::to_string(engine.config().num_layers)},
      {"option.max_context_tokens", std::to_string(o.max_context_tokens)},
      {"option.max_seqs", std::to_string(o.max_seqs)},
      {"option.cache_tokens", std::to_string(o.cache_tokens)},
      {"option.prefill_chunk", std::to_string(o.prefill_chunk)},
      {"option.prefix_states", std::to_string(o.prefix_states)},
      {"option.prompts_give_way", o.prompts_give_way ? "yes" : "no"},
      {"option.graph", graph_mode_name(o.graph)},
  };
  m.model = engine.checkpoint().model();
  m.host = host_name();
  m.time = utc_now();
  m.command = command;
  return m;
}

std::vector<std::string> identity_differences(const Manifest& a, const Manifest& b, const std::vector<std::string>& vary) {
  const auto varies = [&](const std::string& name) { return std::find(vary.begin(), vary.end(), name) != vary.end(); };
  std::vector<std::string> out;
  for (const auto& [name, value] : a.fields) {
    if (varies(name)) continue;
    const std::string* other = b.find(name);
    if (other == nullptr) {
      out.push_back(name + ": " + value + " against nothing");
    } else if (*other != value) {
      out.push_back(name + ": " + value + " against " + *other);
    }
  }
  for (const auto& [name, value] : b.fields) {
    if (a.find(name) == nullptr && !varies(name)) out.push_back(name + ": nothing against " + value);
  }
  for (const auto& [side, m] : {std::pair{"A", &a}, std::pair{"B", &b}}) {
    const std::string* commit = m->find("commit");
    if (commit != nullptr && *commit == kUnknownCommit && !varies("commit"))
      out.push_back(std::string("commit: ") + side + " was built outside a repository, its source is unknown");
    const std::string* dirty = m->find("dirty");
    if (dirty != nullptr && *dirty == "yes" && !varies("dirty"))
      out.push_back(std::string("dirty: ") + side + " was built from changed files, its commit does not name its source");
  }
  return out;
}

Json to_json_value(const Manifest& m) {
  Json identity = Json::object();
  for (const auto& [name, value] : m.fields) identity[name] = value;
  return {{"identity", std::move(identity)}, {"model", m.model}, {"host", m.host}, {"time", m.time}, {"command", m.command}};
}

Result<Manifest> manifest_from_json(const Json& json, const std::string& where) {
  if (!json.is_object() || !json.contains("identity") || !json["identity"].is_object())
    return invalid_data(where + ": the manifest has no object \"identity\"");
  Manifest m;
  for (const auto& [name, value] : json["identity"].items()) {
    if (!value.is_string()) return invalid_data(where + ": manifest: identity." + name + " must be a string");
    m.fields.emplace_back(name, value.get<std::string>());
  }
  for (const auto& [name, field] : {std::pair{"model", &m.model}, std::pair{"host", &m.host}, std::pair{"time", &m.time}, std::pair{"command", &m.command}}) {
    if (json.contains(name) && json[name].is_string()) *field = json[name].get<std::string>();
  }
  return m;
}

}  // namespace dsv4

// Who made a number: every run writes this beside its results, and results of different identities are never compared.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "engine/engine.h"

namespace dsv4 {

inline constexpr const char* kUnknownCommit = "unknown";  // of a build outside a repository

struct Manifest {
  // The identity: equal in two runs, or they are of different things. In this order:
  // commit, dirty, compiler, flags, build_type, backend, device, driver, model_identity, option.* (every engine option).
  std::vector<std::pair<std::string, std::string>> fields;
  // Told, but no part of the identity.
  std::string model;    // path as given
  std::string host;     // machine name
  std::string time;     // UTC, "2026-11-29T22:30:00Z"
  std::string command;  // the command line, as far as known

  const std::string* find(std::string_view field) const;
};

Manifest make_manifest(Engine& engine, const std::string& command);

// The fields that differ, "name: A against B", but for those named in `vary` ("option.graph"; "commit" and so on). A dirty or unknown
// commit names no source, so it differs from everything, itself included.
std::vector<std::string> identity_differences(const Manifest& a, const Manifest& b, const std::vector<std::string>& vary);

nlohmann::ordered_json to_json_value(const Manifest& manifest);
Result<Manifest> manifest_from_json(const nlohmann::ordered_json& json, const std::string& where);

}  // namespace dsv4

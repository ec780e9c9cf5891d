#include "verify/manifest.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "verify/build_info.h"

namespace dsv4 {
namespace {

Manifest manifest() {
  Manifest m;
  m.fields = {{"commit", "abc"},          {"dirty", "no"},         {"compiler", "GNU 12"}, {"backend", "cpu"}, {"device", "x"},
              {"model_identity", "1234"}, {"option.graph", "full"}};
  return m;
}

TEST(BuildInfo, is_filled_in) {
  EXPECT_STRNE(build_info().commit, "");
  EXPECT_STRNE(build_info().compiler, "");
}

TEST(Manifest, every_field_counts) {
  EXPECT_TRUE(identity_differences(manifest(), manifest(), {}).empty());
  for (size_t i = 0; i < manifest().fields.size(); ++i) {
    Manifest other = manifest();
    other.fields[i].second += "x";
    const auto differences = identity_differences(manifest(), other, {});
    ASSERT_EQ(differences.size(), 1u) << other.fields[i].first;
    EXPECT_EQ(differences[0].find(other.fields[i].first + ": "), 0u);
    EXPECT_TRUE(identity_differences(manifest(), other, {other.fields[i].first}).empty());
    Manifest less = manifest();
    less.fields.erase(less.fields.begin() + static_cast<int64_t>(i));
    EXPECT_EQ(identity_differences(manifest(), less, {}).size(), 1u);
    EXPECT_EQ(identity_differences(less, manifest(), {}).size(), 1u);
  }
}

TEST(Manifest, a_dirty_build_compares_with_nothing) {
  Manifest dirty = manifest();
  dirty.fields[1].second = "yes";
  EXPECT_EQ(identity_differences(dirty, dirty, {}).size(), 2u);
  EXPECT_TRUE(identity_differences(dirty, dirty, {"dirty"}).empty());
}

TEST(Manifest, an_unknown_commit_compares_with_nothing) {
  Manifest unknown = manifest();
  unknown.fields[0].second = kUnknownCommit;
  EXPECT_EQ(identity_differences(unknown, unknown, {}).size(), 2u);
  EXPECT_TRUE(identity_differences(unknown, unknown, {"commit"}).empty());
}

TEST(Manifest, through_json) {
  Manifest m = manifest();
  m.model = "models/x";
  m.host = "h";
  const auto back = manifest_from_json(to_json_value(m), "m.json");
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->fields, m.fields);
  EXPECT_EQ(back->model, m.model);
  EXPECT_EQ(back->host, m.host);
  EXPECT_EQ(manifest_from_json(Json::parse("{}"), "m.json").status().message(), "m.json: the manifest has no object \"identity\"");
  EXPECT_EQ(manifest_from_json(Json::parse(R"({"identity": {"commit": 3}})"), "m.json").status().message(),
            "m.json: manifest: identity.commit must be a string");
}

}  // namespace
}  // namespace dsv4

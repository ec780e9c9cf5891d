#include <gtest/gtest.h>

#include <cstdio>

#include "base/file.h"
#include "base/json.h"

namespace dsv4 {
namespace {

TEST(Json, keeps_member_order_and_refuses_duplicates) {
  const auto value = parse_json(R"({"b":1,"a":2})", "x.json");
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(value->dump(), R"({"b":1,"a":2})");
  EXPECT_EQ(parse_json(R"({"a":1,"a":2})", "x.json").status().message(), "x.json: duplicate member \"a\"");
  EXPECT_TRUE(parse_json(R"([{"a":1},{"a":2}])", "x.json").ok());
}

TEST(Json, sorted_form_keeps_the_same_rules) {
  const auto value = parse_json_sorted(R"({"b":1,"a":2})", "x.json");
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(value->dump(), R"({"a":2,"b":1})");
  EXPECT_EQ(parse_json_sorted(R"({"a":1,"a":2})", "x.json").status().message(), "x.json: duplicate member \"a\"");
}

TEST(Json, names_the_place_of_an_error) {
  EXPECT_EQ(parse_json("{\n \"a\": ]}", "x.json").status().message(), "x.json: not valid JSON at line 2, column 7");
  EXPECT_FALSE(parse_json("1 2", "x").ok());
  EXPECT_FALSE(parse_json("\"\xff\"", "x").ok());
  EXPECT_FALSE(parse_json("NaN", "x").ok());
}

TEST(Json, deep_nesting_is_an_error_not_a_crash) {
  EXPECT_FALSE(parse_json(std::string(100000, '['), "x").ok());
  EXPECT_FALSE(parse_json(std::string(300, '[') + std::string(300, ']'), "x").ok());
  EXPECT_TRUE(parse_json(std::string(150, '[') + std::string(150, ']'), "x").ok());
}

TEST(File, atomic_write_then_read_and_map) {
  const std::string path = testing::TempDir() + "dsv4_file_test";
  ASSERT_TRUE(write_file_atomic(path, "hello").ok());
  EXPECT_EQ(read_file(path).value(), "hello");
  EXPECT_EQ(read_file(path, 4).status().code(), StatusCode::kResourceLimit);
  EXPECT_EQ(MappedFile::open(path)->bytes().size(), 5u);
  std::remove(path.c_str());
  EXPECT_EQ(read_file(path).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(read_file("/").ok());
}

}  // namespace
}  // namespace dsv4

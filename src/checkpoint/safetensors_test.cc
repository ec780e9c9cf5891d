#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/test_model.h"

namespace dsv4 {
namespace {

using testing::ElementsAre;

std::vector<std::string> faults_of(const std::string& bytes) {
  FaultList faults;
  parse_safetensors(std::as_bytes(std::span(bytes)), "x.safetensors", &faults);
  return faults.lines();
}

// One F32 [2] tensor "a" whose entry is `entry`, with 8 bytes of data.
std::vector<std::string> entry_faults(const std::string& entry) { return faults_of(with_header("{\"a\":" + entry + "}", std::string(8, 'x'))); }

TEST(Safetensors, reads_names_shapes_and_places) {
  const std::string bytes = with_header(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14],"extra":1},"a":{"dtype":"F32","shape":[],"data_offsets":[4,8]},"e":{"dtype":"I64","shape":[0,5],"data_offsets":[4,4]},"s":{"dtype":"F8_E8M0","shape":[2,2],"data_offsets":[0,4]}} )",
      std::string(14, 'x'));
  FaultList faults;
  const SafetensorsHeader header = parse_safetensors(std::as_bytes(std::span(bytes)), "x", &faults);
  EXPECT_TRUE(faults.empty()) << faults.lines().front();
  ASSERT_EQ(header.tensors.size(), 4u);
  EXPECT_EQ(header.tensors[0].name, "s");
  EXPECT_EQ(header.tensors[1].name, "e");
  EXPECT_EQ(header.tensors[1].size_bytes, 0);
  EXPECT_EQ(header.tensors[2].name, "a");
  EXPECT_EQ(header.tensors[2].size_bytes, 4);
  EXPECT_EQ(header.tensors[3].file_offset, header.data_begin + 8);
  EXPECT_EQ(header.metadata.front().second, "pt");
}

TEST(Safetensors, header_length) {
  EXPECT_THAT(faults_of("1234567"), ElementsAre("x.safetensors: not a safetensors file: expected at least 8 bytes, found 7"));
  EXPECT_THAT(faults_of(""), ElementsAre("x.safetensors: not a safetensors file: expected at least 8 bytes, found 0"));
  EXPECT_THAT(faults_of(std::string(8, '\0')), ElementsAre("x.safetensors: header length must be 2 to 100000000 bytes, found 0"));
  EXPECT_THAT(faults_of(std::string(8, '\xff') + "{}"), ElementsAre("x.safetensors: header length must be 2 to 100000000 bytes, found 18446744073709551615"));
  std::string cut = with_header("{}  ", "");
  cut.pop_back();
  EXPECT_THAT(faults_of(cut), ElementsAre("x.safetensors: truncated: the header is 4 bytes, found 3 after its length"));
}

TEST(Safetensors, header_text) {
  EXPECT_THAT(faults_of(with_header("{\"a\":", "")), ElementsAre("x.safetensors: header: not valid JSON at line 1, column 6"));
  EXPECT_THAT(faults_of(with_header("[]", "")), ElementsAre("x.safetensors: the header must be a JSON object"));
  EXPECT_THAT(faults_of(with_header(R"({"a":1,"a":2})", "")), ElementsAre("x.safetensors: header: duplicate member \"a\""));
  EXPECT_THAT(faults_of(with_header(R"({"__metadata__":{"a":1}})", "")), ElementsAre("x.safetensors: __metadata__: a must be a string"));
  EXPECT_THAT(faults_of(with_header(R"({"__metadata__":[]})", "")), ElementsAre("x.safetensors: __metadata__ must be an object of strings"));
  EXPECT_TRUE(faults_of(with_header("{}", "")).empty());
}

TEST(Safetensors, each_entry_rule) {
  EXPECT_TRUE(entry_faults(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})").empty());
  EXPECT_THAT(entry_faults("7"), ElementsAre("x.safetensors: a: the header's entry must be an object"));
  EXPECT_THAT(entry_faults(R"({"dtype":"F16","shape":[4],"data_offsets":[0,8]})"),
              ElementsAre("x.safetensors: a: expected dtype F32, BF16, F8_E4M3, F8_E8M0, I8, I32 or I64, found \"F16\""));
  EXPECT_THAT(entry_faults(R"({"shape":[2],"data_offsets":[0,8]})"), ElementsAre("x.safetensors: a: the header's entry has no dtype string"));
  EXPECT_THAT(entry_faults(R"({"dtype":"F32","data_offsets":[0,8]})"), ElementsAre("x.safetensors: a: the header's entry has no shape array"));
  EXPECT_THAT(entry_faults(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
              ElementsAre("x.safetensors: a: shape must hold integers from 0 to 2^63 - 1"));
  EXPECT_THAT(entry_faults(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"),
              ElementsAre("x.safetensors: a: shape must hold integers from 0 to 2^63 - 1"));
  EXPECT_THAT(entry_faults(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]})"),
              ElementsAre("x.safetensors: a: shape has 9 dimensions, at most 8 are read"));
  EXPECT_THAT(entry_faults(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"),
              ElementsAre("x.safetensors: a: F32 [4294967296, 4294967296] has more bytes than a file can hold"));
  EXPECT_THAT(entry_faults(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
              ElementsAre("x.safetensors: a: expected 12 bytes for F32 [3], found data_offsets [0, 8] = 8"));
  for (const char* offsets : {"[8,0]", "[0]", "[0,8,9]", "{}", "[-1,7]", "[0,8.5]", "[0,9223372036854775808]"}) {
    EXPECT_THAT(entry_faults(std::string(R"({"dtype":"F32","shape":[2],"data_offsets":)") + offsets + "}"),
                ElementsAre("x.safetensors: a: data_offsets must be two integers, begin <= end"))
        << offsets;
  }
  EXPECT_THAT(entry_faults(R"({"dtype":"I8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]})"),
              ElementsAre("x.safetensors: a: data_offsets end at 9223372036854775807, beyond any file"));
}

TEST(Safetensors, several_faults_at_once) {
  EXPECT_THAT(faults_of(with_header(R"({"a":{"dtype":"F16","shape":[2]},"b":3})", "")),
              ElementsAre("x.safetensors: a: expected dtype F32, BF16, F8_E4M3, F8_E8M0, I8, I32 or I64, found \"F16\"",
                          "x.safetensors: a: data_offsets must be two integers, begin <= end", "x.safetensors: b: the header's entry must be an object"));
}

TEST(Safetensors, tensors_tile_the_file) {
  const auto two = [](const std::string& first, const std::string& second, size_t data_bytes) {
    return faults_of(
        with_header(R"({"a":{"dtype":"I8","shape":[4],"data_offsets":)" + first + R"(},"b":{"dtype":"I8","shape":[4],"data_offsets":)" + second + "}}",
                    std::string(data_bytes, 'x')));
  };
  EXPECT_TRUE(two("[0,4]", "[4,8]", 8).empty());
  EXPECT_TRUE(two("[4,8]", "[0,4]", 8).empty());
  EXPECT_THAT(two("[0,4]", "[6,10]", 10), ElementsAre("x.safetensors: b: begins 2 bytes after the end of a, expected no gap"));
  EXPECT_THAT(two("[1,5]", "[5,9]", 9), ElementsAre("x.safetensors: a: begins 1 bytes after the header, expected no gap"));
  EXPECT_THAT(two("[0,4]", "[3,7]", 7), ElementsAre("x.safetensors: b: begins 1 bytes before the end of a, expected no overlap"));
  EXPECT_THAT(two("[0,4]", "[0,4]", 4), ElementsAre("x.safetensors: b: begins 4 bytes before the end of a, expected no overlap"));
  EXPECT_THAT(two("[0,4]", "[4,8]", 7), ElementsAre("x.safetensors: truncated: the header describes 8 bytes of tensors, found 7"));
  EXPECT_THAT(two("[0,4]", "[4,8]", 11), ElementsAre("x.safetensors: 3 bytes after the last tensor, expected none"));
}

TEST(Safetensors, write_then_open) {
  const std::string path = test_path("write_test.safetensors");
  const std::vector<uint8_t> odd{1, 2, 3};
  const std::vector<float> floats{1.5f, -2.0f};
  const std::vector<int64_t> wide{7};
  ASSERT_TRUE(write_safetensors(path,
                                {{"odd", DType::kI8, {3}, std::as_bytes(std::span(odd))},
                                 {"floats \"quoted\"", DType::kF32, {1, 2}, std::as_bytes(std::span(floats))},
                                 {"wide", DType::kI64, {}, std::as_bytes(std::span(wide))},
                                 {"none", DType::kF32, {0}, {}}},
                                {{"format", "pt"}})
                  .ok());
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->header().tensors.size(), 4u);
  EXPECT_EQ(file->header().data_begin % 64, 0);
  EXPECT_EQ(file->header().tensors.front().name, "wide");  // wide elements first: every tensor is aligned
  EXPECT_EQ(file->header().tensors.back().name, "odd");
  const SafetensorsTensor* t = file->find("floats \"quoted\"");
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(t->file_offset % 4, 0);
  EXPECT_EQ(reinterpret_cast<const float*>(file->bytes(*t).data())[1], -2.0f);
  EXPECT_EQ(static_cast<int>(file->bytes(*file->find("odd"))[2]), 3);
  EXPECT_EQ(file->find("absent"), nullptr);
}

TEST(Safetensors, write_refuses_what_it_could_not_read_back) {
  const std::string path = test_path("write_refused.safetensors");
  const std::vector<uint8_t> bytes(4);
  const SafetensorsEntry good{"a", DType::kF32, {1}, std::as_bytes(std::span(bytes))};
  EXPECT_EQ(write_safetensors(path, {good, good}).message(), "write_safetensors: tensor name \"a\" is taken");
  EXPECT_EQ(write_safetensors(path, {{"a", DType::kF32, {2}, good.data}}).message(), "write_safetensors: a: F32 [2] does not have 4 bytes");
  EXPECT_FALSE(write_safetensors(path, {{"__metadata__", DType::kF32, {1}, good.data}}).ok());
  EXPECT_FALSE(SafetensorsFile::open(path).ok());
}

}  // namespace
}  // namespace dsv4

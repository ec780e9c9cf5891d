// Replays the fuzz corpora in the ordinary build: what once crashed stays fixed.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "checkpoint/fuzz/properties.h"

namespace dsv4 {
namespace {

void replay(const std::string& corpus, void (*check)(const uint8_t*, size_t)) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
    const auto bytes = read_file(entry.path());
    ASSERT_TRUE(bytes.ok()) << bytes.status().message();
    check(reinterpret_cast<const uint8_t*>(bytes->data()), bytes->size());
    ++files;
  }
  EXPECT_GT(files, 5);
}

TEST(FuzzCorpus, safetensors) { replay("tests/fuzz/safetensors", check_safetensors_bytes); }
TEST(FuzzCorpus, model_config) { replay("tests/fuzz/model_config", check_model_config_bytes); }

}  // namespace
}  // namespace dsv4

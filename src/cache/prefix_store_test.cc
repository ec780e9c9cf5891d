#include "cache/prefix_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/file.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<int32_t>;

class PrefixStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = (fs::temp_directory_path() / ("dsv4-prefix-store-" + std::to_string(::getpid()))).string();
    fs::remove_all(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::unique_ptr<PrefixStore> open(int64_t max_bytes = 1 << 20, const std::string& identity = "model a") {
    auto store = PrefixStore::open({directory_, max_bytes, identity});
    EXPECT_TRUE(store.ok()) << store.status().message();
    return std::move(*store);
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> out;
    for (const auto& entry : fs::directory_iterator(directory_)) out.push_back(entry.path());
    std::sort(out.begin(), out.end());
    return out;
  }
  static std::string state(char c, size_t size = 1000) { return std::string(size, c); }

  std::string directory_;
};

TEST_F(PrefixStoreTest, states_survive_the_process) {
  {
    auto store = open();
    EXPECT_FALSE(store->find(Tokens{1, 2, 3}).has_value());
    store->write({1, 2, 3}, state('a'));
    store->write({1, 2, 3, 4, 5}, state('b', 1001));
    store->write({1, 2, 3}, state('x'));  // there already
  }
  auto store = open();
  EXPECT_EQ(store->stats().states, 2);
  EXPECT_EQ(store->stats().damaged, 0);
  const auto match = store->find(Tokens{1, 2, 3, 4, 5, 6});
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->num_tokens, 5);
  EXPECT_EQ(store->read(match->id).value(), state('b', 1001));
  EXPECT_EQ(store->read(store->find(Tokens{1, 2, 3, 9})->id).value(), state('a'));
  EXPECT_EQ(store->shared(Tokens{1, 2, 3, 4, 9}), 4);
}

TEST_F(PrefixStoreTest, the_least_recently_used_go_first_also_after_a_restart) {
  const auto put = [](PrefixStore& store, int32_t token) {
    store.write({token, 7}, state(static_cast<char>('a' + token)));
    store.flush();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // files are ordered by their times
  };
  {
    auto store = open();
    for (int32_t t = 0; t < 3; ++t) put(*store, t);
    ASSERT_TRUE(store->read(store->find(Tokens{0, 7})->id).ok());  // 1 is the oldest now
  }
  auto store = open(3500);
  EXPECT_EQ(store->stats().states, 3);
  put(*store, 3);
  EXPECT_EQ(store->stats().states, 3);
  EXPECT_LE(store->stats().bytes, 3500);
  EXPECT_EQ(files().size(), 3u);
  EXPECT_FALSE(store->contains(Tokens{1, 7}));
  EXPECT_TRUE(store->contains(Tokens{0, 7}));
  store->write({9}, state('z', 4000));  // larger than all there may be
  store->flush();
  EXPECT_EQ(store->stats().dropped, 1);
  EXPECT_EQ(store->stats().states, 3);
}

TEST_F(PrefixStoreTest, other_identities_are_left_alone) {
  open(1 << 20, "model a")->write({1, 2}, state('a'));
  {
    auto other = open(1 << 20, "model b");
    EXPECT_EQ(other->stats().states, 0);
    EXPECT_EQ(other->stats().damaged, 0);
    EXPECT_FALSE(other->find(Tokens{1, 2, 3}).has_value());
    other->write({1, 2}, state('b'));
  }
  auto store = open(1 << 20, "model a");
  EXPECT_EQ(store->read(store->find(Tokens{1, 2, 3})->id).value(), state('a'));
}

// Every byte of a file counts: with any one changed, the state is not found or not given out.
TEST_F(PrefixStoreTest, damage_anywhere_is_noticed) {
  open()->write({1, 2, 3}, state('a', 64));
  const std::string path = files().at(0).string();
  const std::string good = read_file(path).value();
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    ASSERT_TRUE(write_file_atomic(path, bad).ok());
    auto store = open();
    const auto match = store->find(Tokens{1, 2, 3});
    if (match.has_value()) {
      EXPECT_FALSE(store->read(match->id).ok()) << "byte " << i;
      EXPECT_FALSE(store->find(Tokens{1, 2, 3}).has_value()) << "byte " << i;
    }
    EXPECT_EQ(store->stats().damaged, 1) << "byte " << i;
  }
  for (size_t size = 0; size < good.size(); size += 7) {
    ASSERT_TRUE(write_file_atomic(path, std::string_view(good).substr(0, size)).ok());
    auto store = open();
    EXPECT_FALSE(store->find(Tokens{1, 2, 3}).has_value()) << size << " bytes";
    if (size % 2 == 0) continue;
    store->write({1, 2, 3}, state('a', 64));  // takes the damaged one's place
    store->flush();
    EXPECT_EQ(read_file(path).value(), good);
  }
  ASSERT_TRUE(write_file_atomic(path, good + "x").ok());
  EXPECT_EQ(open()->stats().states, 0);
}

TEST_F(PrefixStoreTest, foreign_files_and_leftovers) {
  fs::create_directories(directory_);
  ASSERT_TRUE(write_file_atomic(directory_ + "/notes.txt", "hello").ok());
  ASSERT_TRUE(write_file_atomic(directory_ + "/x.prefix", "hello, this is some other program's file of this name").ok());
  ASSERT_TRUE(write_file_atomic(directory_ + "/y.prefix.tmp.999999999", "half").ok());                      // no process has this number
  ASSERT_TRUE(write_file_atomic(directory_ + "/y.prefix.tmp." + std::to_string(::getpid()), "half").ok());  // still being written
  fs::create_directories(directory_ + "/z.prefix");
  auto store = open();
  EXPECT_EQ(store->stats().states, 0);
  EXPECT_EQ(store->stats().damaged, 1);
  EXPECT_EQ(files().size(), 4u);
}

TEST_F(PrefixStoreTest, a_file_that_goes_is_forgotten) {
  auto store = open();
  store->write({1, 2}, state('a'));
  store->flush();
  fs::remove(files().at(0));
  const auto match = store->find(Tokens{1, 2});
  EXPECT_FALSE(store->read(match->id).ok());
  EXPECT_EQ(store->stats().states, 0);
  EXPECT_EQ(store->stats().bytes, 0);
  EXPECT_FALSE(store->read(match->id).ok());
}

TEST_F(PrefixStoreTest, a_place_that_cannot_be_is_an_error) {
  std::ofstream(directory_) << "a file";
  EXPECT_EQ(PrefixStore::open({directory_ + "/below", 100, "m"}).status().code(), StatusCode::kIo);
  EXPECT_EQ(PrefixStore::open({directory_, 0, "m"}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace dsv4

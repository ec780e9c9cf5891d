#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "base/json.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace dsv4 {
namespace {

// A small valid file: 256 bytes, the merges "a b", "b c", "ab c", "Ġ a" (in this order), and added tokens.
Json small_file() {
  Json file = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"normalizer", nullptr}, {"post_processor", nullptr}};
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[byte_level_character(static_cast<unsigned char>(byte))] = byte;
  int next = 256;
  for (const char* token : {"ab", "bc", "abc", "Ġa"}) vocab[token] = next++;
  file["model"] = {{"type", "BPE"}, {"dropout", nullptr}, {"byte_fallback", false}, {"vocab", vocab}, {"merges", {"a b", "b c", "ab c", "Ġ a"}}};
  const auto added = [](int id, const char* content, bool normalized, bool special) {
    return Json{{"id", id},        {"content", content},       {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", normalized}, {"special", special}};
  };
  file["added_tokens"] = Json::array({added(260, "<s>", false, true), added(261, "<s>!", false, true), added(262, "s>!!", false, false),
                                      added(263, "<user>", true, false), added(265, "!<user", true, false)});
  file["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Split"}, {"pattern", {{"Regex", " ?\\p{L}+"}}}, {"behavior", "Isolated"}, {"invert", false}},
                             {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}}}};
  file["decoder"] = {{"type", "ByteLevel"}};
  return file;
}

Tokenizer small_tokenizer(const Json& file = small_file()) {
  const Result<Tokenizer> tokenizer = Tokenizer::from_json(file.dump(), "small");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return *tokenizer;
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options = {}) {
  const auto ids = tokenizer.encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : std::vector<int32_t>{};
}

using Ids = std::vector<int32_t>;

TEST(Tokenizer, merges_by_rank_not_by_place) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(encode(tokenizer, "abc"), (Ids{258}));
  EXPECT_EQ(encode(tokenizer, "bcab"), (Ids{257, 256}));
  EXPECT_EQ(encode(tokenizer, "xabcx"), (Ids{'x', 258, 'x'}));
  EXPECT_EQ(encode(tokenizer, " ab"), (Ids{' ', 256}));  // "a b" ranks before "Ġ a"
  EXPECT_EQ(encode(tokenizer, " aab"), (Ids{259, 256}));
}

// Planted fault: with the first two merges exchanged, "abc" must come out otherwise.
TEST(Tokenizer, merge_order_matters) {
  Json file = small_file();
  std::swap(file["model"]["merges"][0], file["model"]["merges"][1]);
  EXPECT_EQ(encode(small_tokenizer(file), "abc"), (Ids{'a', 257}));
}

TEST(Tokenizer, both_forms_of_merges_mean_the_same) {
  Json file = small_file();
  file["model"]["merges"] = Json::array({Json::array({"a", "b"}), Json::array({"b", "c"}), Json::array({"ab", "c"}), Json::array({"Ġ", "a"})});
  EXPECT_EQ(encode(small_tokenizer(file), "abc bcab aab"), encode(small_tokenizer(), "abc bcab aab"));
}

TEST(Tokenizer, ignore_merges_takes_whole_pieces) {
  Json file = small_file();
  file["model"]["vocab"]["xyz"] = 264;
  EXPECT_EQ(encode(small_tokenizer(file), "xyz"), (Ids{'x', 'y', 'z'}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(encode(small_tokenizer(file), "xyz xyz"), (Ids{264, ' ', 'x', 'y', 'z'}));
}

TEST(Tokenizer, added_tokens_are_leftmost_longest) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(encode(tokenizer, "<s>"), (Ids{260}));
  EXPECT_EQ(encode(tokenizer, "<s>!"), (Ids{261}));        // the longer one
  EXPECT_EQ(encode(tokenizer, "<s>!!"), (Ids{261, '!'}));  // the one further left, though "s>!!" is as long
  EXPECT_EQ(encode(tokenizer, "s>!!"), (Ids{262}));
  EXPECT_EQ(encode(tokenizer, "<s><s>"), (Ids{260, 260}));
  EXPECT_EQ(encode(tokenizer, "ab<s>c"), (Ids{256, 260, 'c'}));  // nothing merges across
  EXPECT_EQ(encode(tokenizer, "<s"), (Ids{'<', 's'}));
}

// Tokens marked "normalized" are looked for only in what the others leave, even where they begin further left.
TEST(Tokenizer, normalized_added_tokens_come_second) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(encode(tokenizer, "!<user>"), (Ids{265, '>'}));
  EXPECT_EQ(encode(tokenizer, "<s>!<user>"), (Ids{261, 263}));
}

TEST(Tokenizer, special_text_can_be_read_as_ordinary) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(encode(tokenizer, "<s>ab<user>", {.parse_special = false}), (Ids{'<', 's', '>', 256, '<', 'u', 's', 'e', 'r', '>'}));
  EXPECT_EQ(encode(tokenizer, "", {.parse_special = false}), (Ids{}));
}

TEST(Tokenizer, lookups) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 266);
  EXPECT_FALSE(tokenizer.has_token(264));
  EXPECT_FALSE(tokenizer.has_token(-1));
  EXPECT_FALSE(tokenizer.has_token(266));
  EXPECT_EQ(tokenizer.token_text(259), "Ġa");
  EXPECT_EQ(tokenizer.token_bytes(259), " a");
  EXPECT_EQ(tokenizer.token_bytes(0xE4), "\xE4");
  EXPECT_EQ(tokenizer.token_bytes(264), "");
  EXPECT_EQ(tokenizer.id_of("Ġa"), 259);
  EXPECT_EQ(tokenizer.id_of("<user>"), 263);
  EXPECT_EQ(tokenizer.id_of("nothing"), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(260));
  EXPECT_FALSE(tokenizer.is_special(263));
  EXPECT_TRUE(tokenizer.is_added(263));
  EXPECT_FALSE(tokenizer.is_added('a'));
}

TEST(Tokenizer, decodes_bytes) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(*tokenizer.decode(Ids{260, 256, 0xE4, 0xBD}), "<s>ab\xE4\xBD");
  EXPECT_EQ(*tokenizer.decode(Ids{260, 256, 263}, {.skip_special = true}), "ab<user>");
  EXPECT_EQ(tokenizer.decode(Ids{1, 264}).status().message(), "ids: 264 is no token (vocabulary size 266)");
  EXPECT_FALSE(tokenizer.decode(Ids{-1}).ok());
}

TEST(Tokenizer, refuses_invalid_utf8_with_its_place) {
  const auto ids = small_tokenizer().encode("abc\xE4\xBDz");
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ids.status().message(), "text: invalid UTF-8 at byte 3 (0xE4)");
}

// Each case breaks one thing in a valid file; the message must name it.
TEST(Tokenizer, refuses_bad_files) {
  struct Case {
    const char* pointer;
    Json value;
    StatusCode code;
    const char* message;  // part of it
  };
  const StatusCode bad = StatusCode::kInvalidData, missing = StatusCode::kUnsupported;
  const Case cases[] = {
      {"/version", "2.0", bad, "version must be"},
      {"/surprise", 1, missing, "\"surprise\""},
      {"/truncation", {{"max_length", 5}}, missing, "truncation"},
      {"/padding", {{"pad_id", 0}}, missing, "padding"},
      {"/normalizer", {{"type", "NFC"}}, missing, "NFC"},
      {"/post_processor", {{"type", "TemplateProcessing"}}, missing, "TemplateProcessing"},
      {"/decoder", {{"type", "WordPiece"}}, missing, "WordPiece"},
      {"/decoder", nullptr, bad, "decoder is missing"},
      {"/model", nullptr, bad, "model is missing"},
      {"/model/type", "Unigram", missing, "Unigram"},
      {"/model/dropout", 0.1, missing, "dropout"},
      {"/model/byte_fallback", true, missing, "byte_fallback"},
      {"/model/byte_fallback", 1, bad, "must be a boolean"},
      {"/model/end_of_word_suffix", "</w>", missing, "end_of_word_suffix"},
      {"/model/new_option", true, missing, "new_option"},
      {"/model/vocab", Json::array(), bad, "model.vocab must be"},
      {"/model/vocab/ab", 1, bad, "already has"},
      {"/model/vocab/ab", -1, bad, "is -1"},
      {"/model/vocab/ab", 1.5, bad, "is 1.5"},
      {"/model/vocab/ab", "1", bad, "is a string"},
      {"/model/vocab/ab", 4194304, bad, "is 4194304"},
      {"/model/vocab/ab", 99999999999999999, bad, "is 99999999999999999"},
      {"/model/vocab/你", 264, bad, "outside the byte-level alphabet"},
      {"/model/merges", "a b", bad, "model.merges must be an array"},
      {"/model/merges/1", "a x", bad, "\"ax\""},
      {"/model/merges/1", "q你 x", bad, "which the vocabulary lacks"},
      {"/model/merges/1", "a b", bad, "repeats the pair"},
      {"/model/merges/1", "ab", bad, "one space"},
      {"/model/merges/1", "a b c", bad, "one space"},
      {"/model/merges/1", " b", bad, "empty token"},
      {"/model/merges/1", {"a", "b", "c"}, bad, "LEFT RIGHT"},
      {"/model/merges/1", 5, bad, "LEFT RIGHT"},
      {"/added_tokens", Json::object(), bad, "added_tokens must be an array"},
      {"/added_tokens/0/id", 5, bad, "already has"},
      {"/added_tokens/0/content", "ab", bad, "it has the id 256"},
      {"/added_tokens/1/content", "<s>", bad, "<s>"},
      {"/added_tokens/0/content", "", bad, "non-empty"},
      {"/added_tokens/0/lstrip", true, missing, "lstrip"},
      {"/added_tokens/0/single_word", true, missing, "single_word"},
      {"/added_tokens/0/special", "yes", bad, "must be a boolean"},
      {"/added_tokens/0/extra", 0, missing, "extra"},
      {"/pre_tokenizer", nullptr, bad, "pre_tokenizer is missing"},
      {"/pre_tokenizer", {{"type", "Whitespace"}}, missing, "Whitespace"},
      {"/pre_tokenizer/pretokenizers/0/type", "Digits", missing, "Digits"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Removed", missing, "Isolated"},
      {"/pre_tokenizer/pretokenizers/0/invert", true, missing, "invert"},
      {"/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}}, missing, "Regex"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a", bad, "malformed"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\w", missing, "\\w"},
      {"/pre_tokenizer/pretokenizers/1/type", "Split", missing, "add_prefix_space"},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", true, missing, "add_prefix_space"},
      {"/pre_tokenizer/pretokenizers", Json::array(), missing, "no ByteLevel"},
  };
  for (const Case& c : cases) {
    Json file = small_file();
    file[Json::json_pointer(c.pointer)] = c.value;
    const Result<Tokenizer> tokenizer = Tokenizer::from_json(file.dump(), "small");
    ASSERT_FALSE(tokenizer.ok()) << c.pointer << " = " << c.value;
    EXPECT_EQ(tokenizer.status().code(), c.code) << c.pointer << ": " << tokenizer.status().message();
    EXPECT_NE(tokenizer.status().message().find(c.message), std::string::npos) << c.pointer << ": " << tokenizer.status().message();
    EXPECT_EQ(tokenizer.status().message().rfind("small: ", 0), 0u) << tokenizer.status().message();
  }
}

TEST(Tokenizer, refuses_a_vocabulary_without_all_bytes) {
  Json file = small_file();
  file["model"]["vocab"].erase("Ġ");
  file["model"]["merges"].erase(3);
  const Result<Tokenizer> tokenizer = Tokenizer::from_json(file.dump(), "small");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_NE(tokenizer.status().message().find("byte 0x20"), std::string::npos) << tokenizer.status().message();
  EXPECT_EQ(Tokenizer::load("no/such/tokenizer.json").status().code(), StatusCode::kNotFound);
}

// The heap against the definition: scan for the lowest rank, merge it, start again.
TEST(Tokenizer, agrees_with_a_plain_merge_loop) {
  std::mt19937 random(11);
  Json file = small_file();
  Json& vocab = file["model"]["vocab"];
  Json merges = Json::array();
  std::vector<std::string> tokens = {"a", "b", "c", "d"};
  std::vector<std::pair<std::string, std::string>> ranked;
  vocab.erase("ab"), vocab.erase("bc"), vocab.erase("abc"), vocab.erase("Ġa");
  int next = 300;
  while (ranked.size() < 60) {
    const std::string left = tokens[random() % tokens.size()], right = tokens[random() % tokens.size()];
    if (left.size() + right.size() > 8 || std::count(ranked.begin(), ranked.end(), std::pair(left, right)) > 0) continue;
    ranked.emplace_back(left, right);
    merges.push_back(left + " " + right);
    if (!vocab.contains(left + right)) {
      vocab[left + right] = next++;
      tokens.push_back(left + right);
    }
  }
  file["model"]["merges"] = merges;
  const Tokenizer tokenizer = small_tokenizer(file);
  for (int round = 0; round < 500; ++round) {
    std::string word;
    const size_t size = 1 + random() % 40;
    for (size_t i = 0; i < size; ++i) word += static_cast<char>('a' + random() % 4);
    std::vector<std::string> parts;
    for (const char c : word) parts.emplace_back(1, c);
    while (true) {
      size_t best_rank = ranked.size(), best = 0;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const size_t rank = std::find(ranked.begin(), ranked.end(), std::pair(parts[i], parts[i + 1])) - ranked.begin();
        if (rank < best_rank) best_rank = rank, best = i;
      }
      if (best_rank == ranked.size()) break;
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + best + 1);
    }
    Ids expected;
    for (const std::string& part : parts) expected.push_back(vocab[part]);
    ASSERT_EQ(encode(tokenizer, word), expected) << word;
  }
}

TEST(Tokenizer, decode_inverts_encode_on_any_text) {
  const Result<Tokenizer> tokenizer = Tokenizer::load("models/dsv4-tiny/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  std::mt19937 random(3);
  const char* fragments[] = {"<｜User｜>", "<think>", "</", "｜DSML｜", "\r\n", "  ", "123456", "don't", "你好", "ß", "\u0301", "\u200d", "🙂"};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    const size_t size = random() % 20;
    for (size_t i = 0; i < size; ++i) {
      const uint32_t kind = random() % 4;
      if (kind == 0) {
        text += fragments[random() % std::size(fragments)];
        continue;
      }
      uint32_t code_point = kind == 1 ? random() % 0x80 : kind == 2 ? random() % 0x3000 : random() % 0x110000;
      if (code_point >= 0xD800 && code_point <= 0xDFFF) code_point = 'x';
      append_utf8(code_point, &text);
    }
    for (const bool parse_special : {true, false}) {
      const auto ids = encode(*tokenizer, text, {.parse_special = parse_special});
      ASSERT_EQ(*tokenizer->decode(ids), text);
      if (!parse_special) {
        for (const int32_t id : ids) ASSERT_FALSE(tokenizer->is_added(id)) << text;
      }
    }
  }
}

// Nothing may take quadratic time: 25 times the text, and far less than 625 times the time. The bound is loose on purpose: a
// quadratic merge of 100,000 letters takes minutes.
TEST(Tokenizer, long_runs_take_linear_time) {
  const Result<Tokenizer> tokenizer = Tokenizer::load("models/dsv4-tiny/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  for (const char* unit : {"a", "e", " ", "\n", "!", "7", "你", " \n", "\u0301", "<", "<｜", "\u200b"}) {
    std::string text;
    while (text.size() < 100000) text += unit;
    const auto start = std::chrono::steady_clock::now();
    const auto ids = encode(*tokenizer, text);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_LT(seconds.count(), 5.0) << "of " << unit;
    EXPECT_EQ(*tokenizer->decode(ids), text);
  }
}

}  // namespace
}  // namespace dsv4

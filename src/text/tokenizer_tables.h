// What a Tokenizer holds. Private to tokenizer.cc (use) and tokenizer_builder.cc (reading the file).
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/split_regex.h"
#include "text/tokenizer.h"

namespace dsv4 {

struct Tokenizer::Tables {
  struct Token {
    std::string text;   // as in the file
    std::string bytes;  // what it stands for
    bool present = false;
    bool added = false;
    bool special = false;
  };
  std::vector<Token> tokens;                                 // by id
  std::unordered_map<std::string_view, int32_t> id_by_text;  // views into `tokens`
  int32_t byte_ids[256] = {};
  MergeTable merges;
  bool ignore_merges = false;                                 // a piece that is a token as a whole is that token, whatever the merges say
  std::unordered_map<std::string_view, int32_t> id_by_bytes;  // ordinary tokens; filled only with ignore_merges
  std::vector<SplitRegex> splits;                             // in order
  AddedTokenTrie raw_added;                                   // "normalized": false
  AddedTokenTrie normalized_added;                            // "normalized": true: looked for in what the first ones leave
};

}  // namespace dsv4

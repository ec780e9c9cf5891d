// The tokenizer that a checkpoint's tokenizer.json describes: byte-level BPE behind a chain of regular expressions.
//
// Encoding: (1) added tokens are found in the text, leftmost-longest, first those marked not "normalized", then in what is left
// the others; (2) each stretch between them is cut by the pre-tokenizer's patterns, each pattern seeing only the piece that the
// pattern before it made; (3) each piece's bytes merge by rank (bpe.h). Every byte has a token, so any text can be encoded.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4 {

struct EncodeOptions {
  bool parse_special = true;  // off: the text of added tokens is ordinary text (for text nobody vouches for)
};

struct DecodeOptions {
  bool skip_special = false;  // leave out tokens that the file marks special
};

// Immutable; any number of threads may use one object. Copies share the tables.
class Tokenizer {
 public:
  // Reads tokenizer.json at `path`. Errors name the file, the member and the rule. What the format knows and this class does not
  // do (other models, normalizers, split behaviours, dropout, ...) is kUnsupported, never ignored.
  static Result<Tokenizer> load(const std::string& path);
  static Result<Tokenizer> from_json(std::string_view text, const std::string& name);

  // Errors: kInvalidArgument "text: invalid UTF-8 at byte N (0xHH)"; kResourceLimit (a pattern gave up).
  Result<std::vector<int32_t>> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // The tokens' bytes joined. They may be cut inside a code point; Utf8Stream makes text of them. Error: kInvalidArgument for an
  // id without a token.
  Result<std::string> decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  // The bytes of one token; empty for an id without a token.
  std::string_view token_bytes(int32_t id) const;

  // The token as the file writes it (byte-level characters for ordinary tokens, the text itself for added ones).
  std::string_view token_text(int32_t id) const;

  // The id of a token written as token_text gives it.
  std::optional<int32_t> id_of(std::string_view token_text) const;

  bool has_token(int32_t id) const;
  bool is_special(int32_t id) const;  // marked "special" among the added tokens
  bool is_added(int32_t id) const;

  // The highest id + 1. Some ids below it may have no token; a model's logits may be wider.
  int32_t vocab_size() const;

 private:
  struct Tables;
  friend class TokenizerBuilder;
  explicit Tokenizer(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}

  std::shared_ptr<const Tables> tables_;
};

}  // namespace dsv4

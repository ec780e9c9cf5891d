#include "text/tokenizer.h"

#include <fmt/format.h>

#include "text/tokenizer_tables.h"
#include "text/utf8.h"

namespace dsv4 {
namespace {

// Words met before in one text need no merging. Bounds the memory; a natural text of 1 MB has some 20,000 words.
constexpr size_t kMaxCachedWords = 1 << 16;
constexpr size_t kMaxCachedWordBytes = 64;

// One encode call: its memory, reused from piece to piece.
class Encoder {
 public:
  Encoder(const MergeTable& merges, const int32_t* byte_ids, const std::unordered_map<std::string_view, int32_t>& whole, const std::vector<SplitRegex>& splits,
          std::vector<int32_t>* ids)
      : merger_(merges, byte_ids), whole_(whole), splits_(splits), ids_(*ids) {}

  // Text without added tokens.
  Status encode_stretch(std::string_view text) {
    pieces_.assign(1, text);
    for (const SplitRegex& split : splits_) {
      next_pieces_.clear();
      for (const std::string_view piece : pieces_) DSV4_RETURN_IF_ERROR(split.split(piece, &scratch_, &next_pieces_));
      pieces_.swap(next_pieces_);
    }
    for (const std::string_view piece : pieces_) encode_piece(piece);
    return ok_status();
  }

 private:
  struct Range {
    size_t begin;
    size_t count;
  };

  void encode_piece(std::string_view piece) {
    if (const auto token = whole_.find(piece); token != whole_.end()) {
      ids_.push_back(token->second);
      return;
    }
    if (const auto known = words_.find(piece); known != words_.end()) {
      const Range range = known->second;
      for (size_t i = 0; i < range.count; ++i) ids_.push_back(ids_[range.begin + i]);
      return;
    }
    const size_t begin = ids_.size();
    merger_.merge(piece, &ids_);
    if (piece.size() <= kMaxCachedWordBytes && words_.size() < kMaxCachedWords) words_.emplace(piece, Range{begin, ids_.size() - begin});
  }

  BpeMerger merger_;
  const std::unordered_map<std::string_view, int32_t>& whole_;
  const std::vector<SplitRegex>& splits_;
  std::vector<int32_t>& ids_;
  SplitRegex::Scratch scratch_;
  std::vector<std::string_view> pieces_, next_pieces_;
  std::unordered_map<std::string_view, Range> words_;  // where in ids_ a word's tokens stand
};

// Cuts `text` at the trie's tokens: `stretch(text)` for what lies between, `token(id)` for each of them.
template <class Stretch, class Token>
Status cut_at_added(const AddedTokenTrie& trie, std::string_view text, const Stretch& stretch, const Token& token) {
  size_t done = 0;
  while (!trie.empty()) {
    const AddedTokenTrie::Match match = trie.find(text, done);
    if (match.size == 0) break;
    if (match.begin > done) DSV4_RETURN_IF_ERROR(stretch(text.substr(done, match.begin - done)));
    token(match.id);
    done = match.begin + match.size;
  }
  return done < text.size() ? stretch(text.substr(done)) : ok_status();
}

}  // namespace

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  DSV4_RETURN_IF_ERROR(check_utf8(text, "text"));
  const Tables& tables = *tables_;
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);  // natural text has three to five bytes a token
  Encoder encoder(tables.merges, tables.byte_ids, tables.id_by_bytes, tables.splits, &ids);
  const auto ordinary = [&](std::string_view stretch) { return encoder.encode_stretch(stretch); };
  const auto added = [&](int32_t id) { ids.push_back(id); };
  if (!options.parse_special) {
    if (!text.empty()) DSV4_RETURN_IF_ERROR(ordinary(text));
    return ids;
  }
  const auto second_pass = [&](std::string_view stretch) { return cut_at_added(tables.normalized_added, stretch, ordinary, added); };
  DSV4_RETURN_IF_ERROR(cut_at_added(tables.raw_added, text, second_pass, added));
  return ids;
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!has_token(id)) return invalid_argument(fmt::format("ids: {} is no token (vocabulary size {})", id, vocab_size()));
    if (options.skip_special && is_special(id)) continue;
    bytes += tables_->tokens[id].bytes;
  }
  return bytes;
}

bool Tokenizer::has_token(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < tables_->tokens.size() && tables_->tokens[id].present; }

std::string_view Tokenizer::token_bytes(int32_t id) const { return has_token(id) ? std::string_view(tables_->tokens[id].bytes) : std::string_view(); }

std::string_view Tokenizer::token_text(int32_t id) const { return has_token(id) ? std::string_view(tables_->tokens[id].text) : std::string_view(); }

std::optional<int32_t> Tokenizer::id_of(std::string_view token_text) const {
  const auto token = tables_->id_by_text.find(token_text);
  if (token == tables_->id_by_text.end()) return std::nullopt;
  return token->second;
}

bool Tokenizer::is_special(int32_t id) const { return has_token(id) && tables_->tokens[id].special; }
bool Tokenizer::is_added(int32_t id) const { return has_token(id) && tables_->tokens[id].added; }
int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(tables_->tokens.size()); }

}  // namespace dsv4

// Reads tokenizer.json into Tokenizer::Tables: every rule of the format that matters here is checked in this file.
#include <charconv>
#include <initializer_list>

#include <fmt/format.h>

#include "base/file.h"
#include "text/byte_level.h"
#include "text/json_value.h"
#include "text/tokenizer_tables.h"

namespace dsv4 {

namespace {

// Ids index a table, so a single absurd id must not ask for gigabytes: twice the largest vocabulary in use, and then some.
constexpr int32_t kMaxId = (1 << 22) - 1;

// The split that a ByteLevel pre-tokenizer does by itself with "use_regex": true (that of GPT-2).
constexpr const char* kByteLevelPattern = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

}  // namespace

class TokenizerBuilder {
 public:
  TokenizerBuilder(const std::string& name) : name_(name), tables_(std::make_shared<Tokenizer::Tables>()) {}

  Result<Tokenizer> build(const JsonValue& root) {
    if (!root.is(JsonKind::kObject)) return bad("", "must be an object, is " + root.kind_name());
    DSV4_RETURN_IF_ERROR(
        only_members(root, "", {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"}));
    if (const JsonValue* version = root.find("version"); version != nullptr && version->text != "1.0") {
      return bad("version", "must be \"1.0\"");
    }
    for (const char* member : {"truncation", "padding"}) {
      if (!absent(root.find(member))) return missing_feature(member, "is set, which is not implemented; only null is");
    }
    DSV4_RETURN_IF_ERROR(read_model(root.find("model")));
    DSV4_RETURN_IF_ERROR(read_added_tokens(root.find("added_tokens")));
    DSV4_RETURN_IF_ERROR(finish_tokens());
    DSV4_RETURN_IF_ERROR(read_normalizer(root.find("normalizer")));
    DSV4_RETURN_IF_ERROR(read_pre_tokenizer(root.find("pre_tokenizer")));
    DSV4_RETURN_IF_ERROR(read_post_processor(root.find("post_processor")));
    DSV4_RETURN_IF_ERROR(read_decoder(root.find("decoder")));
    return Tokenizer(tables_);
  }

 private:
  Status bad(const std::string& member, const std::string& rule) const {
    return invalid_data(fmt::format("{}: {}{}{}", name_, member, member.empty() ? "" : " ", rule));
  }
  Status missing_feature(const std::string& member, const std::string& rule) const { return unsupported(fmt::format("{}: {} {}", name_, member, rule)); }
  static bool absent(const JsonValue* value) { return value == nullptr || value->is(JsonKind::kNull); }

  Status only_members(const JsonValue& object, const std::string& where, std::initializer_list<std::string_view> known) const {
    for (const std::string& name : object.names) {
      bool found = false;
      for (const std::string_view k : known) found = found || name == k;
      if (!found) return missing_feature(where.empty() ? "the file" : where, fmt::format("has the member \"{}\", which is not implemented", name));
    }
    return ok_status();
  }

  // The object member `type`, or an error.
  Result<std::string> type_of(const JsonValue* value, const std::string& where) const {
    if (absent(value)) return bad(where, "is missing");
    if (!value->is(JsonKind::kObject)) return bad(where, "must be an object, is " + value->kind_name());
    const JsonValue* type = value->find("type");
    if (type == nullptr || !type->is(JsonKind::kString)) return bad(where, "must have a \"type\" string");
    return type->text;
  }

  // A boolean member, or `fallback` when it is absent.
  Result<bool> flag(const JsonValue& object, const char* member, const std::string& where, bool fallback) const {
    const JsonValue* value = object.find(member);
    if (value == nullptr) return fallback;
    if (!value->is_bool()) return bad(where + "." + member, "must be a boolean, is " + value->kind_name());
    return value->is(JsonKind::kTrue);
  }

  Result<int32_t> token_id(const JsonValue& value, const std::string& where) const {
    int32_t id = -1;
    const char* end = value.text.data() + value.text.size();
    if (value.is(JsonKind::kNumber)) {
      const auto parsed = std::from_chars(value.text.data(), end, id);
      if (parsed.ec == std::errc() && parsed.ptr == end && id >= 0 && id <= kMaxId) return id;
    }
    return bad(where, fmt::format("must be an id from 0 to {}, is {}", kMaxId, value.is(JsonKind::kNumber) ? value.text : value.kind_name()));
  }

  // Claims `id` for a token. Precondition: id is in range.
  Status place(int32_t id, const std::string& text, const std::string& where) {
    auto& tokens = tables_->tokens;
    if (static_cast<size_t>(id) >= tokens.size()) tokens.resize(id + 1);
    if (tokens[id].present) return bad(where, fmt::format("gives id {} to \"{}\", which \"{}\" already has", id, text, tokens[id].text));
    tokens[id].present = true;
    tokens[id].text = text;
    ids_.emplace(text, id);
    return ok_status();
  }

  Status read_model(const JsonValue* model) {
    DSV4_ASSIGN_OR_RETURN(const std::string type, type_of(model, "model"));
    if (type != "BPE") return missing_feature("model.type", fmt::format("is \"{}\"; only \"BPE\" is implemented", type));
    DSV4_RETURN_IF_ERROR(only_members(
        *model, "model",
        {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
    for (const char* member : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const JsonValue* value = model->find(member);
      const bool empty = absent(value) || (value->is(JsonKind::kString) && value->text.empty());
      if (!empty) return missing_feature(std::string("model.") + member, "is set, which is not implemented; only null is");
    }
    DSV4_ASSIGN_OR_RETURN(const bool byte_fallback, flag(*model, "byte_fallback", "model", false));
    if (byte_fallback) return missing_feature("model.byte_fallback", "is true, which is not implemented");
    DSV4_ASSIGN_OR_RETURN(tables_->ignore_merges, flag(*model, "ignore_merges", "model", false));
    DSV4_RETURN_IF_ERROR(read_vocab(model->find("vocab")));
    return read_merges(model->find("merges"));
  }

  Status read_vocab(const JsonValue* vocab) {
    if (vocab == nullptr || !vocab->is(JsonKind::kObject)) return bad("model.vocab", "must be an object of token: id");
    ids_.reserve(vocab->items.size());
    for (size_t i = 0; i < vocab->items.size(); ++i) {
      const std::string& text = vocab->names[i];
      if (text.empty()) return bad("model.vocab", "has an empty token");
      DSV4_ASSIGN_OR_RETURN(const int32_t id, token_id(vocab->items[i], fmt::format("model.vocab[\"{}\"]", text)));
      DSV4_RETURN_IF_ERROR(place(id, text, "model.vocab"));
    }
    for (int byte = 0; byte < 256; ++byte) {
      const std::string character = byte_level_character(static_cast<unsigned char>(byte));
      const auto token = ids_.find(character);
      if (token == ids_.end()) return bad("model.vocab", fmt::format("lacks \"{}\", the token of byte 0x{:02X}: not a byte-level vocabulary", character, byte));
      tables_->byte_ids[byte] = token->second;
    }
    return ok_status();
  }

  Status read_merges(const JsonValue* merges) {
    if (merges == nullptr || !merges->is(JsonKind::kArray)) return bad("model.merges", "must be an array");
    tables_->merges.reserve(merges->items.size());
    for (size_t rank = 0; rank < merges->items.size(); ++rank) {
      const std::string where = fmt::format("model.merges[{}]", rank);
      std::string left, right;
      DSV4_RETURN_IF_ERROR(read_pair(merges->items[rank], where, &left, &right));
      int32_t ids[3];
      const std::string parts[3] = {left, right, left + right};
      for (int i = 0; i < 3; ++i) {
        const auto token = ids_.find(parts[i]);
        if (token == ids_.end()) return bad(where, fmt::format("needs the token \"{}\", which the vocabulary lacks", parts[i]));
        ids[i] = token->second;
      }
      if (!tables_->merges.insert(ids[0], ids[1], {static_cast<int32_t>(rank), ids[2]})) {
        return bad(where, fmt::format("repeats the pair \"{}\" \"{}\"", left, right));
      }
    }
    return ok_status();
  }

  // Both forms in use: "left right" and ["left", "right"].
  Status read_pair(const JsonValue& merge, const std::string& where, std::string* left, std::string* right) const {
    if (merge.is(JsonKind::kArray) && merge.items.size() == 2 && merge.items[0].is(JsonKind::kString) && merge.items[1].is(JsonKind::kString)) {
      *left = merge.items[0].text;
      *right = merge.items[1].text;
    } else if (merge.is(JsonKind::kString)) {
      const size_t space = merge.text.find(' ');
      if (space == std::string::npos || merge.text.find(' ', space + 1) != std::string::npos) return bad(where, "must be two tokens with one space between");
      *left = merge.text.substr(0, space);
      *right = merge.text.substr(space + 1);
    } else {
      return bad(where, "must be \"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]");
    }
    if (left->empty() || right->empty()) return bad(where, "has an empty token");
    return ok_status();
  }

  Status read_added_tokens(const JsonValue* added) {
    if (absent(added)) return ok_status();
    if (!added->is(JsonKind::kArray)) return bad("added_tokens", "must be an array, is " + added->kind_name());
    for (size_t i = 0; i < added->items.size(); ++i) {
      DSV4_RETURN_IF_ERROR(read_added_token(added->items[i], fmt::format("added_tokens[{}]", i)));
    }
    return ok_status();
  }

  Status read_added_token(const JsonValue& token, const std::string& where) {
    if (!token.is(JsonKind::kObject)) return bad(where, "must be an object, is " + token.kind_name());
    DSV4_RETURN_IF_ERROR(only_members(token, where, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    const JsonValue* content = token.find("content");
    const JsonValue* id_value = token.find("id");
    if (content == nullptr || !content->is(JsonKind::kString) || content->text.empty()) return bad(where + ".content", "must be a non-empty string");
    if (id_value == nullptr) return bad(where + ".id", "is missing");
    DSV4_ASSIGN_OR_RETURN(const int32_t id, token_id(*id_value, where + ".id"));
    for (const char* member : {"single_word", "lstrip", "rstrip"}) {
      DSV4_ASSIGN_OR_RETURN(const bool on, flag(token, member, where, false));
      if (on) return missing_feature(where + "." + member, "is true, which is not implemented");
    }
    DSV4_ASSIGN_OR_RETURN(const bool special, flag(token, "special", where, false));
    DSV4_ASSIGN_OR_RETURN(const bool normalized, flag(token, "normalized", where, !special));

    const auto known = ids_.find(content->text);
    if (known == ids_.end()) {
      DSV4_RETURN_IF_ERROR(place(id, content->text, where));
    } else if (known->second != id) {
      return bad(where, fmt::format("gives \"{}\" the id {}, but it has the id {}", content->text, id, known->second));
    } else if (tables_->tokens[id].added) {
      return bad(where, fmt::format("repeats \"{}\"", content->text));
    }
    Tokenizer::Tables::Token& entry = tables_->tokens[id];
    entry.added = true;
    entry.special = special;
    (normalized ? tables_->normalized_added : tables_->raw_added).insert(content->text, id);
    return ok_status();
  }

  // Bytes and lookups of every token, once all are known.
  Status finish_tokens() {
    auto& tables = *tables_;
    for (size_t id = 0; id < tables.tokens.size(); ++id) {
      Tokenizer::Tables::Token& token = tables.tokens[id];
      if (!token.present) continue;
      std::optional<std::string> bytes;
      if (!token.added) bytes = byte_level_decode(token.text);
      if (!token.added && !bytes)
        return bad("model.vocab", fmt::format("token \"{}\" (id {}) has a character outside the byte-level alphabet", token.text, id));
      token.bytes = bytes ? *bytes : token.text;
      tables.id_by_text.emplace(token.text, static_cast<int32_t>(id));
      if (tables.ignore_merges && !token.added) tables.id_by_bytes.emplace(token.bytes, static_cast<int32_t>(id));
    }
    return ok_status();
  }

  Status read_normalizer(const JsonValue* normalizer) const {
    if (absent(normalizer)) return ok_status();
    DSV4_ASSIGN_OR_RETURN(const std::string type, type_of(normalizer, "normalizer"));
    const JsonValue* parts = normalizer->find("normalizers");
    if (type == "Sequence" && parts != nullptr && parts->is(JsonKind::kArray) && parts->items.empty()) return ok_status();
    return missing_feature("normalizer", fmt::format("is a \"{}\"; only null and an empty Sequence are implemented", type));
  }

  Status read_pre_tokenizer(const JsonValue* pre_tokenizer) {
    DSV4_ASSIGN_OR_RETURN(const std::string type, type_of(pre_tokenizer, "pre_tokenizer"));
    if (type == "ByteLevel") return read_byte_level(*pre_tokenizer, "pre_tokenizer");
    if (type != "Sequence") return missing_feature("pre_tokenizer", fmt::format("is a \"{}\"; only Sequence and ByteLevel are implemented", type));
    DSV4_RETURN_IF_ERROR(only_members(*pre_tokenizer, "pre_tokenizer", {"type", "pretokenizers"}));
    const JsonValue* parts = pre_tokenizer->find("pretokenizers");
    if (parts == nullptr || !parts->is(JsonKind::kArray)) return bad("pre_tokenizer.pretokenizers", "must be an array");
    for (size_t i = 0; i < parts->items.size(); ++i) {
      const std::string where = fmt::format("pre_tokenizer.pretokenizers[{}]", i);
      DSV4_ASSIGN_OR_RETURN(const std::string part, type_of(&parts->items[i], where));
      const bool last = i + 1 == parts->items.size();
      if (part == "ByteLevel" && last) return read_byte_level(parts->items[i], where);
      if (part == "ByteLevel") return missing_feature(where, "is a ByteLevel before the end, which is not implemented");
      if (part != "Split") return missing_feature(where, fmt::format("is a \"{}\"; only Split and a last ByteLevel are implemented", part));
      DSV4_RETURN_IF_ERROR(read_split(parts->items[i], where));
    }
    return missing_feature("pre_tokenizer", "has no ByteLevel at its end; other vocabularies are not implemented");
  }

  Status read_split(const JsonValue& split, const std::string& where) {
    DSV4_RETURN_IF_ERROR(only_members(split, where, {"type", "pattern", "behavior", "invert"}));
    const JsonValue* behavior = split.find("behavior");
    if (behavior == nullptr || behavior->text != "Isolated") return missing_feature(where + ".behavior", "is not \"Isolated\", the only one implemented");
    DSV4_ASSIGN_OR_RETURN(const bool invert, flag(split, "invert", where, false));
    if (invert) return missing_feature(where + ".invert", "is true, which is not implemented");
    const JsonValue* pattern = split.find("pattern");
    const JsonValue* regex = pattern == nullptr ? nullptr : pattern->find("Regex");
    if (regex == nullptr || !regex->is(JsonKind::kString) || pattern->items.size() != 1) {
      return missing_feature(where + ".pattern", "is no {\"Regex\": ...}, the only form implemented");
    }
    return add_split(regex->text, where + ".pattern");
  }

  Status add_split(const std::string& pattern, const std::string& where) {
    Result<SplitRegex> split = SplitRegex::compile(pattern);
    if (!split.ok()) return split.status().with_context(fmt::format("{}: {}", name_, where));
    tables_->splits.push_back(std::move(split).value());
    return ok_status();
  }

  Status read_byte_level(const JsonValue& value, const std::string& where) {
    DSV4_RETURN_IF_ERROR(only_members(value, where, {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    DSV4_ASSIGN_OR_RETURN(const bool prefix_space, flag(value, "add_prefix_space", where, true));
    if (prefix_space) return missing_feature(where + ".add_prefix_space", "is true, which is not implemented");
    DSV4_ASSIGN_OR_RETURN(const bool use_regex, flag(value, "use_regex", where, true));
    return use_regex ? add_split(kByteLevelPattern, where) : ok_status();
  }

  // A ByteLevel post-processor trims character offsets, which nobody asks for here; all others would add tokens.
  Status read_post_processor(const JsonValue* value) const {
    if (absent(value)) return ok_status();
    DSV4_ASSIGN_OR_RETURN(const std::string type, type_of(value, "post_processor"));
    if (type == "ByteLevel") return ok_status();
    return missing_feature("post_processor", fmt::format("is a \"{}\"; only null and ByteLevel are implemented", type));
  }

  Status read_decoder(const JsonValue* value) const {
    DSV4_ASSIGN_OR_RETURN(const std::string type, type_of(value, "decoder"));
    if (type == "ByteLevel") return ok_status();
    return missing_feature("decoder", fmt::format("is a \"{}\"; only ByteLevel is implemented", type));
  }

  std::string name_;
  std::shared_ptr<Tokenizer::Tables> tables_;
  std::unordered_map<std::string, int32_t> ids_;
};

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  return from_json(text, path);
}

Result<Tokenizer> Tokenizer::from_json(std::string_view text, const std::string& name) {
  DSV4_ASSIGN_OR_RETURN(const JsonValue root, read_json(text, name));
  return TokenizerBuilder(name).build(root);
}

}  // namespace dsv4

// The byte-level alphabet of tokenizer.json files: every byte is written as one printable character. Bytes 21-7E, A1-AC and
// AE-FF stand for the code point of the same value, the other 68 (in order) for U+0100, U+0101, ...
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dsv4 {

// The character that stands for `byte`, in UTF-8.
std::string byte_level_character(unsigned char byte);

// The bytes that a token's characters stand for; empty when one of them is not in the alphabet. Precondition: valid UTF-8.
std::optional<std::string> byte_level_decode(std::string_view token);

}  // namespace dsv4

// UTF-8 as Unicode defines it (no overlong forms, no surrogates, at most U+10FFFF).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace dsv4 {

// Offset of the first byte that begins no well-formed sequence; empty when the whole text is valid.
std::optional<size_t> find_invalid_utf8(std::string_view text);

// kInvalidArgument "WHAT: invalid UTF-8 at byte N (0xHH)" unless `text` is valid.
Status check_utf8(std::string_view text, const std::string& what);

// Appends a scalar value. Precondition: code_point <= 0x10FFFF and no surrogate.
void append_utf8(uint32_t code_point, std::string* out);

// Bytes of the sequence that `lead` begins (1 to 4), or 0 when no sequence begins with it.
int utf8_sequence_bytes(unsigned char lead);

// The code point at `*offset`, which moves past it. Precondition: `text` is valid and *offset is on a boundary before its end.
uint32_t next_code_point(std::string_view text, size_t* offset);

}  // namespace dsv4

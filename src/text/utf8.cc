#include "text/utf8.h"

#include <cstring>

#include <fmt/format.h>

namespace dsv4 {

int utf8_sequence_bytes(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;  // continuation bytes, and the overlong leads C0 and C1
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  if (lead < 0xF5) return 4;
  return 0;
}

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  const size_t size = text.size();
  size_t i = 0;
  while (i < size) {
    if (bytes[i] < 0x80) {
      uint64_t block;  // eight ASCII bytes at a time
      while (i + 8 <= size && (std::memcpy(&block, bytes + i, 8), (block & 0x8080808080808080u) == 0)) i += 8;
      while (i < size && bytes[i] < 0x80) ++i;
      continue;
    }
    const int length = utf8_sequence_bytes(bytes[i]);
    if (length == 0 || i + length > size) return i;
    for (int k = 1; k < length; ++k) {
      if ((bytes[i + k] & 0xC0) != 0x80) return i;
    }
    const unsigned char second = bytes[i + 1];
    const bool overlong = (bytes[i] == 0xE0 && second < 0xA0) || (bytes[i] == 0xF0 && second < 0x90);
    const bool outside = (bytes[i] == 0xED && second > 0x9F) || (bytes[i] == 0xF4 && second > 0x8F);
    if (overlong || outside) return i;
    i += length;
  }
  return std::nullopt;
}

Status check_utf8(std::string_view text, const std::string& what) {
  const std::optional<size_t> bad = find_invalid_utf8(text);
  if (!bad) return ok_status();
  return invalid_argument(fmt::format("{}: invalid UTF-8 at byte {} (0x{:02X})", what, *bad, static_cast<unsigned char>(text[*bad])));
}

void append_utf8(uint32_t code_point, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

uint32_t next_code_point(std::string_view text, size_t* offset) {
  const auto lead = static_cast<unsigned char>(text[*offset]);
  const int length = utf8_sequence_bytes(lead);
  uint32_t code_point = length == 1 ? lead : lead & (0xFF >> (length + 1));
  for (int k = 1; k < length; ++k) code_point = code_point << 6 | (static_cast<unsigned char>(text[*offset + k]) & 0x3F);
  *offset += length;
  return code_point;
}

}  // namespace dsv4

#include "text/byte_level.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace dsv4 {
namespace {

constexpr uint32_t kFirstMoved = 0x100;
constexpr uint32_t kNumMoved = 68;  // 33 (00-20) + 34 (7F-A0) + 1 (AD)

constexpr bool is_printable(int byte) { return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD); }

struct Alphabet {
  std::array<uint32_t, 256> code_point{};               // by byte
  std::array<uint8_t, kFirstMoved + kNumMoved> byte{};  // by code point
  std::array<bool, kFirstMoved + kNumMoved> known{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  uint32_t moved = kFirstMoved;
  for (int byte = 0; byte < 256; ++byte) {
    const uint32_t code_point = is_printable(byte) ? static_cast<uint32_t>(byte) : moved++;
    alphabet.code_point[byte] = code_point;
    alphabet.byte[code_point] = static_cast<uint8_t>(byte);
    alphabet.known[code_point] = true;
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();
static_assert(kAlphabet.code_point[' '] == 0x120 && kAlphabet.code_point['\n'] == 0x10A);
static_assert(kAlphabet.known[kFirstMoved + kNumMoved - 1], "68 bytes have no printable character of their own");

}  // namespace

std::string byte_level_character(unsigned char byte) {
  std::string out;
  append_utf8(kAlphabet.code_point[byte], &out);
  return out;
}

std::optional<std::string> byte_level_decode(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const uint32_t code_point = next_code_point(token, &at);
    if (code_point >= kAlphabet.known.size() || !kAlphabet.known[code_point]) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte[code_point]));
  }
  return bytes;
}

}  // namespace dsv4

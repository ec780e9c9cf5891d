#include "text/utf8_stream.h"

#include "text/utf8.h"

namespace dsv4 {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

std::string Utf8Stream::feed(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + pending_.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (missing_ > 0) {
      if (byte >= next_low_ && byte <= next_high_) {
        pending_.push_back(c);
        next_low_ = 0x80;
        next_high_ = 0xBF;
        if (--missing_ == 0) {
          out += pending_;
          pending_.clear();
        }
        continue;
      }
      out += kReplacement;  // the begun sequence is cut short; this byte is looked at afresh
      pending_.clear();
      missing_ = 0;
    }
    const int length = utf8_sequence_bytes(byte);
    if (length == 1) {
      out.push_back(c);
    } else if (length == 0) {
      out += kReplacement;
    } else {
      pending_.assign(1, c);
      missing_ = length - 1;
      next_low_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
      next_high_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
    }
  }
  return out;
}

std::string Utf8Stream::flush() {
  const bool cut = missing_ > 0;
  *this = Utf8Stream();
  return cut ? std::string(kReplacement) : std::string();
}

std::string replace_invalid_utf8(std::string_view bytes) {
  Utf8Stream stream;
  std::string out = stream.feed(bytes);
  return out += stream.flush();
}

}  // namespace dsv4

// Incremental UTF-8 output: bytes of tokens go in at any split, only whole code points come out.
#pragma once

#include <string>
#include <string_view>

namespace dsv4 {

// Each maximal prefix of a well-formed sequence that is cut short (by a wrong byte or by the end), and each byte that can begin
// no sequence, becomes one U+FFFD: the replacement rule of the Unicode standard ("maximal subpart"), also that of web browsers.
// The total output depends on the bytes alone, never on how they were split.
class Utf8Stream {
 public:
  // Takes the next bytes; returns the text that is certain now. At most three bytes wait inside.
  std::string feed(std::string_view bytes);

  // The end of the bytes: U+FFFD if a sequence is unfinished, else nothing. The stream is then as new.
  std::string flush();

 private:
  std::string pending_;            // the begun sequence
  int missing_ = 0;                // continuation bytes it still needs
  unsigned char next_low_ = 0x80;  // bounds of its next byte: narrower than 80..BF after E0, ED, F0 and F4
  unsigned char next_high_ = 0xBF;
};

// All of `bytes` through one stream.
std::string replace_invalid_utf8(std::string_view bytes);

}  // namespace dsv4

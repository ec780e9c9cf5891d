// Pieces of looking for tags in text that arrives bit by bit.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace dsv4 {

// Blank space is ' ', \n, \t and \r.
size_t space_at_front(std::string_view text);
bool is_blank(std::string_view text);
std::string_view trim(std::string_view text);

// How many bytes at the end of `text` are the beginning (not the whole) of one of the markers. Precondition: no empty marker.
size_t partial_marker(std::string_view text, std::span<const std::string_view> markers);

// Newlines right before `end`, at most two: those that a block's opening tag takes with it.
size_t newlines_before(std::string_view text, size_t end);

enum class TagPart { kFound, kMismatch, kCutShort };

// Reads blank space and NAME="VALUE" at *at, and moves past it when found. VALUE has no quote, '<' or newline.
TagPart read_attribute(std::string_view text, std::string_view name, size_t* at, std::string_view* value);

// Reads blank space (perhaps none) and ">" at *at, and moves past it when found.
TagPart read_tag_end(std::string_view text, size_t* at);

}  // namespace dsv4

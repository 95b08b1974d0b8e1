// Text operations with the semantics of Python's str (code points, Unicode whitespace) that
// preserve the mark of each byte.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/chat/marked_text.h"

namespace hearth::jinja {

size_t char_bytes(std::string_view, size_t at);  // length of the character that starts there
uint32_t char_code(std::string_view, size_t at);
size_t char_count(std::string_view);
size_t char_offset(std::string_view, size_t chars);  // byte offset of that character
bool is_space(uint32_t code);

enum class Side { left, right, both };
// Without `chars`, strips whitespace.
MarkedText strip(const MarkedText&, Side, std::optional<std::string_view> chars = std::nullopt);

// At most `most` splits, from the left or the right; -1: no limit.
std::vector<MarkedText> split(const MarkedText&, std::string_view separator, int64_t most, Side);
std::vector<MarkedText> split_words(const MarkedText&, int64_t most);
std::vector<MarkedText> split_lines(const MarkedText&);

// Replaces the first `most` occurrences; -1: all. An empty `old` matches before each character and
// at the end.
MarkedText replace(const MarkedText&, std::string_view old, const MarkedText& by, int64_t most);

enum class Case { upper, lower, capitalize, title };
MarkedText change_case(const MarkedText&, Case);

MarkedText indent(const MarkedText&, const MarkedText& by, bool first, bool blank);

}  // namespace hearth::jinja

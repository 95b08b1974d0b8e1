// Text for people: control characters made visible, errors cut to one line, and a stderr that may
// have gone away with the terminal it belonged to.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace hearth {

// Control characters other than newline and tab as \x1b or \u009b, and bytes that are not UTF-8 as
// \xff: text from a model or a file cannot move the cursor or rename the window.
std::string visible(std::string_view text);

// The same on one line of at most `longest` bytes. A longer text loses its middle; no character is
// split.
std::string one_line(std::string_view text, size_t longest = 500);

// Writes to stderr as it is. A write that fails is ignored: a run outlives its terminal.
void put_stderr(std::string_view raw);

// Formats, makes visible and writes to stderr.
template <class... A>
void say(fmt::format_string<A...> text, A&&... args) {
  put_stderr(visible(fmt::format(text, std::forward<A>(args)...)));
}

// "hearth: " and one_line(text) on a line of its own.
void say_problem(std::string_view text);

// Whether nobody can read any more what is written to the pipe or socket `fd`.
bool reader_is_gone(int fd);

}  // namespace hearth

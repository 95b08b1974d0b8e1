// Output for people: makes control characters visible, cuts errors to one line, and tolerates a
// stderr whose terminal is gone.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace hearth::inline sys {

// Writes control characters other than newline and tab as \x1b or \u009b, and invalid UTF-8 as
// \xff, so that text from a model or file cannot move the cursor or rename the window.
std::string visible(std::string_view text);

// visible() on one line of at most `longest` bytes. A longer text loses its middle; characters are
// never split.
std::string one_line(std::string_view text, size_t longest = 500);

// Writes to stderr unchanged. A failed write is ignored: a run must outlive its terminal.
void put_stderr(std::string_view raw);

// Formats the text, makes it visible() and writes it to stderr.
template <class... A>
void say(fmt::format_string<A...> text, A&&... args) {
  put_stderr(visible(fmt::format(text, std::forward<A>(args)...)));
}

// Writes "hearth: " and one_line(text) as one line to stderr.
void say_problem(std::string_view text);

// Whether the reader of the pipe or socket `fd` is gone.
bool reader_is_gone(int fd);

}  // namespace hearth::inline sys

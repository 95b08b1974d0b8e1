// The text of one line of JSONL, whichever of the known forms it has; one object a line, the first
// of these that fits, joined plainly:
//   {"text"}                         the text
//   {"messages": [{"content"}..]}    contents joined by "\n"
//   {"prompt", "completion"}         prompt + completion
//   {"prompt", "chosen", "rejected"} prompt + "\n" + chosen (what is rejected is not to be learned)
//   {"instruction", "input", "output"}  instruction "\n" [input "\n"] output
#pragma once

#include <string>
#include <string_view>

namespace hearth {

// `where` names the file and line for the error.
std::string jsonl_text(std::string_view line, std::string_view where);

// The same for the common line, several times as fast: a flat object of plain values with a "text".
// False where it is anything else, good or bad: then jsonl_text decides.
bool flat_text(std::string& out, std::string_view line);

}  // namespace hearth

// The text of one JSONL line. The first of these forms that fits is used; its parts are joined
// without a template:
//   {"text"}                         the text
//   {"messages": [{"content"}..]}    contents joined by "\n"
//   {"conversations": [{"value"}..]}  values or contents joined by "\n"
//   {"prompt", "completion"}         prompt + completion
//   {"prompt", "chosen", "rejected"} prompt + "\n" + chosen (rejected is not learned)
//   {"instruction", "input", "output"}  instruction "\n" [input "\n"] output
#pragma once

#include <string>
#include <string_view>

namespace hearth::inline data {

// The key of a row's text.
struct TextKey {
  // "text": one of the forms above. Another key: its string or list of messages; every row needs
  // the key, and a null is an empty text.
  std::string_view name = "text";
  const char* flag = nullptr;  // flag that sets it, for errors
};

// `where` names the file and line for the error.
std::string jsonl_text(std::string_view line, std::string_view where, const TextKey& = {});

// A fast path for the common case, several times as fast: a flat object of plain values with a
// string in `key`. Returns false for anything else, valid or not; then jsonl_text() decides.
bool flat_text(std::string& out, std::string_view line, std::string_view key = "text");

// Whether a row has something under a key. A table with a column for every kind of row has null or
// an empty list in the others.
template <class Json>
bool has_content(const Json& row, const char* key) {
  const auto it = row.find(key);
  return it != row.end() && !it->is_null() && !(it->is_array() && it->empty());
}

}  // namespace hearth::inline data

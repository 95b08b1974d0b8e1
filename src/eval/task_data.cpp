// Readers of evaluation files.
#include <algorithm>

#include "data/documents.h"
#include "data/jsonl.h"
#include "eval/tasks.h"
#include "formats/json.h"
#include "sys/compression/byte_stream.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "text/tokenizer/encode.h"

namespace hearth::inline eval {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

template <class F>  // f(line, "file:number")
void each_line(std::string_view rest, const fs::path& path, F f) {
  const std::string name = path == "-" ? "stdin" : path.string();
  for (size_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    f(line, fmt::format("{}:{}", name, number));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

// What a row needs, for errors.
constexpr std::string_view hellaswag_keys =
    "activity_label, ctx_a, ctx_b, endings and label, as in HellaSwag";
constexpr std::string_view choice_keys =
    "context + choices (a list of texts) + gold (the index of the right one), or question + "
    "choices + answerKey as in ARC";
constexpr std::string_view lambada_keys = "text, whose last word is predicted, as in LAMBADA";

[[noreturn]] void refuse_keys(const json& j, std::string_view wanted, const std::string& where) {
  std::string keys;
  for (const auto& [key, value] : j.items()) keys += (keys.empty() ? "" : ", ") + in_quotes(key);
  fail(where, "expected {}, got keys: {}", wanted, keys.empty() ? "none" : keys);
}

// Calls f(object, where) for each line of JSON lines; `wanted`: the keys of an object.
template <class F>
void each_object(std::string_view text, const fs::path& path, std::string_view wanted, F f) {
  each_line(text, path, [&](std::string_view line, const std::string& where) {
    if (line.empty()) return;
    const size_t begin = line.find_first_not_of(" \t\xef\xbb\xbf");  // after a byte order mark
    if (begin == line.npos || line[begin] != '{')
      fail(where, "expected an object with {}, got {}", wanted, in_quotes(line));
    f(parse_json_line(line, where), where);
  });
}

const json& member_of(const json& j, const char* key, const std::string& where) {
  const auto it = j.is_object() ? j.find(key) : j.end();
  if (!j.is_object() || it == j.end()) fail(where, "the key {} is missing", key);
  return *it;
}

std::string text_of(const json& j, const char* key, const std::string& where) {
  const json& v = member_of(j, key, where);
  if (!v.is_string()) fail(where, "expected {} to be a string, got {}", key, v.type_name());
  return v.get<std::string>();
}

std::vector<std::string> texts_of(const json& list, const std::string& where) {
  std::vector<std::string> out;
  if (!list.is_array()) fail(where, "expected a list of strings, got {}", list.type_name());
  for (const json& v : list) {
    if (!v.is_string())
      fail(where, "expected a list of strings, got an element of type {}", v.type_name());
    out.push_back(v.get<std::string>());
  }
  return out;
}

bool is_index(std::string_view text) {
  return !text.empty() && text.size() <= 4 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

// A number, or a number as a string.
size_t label_of(const json& v, const std::string& where) {
  const std::string text = v.is_string() ? v.get<std::string>() : v.dump();
  if (!is_index(text))
    fail(where, "expected the index of the correct choice, got {}", in_quotes(text));
  return size_t(std::stoi(text));
}

void check_choices(const Choices& c, const std::string& where) {
  if (c.choices.size() < 2 || c.gold >= c.choices.size())
    fail(where, "expected at least two choices and a valid index, got {} choices and index {}",
         c.choices.size(), c.gold);
  for (const std::string& choice : c.choices)
    if (choice.empty()) fail(where, "expected nonempty choices, got an empty one");
}

// Python's capitalize() for ASCII letters.
std::string capitalised(std::string s) {
  for (char& c : s)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  if (!s.empty() && s[0] >= 'a' && s[0] <= 'z') s[0] = char(s[0] - 'a' + 'A');
  return s;
}

std::string with_each(std::string text, std::string_view from, std::string_view to) {
  replace_all(text, from, to);
  return text;
}

Choices hellaswag_row(const json& j, const std::string& where) {
  for (const char* key : {"activity_label", "ctx_a", "ctx_b", "endings", "label"})
    if (!j.contains(key)) refuse_keys(j, hellaswag_keys, where);
  Choices c;
  c.context =
      hellaswag_text(text_of(j, "activity_label", where) + ": " + text_of(j, "ctx_a", where) + " " +
                     capitalised(text_of(j, "ctx_b", where)));
  for (const std::string& e : texts_of(member_of(j, "endings", where), where))
    c.choices.push_back(hellaswag_text(e));
  c.gold = label_of(member_of(j, "label", where), where);
  check_choices(c, where);
  return c;
}

// {"question": {"stem", "choices": [{"text", "label"}]}} in AI2's files, or
// {"question", "choices": {"text": [..], "label": [..]}} in the hub's.
Choices arc_row(const json& j, const std::string& where) {
  const json& question = member_of(j, "question", where);
  const bool own = question.is_object();
  const std::string stem = own ? text_of(question, "stem", where) : text_of(j, "question", where);
  const json& list = member_of(own ? question : j, "choices", where);
  Choices c{.context = "Question: " + stem + "\nAnswer:", .choices = {}};
  std::vector<std::string> labels;
  if (list.is_array()) {
    for (const json& choice : list) {
      c.choices.push_back(text_of(choice, "text", where));
      labels.push_back(text_of(choice, "label", where));
    }
  } else {
    c.choices = texts_of(member_of(list, "text", where), where);
    labels = texts_of(member_of(list, "label", where), where);
  }
  const std::string key = text_of(j, "answerKey", where);
  c.gold = size_t(std::find(labels.begin(), labels.end(), key) - labels.begin());
  check_choices(c, where);
  return c;
}

// Throws unless a row has the keys of one of the two forms of multiple choice.
void expect_choice_keys(const json& j, const std::string& where) {
  const auto has = [&](const char* key) { return j.contains(key); };
  const json* question = has("question") ? &j["question"] : nullptr;
  const bool arc =
      question && has("answerKey") &&
      (question->is_object() ? question->contains("stem") && question->contains("choices")
                             : has("choices"));
  if (arc || (!question && has("context") && has("choices") && has("gold"))) return;
  refuse_keys(j, choice_keys, where);
}

// The second of the six lines of an item.
size_t hellaswag_label(std::string_view line, const std::string& where) {
  if (!is_index(line))
    fail(where,
         "this is no HellaSwag file: expected the index of the right ending as line 2 of an item's "
         "six (context, index, four endings), or a .jsonl file of rows with {}; got {}",
         hellaswag_keys, in_quotes(line));
  return label_of(json(std::string(line)), where);
}

template <class T>
std::vector<T> not_empty(std::vector<T> items, const fs::path& path) {
  if (items.empty()) fail(path.string(), "the file contains no items to evaluate");
  return items;
}

}  // namespace

std::string hellaswag_text(std::string_view text) {
  const auto white = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (!text.empty() && white(text.front())) text.remove_prefix(1);
  while (!text.empty() && white(text.back())) text.remove_suffix(1);
  const std::string whole = with_each(std::string(text), " [title]", ". ");
  // Removes "[..]" within a line: repeatedly from the first '[' to the next ']'.
  std::string s;
  for (size_t at = 0; at < whole.size();) {
    const size_t open = whole.find('[', at);
    s.append(whole, at, open == whole.npos ? open : open - at);
    if (open == whole.npos) break;
    const size_t stop = whole.find_first_of("]\n", open);
    if (stop != whole.npos && whole[stop] == ']') {
      at = stop + 1;
    } else {  // the rest of this line has no ']'
      const size_t end = stop == whole.npos ? whole.size() : stop;
      s.append(whole, open, end - open);
      at = end;
    }
  }
  return with_each(std::move(s), "  ", " ");
}

std::vector<Choices> read_hellaswag(const fs::path& path) {
  std::vector<Choices> items;
  const std::string text = read_unpacked(path, rows_file_limit);
  const bool piped = path == "-" && text.starts_with('{');
  if (piped || extension_of(path) == ".jsonl") {
    each_object(text, path, hellaswag_keys, [&](const json& j, const std::string& where) {
      items.push_back(hellaswag_row(j, where));
    });
    return not_empty(std::move(items), path);
  }
  Choices item;
  size_t line_of = 0;  // line within the item
  each_line(text, path, [&](std::string_view line, const std::string& where) {
    if (line_of == 0)
      item = {.context = hellaswag_text(line), .choices = {}};
    else if (line_of == 1)
      item.gold = hellaswag_label(line, where);
    else
      item.choices.push_back(hellaswag_text(line));
    if (++line_of < 6) return;
    check_choices(item, where);
    items.push_back(std::move(item));
    line_of = 0;
  });
  if (line_of != 0) fail(path.string(), "expected six lines per item, got {} at the end", line_of);
  return not_empty(std::move(items), path);
}

std::vector<Choices> read_choices(const fs::path& path) {
  std::vector<Choices> items;
  const std::string text = read_unpacked(path, rows_file_limit);
  each_object(text, path, choice_keys, [&](const json& j, const std::string& where) {
    expect_choice_keys(j, where);
    if (j.contains("question")) {
      items.push_back(arc_row(j, where));
      return;
    }
    items.push_back({.context = text_of(j, "context", where),
                     .choices = texts_of(member_of(j, "choices", where), where),
                     .gold = label_of(member_of(j, "gold", where), where)});
    check_choices(items.back(), where);
  });
  return not_empty(std::move(items), path);
}

std::vector<LastWord> read_lambada(const fs::path& path) {
  std::vector<LastWord> items;
  const std::string rows = read_unpacked(path, rows_file_limit);
  each_object(rows, path, lambada_keys, [&](const json& j, const std::string& where) {
    if (!j.contains("text")) refuse_keys(j, lambada_keys, where);
    const std::string text = text_of(j, "text", where);
    const size_t gap = text.rfind(' ');
    if (gap == std::string::npos) fail(where, "expected a text of several words, got one");
    items.push_back({text.substr(0, gap), text.substr(gap)});
  });
  return not_empty(std::move(items), path);
}

std::vector<std::string> read_documents(const fs::path& path) {
  const DocumentSpec spec{.inputs = {path}};
  DocumentReader reader(spec);
  std::vector<std::string> texts;
  for (Document d; reader.next(d);)
    texts.push_back(d.json ? jsonl_text(d.raw, document_place(spec, d.file, d.line))
                           : std::string(d.raw));
  return not_empty(std::move(texts), path);
}

}  // namespace hearth::inline eval

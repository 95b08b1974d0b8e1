#include "data/examples/examples.h"

#include <algorithm>
#include <iterator>

#include "data/documents.h"
#include "data/examples/messages.h"
#include "data/examples/templates.h"
#include "data/jsonl.h"
#include "data/shards.h"
#include "formats/json.h"
#include "sys/compression/byte_stream.h"
#include "sys/error.h"

namespace hearth::inline data {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

const std::string& text_of(const ordered_json& row, const char* key, const std::string& where) {
  if (!row[key].is_string())
    fail(where, "expected a string in \"{}\", got {}", key, row[key].type_name());
  return row[key].get_ref<const std::string&>();
}

[[noreturn]] void refuse_keys(const ordered_json& row, const std::string& where,
                              std::string_view wanted) {
  std::string keys;
  for (const auto& [key, value] : row.items()) keys += (keys.empty() ? "" : ", ") + in_quotes(key);
  fail(where, "expected {}, got keys: {}", wanted, keys.empty() ? "none" : keys);
}

// The number of equal messages at the start of two conversations.
size_t common_start(const ordered_json& a, const ordered_json& b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}

ordered_json messages_from(const ordered_json& list, size_t begin, size_t end) {
  ordered_json part = ordered_json::array();
  for (size_t i = begin; i < end; ++i) part.push_back(list[i]);
  return part;
}

// The required keys of a row, for errors.
constexpr std::string_view example_keys =
    "messages, conversations, prompt + completion, instruction + output or text";
constexpr std::string_view preference_keys =
    "prompt + chosen + rejected, instruction + chosen + rejected, or chosen + rejected as two "
    "conversations with the same beginning";

// The given files for errors: the first, and how many more.
std::string named(const std::vector<std::string>& files) {
  if (files.empty()) return "data";
  return files.size() == 1 ? files[0] : fmt::format("{} and {} more", files[0], files.size() - 1);
}

// Calls body(row, where) for every row of every file; a text becomes the row {"text"}.
template <class Body>
void each_row(const std::vector<std::string>& patterns, std::string_view keys, Body body) {
  for (const fs::path& file : expand_globs(patterns)) {
    refuse_table(file, keys);
    if (extension_of(file) == ".json") {
      const ordered_json all =
          parse_ordered_json(read_unpacked(file, JsonLimits{}.max_bytes), file.string());
      if (!all.is_array()) fail(file.string(), "expected a list of rows, got {}", all.type_name());
      for (size_t i = 0; i < all.size(); ++i)
        body(all[i], fmt::format("{}: row {}", file.string(), i));
      continue;
    }
    const DocumentSpec spec{.inputs = {file}};
    DocumentReader reader(spec);
    for (Document d; reader.next(d);) {
      const std::string where = document_place(spec, d.file, d.line);
      if (d.json)
        body(parse_ordered_json_line(d.raw, where), where);
      else
        body(ordered_json{{"text", d.raw}}, where);
    }
  }
}

template <class T>
void note_spelled(Examples<T>& all, bool spelled, const std::string& where) {
  if (spelled && all.spelled++ == 0) all.spelled_in = where;
}

void expect_object(const ordered_json& row, const std::string& where) {
  if (!row.is_object()) fail(where, "expected a JSON object, got {}", row.type_name());
}

// Whether a row is a text: it has "text" and none of the forms with an answer.
bool is_text(const ordered_json& row) {
  const auto has = [&](const char* key) { return row.contains(key); };
  return has_content(row, "text") && !has_content(row, "messages") &&
         !has_content(row, "conversations") && !(has("prompt") && has("completion")) &&
         !(has("instruction") && has("output"));
}

// Whether a message has text, or calls a tool in its place.
bool says_something(const ordered_json& message) {
  return message["content"] != "" || message.contains("tool_calls");
}

RowPart part_of(const ordered_json& row, const char* key, const std::string& where) {
  return {key, as_messages(row[key], key, where)};
}

void expect_text_or_messages(const RowPart& part, const std::string& where) {
  if (!part.value.is_string() && !part.value.is_array())
    fail(where, "expected a string or a list of messages in \"{}\", got {}", part.key,
         part.value.type_name());
}

// Moves the messages at the start of both conversations into a prompt. Each keeps at least one
// message as its answer, even if they are equal or one is a prefix.
RowPart take_common_prompt(RowPart& chosen, RowPart& rejected, const std::string& where) {
  for (const RowPart* part : {&chosen, &rejected}) {
    expect_text_or_messages(*part, where);
    if (part->value.is_string())
      fail(where, "chosen and rejected need a prompt when they are not lists of messages");
    expect_messages(part->value, part->key, where);
  }
  const size_t shorter = std::min(chosen.value.size(), rejected.value.size());
  const size_t n = std::min(common_start(chosen.value, rejected.value), shorter - 1);
  if (n == 0)
    fail(where, "chosen and rejected need a prompt, or the same messages at their beginning");
  RowPart prompt{"chosen", messages_from(chosen.value, 0, n)};
  for (RowPart* part : {&chosen, &rejected})
    part->value = messages_from(part->value, n, part->value.size());
  return prompt;
}

}  // namespace

ExampleEncoder::ExampleEncoder(Tokenizer tokenizer, ChatTemplate chat, int64_t max_length,
                               std::optional<std::time_t> now, TextTokens special)
    : tokenizer_(std::move(tokenizer)),
      chat_(std::move(chat)),
      max_length_(size_t(max_length)),
      now_(now),
      text_mark_(special == TextTokens::special ? 0 : mark::content | mark::foreign),
      opens_with_bos_(puts_bos_first(tokenizer_)),
      turn_end_(turn_end(chat_, tokenizer_)) {}

// Data written for other tools may end in the end-of-text token; it is removed here, because one is
// appended to every text.
std::string_view ExampleEncoder::without_end(std::string_view text) const {
  if (tokenizer_.eos() < 0) return text;
  const std::string_view end = tokenizer_.bytes_of(tokenizer_.eos());
  if (!end.empty() && text.ends_with(end)) text.remove_suffix(end.size());
  return text;
}

// Marks the text of a row; `last`: it is the end of the row.
MarkedText ExampleEncoder::outside(std::string_view text, bool last) const {
  return MarkedText(last && text_mark_ ? without_end(text) : text, text_mark_);
}

TextStart ExampleEncoder::add(Example& e, const MarkedText& text, bool learned, bool rendered,
                              TextStart start) const {
  EncodedChat encoded = encode_chat(tokenizer_, text, start);
  std::vector<int32_t>& ids = encoded.ids;
  e.spelled |= encoded.spelled && !rendered;
  e.rendered |= rendered;
  const bool has_bos = !ids.empty() && tokenizer_.bos() >= 0 && ids[0] == tokenizer_.bos();
  // A template writes the opening of a conversation itself, in training as in inference.
  if (e.tokens.empty() && opens_with_bos_ && !has_bos && !rendered)
    ids.insert(ids.begin(), tokenizer_.bos());
  // Some tokenizers add bos to every text they encode, but this one is a continuation.
  if (!e.tokens.empty() && has_bos) ids.erase(ids.begin());
  e.tokens.insert(e.tokens.end(), ids.begin(), ids.end());
  e.learned.resize(e.tokens.size(), learned);
  return encoded.next;
}

// Appends eos to the last learned part, which starts at token `last_answer`, if it has none. A turn
// that its template closes is already ended: the text after it is not the assistant's.
Example ExampleEncoder::ended(Example e, size_t last_answer) const {
  const int32_t eos = tokenizer_.eos();
  const auto begin = e.tokens.begin() + ptrdiff_t(std::min(last_answer, e.tokens.size()));
  const auto ends = [&](int32_t id) { return id == eos || id == turn_end_; };
  if (eos >= 0 && std::none_of(begin, e.tokens.end(), ends)) {
    e.tokens.push_back(eos);
    e.learned.push_back(true);
  }
  return e;
}

Example ExampleEncoder::within_length(Example e) const {
  e.cut = e.tokens.size() > max_length_;
  if (e.cut) e.tokens.resize(max_length_), e.learned.resize(max_length_);
  return e;
}

Example ExampleEncoder::learned_after(const Prompted& p) const {
  Example e{.tokens = {}, .learned = {}, .empty = p.empty};
  const TextStart start = add(e, p.prompt, false, p.rendered);
  const size_t answer = e.tokens.size();
  add(e, p.completion, true, p.rendered, start);
  return within_length(ended(std::move(e), answer));
}

// Prompt and completion are encoded separately, so that a prompt has the same tokens as in
// inference.
ExampleEncoder::Prompted ExampleEncoder::joined(const ordered_json& row, const RowPart& prompt,
                                                const RowPart& answer,
                                                const std::string& where) const {
  for (const RowPart* part : {&prompt, &answer}) expect_text_or_messages(*part, where);
  if (prompt.value.is_string() != answer.value.is_string())
    fail(where, "expected two strings or two lists of messages in \"{}\" and \"{}\", got {} and {}",
         prompt.key, answer.key, prompt.value.type_name(), answer.value.type_name());
  if (prompt.value.is_array()) return rendered(row, prompt, answer, where);
  const std::string& said = answer.value.get_ref<const std::string&>();
  return {.prompt = outside(prompt.value.get_ref<const std::string&>(), false),
          .completion = outside(said, true),
          .empty = without_end(said).empty()};
}

ExampleEncoder::Prompted ExampleEncoder::rendered(const ordered_json& row, const RowPart& prompt,
                                                  const RowPart& answer,
                                                  const std::string& where) const {
  expect_messages(prompt.value, prompt.key, where);
  expect_messages(answer.value, answer.key, where);
  ordered_json all = prompt.value;
  for (const ordered_json& m : answer.value) all.push_back(m);
  for (const size_t i : take_unlearned(all))
    if (i >= prompt.value.size())
      fail(where,
           "a weight of 0 needs a row of \"messages\": of the answer in \"{}\" everything is "
           "learned",
           answer.key);
  const ordered_json tools = tool_variables(row, where);
  const ChatRequest answered{.messages = std::move(all), .variables = tools, .now = now_};
  const ChatRequest asked{.messages = messages_from(answered.messages, 0, prompt.value.size()),
                          .add_generation_prompt = true,
                          .variables = tools,
                          .now = now_};
  expect_read(chat_, answered, where);
  const auto [before, whole] =
      in_row(where, [&] { return std::pair(chat_.render(asked), chat_.render(answered)); });
  if (!whole.bytes.starts_with(before.bytes))
    fail(where,
         "the chat template renders the prompt differently with and without its answer, so the "
         "answer cannot be located");
  const bool empty = std::none_of(answer.value.begin(), answer.value.end(), says_something);
  return {before, whole.part(before.size()), true, empty};
}

// The instruction as the user's message and `answer` (a key of the row) as the assistant's.
ExampleEncoder::Prompted ExampleEncoder::instructed(const ordered_json& row, const char* answer,
                                                    const std::string& where) const {
  const bool has_input = row.contains("input") && !row["input"].is_null();
  const std::string input = has_input ? text_of(row, "input", where) : std::string();
  const std::string said(without_end(text_of(row, answer, where)));
  const ordered_json asked = instruction_message(text_of(row, "instruction", where), input);
  const RowPart prompt{"instruction", ordered_json::array({asked})};
  const RowPart reply{answer, ordered_json::array({{{"role", "assistant"}, {"content", said}}})};
  return rendered(row, prompt, reply, where);
}

Example ExampleEncoder::conversation(const ordered_json& row, const char* key,
                                     const std::string& where) const {
  ordered_json messages = as_messages(row[key], key, where);
  expect_messages(messages, key, where);
  const std::vector<size_t> unlearned = take_unlearned(messages);
  const ChatRequest request{
      .messages = messages, .variables = tool_variables(row, where), .now = now_};
  expect_read(chat_, request, where);
  const MarkedText text = in_row(where, [&] { return chat_.render_answers(request, unlearned); });
  EncodedChat chat = encode_chat(tokenizer_, text);
  Example e{.tokens = std::move(chat.ids), .learned = std::move(chat.answer), .rendered = true};
  const auto learned = [&](size_t i) {
    return messages[i]["role"] == "assistant" && std::ranges::find(unlearned, i) == unlearned.end();
  };
  e.empty = true;
  for (size_t i = 0; i < messages.size(); ++i)
    if (learned(i) && says_something(messages[i])) e.empty = false;
  size_t last = e.tokens.size();  // start of the last answer
  while (last > 0 && !e.learned[last - 1]) --last;
  while (last > 0 && e.learned[last - 1]) --last;
  // A final message that is not learned, such as the user's, gets no eos.
  return within_length(learned(messages.size() - 1) ? ended(std::move(e), last) : std::move(e));
}

// A text with its eos, of any length.
Example ExampleEncoder::whole_text(const ordered_json& row, const std::string& where) const {
  const std::string& text = text_of(row, "text", where);
  Example e{.tokens = {}, .learned = {}, .empty = without_end(text).empty()};
  add(e, outside(text, true), true);
  const size_t last = e.tokens.empty() ? 0 : e.tokens.size() - 1;
  return ended(std::move(e), last);
}

// Consecutive pieces of at most max_length tokens. A piece starts with the last token of the piece
// before it: the first token of a row is never predicted, so every token is learned once.
std::vector<Example> ExampleEncoder::pieces_of(Example e) const {
  const size_t size = e.tokens.size();
  if (size <= max_length_ || max_length_ < 2) return {within_length(std::move(e))};
  std::vector<Example> pieces;
  for (size_t begin = 0; begin + 1 < size; begin += max_length_ - 1) {
    const auto from = ptrdiff_t(begin), to = ptrdiff_t(std::min(begin + max_length_, size));
    Example& piece = pieces.emplace_back();
    piece.tokens.assign(e.tokens.begin() + from, e.tokens.begin() + to);
    piece.learned.assign(e.learned.begin() + from, e.learned.begin() + to);
    piece.spelled = e.spelled;
  }
  return pieces;
}

std::vector<Example> ExampleEncoder::examples(const ordered_json& row,
                                              const std::string& where) const {
  if (is_text(row)) return pieces_of(whole_text(row, where));
  return {example(row, where)};
}

Example ExampleEncoder::example(const ordered_json& row, const std::string& where) const {
  expect_object(row, where);
  if (is_text(row)) return within_length(whole_text(row, where));
  const auto has = [&](const char* key) { return row.contains(key); };
  for (const char* key : {"messages", "conversations"})
    if (has_content(row, key)) return conversation(row, key, where);
  if (has("prompt") && has("completion"))
    return learned_after(
        joined(row, part_of(row, "prompt", where), part_of(row, "completion", where), where));
  if (has("instruction") && has("output")) return learned_after(instructed(row, "output", where));
  for (const char* key : {"messages", "conversations"})
    if (has(key)) return conversation(row, key, where);
  refuse_keys(row, where, example_keys);
}

Preference ExampleEncoder::preference(const ordered_json& row, const std::string& where) const {
  expect_object(row, where);
  const auto has = [&](const char* key) { return row.contains(key); };
  if (!has("chosen") || !has("rejected")) refuse_keys(row, where, preference_keys);
  if (has("instruction") && !has("prompt"))
    return {learned_after(instructed(row, "chosen", where)),
            learned_after(instructed(row, "rejected", where))};
  RowPart chosen = part_of(row, "chosen", where), rejected = part_of(row, "rejected", where);
  const RowPart prompt =
      has("prompt") ? part_of(row, "prompt", where) : take_common_prompt(chosen, rejected, where);
  return {learned_after(joined(row, prompt, chosen, where)),
          learned_after(joined(row, prompt, rejected, where))};
}

int64_t learned_tokens(const Example& e) {
  int64_t n = 0;
  for (size_t i = 1; i < e.learned.size(); ++i) n += e.learned[i];
  return n;
}

void add_to(Sha256& hash, const Example& e) {
  const int64_t size = int64_t(e.tokens.size());
  hash.update(std::as_bytes(std::span(&size, 1)));
  hash.update(std::as_bytes(std::span(e.tokens)));
  std::string learned;
  for (const bool l : e.learned) learned += l ? '1' : '0';
  hash.update(to_bytes(learned));
}

Examples<Example> read_examples(const std::vector<std::string>& files, const ExampleEncoder& enc) {
  Examples<Example> all;
  all.files = named(files);
  each_row(files, example_keys, [&](const ordered_json& row, const std::string& where) {
    std::vector<Example> pieces = enc.examples(row, where);
    const Example& e = pieces.front();
    ++all.read, all.rendered += e.rendered;
    note_spelled(all, e.spelled, where);
    if (pieces.size() > 1) ++all.split, all.pieces += int64_t(pieces.size());
    if (learned_tokens(e) == 0) {
      ++(e.cut ? all.cut_off : e.rendered ? all.unanswered : all.blank);
      return;
    }
    all.cut += e.cut, all.empty += e.empty;
    std::ranges::move(pieces, std::back_inserter(all.kept));
  });
  return all;
}

Examples<Preference> read_preferences(const std::vector<std::string>& files,
                                      const ExampleEncoder& enc) {
  Examples<Preference> all;
  all.files = named(files);
  each_row(files, preference_keys, [&](const ordered_json& row, const std::string& where) {
    Preference p = enc.preference(row, where);
    const bool cut = p.chosen.cut || p.rejected.cut;
    ++all.read, all.rendered += p.chosen.rendered;
    note_spelled(all, p.chosen.spelled || p.rejected.spelled, where);
    if (learned_tokens(p.chosen) == 0 || learned_tokens(p.rejected) == 0) {
      ++(cut ? all.cut_off : all.blank);
    } else if (p.chosen.tokens == p.rejected.tokens) {
      ++all.equal;
    } else {
      all.cut += cut, all.empty += p.chosen.empty || p.rejected.empty;
      all.kept.push_back(std::move(p));
    }
  });
  return all;
}

}  // namespace hearth::inline data

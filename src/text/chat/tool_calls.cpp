#include "text/chat/tool_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "formats/json.h"
#include "sys/error.h"
#include "text/overlap.h"

namespace hearth::inline text {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view opening = "<tool_call>", closing = "</tool_call>";
constexpr std::string_view python_tag = "<|python_tag|>";  // Llama may begin a call with it
constexpr std::string_view blank = " \t\r\n";

// {"name": .., "arguments" or "parameters": {..}}; nothing if the text is no call.
std::optional<ToolCall> call_in(std::string_view text) {
  ordered_json j;
  try {
    j = parse_ordered_json(text, "tool call");
  } catch (const Error&) { return {}; }
  if (!j.is_object() || !j.contains("name") || !j["name"].is_string()) return {};
  for (const char* key : {"arguments", "parameters"}) {
    if (!j.contains(key)) continue;
    const ordered_json& a = j[key];
    if (!a.is_object() && !a.is_string()) return {};
    return ToolCall{j["name"], a.is_string() ? a.get<std::string>() : a.dump()};
  }
  return ToolCall{j["name"], "{}"};
}

// Reads the beginning of a text piece by piece; white space may come before each piece.
class Beginning {
 public:
  explicit Beginning(std::string_view text) : rest_(text) {}

  std::string_view rest() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(blank), rest_.size()));
    return rest_;
  }
  bool take(std::string_view piece) {
    if (!rest().starts_with(piece)) return false;
    rest_.remove_prefix(piece.size());
    return true;
  }
  // A string of JSON that has ended.
  std::optional<std::string> string() {
    if (!rest().starts_with('"')) return {};
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != '"') end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) return {};
    const ordered_json j = ordered_json::parse(rest_.substr(0, end + 1), nullptr, false);
    rest_.remove_prefix(end + 1);
    return j.is_string() ? std::optional(j.get<std::string>()) : std::nullopt;
  }

 private:
  std::string_view rest_;
};

// A call whose text was cut after its name, with its arguments as far as they go; nothing if the
// name has not ended.
std::optional<ToolCall> beginning_of_call(std::string_view text) {
  Beginning b(text);
  if (!b.take("{") || !b.take("\"name\"") || !b.take(":")) return {};
  const std::optional<std::string> name = b.string();
  if (!name) return {};
  ToolCall call{*name, {}};
  if (!b.take(",") || (!b.take("\"arguments\"") && !b.take("\"parameters\""))) return call;
  if (b.take(":")) call.arguments = b.rest();
  return call;
}

// Where the tag that ends a call begins; not one in a string of its arguments.
size_t end_of_call(std::string_view text) {
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!in_string && text.substr(i).starts_with(closing)) return i;
    if (text[i] == '"') in_string = !in_string;
    if (in_string && text[i] == '\\') ++i;
  }
  return text.npos;
}

}  // namespace

ToolFormat tool_format_of(std::string_view source) {
  if (source.find("tools") == std::string_view::npos) return ToolFormat::none;
  if (source.find(opening) != std::string_view::npos) return ToolFormat::hermes;
  if (source.find("\"parameters\"") != std::string_view::npos ||
      source.find(python_tag) != std::string_view::npos)
    return ToolFormat::llama;
  return ToolFormat::none;
}

ToolForm tool_form(ToolFormat f) {
  if (f == ToolFormat::hermes) return {opening, closing, "\n", "arguments"};
  return {python_tag, "", "", "parameters"};
}

// Content, without white space at its ends.
void ToolParser::say(Found& found, std::string_view text) {
  const size_t last = text.find_last_not_of(blank);
  if (last == std::string_view::npos) {
    space_ += text;
    return;
  }
  found.content += space_ + std::string(text.substr(0, last + 1));
  space_ = text.substr(last + 1);
}

ToolParser::Found ToolParser::push(std::string_view text) {
  if (format_ == ToolFormat::none) return {.content = std::string(text)};
  held_ += text;
  return counted(format_ == ToolFormat::hermes ? take_hermes(false) : take_llama(false));
}

ToolParser::Found ToolParser::counted(Found found) {
  if (!parallel_) found.calls.resize(std::min<size_t>(found.calls.size(), called_ ? 0 : 1));
  called_ |= !found.calls.empty();
  return found;
}

ToolParser::Found ToolParser::finish(bool cut) {
  Found found;
  cut_ = cut || required_;
  if (format_ == ToolFormat::hermes) found = take_hermes(true);
  if (format_ == ToolFormat::llama) found = take_llama(true);
  return counted(std::move(found));
}

bool ToolParser::end_call(Found& found) {
  const std::string text = std::exchange(held_, {});
  if (auto call = call_in(text)) return found.calls.push_back(std::move(*call)), true;
  if (cut_)
    if (auto call = beginning_of_call(text))
      return found.calls.push_back(std::move(*call)), found.partial = true;
  held_ = text;
  return false;
}

ToolParser::Found ToolParser::take_hermes(bool last) {
  Found found;
  for (;;) {
    const std::string_view tag = in_call_ ? closing : opening;
    size_t at = in_call_ ? end_of_call(held_) : held_.find(tag);
    if (in_call_ && last && !cut_ && at == held_.npos) at = held_.find(tag);  // a broken call
    if (at != std::string::npos) {
      const std::string text = held_.substr(0, at);
      held_.erase(0, at + tag.size());
      if (!in_call_) {
        say(found, text);
      } else if (auto call = call_in(text)) {
        found.calls.push_back(std::move(*call));
      } else {
        say(found, std::string(opening) + text + std::string(closing));
      }
      in_call_ = !in_call_;
      continue;
    }
    if (in_call_ && last) {
      // A model may end without the closing tag, or within it.
      held_.erase(held_.size() - (cut_ ? overlap(held_, closing) : 0));
      if (!end_call(found) && !cut_) say(found, std::string(opening) + held_);
      held_.clear();
    } else if (last && required_) {
      held_.clear();  // the beginning of the tag
    } else if (!in_call_) {
      const size_t keep = last ? 0 : overlap(held_, opening);
      say(found, std::string_view(held_).substr(0, held_.size() - keep));
      held_.erase(0, held_.size() - keep);
    }
    return found;
  }
}

ToolParser::Found ToolParser::take_llama(bool last) {
  Found found;
  if (!is_text_) {
    std::string_view rest =
        std::string_view(held_).substr(std::min(held_.find_first_not_of(blank), held_.size()));
    if (rest.starts_with(python_tag)) held_ = rest.substr(python_tag.size()), rest = held_;
    const size_t first = rest.find_first_not_of(blank);
    is_text_ = first != rest.npos && rest[first] != '{' && (last || !python_tag.starts_with(rest));
  }
  if (!is_text_ && !last) return found;
  if (!is_text_ && end_call(found)) return found;
  if (!required_) say(found, held_);
  held_.clear();
  return found;
}

}  // namespace hearth::inline text

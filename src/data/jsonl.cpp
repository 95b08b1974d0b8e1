#include "data/jsonl.h"

#include <array>
#include <cstdint>
#include <cstring>

#include "formats/json.h"
#include "sys/error.h"
#include "sys/utf8.h"

namespace hearth::inline data {
namespace {

using json = nlohmann::json;

// The text of a message: "content", or "value" in ShareGPT's form. Null: it has none.
const std::string* text_of(const json& message) {
  if (!message.is_object()) return nullptr;
  const bool sharegpt = message.contains("from") && !message.contains("role");
  const auto it = message.find(sharegpt ? "value" : "content");
  return it != message.end() && it->is_string() ? &it->get_ref<const std::string&>() : nullptr;
}

// A string, or a list of messages whose contents are joined by newlines.
std::string content_of(const json& value, std::string_view where, std::string_view key) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array())
    fail(where, "expected a string or a list of messages in \"{}\", got {}", key,
         value.type_name());
  std::string all;
  for (const json& message : value) {
    const std::string* text = text_of(message);
    if (!text) fail(where, "expected messages with a string \"content\" in \"{}\"", key);
    if (!all.empty()) all += '\n';
    all += *text;
  }
  return all;
}

// Whether any of 8 bytes is a quote, a backslash, a control character or not ASCII.
bool has_special(uint64_t w) {
  constexpr uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
  const auto zero = [](uint64_t x) { return (x - ones) & ~x; };
  return ((w | (w - ones * 0x20) | zero(w ^ ones * '"') | zero(w ^ ones * '\\')) & high) != 0;
}

// Scans a line. After a method has returned false for unsupported input, all of them do.
class FlatScanner {
 public:
  FlatScanner(std::string_view line, std::string_view text_key)
      : text_key_(text_key), at_(line.data()), end_(at_ + line.size()) {}

  bool run(std::string& text) {
    std::array<std::string_view, 64> keys;
    size_t count = 0;
    bool found = false;
    space();
    if (!take('{')) return false;
    do {
      if (count == keys.size()) return false;
      space();
      std::string_view& key = keys[count];
      if (!plain_string(key)) return false;
      for (size_t i = 0; i < count; ++i)
        if (keys[i] == key) return false;
      ++count;
      space();
      if (!take(':')) return false;
      space();
      const bool is_text = key == text_key_;
      found |= is_text;
      if (is_text ? !string(&text) : !value()) return false;
      space();
    } while (take(','));
    if (!take('}')) return false;
    space();
    return found && at_ == end_;
  }

 private:
  void space() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r' || *at_ == '\n')) ++at_;
  }
  bool take(char c) {
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }

  bool value() {
    if (at_ == end_) return false;
    if (*at_ == '"') return string(nullptr);
    for (const std::string_view word : {"true", "false", "null"})
      if (std::string_view(at_, size_t(end_ - at_)).starts_with(word)) {
        at_ += word.size();
        return true;
      }
    return number();
  }

  // A short number without exponent, which cannot overflow.
  bool number() {
    const char* begin = at_;
    take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    const bool ended = at_ == end_ || *at_ == ',' || *at_ == '}' || *at_ == ' ';
    return ended && at_ - begin <= 18;
  }
  bool digits() {
    const char* begin = at_;
    while (at_ < end_ && *at_ >= '0' && *at_ <= '9') ++at_;
    return at_ > begin;
  }

  // A string without escapes, as written in the line.
  bool plain_string(std::string_view& out) {
    if (!take('"')) return false;
    const char* begin = at_;
    while (at_ < end_ && *at_ != '"') {
      if (*at_ == '\\' || uint8_t(*at_ - 0x20) >= 0x60) return false;  // control or non-ASCII
      ++at_;
    }
    out = {begin, size_t(at_ - begin)};
    return take('"');
  }

  // Any string, unescaped to `out` if it is not null.
  bool string(std::string* out) {
    if (!take('"')) return false;
    if (out) out->clear();
    for (;;) {
      const char* begin = at_;
      if (!skip_plain()) return false;
      if (out) out->append(begin, size_t(at_ - begin));
      if (take('"')) return true;
      if (!take('\\') || !escape(out)) return false;
    }
  }

  // Skips to the next quote or backslash.
  bool skip_plain() {
    for (;;) {
      for (uint64_t w; end_ - at_ >= 8; at_ += 8) {
        std::memcpy(&w, at_, 8);
        if (has_special(w)) break;
      }
      if (at_ == end_) return false;
      const uint8_t c = uint8_t(*at_);
      if (c == '"' || c == '\\') return true;
      if (c < 0x20) return false;
      const size_t n = utf8_size({at_, size_t(end_ - at_)});
      if (n == 0) return false;
      at_ += n;
    }
  }

  bool escape(std::string* out) {
    constexpr std::string_view letters = "\"\\/bfnrt", meant = "\"\\/\b\f\n\r\t";
    if (at_ == end_) return false;
    const char c = *at_++;
    uint32_t code = 0;
    if (const size_t i = letters.find(c); i != letters.npos) {
      code = uint8_t(meant[i]);
    } else if (c != 'u' || !four_digits(code)) {
      return false;
    } else if (code >= 0xd800 && code < 0xe000) {
      uint32_t low = 0;
      if (code >= 0xdc00 || !take('\\') || !take('u') || !four_digits(low) || low < 0xdc00 ||
          low > 0xdfff)
        return false;
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (out) append_utf8(*out, code);
    return true;
  }

  bool four_digits(uint32_t& code) {
    if (end_ - at_ < 4) return false;
    code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = *at_++;
      const bool digit = c >= '0' && c <= '9', letter = (c | 32) >= 'a' && (c | 32) <= 'f';
      if (!digit && !letter) return false;
      code = code * 16 + uint32_t(digit ? c - '0' : (c | 32) - 'a' + 10);
    }
    return true;
  }

  std::string_view text_key_;
  const char *at_, *end_;
};

// The keys of a row, for errors.
std::string keys_of(const json& row) {
  std::string keys;
  for (const auto& [key, value] : row.items()) keys += (keys.empty() ? "" : ", ") + in_quotes(key);
  return keys.empty() ? "none" : keys;
}

std::string text_at(const json& row, std::string_view where, const TextKey& key) {
  const auto it = row.find(std::string(key.name));
  if (it == row.end())
    fail(where, "expected the key {}{}, got keys: {}", in_quotes(key.name),
         key.flag ? fmt::format(" of {}", key.flag) : "", keys_of(row));
  return it->is_null() ? std::string() : content_of(*it, where, key.name);
}

}  // namespace

std::string jsonl_text(std::string_view line, std::string_view where, const TextKey& text_key) {
  const json row = parse_json_line(line, where);
  if (!row.is_object()) fail(where, "expected a JSON object, got {}", row.type_name());
  if (text_key.name != TextKey().name) return text_at(row, where, text_key);
  const auto has = [&](const char* key) { return row.contains(key); };
  const auto get = [&](const char* key) { return content_of(row[key], where, key); };
  for (const char* key : {"text", "messages", "conversations"})
    if (has_content(row, key)) return get(key);
  if (has("prompt") && has("completion")) return get("prompt") + get("completion");
  if (has("prompt") && has("chosen")) return get("prompt") + "\n" + get("chosen");
  if (has("instruction") && has("output")) {
    std::string text = get("instruction") + "\n";
    if (has("input") && !row["input"].is_null() && row["input"] != "") text += get("input") + "\n";
    return text + get("output");
  }
  for (const char* key : {"text", "messages", "conversations"})
    if (has(key)) return {};  // null or an empty list
  fail(where,
       "expected text, messages, conversations, prompt + completion, prompt + chosen or "
       "instruction + output, got keys: {}{}",
       keys_of(row),
       text_key.flag ? fmt::format("; {} NAME reads another key", text_key.flag) : "");
}

bool flat_text(std::string& out, std::string_view line, std::string_view key) {
  return line.size() <= JsonLimits{}.max_bytes && FlatScanner(line, key).run(out);
}

}  // namespace hearth::inline data

// Converts values to text: Python's str() for printed values, and JSON like json.dumps.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/chat/python_str.h"
#include "text/chat/value.h"

namespace hearth::jinja {
namespace {

// repr() of a float: the shortest digits that read back equal, with an exponent beyond 1e16 and
// 1e-4.
std::string float_text(double d, bool json) {
  if (std::isnan(d)) return json ? "NaN" : "nan";
  if (std::isinf(d)) return std::string(d < 0 ? "-" : "") + (json ? "Infinity" : "inf");
  char buffer[40];
  const double size = std::abs(d);
  const auto format = size != 0 && (size < 1e-4 || size >= 1e16) ? std::chars_format::scientific
                                                                 : std::chars_format::fixed;
  std::string text(buffer, std::to_chars(buffer, buffer + sizeof buffer, d, format).ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

void add_scalar(MarkedText& out, const Value& v, bool json) {
  if (is_none(v)) out.add(json ? "null" : "None");
  if (const auto* b = as<bool>(v))
    out.add(*b ? (json ? "true" : "True") : json ? "false" : "False");
  if (const auto* i = as<int64_t>(v)) out.add(fmt::to_string(*i));
  if (const auto* d = as<double>(v)) out.add(float_text(*d, json));
}

// The escape that repr() writes for a byte; empty if it is written unchanged.
std::string repr_escape(char c, char quote) {
  if (c == quote || c == '\\') return {'\\', c};
  if (c == '\n') return "\\n";
  if (c == '\t') return "\\t";
  if (c == '\r') return "\\r";
  if (uint8_t(c) < 0x20 || c == 0x7f) return fmt::format("\\x{:02x}", uint8_t(c));
  return {};
}

// repr() of a str.
void add_repr(MarkedText& out, const MarkedText& t) {
  const bool single = t.bytes.find('\'') != std::string::npos;
  const std::string_view quote = single && t.bytes.find('"') == std::string::npos ? "\"" : "'";
  out.add(quote);
  size_t plain = 0;  // start of the text to copy unchanged
  for (size_t i = 0; i < t.size(); ++i) {
    const std::string escape = repr_escape(t.bytes[i], quote[0]);
    if (escape.empty()) continue;
    if (plain < i) out.add(t.part(plain, i - plain));
    out.add(escape, t.marks[i]);
    plain = i + 1;
  }
  if (plain < t.size()) out.add(t.part(plain, t.size() - plain));
  out.add(quote);
}

// The JSON escape of the character at i; empty if it is written unchanged.
std::string json_escape(const MarkedText& t, size_t i, bool ascii) {
  constexpr std::string_view letters = "\"\\\n\r\t\b\f", escapes = "\"\\nrtbf";
  const auto c = uint8_t(t.bytes[i]);
  if (const size_t at = letters.find(char(c)); at != std::string_view::npos)
    return {'\\', escapes[at]};
  if (c < 0x20) return fmt::format("\\u{:04x}", c);
  if (!ascii || c < 0x80) return {};
  const uint32_t code = char_code(t.bytes, i), high = code - 0x10000;
  if (code < 0x10000) return fmt::format("\\u{:04x}", code);
  return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (high >> 10), 0xdc00 + (high & 0x3ff));
}

void add_json_text(Workspace& w, MarkedText& out, const MarkedText& t, bool ascii) {
  w.charge_bytes(2 * t.size());
  out.add("\"");
  size_t plain = 0;  // start of the text to copy unchanged
  for (size_t i = 0; i < t.size();) {
    const size_t n = char_bytes(t.bytes, i);
    if (const std::string escape = json_escape(t, i, ascii); !escape.empty()) {
      if (plain < i) out.add(t.part(plain, i - plain));
      out.add(escape, t.marks[i]);
      plain = i + n;
    }
    i += n;
  }
  if (plain < t.size()) out.add(t.part(plain, t.size() - plain));
  out.add("\"");
}

void add_value(Workspace&, MarkedText& out, const Value&);

void add_nested(Workspace& w, MarkedText& out, const Value& v) {
  if (const Text t = text_of(v)) {
    w.charge_bytes(4 * t->size());
    add_repr(out, *t);
  } else if (is_undefined(v)) {
    out.add("Undefined");
  } else {
    add_value(w, out, v);
  }
}

void add_value(Workspace& w, MarkedText& out, const Value& v) {
  const Deeper deeper(w);
  w.charge(2);
  add_scalar(out, v, false);
  if (const Text t = text_of(v)) out.add(*t);
  if (const List* l = list_of(v)) {
    out.add(l->tuple ? "(" : "[");
    for (const Value& item : l->items) {
      if (&item != &l->items[0]) out.add(", ");
      add_nested(w, out, item);
    }
    out.add(l->tuple ? (l->items.size() == 1 ? ",)" : ")") : "]");
  }
  if (Map* m = map_of(v)) {
    out.add(m->is_namespace ? "<Namespace {" : "{");
    for (const auto& entry : m->entries) {
      if (&entry != &m->entries[0]) out.add(", ");
      w.charge_bytes(4 * entry.first->size());
      add_repr(out, *entry.first);
      out.add(": ");
      add_nested(w, out, entry.second);
    }
    out.add(m->is_namespace ? "}>" : "}");
  }
  if (const auto* f = as<Callable*>(v)) out.add(fmt::format("<function {}>", (*f)->name));
}

class JsonWriter {
 public:
  JsonWriter(Workspace& w, const JsonStyle& style) : w_(w), style_(style) {}

  void write(const Value& v) {
    const Deeper deeper(w_);
    w_.charge(2);
    if (const Text t = text_of(v)) {
      add_json_text(w_, out, *t, style_.ascii);
    } else if (const List* l = list_of(v)) {
      group("[", "]", l->items, [&](const Value& item) { write(item); });
    } else if (Map* m = map_of(v); m && !m->is_namespace) {
      w_.charge(2 * m->entries.size());
      auto entries = m->entries;
      if (style_.sort_keys) std::ranges::sort(entries, {}, [](auto& e) { return e.first->bytes; });
      group("{", "}", entries, [&](const auto& entry) {
        add_json_text(w_, out, *entry.first, style_.ascii);
        out.add(style_.key_separator);
        write(entry.second);
      });
    } else if (is_undefined(v) || as<Callable*>(v) || map_of(v)) {
      w_.fail("expected a value that JSON can represent, got {}", kind_of(v));
    } else {
      add_scalar(out, v, true);
    }
  }

  MarkedText out;

 private:
  template <class T, class F>
  void group(std::string_view open, std::string_view close, const std::vector<T>& items, F put) {
    out.add(open);
    ++level_;
    for (const T& item : items) {
      if (&item != &items[0]) out.add(style_.item_separator);
      line();
      put(item);
    }
    --level_;
    if (!items.empty()) line();
    out.add(close);
  }
  void line() {
    if (style_.indent >= 0) out.add("\n" + std::string(size_t(style_.indent * level_), ' '));
  }

  Workspace& w_;
  const JsonStyle& style_;
  int level_ = 0;
};

}  // namespace

MarkedText printed(Workspace& w, const Value& v) {
  MarkedText out;
  add_value(w, out, v);
  return out;
}

MarkedText to_json(Workspace& w, const Value& v, const JsonStyle& style) {
  JsonWriter writer(w, style);
  writer.write(v);
  return std::move(writer.out);
}

}  // namespace hearth::jinja

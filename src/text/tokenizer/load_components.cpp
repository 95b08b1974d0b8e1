// The components of tokenizer.json around the model: normalizer, pre_tokenizer, decoder and
// post_processor. Two families are supported: byte-level BPE and SentencePiece.
#include "text/tokenizer/encode.h"
#include "text/tokenizer/load_json.h"

namespace hearth::inline text {
namespace {

using nlohmann::json;

struct Component {
  const json* value;
  std::string path;
  std::string type;
};

class ComponentReader {
 public:
  ComponentReader(VocabularyParts& parts, const json& file) : parts_(parts), file_(file) {}

  void read() {
    for (const Component& c : flat("normalizer", "normalizers")) normalizer(c);
    pre_tokenizer(flat("pre_tokenizer", "pretokenizers"));
    decoder(flat("decoder", "decoders"));
    for (const Component& c : flat("post_processor", "processors")) post_processor(c);
    SavedParts& saved = parts_.saved;
    saved.normalizer = text_of("normalizer");
    saved.pre_tokenizer = text_of("pre_tokenizer");
    saved.decoder = text_of("decoder");
    saved.post_processor = text_of("post_processor");
  }

 private:
  TextRules& rules() { return parts_.text; }

  const json& part(const char* name) const {
    static const json none;
    const auto it = file_.find(name);
    return it == file_.end() ? none : *it;
  }
  std::string text_of(const char* name) const { return part(name).dump(); }

  [[noreturn]] void unsupported(const std::string& path, const std::string& expected,
                                const std::string& got) const {
    fail(parts_.where, "expected {} at {}, got {}", expected, path, got);
  }

  // The component, or the flattened components of a Sequence; empty for null.
  std::vector<Component> flat(const char* name, const char* members) const {
    std::vector<Component> list;
    flatten(list, part(name), name, members, 0);
    return list;
  }

  void flatten(std::vector<Component>& list, const json& value, const std::string& path,
               const char* members, int depth) const {
    if (value.is_null()) return;
    const std::string type = json_type(value);
    if (type != "Sequence") {
      list.push_back({&value, path, type});
      return;
    }
    const json& inner = json_member(parts_.where, value, members, &json::is_array, "a list");
    if (depth == 8) unsupported(path, "Sequences nested at most eight deep", "deeper nesting");
    for (size_t i = 0; i < inner.size(); ++i)
      flatten(list, inner[i], fmt::format("{}.{}[{}]", path, members, i), members, depth + 1);
  }

  static std::string pattern_string(const json& c) {
    return json_string(c.value("pattern", json()), "String");
  }

  void normalizer(const Component& c) {
    if (c.type == "NFC") {
      rules().nfc = true;
    } else if (c.type == "Prepend" && json_string(*c.value, "prepend") == space_mark) {
      rules().leading = LeadingSpace::always;
    } else if (c.type == "Replace" && pattern_string(*c.value) == " " &&
               json_string(*c.value, "content") == space_mark) {
      replaces_ = true;
    } else {
      unsupported(c.path, "NFC, Prepend of \u2581 or Replace of a space by \u2581", shown(c));
    }
  }

  static std::string shown(const Component& c) {
    return c.type == "Replace" || c.type == "Prepend" || c.type == "Split" || c.type == "Strip"
               ? c.value->dump().substr(0, 300)
               : c.type;
  }

  void pre_tokenizer(const std::vector<Component>& list) {
    bool split = false, bytes = false;
    rules().pieces = list.empty() || list[0].type == "Metaspace";
    rules().pattern = Pattern::whole;
    for (const Component& c : list) {
      if (c.type == "Metaspace" && list.size() == 1) {
        metaspace(c);
      } else if (c.type == "Split" && !split && !bytes) {
        rules().pattern = split_pattern(c);
        split = true;
      } else if (c.type == "ByteLevel" && !bytes) {
        byte_level(c, split);
        bytes = true;
      } else {
        unsupported(c.path, "ByteLevel, Split before ByteLevel, or Metaspace alone", shown(c));
      }
    }
    if (split && !bytes)
      unsupported("pre_tokenizer", "Split with ByteLevel after it", "Split alone");
    if (rules().pieces ? !replaces_ : replaces_ || rules().leading == LeadingSpace::always)
      unsupported("pre_tokenizer",
                  "ByteLevel or Metaspace, or null with a Replace of a space by \u2581",
                  list.empty() ? "null" : list[0].type);
  }

  void byte_level(const Component& c, bool split) {
    const bool regex = json_flag(*c.value, "use_regex", true);
    if (regex && split) unsupported(c.path, "ByteLevel without use_regex after Split", "use_regex");
    if (regex) rules().pattern = Pattern::gpt2;
    if (!json_flag(*c.value, "add_prefix_space", true)) return;
    if (split)
      unsupported(c.path, "ByteLevel without add_prefix_space after Split", "add_prefix_space");
    rules().leading = LeadingSpace::missing;
  }

  Pattern split_pattern(const Component& c) {
    const json pattern = c.value->value("pattern", json());
    const std::optional<Pattern> known = pattern_of_regex(json_string(pattern, "Regex"));
    if (!known) unsupported(c.path, "Split with the pattern of " + pattern_names(), pattern.dump());
    // Our patterns match all of any text, so removing the text between matches changes nothing.
    const std::string behavior = json_string(*c.value, "behavior");
    const bool invert = json_flag(*c.value, "invert", false);
    if (behavior != (invert ? "Removed" : "Isolated"))
      unsupported(c.path, "Split with behavior Isolated, or Removed with invert", shown(c));
    return *known;
  }

  void metaspace(const Component& c) {
    const json& m = *c.value;
    if (json_string(m, "replacement") != space_mark)
      unsupported(c.path, "Metaspace with replacement \u2581",
                  m.value("replacement", json()).dump());
    replaces_ = true;
    const std::string scheme = json_string(m, "prepend_scheme");
    const bool always =
        scheme == "always" || (scheme.empty() && json_flag(m, "add_prefix_space", true));
    if (!scheme.empty() && scheme != "always" && scheme != "first" && scheme != "never")
      unsupported(c.path, "prepend_scheme always, first or never", scheme);
    if (rules().leading != LeadingSpace::always)
      rules().leading = always              ? LeadingSpace::missing
                        : scheme == "first" ? LeadingSpace::missing_first
                                            : LeadingSpace::none;
    rules().pattern = json_flag(m, "split", true) ? Pattern::spaces : Pattern::whole;
  }

  void decoder(const std::vector<Component>& list) {
    if (!rules().pieces) {
      if (list.size() != 1 || list[0].type != "ByteLevel")
        unsupported(list.empty() ? "decoder" : list[0].path, "ByteLevel",
                    list.empty() ? "null" : list[list.size() > 1].type);
      return;
    }
    bool replaces = false;
    for (const Component& c : list) {
      const json& d = *c.value;
      const bool one_space = json_string(d, "content") == " " && d.value("stop", json()) == 0 &&
                             (d.value("start", json()) == 0 || d.value("start", json()) == 1);
      if (c.type == "Replace" && pattern_string(d) == space_mark &&
          json_string(d, "content") == " ")
        replaces = true;
      else if (c.type == "Metaspace" && json_string(d, "replacement") == space_mark) {
        replaces = true;
        rules().strip_first =
            json_string(d, "prepend_scheme") != "never" && json_flag(d, "add_prefix_space", true);
      } else if (c.type == "ByteFallback")
        rules().bytes_decode = true;
      else if (c.type == "Strip" && one_space)
        rules().strip_first = d["start"] == 1;
      else if (c.type != "Fuse")
        unsupported(c.path, "Replace of \u2581, Metaspace, ByteFallback, Fuse or Strip of a space",
                    shown(c));
    }
    if (!replaces)
      unsupported("decoder", "Replace of \u2581 by a space, or Metaspace",
                  list.empty() ? "null" : "neither");
  }

  void post_processor(const Component& c) {
    if (c.type == "ByteLevel") return;  // changes only offsets
    if (c.type != "TemplateProcessing")
      unsupported(c.path, "ByteLevel or TemplateProcessing", c.type);
    const json& single = json_member(parts_.where, *c.value, "single", &json::is_array, "a list");
    std::vector<int32_t> before, after;
    bool text = false;
    for (const json& item : single) {
      if (item.contains("Sequence")) {
        if (text) unsupported(c.path + ".single", "one Sequence", "two");
        text = true;
        continue;
      }
      const std::string name = json_string(item.value("SpecialToken", json()), "id");
      const json token = c.value->value("special_tokens", json()).value(name, json());
      const json ids = token.is_object() ? token.value("ids", json()) : json();
      if (!ids.is_array())
        unsupported(c.path + ".single", "only Sequence and known SpecialToken items",
                    item.dump().substr(0, 200));
      for (const json& id : ids) (text ? after : before).push_back(json_id(parts_.where, id, name));
    }
    if (!text) unsupported(c.path + ".single", "a Sequence", "none");
    rules().before.insert(rules().before.begin(), before.begin(), before.end());
    rules().after.insert(rules().after.end(), after.begin(), after.end());
  }

  VocabularyParts& parts_;
  const json& file_;
  bool replaces_ = false;  // a normaliser replaces spaces by U+2581
};

}  // namespace

void read_components(VocabularyParts& parts, const json& file) {
  ComponentReader(parts, file).read();
}

}  // namespace hearth::inline text

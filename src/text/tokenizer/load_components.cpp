// The components of tokenizer.json around the model: normalizer, pre_tokenizer, decoder and
// post_processor. Usual combinations get a scanner of their own; others become lists of steps.
#include <algorithm>

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
    const std::vector<Component> normalizers = flat("normalizer", "normalizers");
    const std::vector<Component> steps = pre_tokenizers(normalizers);
    const bool bytes = std::ranges::find(steps, "ByteLevel", &Component::type) != steps.end();
    normalizer(normalizers, !bytes && !has_scanner(steps));
    pre_tokenizer(steps);
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

  // --- normaliser ---

  static bool replaces_spaces(const Component& c) {
    return c.type == "Replace" && pattern_string(*c.value) == " " &&
           json_string(*c.value, "content") == space_mark;
  }
  static bool prepends_space(const Component& c) {
    return c.type == "Prepend" && json_string(*c.value, "prepend") == space_mark;
  }

  // Flags where these are enough, else steps.
  void normalizer(const std::vector<Component>& list, bool as_steps) {
    replaces_ = std::ranges::any_of(list, replaces_spaces);
    const auto plain = [](const Component& c) {
      return c.type == "NFC" || replaces_spaces(c) || prepends_space(c);
    };
    if (as_steps || !std::ranges::all_of(list, plain)) {
      for (const Component& c : list) rules().normal.push_back(normal_step(c));
      return;
    }
    for (const Component& c : list) {
      rules().nfc = rules().nfc || c.type == "NFC";
      if (prepends_space(c)) rules().leading = LeadingSpace::always;
    }
  }

  NormalStep normal_step(const Component& c) const {
    static constexpr std::pair<std::string_view, NormalForm> forms[] = {{"NFC", NormalForm::c},
                                                                        {"NFD", NormalForm::d},
                                                                        {"NFKC", NormalForm::kc},
                                                                        {"NFKD", NormalForm::kd}};
    for (const auto& [name, form] : forms)
      if (c.type == name) return {.kind = NormalKind::form, .form = form};
    if (c.type == "Prepend") return {.kind = NormalKind::prepend, .to = required(c, "prepend")};
    if (c.type == "Strip")
      return {.kind = NormalKind::strip,
              .left = json_flag(*c.value, "strip_left", true),
              .right = json_flag(*c.value, "strip_right", true)};
    if (c.type != "Replace")
      unsupported(c.path, "NFC, NFD, NFKC, NFKD, Prepend, Replace or Strip", shown(c));
    NormalStep step{.kind = NormalKind::replace};
    step.to = required(c, "content");
    const json pattern = c.value->value("pattern", json());
    if (const std::string regex = json_string(pattern, "Regex"); !regex.empty())
      step.regex = compiled(c, regex);
    else if ((step.from = json_string(pattern, "String")).empty())
      unsupported(c.path, "Replace of a String or a Regex", shown(c));
    return step;
  }

  std::string required(const Component& c, const char* key) const {
    const json text = c.value->value(key, json());
    if (!text.is_string()) unsupported(c.path + "." + key, "a text", text.dump().substr(0, 60));
    return text;
  }
  std::shared_ptr<const SplitRegex> compiled(const Component& c, const std::string& regex) const {
    return std::make_shared<const SplitRegex>(regex, parts_.where + ", " + c.path);
  }

  static std::string shown(const Component& c) {
    return c.type == "Replace" || c.type == "Prepend" || c.type == "Split" || c.type == "Strip"
               ? c.value->dump().substr(0, 300)
               : c.type;
  }

  // --- pre-tokeniser ---

  // A Split at spaces does nothing after a normaliser that leaves none; Gemma has one.
  std::vector<Component> pre_tokenizers(const std::vector<Component>& normalizers) const {
    std::vector<Component> list = flat("pre_tokenizer", "pretokenizers");
    if (!normalizers.empty() && replaces_spaces(normalizers.back()))
      std::erase_if(list, [](const Component& c) {
        return c.type == "Split" && pattern_string(*c.value) == " " &&
               !json_flag(*c.value, "invert", false);
      });
    return list;
  }

  // Whether the list has a scanner of its own: nothing, Metaspace, ByteLevel, or a known pattern
  // before ByteLevel.
  static bool has_scanner(const std::vector<Component>& list) {
    if (list.empty()) return true;
    if (list.size() == 1) return list[0].type == "Metaspace" || list[0].type == "ByteLevel";
    const json pattern = list[0].value->value("pattern", json());
    return list.size() == 2 && list[0].type == "Split" && list[1].type == "ByteLevel" &&
           !json_flag(*list[1].value, "use_regex", true) &&
           !json_flag(*list[1].value, "add_prefix_space", true) &&
           pattern_of_regex(json_string(pattern, "Regex")) && covers(list[0]);
  }
  // Our patterns match all of any text, so removing the text between matches changes nothing.
  static bool covers(const Component& c) {
    return json_string(*c.value, "behavior") ==
           (json_flag(*c.value, "invert", false) ? "Removed" : "Isolated");
  }

  void pre_tokenizer(const std::vector<Component>& list) {
    const bool bytes = std::ranges::find(list, "ByteLevel", &Component::type) != list.end();
    rules().pieces = !bytes;
    rules().pattern = Pattern::whole;
    if (!has_scanner(list)) {
      rules().pattern = Pattern::steps;
      for (size_t i = 0; i < list.size(); ++i) add_steps(list[i], i, list.size());
    } else if (!list.empty() && list[0].type == "Metaspace") {
      metaspace(list[0]);
    } else if (!list.empty()) {
      if (list.size() == 2) rules().pattern = split_pattern(list[0]);
      byte_level(list.back());
    }
    if (rules().pieces ? !replaces_ : replaces_ || rules().leading == LeadingSpace::always)
      unsupported("pre_tokenizer",
                  "ByteLevel or Metaspace, or a normalizer that replaces a space by \u2581",
                  list.empty() ? "null" : list[0].type);
  }

  SplitBehaviour behaviour_of(const Component& c) const {
    static constexpr std::string_view names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                                 "MergedWithNext", "Contiguous"};
    const std::string name = json_string(*c.value, "behavior");
    if (name.empty() && c.type == "Punctuation") return SplitBehaviour::isolated;
    const auto it = std::ranges::find(names, name);
    if (it == std::end(names))
      unsupported(c.path + ".behavior",
                  "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous",
                  c.value->value("behavior", json()).dump().substr(0, 60));
    return SplitBehaviour(it - std::begin(names));
  }

  void add_steps(const Component& c, size_t index, size_t count) {
    std::vector<SplitStep>& steps = rules().splits;
    const auto add = [&](SplitKind kind, SplitBehaviour behaviour, bool invert = false) {
      steps.push_back({.kind = kind, .behaviour = behaviour, .invert = invert});
    };
    if (c.type == "Split")
      steps.push_back(split_step(c));
    else if (c.type == "Digits")
      add(SplitKind::digits, json_flag(*c.value, "individual_digits", false)
                                 ? SplitBehaviour::isolated
                                 : SplitBehaviour::contiguous);
    else if (c.type == "Punctuation")
      add(SplitKind::punctuation, behaviour_of(c));
    else if (c.type == "Whitespace")
      add(SplitKind::words, SplitBehaviour::removed, true);
    else if (c.type == "WhitespaceSplit")
      add(SplitKind::spaces, SplitBehaviour::removed);
    else if (c.type == "ByteLevel")
      byte_level_step(c, index, index + 1 == count);
    else if (c.type == "Metaspace" && index + 1 == count && rules().pieces)
      metaspace_step(c);
    else
      unsupported(c.path,
                  "Split, Digits, Punctuation, Whitespace, WhitespaceSplit, ByteLevel, or "
                  "Metaspace at the end",
                  shown(c));
  }

  SplitStep split_step(const Component& c) const {
    SplitStep step{.kind = SplitKind::text, .behaviour = behaviour_of(c)};
    step.invert = json_flag(*c.value, "invert", false);
    step.text = pattern_string(*c.value);
    const std::string regex = json_string(c.value->value("pattern", json()), "Regex");
    if (regex.empty() && step.text.empty())
      unsupported(c.path + ".pattern", "a String or a Regex",
                  c.value->value("pattern", json()).dump().substr(0, 60));
    if (regex.empty()) return step;
    const std::optional<Pattern> known = pattern_of_regex(regex);
    step.kind = known ? SplitKind::scanner : SplitKind::regex;
    if (known)
      step.pattern = *known;
    else
      step.regex = compiled(c, regex), step.text = regex;
    return step;
  }

  // Steps after it see letters in place of bytes.
  void byte_level_step(const Component& c, size_t index, bool last) {
    std::vector<SplitStep>& steps = rules().splits;
    if (std::ranges::find(steps, SplitKind::letters, &SplitStep::kind) != steps.end())
      unsupported(c.path, "one ByteLevel", "a second");
    if (json_flag(*c.value, "add_prefix_space", true)) {
      if (index > 0)
        unsupported(c.path, "ByteLevel without add_prefix_space after another step",
                    "add_prefix_space");
      rules().leading = LeadingSpace::missing;
    }
    if (json_flag(*c.value, "use_regex", true))
      steps.push_back({.kind = SplitKind::scanner, .pattern = Pattern::gpt2});
    if (!last) steps.push_back({.kind = SplitKind::letters});
  }

  void byte_level(const Component& c) {
    if (json_flag(*c.value, "use_regex", true)) rules().pattern = Pattern::gpt2;
    if (json_flag(*c.value, "add_prefix_space", true)) rules().leading = LeadingSpace::missing;
  }

  static Pattern split_pattern(const Component& c) {
    return *pattern_of_regex(json_string(c.value->value("pattern", json()), "Regex"));
  }

  // Where it puts a space: before the text if it has none, or only at the start of the whole text.
  LeadingSpace metaspace_lead(const Component& c) {
    const json& m = *c.value;
    if (json_string(m, "replacement") != space_mark)
      unsupported(c.path, "Metaspace with replacement \u2581",
                  m.value("replacement", json()).dump());
    replaces_ = true;
    const std::string scheme = json_string(m, "prepend_scheme");
    if (!scheme.empty() && scheme != "always" && scheme != "first" && scheme != "never")
      unsupported(c.path, "prepend_scheme always, first or never", scheme);
    if (scheme == "always" || (scheme.empty() && json_flag(m, "add_prefix_space", true)))
      return LeadingSpace::missing;
    return scheme == "first" ? LeadingSpace::missing_first : LeadingSpace::none;
  }

  void metaspace(const Component& c) {
    const LeadingSpace lead = metaspace_lead(c);
    if (rules().leading != LeadingSpace::always) rules().leading = lead;
    rules().pattern = json_flag(*c.value, "split", true) ? Pattern::spaces : Pattern::whole;
  }

  void metaspace_step(const Component& c) {
    const LeadingSpace lead = metaspace_lead(c);
    SplitStep step{.kind = SplitKind::metaspace};
    if (json_flag(*c.value, "split", true)) step.behaviour = SplitBehaviour::with_next;
    step.always = lead == LeadingSpace::missing;
    step.first = lead == LeadingSpace::missing_first;
    rules().splits.push_back(std::move(step));
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

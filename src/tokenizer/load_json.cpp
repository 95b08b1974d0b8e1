// Hugging Face files: tokenizer.json with its tokenizer_config.json, and vocab.json + merges.txt.
// A part of tokenizer.json that would change ids and that we do not have is an error by its name;
// the post-processor is not applied, as encode() adds no special tokens.
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "tokenizer/load.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json parse(const fs::path& path) {
  const std::string text = read_file(path);
  try {
    return json::parse(text);
  } catch (const json::parse_error& e) {
    fail(path.string(), "expected JSON, got an error at byte {} of {}", e.byte, text.size());
  }
}

// A member that must be there, of a kind that must fit.
template <class F>
const json& member(const std::string& where, const json& object, const char* key, F is,
                   const char* kind) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  if (it == object.end() || !((*it).*is)())
    fail(where, "expected \"{}\" to be {}, got {}", key, kind,
         it == object.end() ? "nothing" : it->type_name());
  return *it;
}

std::string type_of(const json& component) {
  if (!component.is_object()) return component.dump().substr(0, 60);
  return component.value("type", "a component without a type");
}

bool flag(const json& object, const char* key, bool otherwise) {
  const auto it = object.find(key);
  return it == object.end() || !it->is_boolean() ? otherwise : it->get<bool>();
}

Pattern byte_level_pattern(const std::string& where, const json& component) {
  if (type_of(component) != "ByteLevel")
    fail(where, "expected pre_tokenizer ByteLevel, got {}", type_of(component));
  if (flag(component, "add_prefix_space", true))
    fail(where, "expected pre_tokenizer ByteLevel without add_prefix_space, got it set");
  return Pattern::gpt2;
}

Pattern split_pattern(const std::string& where, const json& component) {
  if (type_of(component) != "Split")
    fail(where, "expected pre_tokenizer Split before ByteLevel, got {}", type_of(component));
  const json pattern = component.value("pattern", json());
  const std::string regex = pattern.is_object() ? pattern.value("Regex", "") : "";
  const std::optional<Pattern> known = pattern_of_regex(regex);
  if (!known)
    fail(where, "expected pre_tokenizer Split with the gpt2 pattern, got {}", pattern.dump());
  if (component.value("behavior", "") != "Isolated" || flag(component, "invert", false))
    fail(where, "expected pre_tokenizer Split as Isolated and not inverted, got {}",
         component.dump());
  return *known;
}

// ByteLevel with its own pattern, or a Sequence of Split and a ByteLevel that does not split.
Pattern read_pre_tokenizer(const std::string& where, const json& component) {
  if (type_of(component) != "Sequence") {
    if (component.is_object() && !flag(component, "use_regex", true))
      fail(where, "expected pre_tokenizer ByteLevel with use_regex, got it off");
    return byte_level_pattern(where, component);
  }
  const json list = component.value("pretokenizers", json::array());
  if (list.size() != 2)
    fail(where, "expected pre_tokenizer Sequence of Split and ByteLevel, got {} parts",
         list.size());
  const Pattern pattern = split_pattern(where, list[0]);
  byte_level_pattern(where, list[1]);
  if (flag(list[1], "use_regex", true))
    fail(where, "expected ByteLevel after Split without use_regex, got it set");
  return pattern;
}

void check_model(const std::string& where, const json& model) {
  if (type_of(model) != "BPE") fail(where, "expected model BPE, got {}", type_of(model));
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    if (const json v = model.value(key, json()); !v.is_null() && v != "" && v != 0.0)
      fail(where, "expected model BPE without {}, got {}", key, v.dump());
  if (flag(model, "byte_fallback", false))
    fail(where, "expected model BPE without byte_fallback, got it set");
}

std::vector<AddedToken> read_added(const std::string& where, const json& file) {
  std::vector<AddedToken> added;
  for (const json& t : file.value("added_tokens", json::array())) {
    AddedToken token;
    token.text = member(where, t, "content", &json::is_string, "text").get<std::string>();
    token.id = member(where, t, "id", &json::is_number_integer, "a number").get<int32_t>();
    token.special = flag(t, "special", false);
    for (const char* option : {"lstrip", "rstrip", "single_word"})
      if (flag(t, option, false))
        fail(where, "expected added tokens without {}, got it for \"{}\"", option, token.text);
    added.push_back(std::move(token));
  }
  return added;
}

// Tokens as they are written in the vocabulary, for looking up the two sides of a merge.
TextIds read_vocab(VocabularyParts& parts, const json& vocab) {
  TextIds written;
  std::set<std::pair<std::string_view, int32_t>> added;
  for (const AddedToken& t : parts.added) added.emplace(t.text, t.id);
  for (const auto& [text, id] : vocab.items()) {
    if (!id.is_number_integer())
      fail(parts.where, "expected a number for token \"{}\", got {}", text, id.type_name());
    written.emplace(text, id.get<int32_t>());
    if (added.contains({text, id.get<int32_t>()})) continue;
    Token token{.bytes = {}, .id = id.get<int32_t>()};
    if (!bytes_of_letters(text, token.bytes))
      fail(parts.where, "expected tokens in byte-level letters, got \"{}\" (id {})", text,
           token.id);
    parts.tokens.push_back(std::move(token));
  }
  return written;
}

Merge make_merge(const std::string& where, const TextIds& ids, std::string_view left,
                 std::string_view right, std::string_view place, size_t index) {
  const auto id = [&](std::string_view text) {
    const auto it = ids.find(text);
    if (it == ids.end())
      fail(where, "expected merges of known tokens, got \"{}\" on {} {} (\"{}\" \"{}\")", text,
           place, index, left, right);
    return it->second;
  };
  return {id(left), id(right), id(std::string(left) + std::string(right))};
}

std::pair<std::string, std::string> sides_of(const std::string& where, const json& merge,
                                             size_t index) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {merge[0], merge[1]};
  if (merge.is_string()) {
    const std::string text = merge;
    const size_t gap = text.find(' ');
    if (gap != std::string::npos && gap > 0 && gap + 1 < text.size())
      return {text.substr(0, gap), text.substr(gap + 1)};
  }
  fail(where, "expected merge {} to be two tokens, got {}", index, merge.dump());
}

int32_t id_of_added(const std::vector<AddedToken>& added, std::string_view text) {
  for (const AddedToken& t : added)
    if (t.text == text) return t.id;
  return -1;
}

// bos and eos as tokenizer_config.json names them; without that file, <|endoftext|> is both.
void read_ends(VocabularyParts& parts, const fs::path& config) {
  parts.eos = parts.bos = id_of_added(parts.added, "<|endoftext|>");
  if (!fs::exists(config)) return;
  const json file = parse(config);
  const auto named = [&](const char* key) {
    const json v = file.is_object() ? file.value(key, json()) : json();
    const json text = v.is_object() ? v.value("content", json()) : v;
    if (text.is_null()) return -1;
    const int32_t id = text.is_string() ? id_of_added(parts.added, text.get<std::string>()) : -1;
    if (id < 0)
      fail(config.string(), "expected {} to be an added token of {}, got {}", key, parts.where,
           text.dump());
    return id;
  };
  parts.bos = named("bos_token");
  parts.eos = named("eos_token");
}

}  // namespace

VocabularyParts read_tokenizer_json(const fs::path& path) {
  const json file = parse(path);
  VocabularyParts parts{.where = path.string()};
  const json& model = member(parts.where, file, "model", &json::is_object, "an object");
  check_model(parts.where, model);
  if (const json n = file.value("normalizer", json()); !n.is_null())
    fail(parts.where, "expected no normalizer, got {}", type_of(n));
  parts.pattern = read_pre_tokenizer(parts.where, file.value("pre_tokenizer", json()));
  if (const json d = file.value("decoder", json()); type_of(d) != "ByteLevel")
    fail(parts.where, "expected decoder ByteLevel, got {}", type_of(d));
  parts.rule = flag(model, "ignore_merges", false) ? MergeRule::listed_whole : MergeRule::listed;
  parts.added = read_added(parts.where, file);
  const TextIds ids =
      read_vocab(parts, member(parts.where, model, "vocab", &json::is_object, "an object"));
  const json& merges = member(parts.where, model, "merges", &json::is_array, "a list");
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto [left, right] = sides_of(parts.where, merges[i], i);
    parts.merges.push_back(make_merge(parts.where, ids, left, right, "merge", i));
  }
  read_ends(parts, path.parent_path() / "tokenizer_config.json");
  return parts;
}

VocabularyParts read_vocab_and_merges(const fs::path& vocab_json, const fs::path& merges_txt) {
  const json vocab = parse(vocab_json);
  VocabularyParts parts{.where = vocab_json.string()};
  if (!vocab.is_object()) fail(parts.where, "expected an object, got {}", vocab.type_name());
  const std::string end = "<|endoftext|>";
  if (const auto it = vocab.find(end); it != vocab.end() && it->is_number_integer())
    parts.added.push_back({end, it->get<int32_t>()});
  const TextIds ids = read_vocab(parts, vocab);
  for (const auto& [line, left, right] : read_merge_lines(merges_txt))
    parts.merges.push_back(make_merge(merges_txt.string(), ids, left, right, "line", line));
  read_ends(parts, vocab_json.parent_path() / "tokenizer_config.json");
  return parts;
}

}  // namespace hearth

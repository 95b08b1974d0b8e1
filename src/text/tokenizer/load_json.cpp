// Hugging Face files: tokenizer.json with tokenizer_config.json, and vocab.json with merges.txt. An
// unsupported part of tokenizer.json that would change ids is an error that names its path.
#include "text/tokenizer/load_json.h"

#include <cmath>
#include <map>

#include "formats/json.h"
#include "text/tokenizer/encode.h"
#include "text/tokenizer/load.h"

namespace hearth::inline text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json parse(const fs::path& path, const std::string& text) {
  return parse_json(text, path.string());
}

void check_unknown(const VocabularyParts& parts, const char* key) {
  if (parts.text.pieces && !parts.text.byte_fallback && parts.text.unk < 0)
    fail(parts.where, "expected {} or byte_fallback at model, got neither", key);
}

void read_bpe_options(VocabularyParts& parts, const json& model) {
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    if (const json v = model.value(key, json()); !v.is_null() && v != "" && v != 0.0)
      fail(parts.where, "expected no {0} at model.{0}, got {1}", key, v.dump());
  parts.rule =
      json_flag(model, "ignore_merges", false) ? MergeRule::listed_whole : MergeRule::listed;
  TextRules& rules = parts.text;
  rules.byte_fallback = json_flag(model, "byte_fallback", false);
  rules.fuse_unk = json_flag(model, "fuse_unk", false);
  const json unk = model.value("unk_token", json());
  if (unk.is_string()) {
    const std::string token = unk;
    const json& vocab = json_member(parts.where, model, "vocab", &json::is_object, "an object");
    if (!vocab.contains(token))
      fail(parts.where, "expected model.unk_token to be a token of the vocabulary, got \"{}\"",
           token);
    rules.unk = json_id(parts.where, vocab[token], token);
  }
  check_unknown(parts, "unk_token");
}

std::vector<AddedToken> read_added(const std::string& where, const json& file) {
  std::vector<AddedToken> added;
  for (const json& t : file.value("added_tokens", json::array())) {
    AddedToken token;
    token.text = json_member(where, t, "content", &json::is_string, "text").get<std::string>();
    token.id = json_id(where, json_member(where, t, "id", &json::is_number_integer, "a number"),
                       token.text);
    token.special = json_flag(t, "special", false);
    token.lstrip = json_flag(t, "lstrip", false);
    token.rstrip = json_flag(t, "rstrip", false);
    token.single_word = json_flag(t, "single_word", false);
    token.normalized = json_flag(t, "normalized", !token.special);
    added.push_back(std::move(token));
  }
  return added;
}

// The bytes of a vocabulary token as encoding uses them.
std::string token_bytes(const VocabularyParts& parts, const std::string& text, int32_t id) {
  std::string bytes = text;
  if (parts.text.pieces) {
    if (text.find(' ') != std::string::npos)
      fail(parts.where, "expected \u2581 instead of spaces in tokens, got \"{}\" (id {})", text,
           id);
    replace_all(bytes, space_mark, " ");
  } else if (!bytes_of_letters(text, bytes)) {
    fail(parts.where, "expected tokens in byte-level encoding, got \"{}\" (id {})", text, id);
  }
  return bytes;
}

// Takes the tokens of a model one by one, and marks those that are added tokens too.
class TokenReader {
 public:
  explicit TokenReader(VocabularyParts& parts) : parts_(parts) {
    for (AddedToken& t : parts.added)
      added_.emplace(std::pair(std::string_view(t.text), t.id), &t.in_vocab);
  }
  void add(const std::string& text, int32_t id) {
    if (const auto it = added_.find({text, id}); it != added_.end())
      *it->second = true;
    else
      parts_.tokens.push_back({token_bytes(parts_, text, id), id});
  }

 private:
  VocabularyParts& parts_;
  std::map<std::pair<std::string_view, int32_t>, bool*> added_;
};

// Tokens as written in the vocabulary, to look up the two sides of a merge.
TextIds read_vocab(VocabularyParts& parts, const json& vocab) {
  TextIds written;
  TokenReader reader(parts);
  for (const auto& [text, value] : vocab.items()) {
    const int32_t id = json_id(parts.where, value, text);
    written.emplace(text, id);
    reader.add(text, id);
  }
  return written;
}

// Pieces with their scores, by id.
void read_unigram(VocabularyParts& parts, const json& model) {
  if (!parts.text.pieces) fail(parts.where, "expected BPE at model beside ByteLevel, got Unigram");
  parts.rule = MergeRule::unigram;
  parts.text.byte_fallback = json_flag(model, "byte_fallback", false);
  const json& vocab = json_member(parts.where, model, "vocab", &json::is_array, "a list");
  if (vocab.size() >= size_t(most_ids))
    fail(parts.where, "expected less than {} tokens at model.vocab, got {}", most_ids,
         vocab.size());
  if (const json unk = model.value("unk_id", json()); !unk.is_null()) {
    parts.text.unk = json_id(parts.where, unk, "model.unk_id");
    if (size_t(parts.text.unk) >= vocab.size())
      fail(parts.where, "expected model.unk_id below {}, got {}", vocab.size(), parts.text.unk);
  }
  check_unknown(parts, "unk_id");
  TokenReader reader(parts);
  for (size_t i = 0; i < vocab.size(); ++i) {
    const json& piece = vocab[i];
    if (!piece.is_array() || piece.size() != 2 || !piece[0].is_string() || !piece[1].is_number() ||
        !std::isfinite(piece[1].get<double>()))
      fail(parts.where, "expected a text and a finite score at model.vocab[{}], got {}", i,
           piece.dump().substr(0, 60));
    reader.add(piece[0], int32_t(i));
    parts.piece_scores.push_back(piece[1]);
  }
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

void read_bpe_model(VocabularyParts& parts, const json& model) {
  read_bpe_options(parts, model);
  const TextIds ids =
      read_vocab(parts, json_member(parts.where, model, "vocab", &json::is_object, "an object"));
  const json& merges = json_member(parts.where, model, "merges", &json::is_array, "a list");
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto [left, right] = sides_of(parts.where, merges[i], i);
    parts.merges.push_back(make_merge(parts.where, ids, left, right, "merge", i));
  }
}

// bos and eos from tokenizer_config.json. Where the file or a key is missing they are <s> and </s>,
// or <|endoftext|> for both, as in transformers' classes for GPT-2 and Llama; the file of GPT-2
// itself names neither. The classes without such tokens of their own leave them out.
void read_ends(VocabularyParts& parts, const fs::path& config) {
  parts.eos = parts.bos = id_of_added(parts.added, "<|endoftext|>");
  if (parts.eos < 0) {
    parts.bos = id_of_added(parts.added, "<s>");
    parts.eos = id_of_added(parts.added, "</s>");
  }
  if (!fs::exists(config)) return;
  parts.saved.config = read_file(config);
  const json file = parse(config, parts.saved.config);
  const std::string kind = json_string(file, "tokenizer_class");
  const bool bare = kind == "PreTrainedTokenizerFast" || kind == "TokenizersBackend";
  const auto read = [&](const char* key, int32_t otherwise) {
    const auto it = file.find(key);
    if (it == file.end()) return otherwise;
    const json text = it->is_object() ? it->value("content", json()) : *it;
    if (text.is_null()) return -1;
    const int32_t id = text.is_string() ? id_of_added(parts.added, text.get<std::string>()) : -1;
    if (id < 0)
      fail(config.string(), "expected {} to be an added token of {}, got {}", key, parts.where,
           text.dump());
    return id;
  };
  parts.bos = read("bos_token", bare || kind.starts_with("Qwen2") ? -1 : parts.bos);
  parts.eos = read("eos_token", bare ? -1 : parts.eos);
}

}  // namespace

VocabularyParts read_tokenizer_json(const fs::path& path) try {
  const json file = parse(path, read_file(path, tokenizer_file_limit));
  VocabularyParts parts{.where = path.string()};
  const json& model = json_member(parts.where, file, "model", &json::is_object, "an object");
  const std::string type = json_type(model);
  if (type != "BPE" && type != "Unigram")
    fail(parts.where, "expected BPE or Unigram at model, got {}", type);
  read_components(parts, file);
  parts.added = read_added(parts.where, file);
  type == "BPE" ? read_bpe_model(parts, model) : read_unigram(parts, model);
  read_ends(parts, path.parent_path() / "tokenizer_config.json");
  return parts;
} catch (const json::exception& e) {  // a value of an unexpected type
  fail(path.string(), "this is not a valid tokenizer.json: {}", e.what());
}

VocabularyParts read_vocab_and_merges(const fs::path& vocab_json, const fs::path& merges_txt) {
  const json vocab = parse(vocab_json, read_file(vocab_json, tokenizer_file_limit));
  VocabularyParts parts{.where = vocab_json.string()};
  if (!vocab.is_object()) fail(parts.where, "expected an object, got {}", vocab.type_name());
  const std::string end = "<|endoftext|>";
  if (const auto it = vocab.find(end); it != vocab.end())
    parts.added.push_back({end, json_id(parts.where, *it, end)});
  const TextIds ids = read_vocab(parts, vocab);
  for (const auto& [line, left, right] : read_merge_lines(merges_txt))
    parts.merges.push_back(make_merge(merges_txt.string(), ids, left, right, "line", line));
  read_ends(parts, vocab_json.parent_path() / "tokenizer_config.json");
  return parts;
}

}  // namespace hearth::inline text

// Writes a tokenizer as Hugging Face does: tokenizer.json and tokenizer_config.json, each put in
// place whole (a temporary file, synced and renamed).
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "io/files.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocabulary.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

std::string json_text(std::string_view text) { return nlohmann::json(text).dump(); }

std::string letters_of(std::string_view bytes) {
  std::string s;
  for (const char c : bytes) s += byte_letters()[uint8_t(c)];
  return s;
}

std::string added_json(const Vocabulary& v) {
  std::vector<AddedToken> added = v.added;
  std::ranges::sort(added, {}, &AddedToken::id);
  std::string s;
  for (const AddedToken& t : added)
    s += fmt::format(
        R"({}
    {{"id": {}, "content": {}, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": {}}})",
        s.empty() ? "" : ",", t.id, json_text(t.text), t.special);
  return s;
}

// Added tokens stand in "added_tokens" alone, where Hugging Face gives them the same ids.
std::string vocab_json(const Vocabulary& v) {
  std::vector<bool> listed = v.known;
  for (const AddedToken& t : v.added) listed[size_t(t.id)] = false;
  std::string s;
  for (size_t id = 0; id < v.bytes.size(); ++id)
    if (listed[id])
      s += fmt::format("{}\n      {}: {}", s.empty() ? "" : ",", json_text(letters_of(v.bytes[id])),
                       id);
  return s;
}

std::string merges_json(const Vocabulary& v) {
  std::string s;
  for (const Merge& m : v.merges)
    s += fmt::format("{}\n      {}", s.empty() ? "" : ",",
                     json_text(letters_of(v.bytes[size_t(m.left)]) + " " +
                               letters_of(v.bytes[size_t(m.right)])));
  return s;
}

std::string pre_tokenizer_json(Pattern pattern) {
  if (pattern == Pattern::gpt2)
    return R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";
  return fmt::format(
      R"({{"type": "Sequence", "pretokenizers": [
    {{"type": "Split", "pattern": {{"Regex": {}}}, "behavior": "Isolated", "invert": false}},
    {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}}]}})",
      json_text(pattern_regex(pattern)));
}

std::string tokenizer_json(const Vocabulary& v) {
  return fmt::format(R"({{
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [{}
  ],
  "normalizer": null,
  "pre_tokenizer": {},
  "post_processor": null,
  "decoder": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}},
  "model": {{
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": {},
    "vocab": {{{}
    }},
    "merges": [{}
    ]
  }}
}}
)",
                     added_json(v), pre_tokenizer_json(v.pattern), v.rule != MergeRule::listed,
                     vocab_json(v), merges_json(v));
}

std::string config_json(const Vocabulary& v) {
  const auto named = [&](int32_t id) {
    return id < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(v.bytes[size_t(id)]);
  };
  nlohmann::ordered_json config;
  config["add_prefix_space"] = false;
  config["bos_token"] = named(v.bos);
  config["eos_token"] = named(v.eos);
  config["unk_token"] = named(v.eos);
  config["clean_up_tokenization_spaces"] = false;
  config["tokenizer_class"] =
      v.pattern == Pattern::gpt2 ? "GPT2Tokenizer" : "PreTrainedTokenizerFast";
  return config.dump(2) + "\n";
}

}  // namespace

void Tokenizer::save(const fs::path& dir) const {
  if (vocabulary_->rule == MergeRule::llama2c)
    fail(dir.string(), "expected a byte-level BPE tokenizer to save, got a llama2.c vocabulary");
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) fail(dir.string(), "expected to create the folder, got: {}", error.message());
  write_file_atomic(dir / "tokenizer_config.json", config_json(*vocabulary_));
  write_file_atomic(dir / "tokenizer.json", tokenizer_json(*vocabulary_));
}

}  // namespace hearth

// Writes a tokenizer in Hugging Face's format: tokenizer.json and tokenizer_config.json, each
// written atomically.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "sys/error.h"
#include "sys/files/files.h"
#include "text/tokenizer/encode.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline text {
namespace {

namespace fs = std::filesystem;

std::string json_text(std::string_view text) { return nlohmann::json(text).dump(); }

// Tokens by id as the file writes them; an added token as its text.
std::vector<std::string> written_tokens(const Vocabulary& v) {
  std::vector<std::string> written(v.bytes.size());
  if (v.text.pieces) {
    for (const auto& [text, id] : v.pieces) {
      written[size_t(id)] = text;
      replace_all(written[size_t(id)], " ", space_mark);
    }
  } else {
    for (size_t id = 0; id < written.size(); ++id)
      for (const char c : v.bytes[id]) written[id] += byte_letters()[uint8_t(c)];
  }
  for (const AddedToken& t : added_tokens(v)) written[size_t(t.id)] = t.text;
  return written;
}

std::string added_json(const Vocabulary& v) {
  std::string s;
  for (const AddedToken& t : added_tokens(v))
    s += fmt::format(
        R"({}
    {{"id": {}, "content": {}, "single_word": {}, "lstrip": {}, "rstrip": {}, "normalized": {}, "special": {}}})",
        s.empty() ? "" : ",", t.id, json_text(t.text), t.single_word, t.lstrip, t.rstrip,
        t.normalized, t.special);
  return s;
}

// Hugging Face numbers added tokens that the model lacks from the model's size on. If that would
// change ids, all added tokens are listed in the model.
std::vector<bool> listed_tokens(const Vocabulary& v) {
  const std::vector<AddedToken> added = added_tokens(v);
  std::vector<bool> listed = v.known;
  for (const AddedToken& t : added) listed[size_t(t.id)] = t.in_vocab;
  auto next = int32_t(std::ranges::count(listed, true));
  const auto fits = [&](const AddedToken& t) { return t.in_vocab || t.id == next++; };
  return std::ranges::all_of(added, fits) ? listed : v.known;
}

std::string vocab_json(const Vocabulary& v, const std::vector<std::string>& written) {
  const std::vector<bool> listed = listed_tokens(v);
  std::string s;
  for (size_t id = 0; id < written.size(); ++id)
    if (listed[id])
      s += fmt::format("{}\n      {}: {}", s.empty() ? "" : ",", json_text(written[id]), id);
  return s;
}

std::string merges_json(const Vocabulary& v, const std::vector<std::string>& written) {
  std::string s;
  for (const Merge& m : v.merges)
    s += fmt::format("{}\n      {}", s.empty() ? "" : ",",
                     json_text(written[size_t(m.left)] + " " + written[size_t(m.right)]));
  return s;
}

nlohmann::json byte_level_json(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

nlohmann::json pre_tokenizer_json(Pattern pattern) {
  if (pattern == Pattern::gpt2) return byte_level_json(true);
  const nlohmann::json split = {{"type", "Split"},
                                {"pattern", {{"Regex", pattern_regex(pattern)}}},
                                {"behavior", "Isolated"},
                                {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, byte_level_json(false)}}};
}

std::string bpe_json(const Vocabulary& v, const std::vector<std::string>& written) {
  return fmt::format(
      R"({{
    "type": "BPE",
    "dropout": null,
    "unk_token": {},
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": {},
    "byte_fallback": {},
    "ignore_merges": {},
    "vocab": {{{}
    }},
    "merges": [{}
    ]
  }})",
      v.text.unk < 0 ? "null" : json_text(written[size_t(v.text.unk)]), v.text.fuse_unk,
      v.text.byte_fallback, v.rule != MergeRule::listed, vocab_json(v, written),
      merges_json(v, written));
}

// The place of a piece in the list is its id.
std::string unigram_json(const Vocabulary& v, const std::vector<std::string>& written) {
  const std::vector<bool> listed = listed_tokens(v);
  const size_t count = size_t(std::ranges::count(listed, true));
  std::string pieces;
  for (size_t id = 0; id < count; ++id) {
    if (!listed[id])
      fail("tokenizer", "a Unigram vocabulary without a piece for id {} cannot be saved", id);
    const double score = id < v.unigram.scores().size() ? v.unigram.scores()[id] : 0;
    pieces += fmt::format("{}\n      [{}, {}]", pieces.empty() ? "" : ",", json_text(written[id]),
                          nlohmann::json(score).dump());
  }
  return fmt::format(
      R"({{
    "type": "Unigram",
    "unk_id": {},
    "byte_fallback": {},
    "vocab": [{}
    ]
  }})",
      v.text.unk < 0 ? "null" : std::to_string(v.text.unk), v.text.byte_fallback, pieces);
}

// A template for what is added around a text, for a tokenizer that came without one.
nlohmann::json post_processor_json(const Vocabulary& v, const std::vector<std::string>& written) {
  const TextRules& rules = v.text;
  if (rules.before.empty() && rules.after.empty()) return nullptr;
  using nlohmann::json;
  json special = json::object();
  const auto around = [&](const char* text, int type, json& items) {
    const auto add = [&](const char* kind, const std::string& id) {
      items.push_back({{kind, {{"id", id}, {"type_id", type}}}});
    };
    const auto add_token = [&](int32_t id) {
      const std::string& name = written[size_t(id)];
      add("SpecialToken", name);
      special[name] = {{"id", name}, {"ids", json::array({id})}, {"tokens", json::array({name})}};
    };
    for (const int32_t id : rules.before) add_token(id);
    add("Sequence", text);
    for (const int32_t id : rules.after) add_token(id);
  };
  json single = json::array();
  around("A", 0, single);
  json pair = single;
  around("B", 1, pair);
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", special}};
}

std::string tokenizer_json(const Vocabulary& v) {
  const std::vector<std::string> written = written_tokens(v);
  const auto saved = [](const std::string& part, const nlohmann::json& otherwise) {
    return part.empty() ? otherwise.dump() : part;
  };
  return fmt::format(
      R"({{
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [{}
  ],
  "normalizer": {},
  "pre_tokenizer": {},
  "post_processor": {},
  "decoder": {},
  "model": {}
}}
)",
      added_json(v), saved(v.saved.normalizer, nullptr),
      saved(v.saved.pre_tokenizer, pre_tokenizer_json(v.text.pattern)),
      saved(v.saved.post_processor, post_processor_json(v, written)),
      saved(v.saved.decoder, byte_level_json(true)),
      v.rule == MergeRule::unigram ? unigram_json(v, written) : bpe_json(v, written));
}

std::string config_json(const Vocabulary& v) {
  if (!v.saved.config.empty()) return v.saved.config;
  const auto named = [&](int32_t id) {
    return id < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(v.bytes[size_t(id)]);
  };
  nlohmann::ordered_json config;
  config["add_prefix_space"] = false;
  config["bos_token"] = named(v.bos);
  config["eos_token"] = named(v.eos);
  config["unk_token"] = named(v.text.unk < 0 ? v.eos : v.text.unk);
  config["clean_up_tokenization_spaces"] = false;
  config["tokenizer_class"] =
      v.text.pattern == Pattern::gpt2 ? "GPT2Tokenizer" : "PreTrainedTokenizerFast";
  return config.dump(2) + "\n";
}

struct SavedTexts {
  std::string config, tokenizer;
};

SavedTexts saved_texts(const Vocabulary& v, const std::string& where) {
  if (v.rule == MergeRule::llama2c)
    fail(where, "a llama2.c vocabulary cannot be saved as tokenizer.json");
  return {config_json(v), tokenizer_json(v)};
}

}  // namespace

std::string Tokenizer::save_problem() const {
  constexpr std::string_view where = "tokenizer";
  try {
    saved_texts(*vocabulary_, std::string(where));
  } catch (const Error& e) {
    const std::string problem = e.what(), begin = fmt::format("[{}] ", where);
    return problem.starts_with(begin) ? problem.substr(begin.size()) : problem;
  }
  return {};
}

void Tokenizer::save(const fs::path& dir) const {
  const SavedTexts texts = saved_texts(*vocabulary_, dir.string());
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) fail(dir.string(), "could not create the folder: {}", error.message());
  write_file_atomic(dir / "tokenizer_config.json", texts.config);
  write_file_atomic(dir / "tokenizer.json", texts.tokenizer);
}

}  // namespace hearth::inline text

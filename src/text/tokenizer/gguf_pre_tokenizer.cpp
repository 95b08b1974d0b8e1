#include "text/tokenizer/gguf_pre_tokenizer.h"

#include <algorithm>

#include "formats/json.h"
#include "sys/error.h"
#include "text/tokenizer/encode.h"
#include "text/tokenizer/load_json.h"

namespace hearth::inline text {
namespace {

// SmolLM and StarCoder: every digit by itself, the rest as gpt2.
constexpr std::string_view digit_steps =
    R"({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, )"
    R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, )"
    R"("use_regex": true}]})";

constexpr std::string_view deepseek_v3_steps =
    R"json({"type": "Sequence", "pretokenizers": [)json"
    R"json({"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}"}, )json"
    R"json("behavior": "Isolated", "invert": false}, )json"
    R"json({"type": "Split", "pattern": {"Regex": "[一-龥぀-ゟ゠-ヿ]+"}, )json"
    R"json("behavior": "Isolated", "invert": false}, )json"
    R"json({"type": "Split", "pattern": {"Regex": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~])json"
    R"json([A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|)json"
    R"json(\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false}, )json"
    R"json({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, )json"
    R"json("use_regex": false}]})json";

// As llama.cpp's vocabulary loader has them. Of rows that mean the same, the first is written.
constexpr GgufPreTokenizer pre_tokenizers[] = {
    {"gpt-2", Pattern::gpt2},
    {"phi-2", Pattern::gpt2},
    {"olmo", Pattern::gpt2},
    {"mpt", Pattern::gpt2},
    {.name = "llama-bpe", .pattern = Pattern::llama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama3", .pattern = Pattern::llama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .pattern = Pattern::llama3, .ignore_merges = true, .add_bos = true},
    {"dbrx", Pattern::llama3},
    {"smaug-bpe", Pattern::llama3},
    {"qwen2", Pattern::qwen2},
    {"deepseek-r1-qwen", Pattern::qwen2},
    {"gpt-4o", Pattern::o200k},
    {.name = "deepseek-v3", .pattern = Pattern::steps, .steps = deepseek_v3_steps},
    {.name = "smollm", .pattern = Pattern::steps, .steps = digit_steps},
    {.name = "starcoder", .pattern = Pattern::steps, .steps = digit_steps},
    {.name = "refact", .pattern = Pattern::steps, .steps = digit_steps},
    {.name = "command-r", .pattern = Pattern::steps, .steps = digit_steps},
};

std::string known_names() {
  std::string names;
  for (const GgufPreTokenizer& p : pre_tokenizers) (names += names.empty() ? "" : ", ") += p.name;
  return names;
}

void read_steps(VocabularyParts& parts, std::string_view steps) {
  read_components(parts, {{"pre_tokenizer", nlohmann::json::parse(steps)},
                          {"decoder", {{"type", "ByteLevel"}}}});
  parts.saved = {.pre_tokenizer = std::string(steps)};
}

bool same_steps(const std::vector<SplitStep>& a, const std::vector<SplitStep>& b) {
  return std::ranges::equal(a, b, [](const SplitStep& x, const SplitStep& y) {
    return x.kind == y.kind && x.behaviour == y.behaviour && x.invert == y.invert &&
           x.pattern == y.pattern && x.text == y.text;
  });
}

bool splits_alike(const GgufPreTokenizer& p, const TextRules& rules) {
  if (p.pattern != rules.pattern) return false;
  if (p.pattern != Pattern::steps) return true;
  const bool regex = p.steps.find("Regex") != p.steps.npos;
  if (regex != std::ranges::any_of(rules.splits,
                                   [](const SplitStep& s) { return s.kind == SplitKind::regex; }))
    return false;  // without compiling expressions in vain
  VocabularyParts parts;
  read_steps(parts, p.steps);
  return same_steps(parts.text.splits, rules.splits);
}

// A token that merging its bytes does not give; -1: there is none.
int32_t unmerged_token(const Vocabulary& v) {
  std::vector<bool> added(v.bytes.size());
  for (const AddedToken& t : added_tokens(v)) added[size_t(t.id)] = true;
  std::vector<int32_t> symbols;
  for (size_t id = 0; id < v.bytes.size(); ++id) {
    if (!v.known[id] || added[id]) continue;
    symbols.clear();
    spell(v, v.bytes[id], symbols);
    if (merge_word(symbols, v.pairs) != 1 || symbols[0] != int32_t(id)) return int32_t(id);
  }
  return -1;
}

}  // namespace

const GgufPreTokenizer& set_pre_tokenizer(VocabularyParts& parts, std::string_view name) {
  const auto* p = std::ranges::find(pre_tokenizers, name, &GgufPreTokenizer::name);
  if (p == std::end(pre_tokenizers))
    fail(parts.where, "expected tokenizer.ggml.pre to be one of {}, got {}", known_names(),
         in_quotes(name));
  parts.text.pattern = p->pattern;
  parts.rule = p->ignore_merges ? MergeRule::listed_whole : MergeRule::listed;
  if (p->pattern == Pattern::steps) read_steps(parts, p->steps);
  return *p;
}

std::string_view pre_tokenizer_name(const Vocabulary& v) {
  const bool whole = v.rule != MergeRule::listed;
  const GgufPreTokenizer* found = nullptr;
  for (const GgufPreTokenizer& p : pre_tokenizers) {
    const bool better = !found || (found->ignore_merges != whole && p.ignore_merges == whole);
    if (better && splits_alike(p, v.text)) found = &p;
  }
  if (!found && v.text.pattern == Pattern::steps)
    fail("gguf",
         "llama.cpp has no name for this tokenizer's pre_tokenizer, so GGUF cannot store it");
  if (!found)
    fail("gguf", "llama.cpp has no name for the pattern {}, so GGUF cannot store it",
         pattern_name(v.text.pattern));
  if (found->ignore_merges == whole) return found->name;
  if (const int32_t id = unmerged_token(v); id >= 0)
    fail("gguf",
         "llama.cpp merges every word with the pattern of {}, which does not give token {}, so "
         "GGUF cannot store this tokenizer",
         found->name, id);
  return found->name;
}

}  // namespace hearth::inline text

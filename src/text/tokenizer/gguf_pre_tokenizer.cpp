#include "text/tokenizer/gguf_pre_tokenizer.h"

#include <algorithm>

#include "formats/json.h"
#include "sys/error.h"
#include "text/tokenizer/encode.h"
#include "text/tokenizer/load_json.h"

namespace hearth::inline text {
namespace {

// --- steps of published tokenizer.json files ---

constexpr std::string_view digits_step = R"({"type": "Digits", "individual_digits": true})";
constexpr std::string_view digit_runs_step = R"({"type": "Digits", "individual_digits": false})";
constexpr std::string_view punctuation_step =
    R"({"type": "Punctuation", "behavior": "Contiguous"})";
constexpr std::string_view bytes_step =
    R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false})";
constexpr std::string_view words_step =  // words as in gpt2
    R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";

// SmolLM and StarCoder: every digit by itself, the rest as gpt2.
constexpr std::string_view digit_steps[] = {digits_step, words_step};

// Falcon's own; llama.cpp approximates them. It leaves digits beside other text, and it splits
// Falcon 3 like Llama 3.
constexpr std::string_view falcon_steps[] = {punctuation_step, words_step, digit_runs_step,
                                             "[0-9][0-9][0-9]"};
constexpr std::string_view falcon3_steps[] = {punctuation_step, words_step, digits_step};

// Mistral's: o200k without contractions, with every digit by itself.
constexpr std::string_view tekken_steps[] = {
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+)"
    R"(|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*)"
    R"(|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)",
    bytes_step};

constexpr std::string_view deepseek_v3_steps[] = {
    R"(\\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+",
    R"r([!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?)r"
    R"([\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+)",
    bytes_step};

constexpr std::string_view line_ends = R"([\r\n])";
constexpr std::string_view east_asian = R"([\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+)";
constexpr std::string_view deepseek_coder_steps[] = {line_ends,  R"(\\s?\\p{L}+)", R"(\\s?\\p{P}+)",
                                                     east_asian, digits_step,      bytes_step};

constexpr std::string_view cased_letters =
    R"(\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293)"
    R"(\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c)"
    R"(\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5)"
    R"(\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77)"
    R"(\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59)"
    R"(\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc)"
    R"(\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107)"
    R"(\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139)"
    R"(\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee)"
    R"(\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e)"
    R"(\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a)"
    R"(\ud801\udc00-\ud801\udc4f\ud801\udcb0-\ud801\udcd3\ud801\udcd8-\ud801\udcfb)"
    R"(\ud803\udc80-\ud803\udcb2\ud803\udcc0-\ud803\udcf2\ud806\udca0-\ud806\udcdf)"
    R"(\ud83a\udd00-\ud83a\udd43]+)";
constexpr std::string_view deepseek_llm_steps[] = {
    line_ends,
    cased_letters,
    R"(\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+)",
    R"(\\s+$)",
    east_asian,
    digits_step,
    bytes_step};

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
    {.name = "pixtral", .pattern = Pattern::llama3, .ignore_merges = true, .add_bos = true},
    {.name = "tekken",
     .pattern = Pattern::steps,
     .ignore_merges = true,
     .add_bos = true,
     .steps = tekken_steps},
    {.name = "falcon", .pattern = Pattern::steps, .steps = falcon_steps},
    {.name = "falcon3",
     .pattern = Pattern::steps,
     .ignore_merges = true,
     .add_bos = true,
     .steps = falcon3_steps},
    {.name = "deepseek-llm", .pattern = Pattern::steps, .steps = deepseek_llm_steps},
    {.name = "deepseek-coder", .pattern = Pattern::steps, .steps = deepseek_coder_steps},
};

std::string known_names() {
  std::string names;
  for (const GgufPreTokenizer& p : pre_tokenizers) (names += names.empty() ? "" : ", ") += p.name;
  return names;
}

// A step is an expression to split by, inside a JSON text, or a component as it is.
bool is_regex(std::string_view step) { return !step.starts_with('{'); }

std::string pre_tokenizer_json(std::span<const std::string_view> steps) {
  std::string list;
  for (const std::string_view step : steps) {
    if (!list.empty()) list += ", ";
    list += is_regex(step) ? fmt::format(R"({{"type": "Split", "pattern": {{"Regex": "{}"}}, )"
                                         R"("behavior": "Isolated", "invert": false}})",
                                         step)
                           : std::string(step);
  }
  return fmt::format(R"({{"type": "Sequence", "pretokenizers": [{}]}})", list);
}

void read_steps(VocabularyParts& parts, std::span<const std::string_view> steps) {
  const std::string text = pre_tokenizer_json(steps);
  read_components(parts, {{"pre_tokenizer", nlohmann::json::parse(text)},
                          {"decoder", {{"type", "ByteLevel"}}}});
  parts.saved = {.pre_tokenizer = text};
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
  if (std::ranges::any_of(p.steps, is_regex) !=
      std::ranges::any_of(rules.splits,
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

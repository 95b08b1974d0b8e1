#include "text/tokenizer/gguf_pieces.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "formats/json.h"
#include "sys/error.h"
#include "text/tokenizer/encode.h"
#include "text/tokenizer/gguf_tokens.h"

namespace hearth::inline text {
namespace {

using Kind = GgufTokenKind;

std::string with_spaces(std::string_view piece) {
  std::string text(piece);
  replace_all(text, space_mark, " ");
  return text;
}

std::string with_marks(std::string text) {
  replace_all(text, " ", space_mark);
  return text;
}

constexpr size_t longest_piece = 4096;  // trying every split of a piece is quadratic

// Every split of a piece into two pieces; best score first, then longest left side first.
std::vector<Merge> merges_by_score(const TextIds& pieces, const std::vector<float>& scores) {
  struct Split {
    Merge merge;
    size_t left, right;  // bytes
  };
  std::vector<Split> splits;
  for (const auto& [text, id] : pieces) {
    if (text.size() > longest_piece)
      fail("tokenizer", "expected tokens of at most {} bytes, got {} for id {}", longest_piece,
           text.size(), id);
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const std::string_view whole = text;
      const auto l = pieces.find(whole.substr(0, cut)), r = pieces.find(whole.substr(cut));
      if (l != pieces.end() && r != pieces.end())
        splits.push_back({{l->second, r->second, id}, cut, text.size() - cut});
    }
  }
  std::ranges::sort(splits, [&](const Split& a, const Split& b) {
    const float x = scores[size_t(a.merge.id)], y = scores[size_t(b.merge.id)];
    return std::tuple(y, b.left, b.right, a.merge.left, a.merge.right) <
           std::tuple(x, a.left, a.right, b.merge.left, b.merge.right);
  });
  std::vector<Merge> merges;
  for (const Split& s : splits) merges.push_back(s.merge);
  return merges;
}

// --- reading ---

// llama.cpp puts a space before every text, also after a special token. This key of ours names what
// Metaspace does instead: a space only where there is none, at the start of the text alone (first)
// or also after special tokens (always).
constexpr const char* scheme_key = "hearth.prepend_scheme";
constexpr std::pair<std::string_view, LeadingSpace> schemes[] = {
    {"first", LeadingSpace::missing_first}, {"always", LeadingSpace::missing}};

// Empty: none of these.
std::string_view scheme_of(LeadingSpace lead) {
  for (const auto& [name, its] : schemes)
    if (its == lead) return name;
  return {};
}

LeadingSpace leading_space(const GgufTable& f) {
  if (!gguf_flag(f, "tokenizer.ggml.add_space_prefix", true)) return LeadingSpace::none;
  if (!f.has(scheme_key)) return LeadingSpace::always;
  for (const auto& [name, lead] : schemes)
    if (name == f.text(scheme_key)) return lead;
  fail(f.where, "expected {} first or always, got {}", scheme_key, in_quotes(f.text(scheme_key)));
}

// The parts of a tokenizer.json that mean the same.
SavedParts saved_parts(LeadingSpace lead) {
  const bool prefix = lead != LeadingSpace::none;
  const std::string replace = R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})";
  const std::string decoders =
      R"({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, )"
      R"({"type": "ByteFallback"}, {"type": "Fuse"})";
  const std::string strip = R"({"type": "Strip", "content": " ", "start": 1, "stop": 0})";
  const std::string sequence = fmt::format(R"({{"type": "Sequence", "normalizers": [)"
                                           R"({{"type": "Prepend", "prepend": "▁"}}, {}]}})",
                                           replace);
  const std::string_view scheme = scheme_of(lead);
  const std::string metaspace = fmt::format(
      R"({{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "{}", "split": false}})",
      scheme);
  return {.normalizer = !scheme.empty() ? "null"
                        : prefix        ? sequence
                                        : replace,
          .pre_tokenizer = scheme.empty() ? "null" : metaspace,
          .decoder = fmt::format(R"({{"type": "Sequence", "decoders": [{}{}]}})", decoders,
                                 prefix ? ", " + strip : "")};
}

// llama.cpp knows by the model's name that special tokens of Phi-3 include the spaces after them.
bool strips_after_special(const GgufTable& f) {
  std::string name = f.has("general.name") ? std::string(f.text("general.name")) : "";
  std::ranges::transform(name, name.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
  return name.find("phi-3") != name.npos || name.find("phi3") != name.npos;
}

AddedToken added_piece(const GgufTable& f, std::string_view text, int32_t id, bool special) {
  AddedToken t{.text = std::string(text), .id = id, .special = special, .in_vocab = true};
  t.rstrip = strips_after_special(f) && text != "<unk>" && text != "<s>" && text != "<|endoftext|>";
  return t;
}

void read_rules(VocabularyParts& parts, const GgufTable& f, const GgufTokens& list) {
  parts.bos = list.id_under(f, "tokenizer.ggml.bos_token_id", 1);
  parts.eos = list.id_under(f, "tokenizer.ggml.eos_token_id", 2);
  const LeadingSpace lead = leading_space(f);
  parts.text = {.pattern = Pattern::whole,
                .pieces = true,
                .leading = lead,
                .byte_fallback = true,
                .unk = list.id_under(f, "tokenizer.ggml.unknown_token_id",
                                     list.kind(0) == Kind::unknown ? 0 : -1),
                .fuse_unk = true,
                .bytes_decode = true,
                .strip_first = lead != LeadingSpace::none};
  parts.saved = saved_parts(lead);
  read_gguf_ends(parts, f, true);
}

// --- writing ---

// A score for each id by which SentencePiece merges in the order of the list.
std::vector<float> scores_of_merges(const Vocabulary& v) {
  std::vector<float> scores(v.bytes.size());
  std::set<std::pair<int32_t, int32_t>> listed;
  std::vector<bool> done(v.bytes.size());
  const auto refuse = [] {
    fail("gguf",
         "GGUF stores a score for each piece of this tokenizer, and no scores give its merges");
  };
  std::vector<bool> normal(v.bytes.size());
  for (const auto& [text, id] : v.pieces) normal[size_t(id)] = true;
  float next = 0;
  int32_t last = -1;
  for (const Merge& m : v.merges) {
    if (!normal[size_t(m.id)] || !normal[size_t(m.left)] || !normal[size_t(m.right)]) continue;
    listed.emplace(m.left, m.right);
    if (m.id == last) continue;
    if (done[size_t(m.id)]) refuse();
    done[size_t(m.id)] = true;
    scores[size_t(m.id)] = next--;
    last = m.id;
  }
  for (const auto& [text, id] : v.pieces)
    if (!done[size_t(id)]) scores[size_t(id)] = next;
  const std::vector<Merge> all = merges_by_score(v.pieces, scores);
  if (all.size() != listed.size() || !std::ranges::all_of(all, [&](const Merge& m) {
        return listed.contains({m.left, m.right});
      }))
    refuse();
  return scores;
}

void check_rules(const Vocabulary& v) {
  const TextRules& r = v.text;
  const bool alike = v.rule == MergeRule::listed && r.normal.empty() && !r.nfc &&
                     (r.pattern == Pattern::whole || r.pattern == Pattern::runs) &&
                     r.byte_fallback && r.bytes_decode &&
                     r.strip_first == (r.leading != LeadingSpace::none) &&
                     std::ranges::all_of(v.byte_ids, [](int32_t id) { return id >= 0; });
  if (!alike)
    fail("gguf",
         "expected a SentencePiece tokenizer with BPE, byte_fallback, no pre_tokenizer or "
         "Metaspace without split, and only \u2581 for spaces as normalizer, got one that "
         "llama.cpp cannot represent");
}

}  // namespace

VocabularyParts read_gguf_pieces(const GgufTable& f) {
  const GgufTokens list(f);
  const std::vector<float> scores = f.numbers("tokenizer.ggml.scores");
  if (scores.size() != list.size())
    fail(f.where, "expected a score for each of {} tokens, got {}", list.size(), scores.size());
  if (std::ranges::any_of(scores, [](float x) { return std::isnan(x); }))
    fail(f.where, "expected numbers as scores of tokens, got NaN");
  VocabularyParts parts{.where = f.where};
  read_rules(parts, f, list);
  TextIds merged;  // what merging may give
  for (size_t i = 0; i < list.size(); ++i) {
    const auto id = int32_t(i);
    const Kind kind = list.kind(i);
    if (kind == Kind::unused) continue;
    if (kind < Kind::normal || kind > Kind::byte)
      fail(f.where, "expected token types 1 to 6, got {} for id {}", int32_t(kind), id);
    const bool special = kind == Kind::control || kind == Kind::unknown || id == parts.bos ||
                         id == parts.eos || id == parts.text.unk;
    const std::string text = with_spaces(list.tokens[i]);
    // Runs of spaces are user-defined in Gemma; as pieces they are found in any text.
    const bool spaces = text.find_first_not_of(' ') == text.npos;
    const bool apart = special || (kind == Kind::user_defined && !spaces);
    if (!special && kind != Kind::byte && (!apart || text.find(' ') == text.npos))
      merged.emplace(text, id);
    if (apart)
      parts.added.push_back(added_piece(f, list.tokens[i], id, special));
    else
      parts.tokens.push_back({text, id});
  }
  parts.merges = merges_by_score(merged, scores);
  return parts;
}

bool put_gguf_pieces(GgufKeys& keys, const Vocabulary& v, int64_t vocab) {
  check_rules(v);
  GgufTokenLists lists;
  for (size_t id = 0; id < v.bytes.size(); ++id) lists.add_unused();
  for (const auto& [text, id] : v.pieces) lists.set(id, with_marks(text), Kind::normal);
  for (int b = 0; b < 256; ++b)
    lists.set(v.byte_ids[size_t(b)], fmt::format("<0x{:02X}>", b), Kind::byte);
  for (const AddedToken& t : added_tokens(v))
    lists.set(t.id, t.text, t.special ? Kind::control : Kind::user_defined);
  if (v.text.unk >= 0) lists.kinds[size_t(v.text.unk)] = int32_t(Kind::unknown);
  std::vector<float> scores = scores_of_merges(v);
  lists.fill(vocab);
  scores.resize(size_t(vocab));
  keys.set("tokenizer.ggml.model", "llama");
  keys.set("tokenizer.ggml.pre", "default");
  lists.put(keys);
  keys.set("tokenizer.ggml.scores", scores);
  put_gguf_ends(keys, v);
  if (v.text.unk >= 0) keys.set("tokenizer.ggml.unknown_token_id", uint32_t(v.text.unk));
  keys.set("tokenizer.ggml.add_space_prefix", v.text.leading != LeadingSpace::none);
  const std::string_view scheme = scheme_of(v.text.leading);
  if (!scheme.empty()) keys.set(scheme_key, scheme);
  return !scheme.empty();
}

}  // namespace hearth::inline text

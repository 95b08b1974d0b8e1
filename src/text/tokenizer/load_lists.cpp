// Line-based and binary tokenizer files: merges.txt and vocab.bpe, .tiktoken, llama2.c's tok*.bin.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>

#include "formats/json.h"
#include "sys/digits.h"
#include "sys/error.h"
#include "text/tokenizer/load.h"

namespace hearth::inline text {
namespace {

namespace fs = std::filesystem;

// Calls f(line, 1-based number) for each line.
template <class F>
void for_each_line(std::string_view text, F f) {
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t n = text.find('\n');
    std::string_view line = text.substr(0, n);
    if (line.ends_with('\r')) line.remove_suffix(1);
    f(line, number);
    if (n == std::string_view::npos) return;
    text.remove_prefix(n + 1);
  }
}

bool from_base64(std::string_view text, std::string& bytes) {
  bytes.clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  bytes.resize(text.size() / 4 * 3 - padding);
  return decode_base64(std::as_writable_bytes(std::span(bytes)), text);
}

// A protobuf message that begins with a piece: a tag, a length, then the tag and the length of its
// text, and its score as a float.
bool is_sentencepiece(std::string_view file) {
  return file.size() > 2 && file[0] == '\n' && file[2] == '\n' &&
         file.substr(0, 64).find('\0') != file.npos;
}

// A .tiktoken file contains neither pattern nor special tokens: they are derived from its name or,
// if that is unknown, from its number of tokens.
struct TiktokenKind {
  std::string_view name;
  size_t tokens;
  Pattern pattern;
  std::vector<AddedToken> added;
};

std::vector<AddedToken> llama3_added() {
  constexpr int32_t first = 128000, count = 256;
  const std::map<int32_t, std::string> named = {
      {0, "begin_of_text"},   {1, "end_of_text"},   {4, "finetune_right_pad_id"},
      {6, "start_header_id"}, {7, "end_header_id"}, {8, "eom_id"},
      {9, "eot_id"},          {10, "python_tag"}};
  std::vector<AddedToken> added;
  for (int32_t i = 0, reserved = 0; i < count; ++i) {
    const auto it = named.find(i);
    added.push_back({it != named.end() ? fmt::format("<|{}|>", it->second)
                                       : fmt::format("<|reserved_special_token_{}|>", reserved++),
                     first + i});
  }
  return added;
}

std::vector<TiktokenKind> tiktoken_kinds() {
  const std::string end = "<|endoftext|>", prefix = "<|fim_prefix|>", middle = "<|fim_middle|>",
                    suffix = "<|fim_suffix|>", prompt = "<|endofprompt|>";
  return {
      {"r50k_base", 50256, Pattern::gpt2, {{end, 50256}}},
      {"gpt2", 50256, Pattern::gpt2, {{end, 50256}}},
      {"p50k_base", 50280, Pattern::gpt2, {{end, 50256}}},
      {"p50k_edit",
       50280,
       Pattern::gpt2,
       {{end, 50256}, {prefix, 50281}, {middle, 50282}, {suffix, 50283}}},
      {"cl100k_base",
       100256,
       Pattern::cl100k,
       {{end, 100257}, {prefix, 100258}, {middle, 100259}, {suffix, 100260}, {prompt, 100276}}},
      {"o200k_base", 199998, Pattern::o200k, {{end, 199999}, {prompt, 200018}}},
      {"llama3", 128000, Pattern::llama3, llama3_added()},
      {"qwen",
       151643,
       Pattern::qwen2,
       {{end, 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}}},
  };
}

void name_tiktoken(VocabularyParts& parts, const std::string& stem, std::string_view pattern) {
  const std::vector<TiktokenKind> kinds = tiktoken_kinds();
  auto kind = std::ranges::find(kinds, stem, &TiktokenKind::name);
  if (kind == kinds.end())
    kind = std::ranges::find(kinds, parts.tokens.size(), &TiktokenKind::tokens);
  const std::optional<Pattern> named = pattern_named(pattern);
  if (!pattern.empty() && !named)
    fail_usage("tokenizer", "expected pattern {}, got {}", pattern_names(), pattern);
  if (kind == kinds.end() && !named) {
    std::string names;
    for (const TiktokenKind& k : kinds) (names += names.empty() ? "" : ", ") += k.name;
    fail(parts.where,
         "expected a known file name ({}) or a known number of tokens, got {} with {} tokens: pass "
         "--pattern",
         names, stem, parts.tokens.size());
  }
  if (kind != kinds.end()) parts.added = kind->added;
  parts.text.pattern = named ? *named : kind->pattern;
  if (!parts.added.empty()) parts.eos = parts.bos = parts.added[0].id;
  if (parts.text.pattern == Pattern::llama3 && parts.added.size() > 1)
    parts.eos = parts.added[1].id;
}

template <class T>
T take(std::string_view& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

// The bytes that a llama2.c piece prints: <0xHH> is a byte, bos and eos print nothing.
std::string printed(const std::string& piece, int32_t id) {
  unsigned byte = 0;
  if (id == 1 || id == 2) return {};
  if (piece.size() == 6 && piece.starts_with("<0x") && piece[5] == '>' &&
      std::from_chars(piece.data() + 3, piece.data() + 5, byte, 16).ptr == piece.data() + 5)
    return {char(byte)};
  return piece;
}

void check_llama2c(const VocabularyParts& parts) {
  bool space = false;
  for (const Token& t : parts.tokens) space = space || t.bytes == " ";
  if (!space) fail(parts.where, "there is no piece for a single space");
  for (int32_t b = 0; b < 256; ++b) {
    const size_t id = size_t(b) + 3;
    if (id >= parts.tokens.size() || parts.tokens[id].bytes != fmt::format("<0x{:02X}>", b))
      fail(parts.where, "expected piece {} to be <0x{:02X}>, got {}", id, b,
           id < parts.tokens.size() ? in_quotes(parts.tokens[id].bytes) : "the end of the file");
  }
}

}  // namespace

std::vector<MergeLine> read_merge_lines(const fs::path& path) {
  const std::string text = read_file(path, tokenizer_file_limit);
  std::vector<MergeLine> merges;
  for_each_line(text, [&](std::string_view line, size_t number) {
    if (line.empty() || (number == 1 && line.starts_with("#version"))) return;
    const size_t gap = line.find(' ');
    if (gap == std::string_view::npos || gap == 0 || gap + 1 == line.size() ||
        line.find(' ', gap + 1) != std::string_view::npos)
      fail(path.string(), "expected two tokens separated by a space on line {}, got \"{}\"", number,
           line);
    merges.push_back({number, std::string(line.substr(0, gap)), std::string(line.substr(gap + 1))});
  });
  return merges;
}

VocabularyParts read_vocab_bpe(const fs::path& path) {
  VocabularyParts parts{.where = path.string()};
  TextIds ids;
  const auto add = [&](const std::string& bytes) {
    const auto id = int32_t(parts.tokens.size());
    parts.tokens.push_back({bytes, id});
    ids.emplace(bytes, id);
    return id;
  };
  for (const uint8_t b : byte_order()) add(std::string(1, char(b)));
  for (const auto& [line, left, right] : read_merge_lines(path)) {
    const auto known = [&, line = line](const std::string& letters) {
      std::string bytes;
      const auto it = bytes_of_letters(letters, bytes) ? ids.find(bytes) : ids.end();
      if (it == ids.end())
        fail(parts.where, "expected merges of known tokens, got \"{}\" on line {}", letters, line);
      return it;
    };
    const auto l = known(left), r = known(right);
    const Merge merge{l->second, r->second, 0};
    parts.merges.push_back(merge);
    parts.merges.back().id = add(l->first + r->first);
  }
  const auto end = int32_t(parts.tokens.size());
  parts.added = {{"<|endoftext|>", end}};
  parts.eos = parts.bos = end;
  return parts;
}

VocabularyParts read_tiktoken(const fs::path& path, std::string_view pattern) {
  const std::string text = read_file(path, tokenizer_file_limit);
  if (is_sentencepiece(text))
    fail(path.string(),
         "this is a SentencePiece model, which hearth does not read: put the tokenizer.json of the "
         "same model beside it (save_pretrained() of its tokenizer in transformers writes one)");
  VocabularyParts parts{.where = path.string(), .rule = MergeRule::by_id};
  for_each_line(text, [&](std::string_view line, size_t number) {
    if (line.empty()) return;
    const size_t gap = std::min(line.find(' '), line.size());
    Token token{.bytes = {}, .id = -1};
    if (!from_base64(line.substr(0, gap), token.bytes))
      fail(parts.where, "expected base64 on line {}, got \"{}\"", number, line.substr(0, gap));
    const std::string_view rank = line.substr(std::min(gap + 1, line.size()));
    const auto [ptr, error] = std::from_chars(rank.data(), rank.data() + rank.size(), token.id);
    if (error != std::errc() || ptr != rank.data() + rank.size())
      fail(parts.where, "expected a rank on line {}, got \"{}\"", number, rank);
    parts.tokens.push_back(std::move(token));
  });
  name_tiktoken(parts, path.stem().string(), pattern);
  return parts;
}

// int32 longest piece; then a float score, an int32 length and the bytes of each piece.
VocabularyParts parse_llama2c_vocabulary(std::string_view file, const std::string& where) {
  VocabularyParts parts{.where = where, .rule = MergeRule::llama2c, .eos = 2, .bos = 1};
  std::string_view rest = file;
  if (rest.size() < 4)
    fail(parts.where, "expected a llama2.c tokenizer, got {} bytes", file.size());
  const auto longest = take<int32_t>(rest);
  while (!rest.empty()) {
    const size_t at = file.size() - rest.size();
    if (rest.size() < 8)
      fail(parts.where, "expected a score and a length at byte {}, got the end of the file", at);
    parts.scores.push_back(take<float>(rest));
    const auto length = take<int32_t>(rest);
    if (length < 1 || length > longest || size_t(length) > rest.size())
      fail(parts.where, "expected a piece of 1 to {} bytes at byte {}, got length {} with {} left",
           longest, at, length, rest.size());
    parts.tokens.push_back(
        {std::string(rest.substr(0, size_t(length))), int32_t(parts.tokens.size())});
    rest.remove_prefix(size_t(length));
  }
  check_llama2c(parts);
  for (const Token& t : parts.tokens) parts.printed.push_back(printed(t.bytes, t.id));
  return parts;
}

VocabularyParts read_llama2c(const fs::path& path) {
  return parse_llama2c_vocabulary(read_file(path, tokenizer_file_limit), path.string());
}

}  // namespace hearth::inline text

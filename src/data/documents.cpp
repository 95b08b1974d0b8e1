#include "data/documents.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "io/json.h"

namespace hearth {
namespace {

using json = nlohmann::json;

constexpr std::string_view separator = "<|endoftext|>";

bool is_json(const std::filesystem::path& path, SourceKind kind) {
  if (kind != SourceKind::automatic) return kind == SourceKind::jsonl;
  const std::string ext = path.extension().string();
  if (ext == ".json")
    fail(path.string(),
         "expected text or JSONL, got a .json file: write one object a line and call it .jsonl, or "
         "name its kind (jsonl or text) yourself");
  for (const char* packed : {".gz", ".zst", ".xz", ".bz2", ".parquet"})
    if (ext == packed)
      fail(path.string(), "expected text or JSONL, got a {} file: unpack it first", packed);
  return ext == ".jsonl" || ext == ".ndjson";
}

std::string shown(const std::filesystem::path& path) {
  return path == "-" ? "stdin" : path.string();
}

bool is_separator(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  return line == separator;
}

// A string, or a list of messages whose contents are joined by line ends.
std::string content_of(const json& value, std::string_view where, std::string_view key) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) fail(where, "expected a string or a list of messages in \"{}\"", key);
  std::string all;
  for (const json& message : value) {
    if (!message.is_object() || !message.contains("content") || !message["content"].is_string())
      fail(where, "expected messages with a string \"content\" in \"{}\"", key);
    if (!all.empty()) all += '\n';
    all += message["content"].get_ref<const std::string&>();
  }
  return all;
}

}  // namespace

std::string jsonl_text(std::string_view line, std::string_view where) {
  const json row = parse_json(line, where);
  if (!row.is_object()) fail(where, "expected a JSON object, got {}", row.type_name());
  const auto has = [&](const char* key) { return row.contains(key); };
  const auto get = [&](const char* key) { return content_of(row[key], where, key); };
  if (has("text")) return get("text");
  if (has("messages")) return get("messages");
  if (has("prompt") && has("completion")) return get("prompt") + get("completion");
  if (has("prompt") && has("chosen")) return get("prompt") + "\n" + get("chosen");
  if (has("instruction") && has("output")) {
    std::string text = get("instruction") + "\n";
    if (has("input") && row["input"] != "") text += get("input") + "\n";
    return text + get("output");
  }
  std::string keys;
  for (const auto& [key, value] : row.items()) keys += (keys.empty() ? "" : ", ") + key;
  fail(where,
       "expected text, messages, prompt + completion, prompt + chosen or instruction + output, got "
       "keys: {}",
       keys);
}

void DocumentReader::Close::operator()(std::FILE* f) const {
  if (f != stdin) std::fclose(f);
}

DocumentReader::DocumentReader(std::vector<std::filesystem::path> inputs, SourceKind kind,
                               SourcePosition start)
    : inputs_(std::move(inputs)), kind_(kind), at_(start) {
  for (const auto& path : inputs_) is_json(path, kind);  // a wrong kind is told at once
  if (at_.file < int64_t(inputs_.size())) open(at_.offset);
}

DocumentReader::~DocumentReader() { std::free(buffer_); }

void DocumentReader::open(int64_t offset) {
  const auto& path = inputs_[size_t(at_.file)];
  file_.reset(path == "-" ? stdin : std::fopen(path.c_str(), "rb"));
  if (!file_) fail(path.string(), "expected a readable file, got: {}", std::strerror(errno));
  std::setvbuf(file_.get(), nullptr, _IOFBF, 1 << 20);
  if (path != "-") {
    if (::fseeko(file_.get(), offset, SEEK_SET) != 0)
      fail(path.string(), "expected a file to seek in, got: {}", std::strerror(errno));
    return;
  }
  for (; offset > 0 && std::fgetc(stdin) != EOF; --offset) {}
  if (offset > 0) fail("stdin", "expected the same input as before, got {} bytes less", offset);
}

bool DocumentReader::read_line() {
  const ssize_t n = ::getline(&buffer_, &capacity_, file_.get());
  if (n <= 0) {
    if (std::ferror(file_.get()))
      fail(inputs_[size_t(at_.file)].string(), "expected to read on at byte {}, got: {}",
           at_.offset, std::strerror(errno));
    return false;
  }
  line_ = {buffer_, size_t(n)};
  at_.offset += n;
  bytes_ += n;
  ++at_.line;
  return true;
}

bool DocumentReader::next(Document& d) {
  while (at_.file < int64_t(inputs_.size())) {
    const auto& path = inputs_[size_t(at_.file)];
    d.json = is_json(path, kind_);
    d.where = fmt::format("{}:{}", shown(path), at_.line + 1);
    if (d.json ? next_json(d) : next_text(d)) return true;
    at_ = {.file = at_.file + 1};
    if (at_.file < int64_t(inputs_.size())) open(0);
  }
  file_.reset();
  return false;
}

bool DocumentReader::next_text(Document& d) {
  d.raw.clear();
  const bool first = at_.offset == 0;  // else a separator lies before
  while (read_line()) {
    if (!is_separator(line_)) {
      d.raw += line_;
      continue;
    }
    if (d.raw.ends_with('\n')) d.raw.pop_back();
    return true;
  }
  if (!first && d.raw.ends_with('\n')) d.raw.pop_back();  // as before a separator
  return !d.raw.empty();
}

bool DocumentReader::next_json(Document& d) {
  while (read_line()) {
    if (line_.find_first_not_of(" \t\r\n") == line_.npos) continue;
    d.raw = line_;
    d.where = fmt::format("{}:{}", shown(inputs_[size_t(at_.file)]), at_.line);
    return true;
  }
  return false;
}

}  // namespace hearth

#include "data/documents.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "data/shards.h"
#include "formats/parquet/parquet.h"
#include "sys/compression/byte_stream.h"
#include "sys/error.h"

namespace hearth::inline data {
namespace fs = std::filesystem;

// The documents of one input. After next(), `at` is the position where a new reader can continue.
struct DocumentReader::Source {
  virtual ~Source() = default;
  virtual bool next(Document&) = 0;  // sets raw, begins and ends
  virtual int64_t packed_position() const = 0;
  SourcePosition at;       // after the last document; the reader sets its file
  int64_t first_line = 0;  // 1-based line of the last document
  int64_t bytes = 0;       // read by this source
  bool json = false;
};

namespace {

using Source = DocumentReader::Source;

std::string shown(const fs::path& path) { return path == "-" ? "stdin" : path.string(); }

SourceKind kind_of(const fs::path& path, std::string_view head, const DocumentSpec& spec) {
  if (spec.kind != SourceKind::automatic) return spec.kind;
  const std::string ext = extension_of(path);
  if (head.starts_with("PAR1") || ext == ".parquet") return SourceKind::parquet;
  const std::string as_text =
      spec.kind_flag ? fmt::format("pass {} text", spec.kind_flag) : "rename it to .txt";
  refuse_table(path, fmt::format("a \"text\" (or {} to read it as plain text)", as_text));
  if (ext == ".json")
    fail(path.string(),
         "expected text, JSONL or Parquet, got a .json file: write one object per line and rename "
         "it to .jsonl, or {} to read it as plain text",
         as_text);
  return ext == ".jsonl" || ext == ".ndjson" ? SourceKind::jsonl : SourceKind::text;
}

// Whether bytes with zeros are UTF-16: a byte order mark, or every zero is the high half of an
// ASCII character.
bool is_utf16(std::string_view head) {
  if (head.size() % 2 != 0) return false;
  if (head.starts_with("\xff\xfe") || head.starts_with("\xfe\xff")) return true;
  const auto ascii = [](uint8_t c) { return (c >= ' ' && c < 0x7f) || (c >= '\t' && c <= '\r'); };
  for (const size_t high : {0, 1}) {
    size_t characters = 0, of_ascii = 0;
    bool possible = true;
    for (size_t i = 0; possible && i + 1 < head.size(); i += 2, ++characters) {
      const bool zero = head[i + high] == 0;
      of_ascii += zero;
      possible = !zero || ascii(uint8_t(head[i + 1 - high]));
    }
    if (possible && 2 * of_ascii > characters) return true;
  }
  return false;
}

// Throws if the first bytes of a file contain a zero, which text does not.
void refuse_binary(const fs::path& path, std::string_view head, const DocumentSpec& spec) {
  if (head.find('\0') == head.npos) return;
  const std::string anyway =
      spec.kind_flag ? fmt::format("; {} text reads its bytes as text", spec.kind_flag) : "";
  if (const std::string_view kind = kind_of_tokens(head); !kind.empty())
    fail(shown(path), "expected text, got {}: it already contains tokens{}", kind, anyway);
  if (is_utf16(head))
    fail(shown(path),
         "expected text in UTF-8, got UTF-16: convert it with `iconv -f UTF-16 -t UTF-8`{}",
         anyway);
  fail(shown(path), "expected text, got a binary file (a zero byte at byte {}){}", head.find('\0'),
       anyway);
}

// Throws for a document that is longer than the limit.
[[noreturn]] void refuse_length(const DocumentSpec& spec, const fs::path& path, int64_t line,
                                const char* what, const char* remedy) {
  fail(fmt::format("{}:{}", shown(path), line),
       "expected {} of at most {} bytes, got a longer one{}", what, spec.longest,
       spec.limit_flag ? fmt::format(": raise {}", spec.limit_flag) : std::string(remedy));
}

class Lines : public Source {
 public:
  Lines(std::unique_ptr<ByteStream> stream, fs::path path, const DocumentSpec& spec)
      : spec_(spec), path_(std::move(path)), stream_(std::move(stream)), lines_(*stream_) {}

  virtual void go_to(const SourcePosition& to) {
    stream_->skip(to.offset);
    at = to;
  }
  int64_t packed_position() const override { return stream_->packed_position(); }

 protected:
  // Reads the next line, or its first `most` bytes.
  bool read_line(size_t most) {
    if (!lines_.next(line_, most)) return false;
    move(int64_t(line_.size()), line_.ends_with('\n'));
    return true;
  }
  void move(int64_t by_bytes, int64_t by_lines) {
    at.offset += by_bytes, bytes += by_bytes;
    at.line += by_lines;
  }

  const DocumentSpec& spec_;
  fs::path path_;
  std::string_view line_;  // including its line end

 private:
  std::unique_ptr<ByteStream> stream_;
  LineReader lines_;
};

// Where to split a text longer than `longest` bytes: after the last paragraph of the second half,
// else after the last line, else before a character.
size_t cut_of(std::string_view text, size_t longest) {
  const std::string_view window = text.substr(0, longest);
  if (const size_t p = window.rfind("\n\n"); p != window.npos && p + 2 > longest / 2) return p + 2;
  if (const size_t p = window.rfind('\n'); p != window.npos) return p + 1;
  const auto continues = [&](size_t i) { return (uint8_t(text[i]) & 0xc0) == 0x80; };
  size_t cut = longest;
  while (cut > 1 && longest - cut < 3 && continues(cut)) --cut;
  return continues(cut) ? longest : cut;  // invalid UTF-8: split anywhere
}

class TextSource : public Lines {
 public:
  using Lines::Lines;

  void go_to(const SourcePosition& to) override {
    Lines::go_to(to);
    in_line_ = to.in_line;
  }

  bool next(Document& d) override {
    d.begins = !at.inside, d.ends = true;
    if (!at.inside) at.in_first = at.offset == 0;  // otherwise a separator precedes it
    first_line = at.line + 1;
    text_ = std::exchange(held_, {});
    move(int64_t(text_.size()), lines_in(text_));
    for (;;) {
      if (text_.size() > most()) return cut(d);
      // A separator line is always read whole.
      if (!read_line(std::max(most() + 1 - text_.size(), separator.size() + 2))) break;
      const bool separates = !in_line_ && without_line_end(line_) == separator;
      in_line_ = !line_.ends_with('\n');
      if (separates) {
        at.windows = line_.ends_with("\r\n");
        return end(d, true);
      }
      text_ += line_;
    }
    end(d, !at.in_first);  // a file with one document keeps its last line end
    return !(d.begins && d.raw.empty());
  }

 private:
  static constexpr std::string_view separator = "<|endoftext|>";

  size_t most() const { return spec_.piece > 0 ? spec_.piece : spec_.longest; }
  static int64_t lines_in(std::string_view text) {
    return std::count(text.begin(), text.end(), '\n');
  }

  static std::string_view without_line_end(std::string_view line) {
    if (line.ends_with("\r\n")) return line.substr(0, line.size() - 2);
    return line.substr(0, line.size() - line.ends_with('\n'));
  }
  // A carriage return before the line end belongs to the text if the separators have none.
  bool end(Document& d, bool drop_line_end) {
    if (drop_line_end && text_.ends_with('\n')) text_.pop_back();
    if (drop_line_end && at.windows && text_.ends_with('\r')) text_.pop_back();
    at.inside = at.in_first = at.in_line = in_line_ = false;
    return give(d);
  }
  bool give(Document& d) const {
    d.raw = text_;
    for (size_t i = 0; (i = d.raw.find(separator, i)) != d.raw.npos; i += separator.size())
      ++d.marks_inside;
    return true;
  }
  // Returns a piece and keeps the rest for the next one.
  bool cut(Document& d) {
    if (spec_.piece == 0)
      refuse_length(spec_, path_, first_line, "a document",
                    ": separate documents by lines <|endoftext|>");
    const size_t size = cut_of(text_, spec_.piece);
    held_ = text_.substr(size);
    move(-int64_t(held_.size()), -lines_in(held_));
    text_.resize(size);
    at.inside = true, at.in_line = !text_.ends_with('\n');
    d.ends = false;
    return give(d);
  }

  std::string text_, held_;
  bool in_line_ = false;  // the next read continues a line
};

class JsonlSource : public Lines {
 public:
  JsonlSource(std::unique_ptr<ByteStream> stream, fs::path path, const DocumentSpec& spec)
      : Lines(std::move(stream), std::move(path), spec) {
    json = true;
  }
  bool next(Document& d) override {
    for (;;) {
      first_line = at.line + 1;
      if (!read_line(spec_.longest + 1)) return false;
      if (line_.size() > spec_.longest) refuse_length(spec_, path_, first_line, "a line", "");
      d.raw = line_;
      if (d.raw.find_first_not_of(" \t\r\n") != d.raw.npos) return true;
    }
  }
};

// Parquet files are read from their end, so compressed or piped input is first written to an
// unnamed temporary file, which disappears when closed.
Fd spool(ByteStream& stream, const fs::path& path, int64_t longest) {
  const fs::path folder = fs::temp_directory_path();
  std::string name = (folder / "hearth-parquet-XXXXXX").string();
  Fd fd(::mkostemp(name.data(), O_CLOEXEC));
  if (!fd) fail_errno(folder, "create a temporary file for unpacked Parquet");
  ::unlink(name.c_str());
  std::vector<std::byte> piece(1 << 18);
  int64_t size = 0;
  while (const size_t n = stream.read(piece)) {
    size += int64_t(n);
    if (size > longest)
      fail(shown(path),
           "expected at most {} bytes of Parquet from a compressed file or a pipe, got more: "
           "unpack it to a file and pass that",
           longest);
    write_all(fd, Bytes(piece).first(n), folder);
  }
  return fd;
}

class ParquetSource : public Source {
 public:
  ParquetSource(std::unique_ptr<ByteStream> stream, const fs::path& path, const DocumentSpec& spec)
      : spec_(spec),
        path_(path),
        map_(map(*stream, path, spec)),
        column_(map_.bytes(), spec.column, shown(path)) {
    packed_share_ =
        map_.bytes().empty() ? 0 : double(stream->packed_position()) / double(map_.bytes().size());
    if (stream->packing() == Packing::none && path != "-") packed_share_ = 1;
  }

  void go_to(int64_t row) {
    column_.skip_to(row);
    at.offset = at.line = row;
  }
  bool next(Document& d) override {
    const int64_t before = column_.byte();
    if (!column_.next(d.raw)) return false;
    if (column_.byte() - forgotten_ > (int64_t(8) << 20)) {  // drop pages that were read
      map_.forget(size_t(before));
      forgotten_ = before;
    }
    at.offset = at.line = first_line = column_.row();
    bytes += int64_t(d.raw.size());
    if (d.raw.size() > spec_.longest) refuse_length(spec_, path_, first_line, "a row", "");
    return true;
  }
  int64_t packed_position() const override {
    return int64_t(double(column_.byte()) * packed_share_);
  }

 private:
  static MappedFile map(ByteStream& stream, const fs::path& path, const DocumentSpec& spec) {
    if (stream.packing() == Packing::none && path != "-") return MappedFile(path);
    return MappedFile(spool(stream, path, spec.longest_spool), path);
  }

  const DocumentSpec& spec_;
  fs::path path_;
  MappedFile map_;
  ParquetText column_;
  double packed_share_ = 1;  // bytes on disk per byte of the Parquet file
  int64_t forgotten_ = 0;
};

// `spec` must outlive the source.
std::unique_ptr<Source> open_source(const DocumentSpec& spec, const SourcePosition& at) {
  const fs::path& path = spec.inputs[size_t(at.file)];
  auto stream = std::make_unique<ByteStream>(path);
  const SourceKind kind = kind_of(path, stream->peek(), spec);
  if (kind == SourceKind::parquet) {
    auto source = std::make_unique<ParquetSource>(std::move(stream), path, spec);
    source->go_to(at.offset);
    return source;
  }
  if (path == "-" && kind == SourceKind::text && spec.column != DocumentSpec().column)
    fail_usage(
        spec.column_flag ? spec.column_flag : "column",
        "has no effect: standard input is read as plain text; --source jsonl reads its lines "
        "as rows");
  if (spec.kind == SourceKind::automatic) {
    constexpr size_t looked_at = 64 << 10;
    // Looking through a second stream leaves the position of the first at the start.
    std::optional<ByteStream> second;
    ByteStream& look = path == "-" ? *stream : second.emplace(path);
    refuse_binary(path, look.peek(looked_at), spec);
  }
  std::unique_ptr<Lines> source;
  if (kind == SourceKind::jsonl)
    source = std::make_unique<JsonlSource>(std::move(stream), path, spec);
  else
    source = std::make_unique<TextSource>(std::move(stream), path, spec);
  source->go_to(at);
  return source;
}

bool has_columns(const DocumentSpec& spec, const fs::path& path) {
  if (spec.kind != SourceKind::automatic) return spec.kind != SourceKind::text;
  return path == "-" || kind_of(path, ByteStream(path).peek(), spec) != SourceKind::text;
}

}  // namespace

std::string extension_of(const fs::path& path) {
  for (const char* packed : {".gz", ".zst", ".zstd"})
    if (path.extension() == packed) return path.stem().extension().string();
  return path.extension().string();
}

void expect_column_effect(const DocumentSpec& spec) {
  if (spec.column == DocumentSpec().column) return;
  for (const fs::path& path : spec.inputs)
    if (has_columns(spec, path)) return;
  fail_usage(spec.column_flag ? spec.column_flag : "column",
             "has no effect: plain text has no columns, only JSONL and Parquet do; leave it out");
}

void refuse_table(const fs::path& path, std::string_view keys) {
  const std::string ext = extension_of(path);
  if (ext == ".csv" || ext == ".tsv")
    fail(path.string(),
         "expected JSONL, got a {} table: write each row as a JSON object on one line of a .jsonl "
         "file, with {}",
         ext, keys);
}

std::string document_place(const DocumentSpec& spec, int64_t file, int64_t line) {
  return fmt::format("{}:{}", shown(spec.inputs[size_t(file)]), line);
}

DocumentReader::DocumentReader(DocumentSpec spec, SourcePosition start)
    : spec_(std::move(spec)), at_(start) {
  for (const fs::path& path : spec_.inputs)
    kind_of(path, {}, spec_);  // report a wrong input before reading
  for (int64_t i = 0; i < at_.file; ++i)
    if (const fs::path& path = spec_.inputs[size_t(i)]; path != "-")
      packed_before_ += int64_t(fs::file_size(path));
  if (at_.file < int64_t(spec_.inputs.size())) source_ = open_source(spec_, at_);
}

DocumentReader::~DocumentReader() = default;

int64_t DocumentReader::packed_position() const {
  return packed_before_ + (source_ ? source_->packed_position() : 0);
}

bool DocumentReader::next(Document& d) {
  while (source_) {
    const int64_t before = source_->bytes;
    d.begins = d.ends = true;
    d.marks_inside = 0;
    const bool found = source_->next(d);
    bytes_ += source_->bytes - before;
    if (found) {
      d.json = source_->json;
      d.file = at_.file, d.line = source_->first_line;
      at_ = source_->at, at_.file = d.file;
      return true;
    }
    packed_before_ += source_->packed_position();
    source_.reset();
    at_ = {.file = at_.file + 1};
    if (at_.file < int64_t(spec_.inputs.size())) source_ = open_source(spec_, at_);
  }
  return false;
}

}  // namespace hearth::inline data

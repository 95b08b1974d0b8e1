#include "data/documents.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>

#include "core/error.h"
#include "data/parquet.h"
#include "io/byte_stream.h"

namespace hearth {
namespace fs = std::filesystem;

// The documents of one input. What next() leaves behind is where a new reader would go on.
struct DocumentReader::Source {
  virtual ~Source() = default;
  virtual bool next(std::string_view& raw) = 0;
  virtual int64_t packed_position() const = 0;
  int64_t offset = 0, line = 0;  // behind the last document
  int64_t first_line = 0;        // of the last document, from 1
  int64_t bytes = 0;             // read by this source
  bool json = false;
};

namespace {

using Source = DocumentReader::Source;

std::string shown(const fs::path& path) { return path == "-" ? "stdin" : path.string(); }

// The name without what a packer added to it.
std::string kind_of_name(fs::path path) {
  for (const char* packed : {".gz", ".zst", ".zstd"})
    if (path.extension() == packed) return path.stem().extension().string();
  return path.extension().string();
}

SourceKind kind_of(const fs::path& path, std::string_view head, SourceKind asked) {
  if (asked != SourceKind::automatic) return asked;
  const std::string ext = kind_of_name(path);
  if (head.starts_with("PAR1") || ext == ".parquet") return SourceKind::parquet;
  if (ext == ".json")
    fail(path.string(),
         "expected text, JSONL or Parquet, got a .json file: write one object a line and call it "
         ".jsonl, or name its kind (jsonl or text) yourself");
  return ext == ".jsonl" || ext == ".ndjson" ? SourceKind::jsonl : SourceKind::text;
}

class Lines : public Source {
 public:
  Lines(std::unique_ptr<ByteStream> stream, fs::path path, size_t longest)
      : stream_(std::move(stream)), lines_(*stream_), path_(std::move(path)), longest_(longest) {}

  void go_to(int64_t to_offset, int64_t to_line) {
    stream_->skip(to_offset);
    offset = to_offset, line = to_line;
  }
  int64_t packed_position() const override { return stream_->packed_position(); }

 protected:
  bool read_line() {
    if (!lines_.next(line_, longest_ + 1)) return false;
    check(line_.size());
    offset += int64_t(line_.size());
    bytes += int64_t(line_.size());
    ++line;
    return true;
  }
  void check(size_t size) const {
    if (size > longest_)
      fail(fmt::format("{}:{}", shown(path_), first_line),
           "expected documents of at most {} bytes, got a longer one: part it by lines "
           "<|endoftext|>",
           longest_);
  }

  std::string_view line_;  // with its line end

 private:
  std::unique_ptr<ByteStream> stream_;
  LineReader lines_;
  fs::path path_;
  size_t longest_;
};

class TextSource : public Lines {
 public:
  using Lines::Lines;
  bool next(std::string_view& raw) override {
    text_.clear();
    const bool first = offset == 0;  // else a separator lies before
    first_line = line + 1;
    while (read_line()) {
      if (is_separator()) {
        if (text_.ends_with('\n')) text_.pop_back();
        raw = text_;
        return true;
      }
      text_ += line_;
      check(text_.size());
    }
    if (!first && text_.ends_with('\n')) text_.pop_back();  // as before a separator
    raw = text_;
    return !text_.empty();
  }

 private:
  bool is_separator() const {
    std::string_view bare = line_;
    if (bare.ends_with('\n')) bare.remove_suffix(1);
    return bare == "<|endoftext|>";
  }
  std::string text_;
};

class JsonlSource : public Lines {
 public:
  JsonlSource(std::unique_ptr<ByteStream> stream, fs::path path, size_t longest)
      : Lines(std::move(stream), std::move(path), longest) {
    json = true;
  }
  bool next(std::string_view& raw) override {
    for (;;) {
      first_line = line + 1;
      if (!read_line()) return false;
      raw = line_;
      if (raw.find_first_not_of(" \t\r\n") != raw.npos) return true;
    }
  }
};

// A Parquet file is read from its end: what comes packed or through a pipe is laid down first, in a
// file without a name, which goes when it is closed.
Fd spool(ByteStream& stream) {
  const fs::path folder = fs::temp_directory_path();
  std::string name = (folder / "hearth-parquet-XXXXXX").string();
  Fd fd(::mkostemp(name.data(), O_CLOEXEC));
  if (!fd) fail_errno(folder, "to create a temporary file for unpacked Parquet");
  ::unlink(name.c_str());
  std::vector<std::byte> piece(1 << 18);
  while (const size_t n = stream.read(piece)) write_all(fd, Bytes(piece).first(n), folder);
  return fd;
}

class ParquetSource : public Source {
 public:
  ParquetSource(std::unique_ptr<ByteStream> stream, const fs::path& path, const DocumentSpec& spec)
      : map_(map(*stream, path)), column_(map_.bytes(), spec.column, shown(path)) {
    packed_share_ =
        map_.bytes().empty() ? 0 : double(stream->packed_position()) / double(map_.bytes().size());
    if (stream->packing() == Packing::none && path != "-") packed_share_ = 1;
  }

  void go_to(int64_t row) {
    column_.skip_to(row);
    offset = line = row;
  }
  bool next(std::string_view& raw) override {
    const int64_t before = column_.byte();
    if (!column_.next(raw)) return false;
    if (column_.byte() - forgotten_ > (int64_t(8) << 20)) {  // read pages need not stay in memory
      map_.forget(size_t(before));
      forgotten_ = before;
    }
    offset = line = first_line = column_.row();
    bytes += int64_t(raw.size());
    return true;
  }
  int64_t packed_position() const override {
    return int64_t(double(column_.byte()) * packed_share_);
  }

 private:
  static MappedFile map(ByteStream& stream, const fs::path& path) {
    if (stream.packing() == Packing::none && path != "-") return MappedFile(path);
    return MappedFile(spool(stream), path);
  }

  MappedFile map_;
  ParquetText column_;
  double packed_share_ = 1;  // bytes on disk for one of the Parquet file
  int64_t forgotten_ = 0;
};

std::unique_ptr<Source> open_source(const DocumentSpec& spec, const fs::path& path, int64_t offset,
                                    int64_t line) {
  auto stream = std::make_unique<ByteStream>(path);
  const SourceKind kind = kind_of(path, stream->peek(), spec.kind);
  if (kind == SourceKind::parquet) {
    auto source = std::make_unique<ParquetSource>(std::move(stream), path, spec);
    source->go_to(offset);
    return source;
  }
  const bool json = kind == SourceKind::jsonl;
  std::unique_ptr<Lines> source;
  if (json)
    source = std::make_unique<JsonlSource>(std::move(stream), path, spec.longest);
  else
    source = std::make_unique<TextSource>(std::move(stream), path, spec.longest);
  source->go_to(offset, line);
  return source;
}

}  // namespace

std::string document_place(const DocumentSpec& spec, int64_t file, int64_t line) {
  return fmt::format("{}:{}", shown(spec.inputs[size_t(file)]), line);
}

DocumentReader::DocumentReader(DocumentSpec spec, SourcePosition start)
    : spec_(std::move(spec)), at_(start) {
  for (const fs::path& path : spec_.inputs) kind_of(path, {}, spec_.kind);  // told at once
  for (int64_t i = 0; i < at_.file; ++i)
    if (const fs::path& path = spec_.inputs[size_t(i)]; path != "-")
      packed_before_ += int64_t(fs::file_size(path));
  if (at_.file < int64_t(spec_.inputs.size())) open(at_.offset, at_.line);
}

DocumentReader::~DocumentReader() = default;

void DocumentReader::open(int64_t offset, int64_t line) {
  source_ = open_source(spec_, spec_.inputs[size_t(at_.file)], offset, line);
}

int64_t DocumentReader::packed_position() const {
  return packed_before_ + (source_ ? source_->packed_position() : 0);
}

bool DocumentReader::next(Document& d) {
  while (source_) {
    const int64_t before = source_->bytes;
    const bool found = source_->next(d.raw);
    bytes_ += source_->bytes - before;
    if (found) {
      d.json = source_->json;
      d.file = at_.file, d.line = source_->first_line;
      at_.offset = source_->offset, at_.line = source_->line;
      return true;
    }
    packed_before_ += source_->packed_position();
    source_.reset();
    at_ = {.file = at_.file + 1};
    if (at_.file < int64_t(spec_.inputs.size())) open(0, 0);
  }
  return false;
}

}  // namespace hearth

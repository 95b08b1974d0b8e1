#include "data/prepare.h"

#include <algorithm>
#include <exception>
#include <future>
#include <utility>

#include "core/error.h"
#include "core/threads.h"
#include "data/jsonl.h"
#include "data/permutation.h"
#include "data/split.h"
#include "io/json.h"
#include "io/progress.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

constexpr const char* state_name = "prepare.json";

void check_spec(const PrepareSpec& spec) {
  if (spec.inputs.empty()) fail_usage("prepare", "expected at least one input, got none");
  if (!spec.encode || spec.vocab < 1) fail("prepare", "expected a tokenizer, got none");
  if (spec.shard_tokens < 0 || spec.shard_tokens > INT32_MAX)
    fail_usage("prepare", "expected shards of 1 to {} tokens, got {}", INT32_MAX,
               spec.shard_tokens);
  if (spec.block_bytes < 1 || spec.save_blocks < 1)
    fail("prepare", "expected blocks of at least a byte, got {} and {}", spec.block_bytes,
         spec.save_blocks);
  if (!(spec.val_fraction >= 0 && spec.val_fraction < 1))
    fail_usage("prepare", "expected a validation fraction in [0, 1), got {}", spec.val_fraction);
  if (spec.eos < 0 && (spec.format == TokenFormat::llmc || spec.bos < 0))
    fail("prepare", "expected a tokenizer with an end-of-text token to part documents, got none");
}

std::vector<fs::path> expand_inputs(const PrepareSpec& spec) {
  std::vector<fs::path> paths;
  for (const std::string& input : spec.inputs) {
    if (input == "-") {
      paths.emplace_back("-");
    } else {
      for (fs::path& p : expand_glob(input)) paths.push_back(std::move(p));
    }
  }
  return paths;
}

// All that decides the output: a run goes on only when none of it changed.
json fingerprint(const PrepareSpec& spec, const std::vector<fs::path>& inputs) {
  json files = json::array();
  for (const fs::path& p : inputs) {
    if (p == "-") {
      files.push_back("-");
      continue;
    }
    if (!fs::is_regular_file(p)) fail(p.string(), "expected a plain file, got something else");
    files.push_back({{"path", fs::absolute(p).string()},
                     {"bytes", fs::file_size(p)},
                     {"changed", fs::last_write_time(p).time_since_epoch().count()}});
  }
  return {{"inputs", files},
          {"source", int(spec.source)},
          {"column", spec.column},
          {"format", name(spec.format)},
          {"shard_tokens", spec.shard_tokens},
          {"val_fraction", spec.val_fraction},
          {"vocab", spec.vocab},
          {"bos", spec.bos},
          {"eos", spec.eos},
          {"tokenizer", spec.tokenizer_id}};
}

// Documents to be encoded by one thread at a time, in order; few and long, so that their buffers
// stay.
struct Piece {
  size_t first = 0, count = 0;  // of the block's documents
  std::vector<int32_t> tokens;
  struct End {
    size_t tokens;
    bool val;
  };
  std::vector<End> ends;  // of each document that is not empty
};

// Text read in one go, and what became of it.
struct Block {
  std::string text;
  struct Entry {
    size_t begin, size;
    int64_t file, line;
    bool json;
  };
  std::vector<Entry> documents;
  std::vector<Piece> pieces;  // the first `used` of these
  size_t used = 0;
  SourcePosition after;
  int64_t bytes = 0, packed = 0;  // read by then
};

class Run {
 public:
  explicit Run(const PrepareSpec& spec)
      : spec_(spec),
        sources_{expand_inputs(spec), spec.source, spec.column},
        fingerprint_(fingerprint(spec, sources_.inputs)),
        threads_(spec.threads),
        unescaped_(size_t(threads_.count())),
        train_(split("train", 1)),
        val_(split("val", 0)) {}

  PrepareResult run() {
    make_dirs(spec_.out);
    if (!restore()) {
      DocumentReader reader(sources_, at_);
      ProgressLine progress("prepare", {total_bytes(), reader.packed_position(), bytes_},
                            spec_.progress);
      const int64_t before = bytes_;
      Block now, ahead;
      bool more = read_block(now, reader);
      for (int64_t n = 0; more; ++n) {
        // The next block is read while this one is encoded; the future waits where something
        // throws.
        auto reading = std::async(std::launch::async, [&] { return read_block(ahead, reader); });
        encode_block(now);
        write_block(now);
        at_ = now.after;
        bytes_ = before + now.bytes;
        if ((n + 1) % spec_.save_blocks == 0) save(false);
        progress.show(now.packed, bytes_, token_text());
        if (spec_.on_block) spec_.on_block(n);
        more = reading.get();
        std::swap(now, ahead);
      }
      finish();
      progress.finish(reader.packed_position(), bytes_, token_text());
    }
    return result();
  }

 private:
  Split split(const char* name, int64_t first_index) const {
    const bool headed = spec_.format == TokenFormat::llmc;
    const int64_t shard = spec_.shard_tokens > 0 ? spec_.shard_tokens : headed ? 100'000'000 : 0;
    return Split({spec_.out, name, first_index, spec_.format, token_width(spec_.vocab), shard});
  }

  // Takes up the state an earlier run left; true when that run was complete.
  bool restore() {
    const fs::path path = spec_.out / state_name;
    if (!fs::exists(path)) return false;
    const json state = read_json(path);
    try {
      if (state.at("run") != fingerprint_)
        fail(path.string(),
             "expected the state of this very run, got one with other inputs, tokenizer or "
             "settings: choose another folder, or remove this one");
      at_ = {state.at("file"), state.at("offset"), state.at("line")};
      bytes_ = state.at("bytes");
      resumed_ = true;
      train_.restore(state.at("train"));
      val_.restore(state.at("val"));
      if (!state.at("done").get<bool>()) return false;
    } catch (const json::exception&) {
      fail(path.string(), "expected the state of an earlier run, got something else: remove it");
    }
    if (std::find(sources_.inputs.begin(), sources_.inputs.end(), "-") != sources_.inputs.end())
      fail(path.string(),
           "expected a new folder, got one with a finished run: standard input cannot be compared "
           "with what that run read");
    for (const Split* s : {&train_, &val_})
      for (const auto& [p, tokens] : s->files())
        if (!fs::exists(p) || TokenFile(p).size() != tokens)
          fail(p.string(), "expected the {} tokens a finished run wrote: remove {} to begin again",
               tokens, path.string());
    return true;
  }

  void save(bool done) {
    const json state = {{"run", fingerprint_},    {"done", done},      {"file", at_.file},
                        {"offset", at_.offset},   {"line", at_.line},  {"bytes", bytes_},
                        {"train", train_.save()}, {"val", val_.save()}};
    write_file_atomic(spec_.out / state_name, state.dump(1) + "\n");
  }

  bool read_block(Block& b, DocumentReader& reader) const {
    b.text.clear();
    b.documents.clear();
    b.used = 0;
    const size_t piece_bytes = size_t(std::max<int64_t>(1, spec_.block_bytes / 64));
    size_t piece_end = 0;  // of the text, before the next piece begins
    Document d;
    while (int64_t(b.text.size()) < spec_.block_bytes && reader.next(d)) {
      if (b.used == 0 || b.text.size() >= piece_end) {
        if (b.used == b.pieces.size()) b.pieces.emplace_back();
        b.pieces[b.used].first = b.documents.size(), b.pieces[b.used].count = 0;
        ++b.used;
        piece_end = b.text.size() + piece_bytes;
      }
      b.documents.push_back({b.text.size(), d.raw.size(), d.file, d.line, d.json});
      b.text += d.raw;
      ++b.pieces[b.used - 1].count;
    }
    b.after = reader.position();
    b.bytes = reader.bytes_read(), b.packed = reader.packed_position();
    return !b.documents.empty();
  }

  void encode_block(Block& b) {
    std::vector<std::exception_ptr> errors(b.used);
    threads_.run(int64_t(b.used), [&](int64_t i, int worker) {
      try {
        encode(b.pieces[size_t(i)], b, unescaped_[size_t(worker)]);
      } catch (...) { errors[size_t(i)] = std::current_exception(); }
    });
    for (const std::exception_ptr& e : errors)
      if (e) std::rethrow_exception(e);  // the first document's, at any thread count
  }

  void encode(Piece& p, const Block& b, std::string& unescaped) const {
    p.tokens.clear();
    p.ends.clear();
    for (size_t i = p.first; i < p.first + p.count; ++i) {
      const Block::Entry& e = b.documents[i];
      std::string_view text(b.text.data() + e.begin, e.size);
      if (e.json) {
        if (!flat_text(unescaped, text)) unescaped = jsonl_text(text, place(e));
        text = unescaped;
      }
      if (text.empty()) continue;
      const size_t begin = p.tokens.size();
      const bool headed = spec_.format == TokenFormat::llmc;
      if (headed || spec_.bos >= 0) p.tokens.push_back(headed ? spec_.eos : spec_.bos);
      spec_.encode(text, p.tokens);
      if (!headed && spec_.eos >= 0) p.tokens.push_back(spec_.eos);
      for (size_t t = begin; t < p.tokens.size(); ++t)
        if (p.tokens[t] < 0 || p.tokens[t] >= spec_.vocab)
          fail(place(e), "expected tokens below the vocabulary's {}, got {}", spec_.vocab,
               p.tokens[t]);
      p.ends.push_back({p.tokens.size(), is_validation(text, spec_.val_fraction)});
    }
  }

  std::string place(const Block::Entry& e) const {
    return document_place(sources_, e.file, e.line);
  }

  void write_block(const Block& b) {
    for (size_t i = 0; i < b.used; ++i) {
      const std::span<const int32_t> tokens(b.pieces[i].tokens);
      size_t begin = 0;
      for (const Piece::End& end : b.pieces[i].ends) {
        (end.val ? val_ : train_).append_document(tokens.subspan(begin, end.tokens - begin));
        begin = end.tokens;
      }
    }
  }

  int64_t total_bytes() const {
    int64_t sum = 0;
    for (const fs::path& p : sources_.inputs) {
      if (p == "-") return 0;
      sum += int64_t(fs::file_size(p));
    }
    return sum;
  }
  std::string token_text() const {
    return fmt::format(", {:.1f}M tokens", double(train_.counts.tokens + val_.counts.tokens) / 1e6);
  }

  void finish() {
    if (train_.counts.documents + val_.counts.documents == 0)
      fail("prepare", "expected at least one document that is not empty, got none");
    train_.finish();
    val_.finish();
    if (spec_.format == TokenFormat::raw) {
      TokenMetadata meta{spec_.vocab, spec_.bos, spec_.eos, train_.counts, val_.counts, {}};
      for (const Split* s : {&train_, &val_})
        for (const auto& [p, tokens] : s->files()) meta.file_tokens[p.filename().string()] = tokens;
      write_metadata(spec_.out, meta);
    }
    save(true);
    for (const auto& entry : fs::directory_iterator(spec_.out))  // what killed runs left behind
      if (entry.path().filename().string().starts_with(fmt::format(".tmp-{}-", state_name)))
        fs::remove(entry.path());
  }

  PrepareResult result() const {
    PrepareResult r;
    r.train = train_.counts;
    r.val = val_.counts;
    r.bytes = bytes_;
    r.resumed = resumed_;
    const auto train = train_.files(), val = val_.files();
    r.train_shards = int64_t(train.size());
    r.val_shards = int64_t(val.size());
    for (const auto& list : {train, val})
      for (const auto& [p, tokens] : list) r.files.push_back(p);
    return r;
  }

  const PrepareSpec& spec_;
  DocumentSpec sources_;
  json fingerprint_;
  Threads threads_;
  std::vector<std::string> unescaped_;  // of each worker
  Split train_, val_;
  SourcePosition at_;
  int64_t bytes_ = 0;
  bool resumed_ = false;
};

}  // namespace

bool is_validation(std::string_view text, double fraction) {
  uint64_t hash = text.size();
  while (!text.empty()) {
    uint64_t word = 0;
    const size_t n = std::min<size_t>(8, text.size());
    for (size_t i = 0; i < n; ++i) word |= uint64_t(uint8_t(text[i])) << (8 * i);
    hash = mix64(hash ^ word);
    text.remove_prefix(n);
  }
  return double(mix64(hash) >> 11) * 0x1p-53 < fraction;
}

PrepareResult prepare(const PrepareSpec& spec) {
  check_spec(spec);
  return Run(spec).run();
}

}  // namespace hearth

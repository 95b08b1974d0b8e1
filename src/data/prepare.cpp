#include "data/prepare.h"

#include <fcntl.h>

#include <algorithm>
#include <exception>
#include <future>
#include <map>
#include <set>
#include <utility>

#include "data/holdout.h"
#include "data/jsonl.h"
#include "data/shard_writer.h"
#include "formats/json.h"
#include "sys/counted.h"
#include "sys/error.h"
#include "sys/progress.h"
#include "sys/terminal.h"
#include "sys/threads.h"

namespace hearth::inline data {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

constexpr const char* state_name = "prepare.json";

void check_spec(const PrepareSpec& spec) {
  if (spec.inputs.empty()) fail_usage("prepare", "expected at least one input, got none");
  if (!spec.encode || spec.vocab < 1) fail("prepare", "expected a tokenizer, got none");
  if (spec.shard_tokens < 0 || spec.shard_tokens > INT32_MAX)
    fail_usage("--shard-tokens", "expected 1 to {}, got {}", INT32_MAX, spec.shard_tokens);
  if (spec.block_bytes < 1 || spec.save_blocks < 1)
    fail("prepare", "expected blocks of at least a byte, got {} and {}", spec.block_bytes,
         spec.save_blocks);
  if (spec.max_document_bytes < 1)
    fail_usage("--max-document-bytes", "expected at least 1, got {}", spec.max_document_bytes);
  if (!(spec.val_fraction >= 0 && spec.val_fraction < 1))
    fail_usage("--val-fraction", "expected 0 to below 1, got {}", spec.val_fraction);
  if (spec.eos < 0 && (spec.format == TokenFormat::llmc || spec.bos < 0))
    fail("prepare",
         "the tokenizer has no end-of-text token, which is needed to separate documents");
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
  refuse_folders(paths, "*.txt");
  return paths;
}

// All settings that affect the output: a run resumes only if none of them changed.
json fingerprint(const PrepareSpec& spec, const std::vector<fs::path>& inputs) {
  json files = json::array();
  for (const fs::path& p : inputs) {
    if (p == "-") {
      files.push_back("-");
      continue;
    }
    if (!fs::is_regular_file(p))
      fail(p.string(),
           "expected a regular file, got another kind: pass a stream as - (standard input)");
    files.push_back({{"path", visible(fs::absolute(p).string())},  // JSON is UTF-8
                     {"bytes", fs::file_size(p)},
                     {"changed", fs::last_write_time(p).time_since_epoch().count()}});
  }
  json all = {{"inputs", files},
              {"source", int(spec.source)},
              {"column", spec.column},
              {"format", name(spec.format)},
              {"shard_tokens", spec.shard_tokens},
              {"val_fraction", spec.val_fraction},
              {"vocab", spec.vocab},
              {"bos", spec.bos},
              {"eos", spec.eos},
              {"tokenizer", spec.tokenizer_id}};
  // Omitted at its default, so that folders from versions without the setting stay valid.
  if (spec.max_document_bytes != PrepareSpec().max_document_bytes)
    all["max_document_bytes"] = spec.max_document_bytes;
  return all;
}

// Whether prepare, in either format, gives a file this name while it is written or at its end.
bool is_token_file(std::string_view name) {
  if (name.ends_with(".tmp")) name.remove_suffix(4);
  const bool numbered = name.starts_with("train_") || name.starts_with("val_");
  return name == "train.bin" || name == "val.bin" || (numbered && name.ends_with(".bin"));
}

// Keeps other processes from preparing into the folder; empty if it does not exist.
Fd lock_folder(const fs::path& out) {
  if (!fs::is_directory(out)) return {};
  Fd fd = open_file(out, O_RDONLY | O_DIRECTORY, "read the folder");
  if (!try_flock(fd, FileLock::exclusive, out))
    fail(out.string(), "another process prepares data in this folder: choose a new folder");
  return fd;
}

// Documents that one thread encodes in order. Pieces are few and long, so that their buffers are
// reused.
struct Piece {
  size_t first = 0, count = 0;  // range of the block's documents
  std::vector<int32_t> tokens;
  struct End {
    size_t tokens;
    bool val, empty, begins, ends;  // begins, ends: as in Document
  };
  std::vector<End> ends;  // of each kept document or piece of one
};

// Text that is read at once, with the result of encoding it.
struct Block {
  std::string text;
  struct Entry {
    size_t begin, size;
    int64_t file, line;
    bool json, begins, ends;
  };
  std::vector<Entry> documents;
  std::vector<Piece> pieces;  // the first `used` are valid
  size_t used = 0;
  SourcePosition after;
  int64_t bytes = 0, packed = 0;            // read so far
  std::map<int64_t, int64_t> marks_inside;  // per file, in this block
};

class Run {
 public:
  explicit Run(const PrepareSpec& spec)
      : spec_(spec),
        sources_{.inputs = expand_inputs(spec),
                 .kind = spec.source,
                 .column = spec.column,
                 .longest = size_t(spec.max_document_bytes),
                 .piece = size_t(spec.max_document_bytes),
                 .limit_flag = "--max-document-bytes",
                 .kind_flag = "--source",
                 .column_flag = "--column"},
        fingerprint_(fingerprint(spec, sources_.inputs)),
        threads_(spec.threads),
        unescaped_(size_t(threads_.count())),
        train_(split("train", 1)),
        val_(split("val", 0)) {}

  PrepareResult run() {
    expect_column_effect(sources_);
    Fd lock = lock_folder(spec_.out);
    const bool done = restore();
    // Between a first state and the last one every token file may be one of this run's.
    if (done || !claimed_) refuse_others();
    if (!done) {
      rule_ = choose_sides(sources_, spec_.val_fraction);
      if (rule_.pieces) sources_.piece = std::min(sources_.piece, side_piece_bytes);
      make_dirs(spec_.out);
      if (!lock) {  // the folder is new, or another process has made it since
        lock = lock_folder(spec_.out);
        refuse_others();
      }
      DocumentReader reader(sources_, at_);
      ProgressLine progress("prepare", {total_bytes(), reader.packed_position(), bytes_},
                            spec_.progress);
      const int64_t before = bytes_;
      Block now, ahead;
      bool more = read_block(now, reader);
      for (int64_t n = 0; more; ++n) {
        // Read the next block while this one is encoded; if something throws, the future's
        // destructor waits.
        auto reading = std::async(std::launch::async, [&] { return read_block(ahead, reader); });
        encode_block(now);
        if (!claimed_) save(false);
        write_block(now);
        for (const auto& [file, n] : now.marks_inside) marks_inside_[size_t(file)] += n;
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
    remove_leftovers();
    return result();
  }

 private:
  SplitWriter split(const char* name, int64_t first_index) const {
    const bool headed = spec_.format == TokenFormat::llmc;
    const int64_t shard = spec_.shard_tokens > 0 ? spec_.shard_tokens : headed ? 100'000'000 : 0;
    return SplitWriter(
        {spec_.out, name, first_index, spec_.format, token_width(spec_.vocab), shard});
  }

  // Loads the state of an earlier run; true if that run was complete.
  bool restore() {
    const fs::path path = spec_.out / state_name;
    if (!fs::exists(path)) return false;
    const json text = read_json(path);
    const StateFields state(text, path.string());
    if (state.value("run") != fingerprint_) {
      if (state.boolean("done") || state.integer("bytes") > 0)
        fail(path.string(),
             "this folder has the state of a run with other inputs, tokenizer or settings: choose "
             "another folder, or delete this file and the token files beside it");
      remove_token_files();  // of a run that ended before it saved any progress
      return false;
    }
    const int64_t inside = state.has("inside") ? state.integer("inside", 0, 31) : 0;  // bits
    at_ = {state.integer("file", 0, int64_t(sources_.inputs.size())),
           state.integer("offset"),
           state.integer("line"),
           (inside & 1) != 0,
           (inside & 2) != 0,
           (inside & 4) != 0,
           (inside & 16) != 0};
    open_ = !at_.inside ? nullptr : (inside & 8) != 0 ? &val_ : &train_;
    bytes_ = state.integer("bytes");
    claimed_ = true;
    resumed_ = bytes_ > 0;
    if (state.has("marks_inside"))
      marks_inside_ = state.integers("marks_inside", sources_.inputs.size());
    marks_inside_.resize(sources_.inputs.size());
    rule_.pieces = state.has("pieces") && state.boolean("pieces");
    train_.restore(state.object("train"));
    val_.restore(state.object("val"));
    if (!state.boolean("done")) return false;
    if (std::find(sources_.inputs.begin(), sources_.inputs.end(), "-") != sources_.inputs.end())
      fail(path.string(),
           "this folder contains a finished run, and standard input cannot be compared with what "
           "that run read: choose a new folder");
    for (const SplitWriter* s : {&train_, &val_})
      for (const auto& [p, tokens] : s->files())
        if (!fs::exists(p) || TokenFile(p).size() != tokens)
          fail(p.string(),
               "expected the {} tokens that a finished run wrote: delete {} and the token files "
               "beside it to start again",
               tokens, path.string());
    return true;
  }

  // When the folder got its state, it had no token files of others.
  void remove_token_files() const {
    const std::vector<fs::directory_entry> entries(fs::directory_iterator(spec_.out), {});
    for (const fs::path& path : entries)
      if (is_token_file(path.filename().string())) fs::remove(path);
  }

  // Training on all files of the folder would mix those of another run with this run's.
  void refuse_others() const {
    std::set<fs::path> own, others;
    for (const SplitWriter* s : {&train_, &val_})
      for (const auto& [p, tokens] : s->files()) own.insert(p.filename());
    std::error_code absent;
    for (const auto& entry : fs::directory_iterator(spec_.out, absent)) {
      const fs::path name = entry.path().filename();
      if (is_token_file(name.string()) && !own.contains(name)) others.insert(name);
    }
    if (!others.empty())
      fail(spec_.out.string(),
           "this folder has {} that this run did not write, such as {}: choose a new folder, or "
           "delete them",
           counted(int64_t(others.size()), "token file"), others.begin()->string());
  }

  void save(bool done) {
    const int inside =
        at_.inside + 2 * at_.in_first + 4 * at_.in_line + 8 * (open_ == &val_) + 16 * at_.windows;
    json state = {{"run", fingerprint_},  {"done", done},           {"file", at_.file},
                  {"offset", at_.offset}, {"line", at_.line},       {"inside", inside},
                  {"bytes", bytes_},      {"pieces", rule_.pieces}, {"train", train_.save()},
                  {"val", val_.save()}};
    // Stored beside "run", so that folders from versions without it stay valid.
    if (!spec_.vocabulary_id.empty()) state["vocabulary"] = spec_.vocabulary_id;
    if (std::ranges::any_of(marks_inside_, [](int64_t n) { return n > 0; }))
      state["marks_inside"] = marks_inside_;
    write_file_atomic(spec_.out / state_name, state.dump(1) + "\n");
    claimed_ = true;
  }

  bool read_block(Block& b, DocumentReader& reader) const {
    b.text.clear();
    b.documents.clear();
    b.used = 0;
    b.marks_inside.clear();
    const size_t piece_bytes = size_t(std::max<int64_t>(1, spec_.block_bytes / 64));
    size_t piece_end = 0;  // offset in the text where the current piece ends
    Document d;
    while (int64_t(b.text.size()) < spec_.block_bytes && reader.next(d)) {
      if (b.used == 0 || b.text.size() >= piece_end) {
        if (b.used == b.pieces.size()) b.pieces.emplace_back();
        b.pieces[b.used].first = b.documents.size(), b.pieces[b.used].count = 0;
        ++b.used;
        piece_end = b.text.size() + piece_bytes;
      }
      b.documents.push_back(
          {b.text.size(), d.raw.size(), d.file, d.line, d.json, d.begins, d.ends});
      b.text += d.raw;
      if (d.marks_inside > 0) b.marks_inside[d.file] += d.marks_inside;
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
      if (e) std::rethrow_exception(e);  // always the error of the first document
  }

  void encode(Piece& p, const Block& b, std::string& unescaped) const {
    p.tokens.clear();
    p.ends.clear();
    for (size_t i = p.first; i < p.first + p.count; ++i) {
      const Block::Entry& e = b.documents[i];
      std::string_view text(b.text.data() + e.begin, e.size);
      if (e.json) {
        if (!flat_text(unescaped, text, sources_.column))
          unescaped = jsonl_text(text, place(e), {sources_.column, sources_.column_flag});
        text = unescaped;
      }
      if (text.empty() && e.begins) continue;
      const size_t begin = p.tokens.size();
      if (e.begins && opening() >= 0) p.tokens.push_back(opening());
      if (!text.empty()) spec_.encode(text, p.tokens);
      if (e.ends && closing() >= 0) p.tokens.push_back(closing());
      for (size_t t = begin; t < p.tokens.size(); ++t)
        if (p.tokens[t] < 0 || p.tokens[t] >= spec_.vocab)
          fail(place(e), "expected tokens below the vocabulary's {}, got {}", spec_.vocab,
               p.tokens[t]);
      p.ends.push_back(
          {p.tokens.size(), is_validation(text, rule_.threshold), text.empty(), e.begins, e.ends});
    }
  }

  // The ids that open and close a document; -1: none.
  int32_t opening() const { return spec_.format == TokenFormat::llmc ? spec_.eos : spec_.bos; }
  int32_t closing() const { return spec_.format == TokenFormat::llmc ? -1 : spec_.eos; }

  std::string place(const Block::Entry& e) const {
    return document_place(sources_, e.file, e.line);
  }

  void write_block(const Block& b) {
    for (size_t i = 0; i < b.used; ++i) {
      const std::span<const int32_t> tokens(b.pieces[i].tokens);
      size_t begin = 0;
      for (const Piece::End& end : b.pieces[i].ends) {
        write(end, tokens.subspan(begin, end.tokens - begin));
        begin = end.tokens;
      }
    }
  }

  void write(const Piece::End& end, std::span<const int32_t> tokens) {
    SplitWriter* side = end.val ? &val_ : &train_;
    if (!end.begins && (!rule_.pieces || end.empty))
      side = open_;  // stays on the side of its document
    if (end.begins) {
      side->begin_document();
    } else if (side != open_) {  // the rest becomes a separate document
      const int32_t close = closing(), open = opening();
      if (close >= 0) open_->append(std::span(&close, 1));
      open_->end_document();
      side->begin_document();
      if (open >= 0) side->append(std::span(&open, 1));
    }
    side->append(tokens);
    if (end.ends) side->end_document();
    open_ = end.ends ? nullptr : side;
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
    return fmt::format(", {:.1f}M tokens", double(train_.tokens() + val_.tokens()) / 1e6);
  }

  void finish() {
    if (train_.counts.documents + val_.counts.documents == 0)
      fail("prepare", "the inputs contain no text");
    if (spec_.val_fraction > 0 && (train_.counts.documents == 0 || val_.counts.documents == 0))
      fail("--val-fraction",
           "standard input has {}, all on one side: write it to a file and pass that, separate "
           "documents by lines <|endoftext|>, or drop --val-fraction",
           counted(train_.counts.documents + val_.counts.documents, "document"));
    train_.finish();
    val_.finish();
    refuse_others();
    if (spec_.format == TokenFormat::raw) {
      TokenMetadata meta{spec_.vocab, spec_.bos, spec_.eos, train_.counts, val_.counts, {}};
      for (const SplitWriter* s : {&train_, &val_})
        for (const auto& [p, tokens] : s->files()) meta.file_tokens[p.filename().string()] = tokens;
      write_metadata(spec_.out, meta);
    }
    save(true);
  }

  // Removes leftovers of killed runs. One may have been killed after it had saved the final state.
  void remove_leftovers() const {
    for (const auto& entry : fs::directory_iterator(spec_.out))
      if (entry.path().filename().string().starts_with(fmt::format(".tmp-{}-", state_name)))
        fs::remove(entry.path());
  }

  PrepareResult result() const {
    PrepareResult r;
    r.train = train_.counts;
    r.val = val_.counts;
    r.bytes = bytes_;
    r.resumed = resumed_;
    r.pieces = rule_.pieces;
    const auto train = train_.files(), val = val_.files();
    r.train_shards = int64_t(train.size());
    r.val_shards = int64_t(val.size());
    for (const auto& list : {train, val})
      for (const auto& [p, tokens] : list) r.files.push_back(p);
    for (size_t i = 0; i < marks_inside_.size(); ++i)
      if (marks_inside_[i] > 0) r.marks_inside.emplace_back(sources_.inputs[i], marks_inside_[i]);
    return r;
  }

  const PrepareSpec& spec_;
  DocumentSpec sources_;
  json fingerprint_;
  Threads threads_;
  std::vector<std::string> unescaped_;  // one per worker
  SideRule rule_;
  SplitWriter train_, val_;
  SplitWriter* open_ = nullptr;  // the side of the document that contains at_
  SourcePosition at_;
  int64_t bytes_ = 0;
  // Number of `<|endoftext|>` inside lines, per input.
  std::vector<int64_t> marks_inside_ = std::vector<int64_t>(sources_.inputs.size());
  bool claimed_ = false;  // the folder has this run's state file
  bool resumed_ = false;
};

// Null if there is none, or a file of another program with the same name.
json state_in(const fs::path& folder) {
  const fs::path path = folder / state_name;
  std::error_code absent;
  if (!fs::is_regular_file(path, absent)) return {};
  try {
    return read_json(path);
  } catch (const Error&) { return {}; }
}

}  // namespace

PrepareResult prepare(const PrepareSpec& spec) {
  check_spec(spec);
  return Run(spec).run();
}

std::optional<PreparedWith> prepared_with(const fs::path& folder) {
  try {
    const json state = state_in(folder);
    const json& run = state.at("run");
    return PreparedWith{run.at("tokenizer").get<std::string>(),
                        state.value("vocabulary", std::string()), run.at("vocab").get<int64_t>()};
  } catch (const json::exception&) { return {}; }
}

std::vector<fs::path> unfinished_folders(std::span<const fs::path> files) {
  std::set<fs::path> folders;
  for (const fs::path& file : files)
    folders.insert(file.has_parent_path() ? file.parent_path() : ".");
  std::erase_if(folders, [](const fs::path& folder) {
    const json state = state_in(folder);
    return !state.is_object() || !state.contains("run") || state.value("done", json()) != false;
  });
  return {folders.begin(), folders.end()};
}

}  // namespace hearth::inline data

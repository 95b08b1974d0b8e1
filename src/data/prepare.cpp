#include "data/prepare.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/threads.h"
#include "data/permutation.h"
#include "io/json.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

constexpr const char* state_name = "prepare.json";

// ---- one side of the split: a run of token files ----------------------------------------------

struct SplitSpec {
  fs::path folder;
  std::string name;     // train | val
  int64_t first_index;  // NoCap: val begins at 0, train at 1
  TokenFormat format;
  int width;
  int64_t shard_tokens;  // 0: one file without a number
};

class Split {
 public:
  explicit Split(SplitSpec spec) : spec_(std::move(spec)) {}

  // Goes on from a saved state: the open shard is cut back to what the state knows.
  void restore(const json& saved) {
    shard_ = saved.at("shard");
    const int64_t open_tokens = saved.at("open_tokens");
    counts = {.tokens = saved.at("tokens"),
              .documents = saved.at("documents"),
              .shortest = saved.at("shortest"),
              .longest = saved.at("longest")};
    if (open_tokens > 0) open(open_tokens);
  }

  json save() {
    if (writer_) writer_->sync();
    return {{"shard", shard_},
            {"open_tokens", writer_ ? writer_->size() : 0},
            {"tokens", counts.tokens},
            {"documents", counts.documents},
            {"shortest", counts.shortest},
            {"longest", counts.longest}};
  }

  void append_document(std::span<const int32_t> tokens) {
    counts.add_document(int64_t(tokens.size()));
    while (!tokens.empty()) {
      if (!writer_) open(-1);
      size_t n = tokens.size();
      if (spec_.shard_tokens > 0) n = std::min(n, size_t(spec_.shard_tokens - writer_->size()));
      writer_->append(tokens.first(n));
      tokens = tokens.subspan(n);
      if (writer_->size() == spec_.shard_tokens) finish();
    }
  }

  void finish() {
    if (!writer_) return;
    writer_->finish();
    writer_.reset();
    ++shard_;
  }

  // Name and tokens of every file, once all are finished.
  std::vector<std::pair<fs::path, int64_t>> files() const {
    std::vector<std::pair<fs::path, int64_t>> all;
    for (int64_t i = 0, left = counts.tokens; i < shard_; ++i) {
      const int64_t n = spec_.shard_tokens > 0 ? std::min(left, spec_.shard_tokens) : left;
      all.emplace_back(path(i), n);
      left -= n;
    }
    return all;
  }

  TokenCounts counts;

 private:
  fs::path path(int64_t i) const {
    if (spec_.shard_tokens == 0) return spec_.folder / (spec_.name + ".bin");
    return spec_.folder / fmt::format("{}_{:06}.bin", spec_.name, spec_.first_index + i);
  }

  void open(int64_t resume_tokens) {
    writer_.emplace(path(shard_), TokenWriter::Spec{.format = spec_.format,
                                                    .width = spec_.width,
                                                    .resume_tokens = resume_tokens});
  }

  SplitSpec spec_;
  int64_t shard_ = 0;  // of the open one, or the next; counted from 0
  std::optional<TokenWriter> writer_;
};

// ---- the run ----------------------------------------------------------------------------------

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
          {"format", name(spec.format)},
          {"shard_tokens", spec.shard_tokens},
          {"val_fraction", spec.val_fraction},
          {"vocab", spec.vocab},
          {"bos", spec.bos},
          {"eos", spec.eos},
          {"tokenizer", spec.tokenizer_id}};
}

class Progress {
 public:
  Progress(const PrepareSpec& spec, const std::vector<fs::path>& inputs, int64_t done)
      : on_(spec.progress), redraw_(::isatty(2)), before_(done) {
    for (const fs::path& p : inputs)
      if (p == "-") {
        total_ = 0;
        return;
      } else {
        total_ += int64_t(fs::file_size(p));
      }
  }

  void show(int64_t bytes, int64_t tokens, bool last) {
    const auto now = clock::now();
    if (!on_ || (!last && now - shown_ < std::chrono::milliseconds(redraw_ ? 200 : 5000))) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count() + 1e-9;
    const std::string share = total_ > 0 ? fmt::format(" of {:.1f}", double(total_) / 1e6) : "";
    fmt::print(stderr, "{}prepare: {:.1f}{} MB, {} tokens, {:.1f} MB/s{}", redraw_ ? "\r" : "",
               double(bytes) / 1e6, share, tokens, double(bytes - before_) / 1e6 / seconds,
               redraw_ && !last ? "" : "\n");
  }

 private:
  using clock = std::chrono::steady_clock;
  bool on_, redraw_;
  int64_t before_, total_ = 0;
  clock::time_point start_ = clock::now(), shown_ = start_;
};

class Run {
 public:
  explicit Run(const PrepareSpec& spec)
      : spec_(spec),
        inputs_(expand_inputs(spec)),
        fingerprint_(fingerprint(spec, inputs_)),
        threads_(spec.threads),
        train_(split("train", 1)),
        val_(split("val", 0)) {}

  PrepareResult run() {
    make_dirs(spec_.out);
    if (!restore()) {
      DocumentReader reader(inputs_, spec_.source, at_);
      Progress progress(spec_, inputs_, bytes_);
      const int64_t before = bytes_;
      for (int64_t block = 0; read_block(reader); ++block) {
        encode_block();
        write_block();
        at_ = reader.position();
        bytes_ = before + reader.bytes_read();
        if ((block + 1) % spec_.save_blocks == 0) save(false);
        progress.show(bytes_, train_.counts.tokens + val_.counts.tokens, false);
        if (spec_.on_block) spec_.on_block(block);
      }
      finish();
      progress.show(bytes_, train_.counts.tokens + val_.counts.tokens, true);
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
      document_ = state.at("document");
      bytes_ = state.at("bytes");
      resumed_ = true;
      train_.restore(state.at("train"));
      val_.restore(state.at("val"));
      if (!state.at("done").get<bool>()) return false;
    } catch (const json::exception&) {
      fail(path.string(), "expected the state of an earlier run, got something else: remove it");
    }
    if (std::find(inputs_.begin(), inputs_.end(), "-") != inputs_.end())
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
    const json state = {{"run", fingerprint_},  {"done", done},           {"file", at_.file},
                        {"offset", at_.offset}, {"line", at_.line},       {"document", document_},
                        {"bytes", bytes_},      {"train", train_.save()}, {"val", val_.save()}};
    write_file_atomic(spec_.out / state_name, state.dump(1) + "\n");
  }

  bool read_block(DocumentReader& reader) {
    used_ = 0;
    for (int64_t bytes = 0; bytes < spec_.block_bytes;
         bytes += int64_t(block_[used_++].raw.size())) {
      if (used_ == block_.size()) block_.emplace_back();
      if (!reader.next(block_[used_])) break;
    }
    return used_ > 0;
  }

  void encode_block() {
    tokens_.resize(std::max(tokens_.size(), used_));
    std::vector<std::exception_ptr> errors(used_);
    threads_.run(int64_t(used_), [&](int64_t i, int) {
      try {
        encode(tokens_[size_t(i)], block_[size_t(i)]);
      } catch (...) { errors[size_t(i)] = std::current_exception(); }
    });
    for (const std::exception_ptr& e : errors)
      if (e) std::rethrow_exception(e);  // the first document's, at any thread count
  }

  void encode(std::vector<int32_t>& out, const Document& d) const {
    out.clear();
    const std::string inner = d.json ? jsonl_text(d.raw, d.where) : std::string();
    const std::string_view text = d.json ? inner : d.raw;
    if (text.empty()) return;
    if (spec_.format == TokenFormat::llmc) {
      out.push_back(spec_.eos);
      spec_.encode(text, out);
    } else {
      if (spec_.bos >= 0) out.push_back(spec_.bos);
      spec_.encode(text, out);
      if (spec_.eos >= 0) out.push_back(spec_.eos);
    }
    for (int32_t t : out)
      if (t < 0 || t >= spec_.vocab)
        fail(d.where, "expected tokens below the vocabulary's {}, got {}", spec_.vocab, t);
  }

  void write_block() {
    for (size_t i = 0; i < used_; ++i) {
      if (tokens_[i].empty()) continue;
      const double draw = double(mix64(uint64_t(document_++)) >> 11) * 0x1p-53;
      (draw < spec_.val_fraction ? val_ : train_).append_document(tokens_[i]);
    }
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
  std::vector<fs::path> inputs_;
  json fingerprint_;
  Threads threads_;
  Split train_, val_;
  SourcePosition at_;
  int64_t document_ = 0, bytes_ = 0;
  bool resumed_ = false;
  std::vector<Document> block_;  // the first used_ of these
  std::vector<std::vector<int32_t>> tokens_;
  size_t used_ = 0;
};

}  // namespace

PrepareResult prepare(const PrepareSpec& spec) {
  check_spec(spec);
  return Run(spec).run();
}

}  // namespace hearth

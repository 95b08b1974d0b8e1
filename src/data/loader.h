// The batch loader: persistent workers fill a bounded queue of batches from memory-mapped token
// files, delivered in order. A cursor names the next batch exactly, whatever the worker count; it
// is global over the ranks, so that a run resumes at the same place with another world size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace hearth {

// Files that are read as one, and how much of the tokens is to come from them.
struct LoaderSource {
  std::string name;  // the pattern it was given by
  double weight = 1;
  std::vector<std::filesystem::path> files;
};

// What `--data` says: patterns, or patterns with weights, "a*.bin:0.7,b*.bin:0.3", in one argument
// or several. Without weights it is one source. A weight for some and not for all is an error.
std::vector<LoaderSource> parse_sources(std::span<const std::string> patterns);

// What tells these files from others without reading all of them: weights, sizes, and the ends of
// each file. Names do not count: data may be moved.
std::string fingerprint_of(std::span<const LoaderSource>);

struct LoaderSpec {
  // sequential: llm.c and NoCap: a step takes world*B*T tokens (and one more to look ahead) of a
  // shard, rank r the r-th part; the next shard begins when a step does not fit.
  // shuffled: windows of T tokens (and one) over all files, each once an epoch, in the order of a
  // permutation keyed by (seed, epoch); a batch may run over the end of an epoch.
  enum class Order { sequential, shuffled };

  std::vector<std::filesystem::path> files;  // of the only source
  // Or several, mixed by rows: the next row comes from the source that is furthest behind its
  // share, so that after every row each is within a few rows of it. Each source goes through its
  // own files in the order asked for, a row (T tokens and one) at a time, as often as it takes.
  std::vector<LoaderSource> mix = {};
  int64_t batch = 1, seq = 1;  // B, T
  Order order = Order::sequential;
  uint64_t seed = 1;  // shuffled only
  int workers = 2;
  int prefetch = 4;  // batches made ahead, at most
  int rank = 0, world = 1;
  int64_t vocab = 0;            // > 0: every token is checked against it before the first batch
  bool document_mask = false;   // fill documents, restart positions at each document
  int32_t document_start = -1;  // the id that opens a document (llmc: end of text; raw: bos)
};

// Where the next row of one source begins.
struct SourceCursor {
  int64_t epoch = 0;
  int64_t shard = 0;     // sequential: index into files
  int64_t position = 0;  // sequential: token within the shard; shuffled: window within the epoch
  int64_t tokens = 0;    // delivered of it, over all ranks
  bool operator==(const SourceCursor&) const = default;
};

// Where the next step begins. Plain integers: the caller stores them as it likes.
struct Cursor {
  int64_t epoch = 0, shard = 0, position = 0;  // as above; all 0 in a mix
  int64_t tokens = 0;                          // delivered since the beginning, over all ranks
  std::vector<SourceCursor> sources = {};      // of a mix, in its order; empty: its beginning
  bool operator==(const Cursor&) const = default;

  Cursor next_epoch() const;  // each source at the beginning of its next epoch
};

struct Batch {
  std::vector<int32_t> tokens;     // (B, T)
  std::vector<int32_t> targets;    // (B, T) the tokens one further on; -100 masks
  std::vector<int32_t> positions;  // (B, T) 0..T-1, or restarting at each document
  std::vector<int32_t> documents;  // (B, T) 0, 1, .. within the row; empty without document_mask
  int64_t count = 0;               // unmasked targets: here all, for a document's last token
                                   // learns to predict the end (the next document's first id)
  Cursor next;                     // the cursor after this batch
};

class Loader {
 public:
  // Maps and checks every file and starts the workers; throws on a bad file or shape.
  explicit Loader(LoaderSpec, Cursor start = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  Batch next();
  void next(Batch& out);  // the same; recycles the buffers of `out`

  Cursor cursor() const;         // of the batch the next call of next() returns
  int64_t total_tokens() const;  // in all files
  int64_t stalls() const;        // how often next() had to wait for a worker

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct LoaderRate {
  double tokens_per_s = 0;
  int64_t batches = 0, stalls = 0;
};
// Takes batches for so many seconds (after one warm-up pass of the queue).
LoaderRate bench_loader(const LoaderSpec&, double seconds);

}  // namespace hearth

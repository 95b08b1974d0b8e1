// The batch loader: persistent workers fill a bounded queue with batches from memory-mapped token
// files, delivered in order. A cursor identifies the next batch independently of the worker count.
// It is global over the ranks, so a run can resume with another world size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace hearth::inline data {

// Files that are read as one stream, and their share of the tokens.
struct LoaderSource {
  std::string name;  // the pattern as given
  double weight = 1;
  std::vector<std::filesystem::path> files;
};

// Parses `--data`: patterns, optionally weighted ("a*.bin:0.7,b*.bin:0.3"), in one argument or
// several. Without weights the files are one source. Either all patterns have a weight or none.
std::vector<LoaderSource> parse_sources(std::span<const std::string> patterns);

// Identifies the files without reading all of them: weights, sizes and both ends of each file.
// Names are not included, because data may be moved.
std::string fingerprint_of(std::span<const LoaderSource>);

struct LoaderSpec {
  // sequential, like llm.c and NoCap: a step takes world*B*T tokens (plus one) of a shard, rank r
  // the r-th part; the next shard starts when a step does not fit. shuffled: windows of T tokens
  // (plus one) over all files, each once per epoch, in the order of a permutation keyed by (seed,
  // epoch); a batch may cross the end of an epoch.
  enum class Order { sequential, shuffled };

  std::vector<std::filesystem::path> files;  // if there is one source
  // Or several sources, mixed by rows: the next row comes from the source that is furthest below
  // its share, so that after every row each is within a few rows of its share. Each source reads
  // its own files in the requested order, a row (T tokens plus one) at a time, as often as needed.
  std::vector<LoaderSource> mix = {};
  int64_t batch = 1, seq = 1;  // B, T
  Order order = Order::sequential;
  uint64_t seed = 1;  // shuffled only
  int workers = 2;
  int prefetch = 4;  // maximum batches prepared ahead
  int rank = 0, world = 1;
  int64_t vocab = 0;            // > 0: all tokens are checked before the first batch
  bool document_mask = false;   // fill documents, restart positions at each document
  int32_t document_start = -1;  // the id that starts a document (llmc: eos; raw: bos)
};

// The start of the next row of one source.
struct SourceCursor {
  int64_t epoch = 0;
  int64_t shard = 0;     // sequential: index into files
  int64_t position = 0;  // sequential: token within the shard; shuffled: window within the epoch
  int64_t tokens = 0;    // tokens delivered, over all ranks
  bool operator==(const SourceCursor&) const = default;
};

// The start of the next step. Plain integers, which the caller stores.
struct Cursor {
  int64_t epoch = 0, shard = 0, position = 0;  // as above; 0 for a mix
  int64_t tokens = 0;                          // tokens delivered since the start, over all ranks
  std::vector<SourceCursor> sources = {};      // for a mix, in order; empty: the start
  bool operator==(const Cursor&) const = default;

  Cursor next_epoch() const;  // each source at the start of its next epoch
};

struct Batch {
  std::vector<int32_t> tokens;     // (B, T)
  std::vector<int32_t> targets;    // (B, T) the next tokens; -100: masked
  std::vector<int32_t> positions;  // (B, T) 0..T-1, or restarting at each document
  std::vector<int32_t> documents;  // (B, T) 0, 1, .. within the row; empty without document_mask
  int64_t count = 0;  // unmasked targets; the loader masks none, not even at document ends
  Cursor next;        // the cursor after this batch
};

class Loader {
 public:
  // Maps and checks all files and starts the workers; throws for a bad file or shape.
  explicit Loader(LoaderSpec, Cursor start = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  Batch next();
  void next(Batch& out);  // the same; reuses the buffers of `out`

  int64_t stalls() const;  // number of times next() waited for a worker

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct LoaderRate {
  double tokens_per_s = 0;
  int64_t batches = 0, stalls = 0;
};
// Takes batches for this many seconds, after one warm-up pass of the queue.
LoaderRate bench_loader(const LoaderSpec&, double seconds);

}  // namespace hearth::inline data

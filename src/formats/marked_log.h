// A log of lines whose length and SHA-256 go into every checkpoint, so that a resumed run can tell
// whether the file is still what the run wrote.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "sys/files/files.h"
#include "sys/hash/hash.h"

namespace hearth::inline formats {

struct LogMark {
  int64_t bytes = 0;
  std::string sha256 = {};  // of those bytes; empty in checkpoints older than this field
};

class MarkedLog {
 public:
  // Continues the file at the mark and cuts off later lines. If the file is shorter than the mark
  // or its bytes have changed, what is there is kept, and trouble() says so.
  MarkedLog(const std::filesystem::path&, const LogMark&);

  void append(std::string_view line);  // `line` has no newline
  void sync() { log_.sync(); }
  LogMark mark() const;
  const std::string& trouble() const { return trouble_; }  // one sentence; empty: none

 private:
  MarkedLog(const std::filesystem::path&, const LogMark&, uint64_t found);  // size on disk

  AppendLog log_;
  Sha256 hash_;  // updated with every line, so that a mark does not read the file again
  std::string trouble_;
};

}  // namespace hearth::inline formats

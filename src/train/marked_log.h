// A log of lines whose length and SHA-256 go into every checkpoint, so that a resumed run can tell
// whether the file still is what the run wrote.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "sys/files/files.h"
#include "sys/hash/hash.h"

namespace hearth::inline train {

struct LogMark {
  int64_t bytes = 0;
  std::string sha256 = {};  // of those bytes; empty in checkpoints older than this field
};

class MarkedLog {
 public:
  // Continues the file at the mark: later lines go. Where the file is shorter or has other bytes,
  // what is there stays, and trouble() says so.
  MarkedLog(const std::filesystem::path&, const LogMark&);

  void append(std::string_view line);  // without its newline
  void sync() { log_.sync(); }
  LogMark mark() const;
  const std::string& trouble() const { return trouble_; }  // a sentence; empty: none

 private:
  MarkedLog(const std::filesystem::path&, const LogMark&, uint64_t found);  // bytes before

  AppendLog log_;
  Sha256 hash_;  // of all lines, as they are appended: a checkpoint costs no reading
  std::string trouble_;
};

}  // namespace hearth::inline train

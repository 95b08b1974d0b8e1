// `data get`: downloads one file of the catalogue to a folder and checks it. Partial data is kept
// in NAME.part and the server's ETag in NAME.part.etag, so that a later run continues. A file whose
// sha256 the catalogue lacks is trusted the first time; its sha256 is stored in NAME.sha256.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "data/catalogue.h"
#include "sys/https/https.h"

namespace hearth::inline data {

struct DownloadSpec {
  std::filesystem::path folder;
  int retries = 6;                        // consecutive retries without new data
  double backoff = 1;                     // seconds before the first retry; doubles, up to a minute
  int64_t max_bytes = int64_t(16) << 30;  // for a file of unknown length
  bool progress = false;
};

struct Downloaded {
  int64_t bytes = 0, resumed_from = 0;
  std::string sha256;
  bool was_there = false;  // already present, nothing was downloaded
  // What the file was checked against.
  enum class Checked { catalogue, earlier, first_use } checked = Checked::catalogue;
};
const char* name(Downloaded::Checked);

Downloaded download(Https&, const CatalogueFile&, const DownloadSpec&);

}  // namespace hearth::inline data

// `data get`: one file of the catalogue into a folder, whole and checked, or not at all. What has
// come so far lies in NAME.part, with the server's tag for it in NAME.part.etag, so that a later
// run goes on; a file whose sha256 the catalogue does not know is trusted the first time, and
// remembered in NAME.sha256.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "data/catalogue.h"
#include "sys/https/https.h"

namespace hearth {

struct DownloadSpec {
  std::filesystem::path folder;
  int retries = 6;     // in a row without a new byte
  double backoff = 1;  // seconds before the first of them; doubles, up to a minute
  int64_t max_bytes = int64_t(16) << 30;  // of a file whose length nobody tells
  bool progress = false;
};

struct Downloaded {
  int64_t bytes = 0, resumed_from = 0;
  std::string sha256;
  bool was_there = false;  // nothing was downloaded
  // By what the file was recognised.
  enum class Checked { catalogue, earlier, first_use } checked = Checked::catalogue;
};
const char* name(Downloaded::Checked);

Downloaded download(Https&, const CatalogueFile&, const DownloadSpec&);

}  // namespace hearth

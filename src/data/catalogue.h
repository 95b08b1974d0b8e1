// Known data sets and models, with where their files lie and how to recognise them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace hearth {

struct CatalogueFile {
  std::string name, url;
  std::string sha256;  // empty: not known; the first download is trusted and remembered
  int64_t bytes = -1;  // -1: not known
};

struct CatalogueSet {
  std::string name, about, licence;
  std::vector<CatalogueFile> files;
};

std::vector<CatalogueSet> built_in_catalogue();

// A user's own: [{"name", "about", "licence", "files": [{"name", "url", "sha256", "bytes"}]}],
// where about, licence, sha256 and bytes may be missing.
std::vector<CatalogueSet> read_catalogue(const std::filesystem::path&);

// The set of that name; an error names the nearest.
const CatalogueSet& find_set(const std::vector<CatalogueSet>&, const std::string& name);

}  // namespace hearth

// The catalogue of known data sets and models: URLs and checksums of their files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace hearth::inline data {

struct CatalogueFile {
  std::string name, url;
  std::string sha256;  // empty: unknown; the first download is trusted and remembered
  int64_t bytes = -1;  // -1: unknown
};

struct CatalogueSet {
  std::string name, about, licence;
  std::vector<CatalogueFile> files;
};

std::vector<CatalogueSet> built_in_catalogue();

// A user's catalogue: [{"name", "about", "licence", "files": [{"name", "url", "sha256",
// "bytes"}]}]; about, licence, sha256 and bytes are optional.
std::vector<CatalogueSet> read_catalogue(const std::filesystem::path&);

// The set with this name; an unknown name is an error that names the nearest.
const CatalogueSet& find_set(const std::vector<CatalogueSet>&, const std::string& name);

}  // namespace hearth::inline data

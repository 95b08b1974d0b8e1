// Safetensors, the Hugging Face weight format: 8 bytes of header length, a JSON header, then the
// tensors back to back. Files are read through a map; writing streams and hashes.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/files.h"
#include "io/hash.h"
#include "io/stored_tensor.h"

namespace hearth {

struct SafetensorsTable {
  StoredTensors tensors;
  std::map<std::string, std::string, std::less<>> foreign;  // name -> type with no DType (I64, ...)
  std::map<std::string, std::string> metadata;
};

// Checks everything but the values. The table's bytes point into `file`.
SafetensorsTable parse_safetensors(Bytes file, std::string_view where);

// The tensors of a file, of a `*.index.json` with its shards, or of a folder with either.
class Safetensors {
 public:
  explicit Safetensors(const std::filesystem::path&);

  const StoredTensor& at(std::string_view name) const;    // an error naming the file when absent
  const StoredTensor* find(std::string_view name) const;  // null when absent
  const StoredTensors& tensors() const { return table_.tensors; }
  const std::map<std::string, std::string, std::less<>>& foreign() const { return table_.foreign; }
  const std::map<std::string, std::string>& metadata() const { return table_.metadata; }

 private:
  void read_file(const std::filesystem::path&);
  void read_index(const std::filesystem::path&);

  std::filesystem::path path_;
  std::vector<MappedFile> files_;
  SafetensorsTable table_;
};

using ByteSink = std::function<void(Bytes)>;

struct TensorToWrite {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::function<void(const ByteSink&)> produce;  // gives all its bytes, in order, in any pieces
};
TensorToWrite tensor_to_write(std::string name, const StoredTensor&);

// Writes dir/file with metadata {"format": "pt"}. Wider elements come first, so that every tensor
// is aligned; the given order is kept within one width.
FileDigest write_safetensors(const std::filesystem::path& dir, const std::string& file,
                             const std::vector<TensorToWrite>&);

// Writes dir/model.safetensors, or above `shard_bytes` of tensor data
// dir/model-0000i-of-0000n.safetensors and model.safetensors.index.json. The digests are of every
// file written.
std::vector<FileDigest> write_safetensors_model(const std::filesystem::path& dir,
                                                const std::vector<TensorToWrite>&,
                                                int64_t shard_bytes = 5'000'000'000);

}  // namespace hearth

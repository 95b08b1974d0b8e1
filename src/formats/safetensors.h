// Safetensors, the Hugging Face weight format: 8 bytes of header length, a JSON header, then the
// tensors back to back. Files are read through a map; writing streams and hashes, several shards at
// a time.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/stored_tensor.h"
#include "sys/files/files.h"
#include "sys/hash/hash.h"

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
  // Those of dir/<stem>.safetensors or of the shards that dir/<stem>.safetensors.index.json lists.
  Safetensors(const std::filesystem::path& dir, std::string_view stem);

  const StoredTensor& at(std::string_view name) const;    // an error naming the file when absent
  const StoredTensor* find(std::string_view name) const;  // null when absent
  const StoredTensors& tensors() const { return table_.tensors; }
  const std::map<std::string, std::string, std::less<>>& foreign() const { return table_.foreign; }
  const std::map<std::string, std::string>& metadata() const { return table_.metadata; }

 private:
  void read_stem(const std::filesystem::path& dir, std::string_view stem);
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
  // Gives all its bytes, in order, in any pieces. Tensors of several shards are asked for theirs by
  // several threads at once.
  std::function<void(const ByteSink&)> produce;
};
TensorToWrite tensor_to_write(std::string name, const StoredTensor&);

// Writes dir/file with metadata {"format": "pt"}. Wider elements come first, so that every tensor
// is aligned; the given order is kept within one width.
FileDigest write_safetensors(const std::filesystem::path& dir, const std::string& file,
                             const std::vector<TensorToWrite>&);

// Writes dir/<stem>.safetensors, or above `shard_bytes` of tensor data the shards
// dir/<stem>-0000i-of-0000n.safetensors, several at a time, and <stem>.safetensors.index.json. The
// digests are of every file written.
std::vector<FileDigest> write_safetensors_shards(const std::filesystem::path& dir,
                                                 const std::string& stem,
                                                 const std::vector<TensorToWrite>&,
                                                 int64_t shard_bytes);

// The same under the name "model", which readers of Hugging Face folders look for.
std::vector<FileDigest> write_safetensors_model(const std::filesystem::path& dir,
                                                const std::vector<TensorToWrite>&,
                                                int64_t shard_bytes = 5'000'000'000);

}  // namespace hearth

// Safetensors, the Hugging Face weight format: 8 bytes of header length, a JSON header, then the
// tensors one after another. Files are read through a memory map. Writing streams and hashes, with
// several shards in parallel.
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

namespace hearth::inline formats {

struct SafetensorsTable {
  StoredTensors tensors;
  std::map<std::string, std::string, std::less<>>
      foreign;  // tensors whose type has no DType (I64, ...)
  std::map<std::string, std::string> metadata;
};

// Checks everything except the values. The table's bytes point into `file`.
SafetensorsTable parse_safetensors(Bytes file, std::string_view where);

// The tensors of a file, of a `*.index.json` with its shards, or of a folder with either.
class Safetensors {
 public:
  explicit Safetensors(const std::filesystem::path&);
  // Reads dir/<stem>.safetensors, or the shards listed in dir/<stem>.safetensors.index.json.
  Safetensors(const std::filesystem::path& dir, std::string_view stem);

  const StoredTensor& at(std::string_view name) const;    // throws if absent
  const StoredTensor* find(std::string_view name) const;  // null if absent
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
  // Writes all bytes to the sink, in order, in pieces of any size. Tensors of different shards are
  // produced by different threads at the same time.
  std::function<void(const ByteSink&)> produce;
};
TensorToWrite tensor_to_write(std::string name, const StoredTensor&);

// Writes dir/file with metadata {"format": "pt"}. Tensors with wider elements come first, so that
// all are aligned; tensors of equal width keep their order.
FileDigest write_safetensors(const std::filesystem::path& dir, const std::string& file,
                             const std::vector<TensorToWrite>&);

// Writes dir/<stem>.safetensors or, if the tensors exceed `shard_bytes`, the shards
// dir/<stem>-0000i-of-0000n.safetensors in parallel and <stem>.safetensors.index.json. Returns the
// digests of all written files.
std::vector<FileDigest> write_safetensors_shards(const std::filesystem::path& dir,
                                                 const std::string& stem,
                                                 const std::vector<TensorToWrite>&,
                                                 int64_t shard_bytes);

// The same with the stem "model", which readers of Hugging Face folders expect.
std::vector<FileDigest> write_safetensors_model(const std::filesystem::path& dir,
                                                const std::vector<TensorToWrite>&,
                                                int64_t shard_bytes = 5'000'000'000);

}  // namespace hearth::inline formats

#include "data/stat.h"

#include <algorithm>

#include "io/json.h"

namespace hearth {
namespace {

using json = nlohmann::json;

json read_if_there(const std::filesystem::path& path) {
  return std::filesystem::exists(path) ? read_json(path) : json();
}

int32_t id_in(const json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_number_integer()) return -1;
  return object[key].get<int32_t>();
}

}  // namespace

int32_t document_start_of(const TokenFile& file) {
  const auto folder = file.path().parent_path();
  if (file.format() == TokenFormat::raw)
    return id_in(read_if_there(folder / "metadata.json"), "bos_token_id");
  const json state = read_if_there(folder / "prepare.json");
  const int32_t eos = state.is_object() && state.contains("run") ? id_in(state["run"], "eos") : -1;
  if (eos >= 0) return eos;
  return file.width() == 2 ? 50256 : 128000;
}

TokenStat stat_tokens(const TokenFile& file, int32_t document_start) {
  TokenStat stat{.counts = {}, .document_start = document_start};
  stat.max_token = file.max_token();
  std::vector<int32_t> block(1 << 16);
  int64_t begin = -1;  // of the open document
  for (int64_t at = 0; at < file.size(); at += int64_t(block.size())) {
    const int64_t n = std::min<int64_t>(int64_t(block.size()), file.size() - at);
    file.read(block.data(), at, n);
    for (int64_t i = 0; i < n; ++i) {
      if (block[size_t(i)] != document_start || document_start < 0) continue;
      if (begin >= 0)
        stat.counts.add_document(at + i - begin);
      else
        stat.continued = at + i;
      begin = at + i;
    }
  }
  if (begin >= 0)
    stat.counts.add_document(file.size() - begin);
  else
    stat.continued = file.size();
  stat.counts.tokens = file.size();
  return stat;
}

}  // namespace hearth

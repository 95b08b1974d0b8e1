#include "data/token_stats.h"

#include "formats/json.h"

namespace hearth::inline data {
namespace {

using json = nlohmann::json;

json read_if_there(const std::filesystem::path& path) {
  return std::filesystem::exists(path) ? read_json(path) : json();
}

int32_t id_in(const json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_number_integer()) return -1;
  return object[key].get<int32_t>();
}

// Calls f(index) for every token of the file equal to `id`, in order.
template <class F>
void for_each(const TokenFile& file, int32_t id, F f) {
  if (id < 0) return;
  for (int64_t i = file.find(id, 0, file.size()); i < file.size();
       i = file.find(id, i + 1, file.size()))
    f(i);
}

}  // namespace

DocumentMarks document_marks_of(const TokenFile& file) {
  const auto folder = file.path().parent_path();
  if (file.format() == TokenFormat::raw) {
    const json meta = read_if_there(folder / "metadata.json");
    return {id_in(meta, "bos_token_id"), id_in(meta, "eos_token_id")};
  }
  const json state = read_if_there(folder / "prepare.json");
  const int32_t eos = state.is_object() && state.contains("run") ? id_in(state["run"], "eos") : -1;
  if (eos >= 0) return {eos};
  return {file.width() == 2 ? 50256 : 128000};
}

TokenStat stat_tokens(const TokenFile& file, DocumentMarks marks) {
  TokenStat stat{.counts = {}, .marks = marks};
  stat.max_token = file.max_token();
  const int64_t size = file.size();
  if (marks.open < 0 && marks.close >= 0) {
    int64_t begin = 0;
    for_each(file, marks.close, [&](int64_t i) {
      stat.counts.add_document(i + 1 - begin);
      begin = i + 1;
    });
    if (begin < size) stat.counts.add_document(size - begin);
  } else {
    const bool also_closes = marks.open == marks.close;
    int64_t begin = -1;  // start of the open document
    for_each(file, marks.open, [&](int64_t i) {
      if (also_closes && (i + 1 == size || file[i + 1] == marks.open)) return;
      if (begin >= 0)
        stat.counts.add_document(i - begin);
      else
        stat.continued = i;
      begin = i;
    });
    if (begin >= 0)
      stat.counts.add_document(size - begin);
    else
      stat.continued = size;
  }
  stat.counts.tokens = size;
  return stat;
}

}  // namespace hearth::inline data

#include "formats/marked_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace hearth::inline formats {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

uint64_t size_on_disk(const fs::path& path) {
  std::error_code none;
  const uintmax_t size = fs::file_size(path, none);
  return none ? 0 : uint64_t(size);
}

// " after step 12", by the step in the last line; empty if that line has none.
std::string after_last_step(std::string_view lines) {
  if (lines.empty()) return "";
  const size_t end = lines.rfind('\n', lines.size() - 2);
  const json j = json::parse(lines.substr(end == lines.npos ? 0 : end + 1), nullptr, false);
  if (!j.is_object() || !j.contains("step") || !j["step"].is_number_integer()) return "";
  return fmt::format(" after step {}", j["step"].dump());
}

}  // namespace

MarkedLog::MarkedLog(const fs::path& path, const LogMark& mark)
    : MarkedLog(path, mark, size_on_disk(path)) {}

MarkedLog::MarkedLog(const fs::path& path, const LogMark& mark, uint64_t found)
    : log_(path, uint64_t(std::max<int64_t>(0, mark.bytes))) {
  const uint64_t marked = uint64_t(std::max<int64_t>(0, mark.bytes));
  const MappedFile file(path);
  hash_.update(file.bytes());
  const std::string name = path.filename().string();
  if (found < marked)
    trouble_ = fmt::format(
        "{} is shorter than the checkpoint recorded ({} of {} bytes): its lines{} are lost; the "
        "run goes on",
        name, found, marked, after_last_step(to_text(file.bytes())));
  else if (log_.size() != marked || (!mark.sha256.empty() && this->mark().sha256 != mark.sha256))
    trouble_ = fmt::format(
        "{} is not what the checkpoint recorded: its first {} bytes have changed; they are kept "
        "and the run goes on",
        name, marked);
}

void MarkedLog::append(std::string_view line) {
  log_.append(line);
  hash_.update(to_bytes(line));
  hash_.update(to_bytes("\n"));
}

LogMark MarkedLog::mark() const { return {int64_t(log_.size()), Sha256(hash_).hex()}; }

}  // namespace hearth::inline formats

#include "formats/step_lines.h"

#include <charconv>

namespace hearth::inline formats {
namespace {

// The length of the text without the lines of later steps at its end. A line of another form ends
// the search.
uint64_t length_up_to(std::string_view text, int64_t step) {
  constexpr std::string_view begin = R"({"step":)";
  while (!text.empty()) {
    const size_t newline = text.substr(0, text.size() - 1).rfind('\n');
    const size_t start = newline == text.npos ? 0 : newline + 1;
    const std::string_view line = text.substr(start);
    int64_t found = -1;
    if (line.starts_with(begin))
      std::from_chars(line.data() + begin.size(), line.data() + line.size(), found);
    if (found <= step) break;
    text = text.substr(0, start);
  }
  return text.size();
}

}  // namespace

StepLines::StepLines(std::filesystem::path path, int64_t step) : path_(std::move(path)) {
  std::error_code none;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path_, none))) return;
  log_.emplace(path_);  // also refuses a link, and drops an incomplete line
  uint64_t keep = 0;
  {
    const MappedFile file(path_);
    keep = length_up_to(to_text(file.bytes()), step);
  }
  log_.emplace(path_, keep);
}

void StepLines::append(std::string_view line) {
  if (!log_) log_.emplace(path_);
  log_->append(line);
}

}  // namespace hearth::inline formats

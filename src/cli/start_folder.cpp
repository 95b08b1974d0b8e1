#include "cli/start_folder.h"

#include <glob.h>

#include <algorithm>

#include "formats/run_folder.h"
#include "formats/toml.h"
#include "sys/terminal.h"

namespace hearth::inline cli {
namespace {

namespace fs = std::filesystem;

bool matches(const fs::path& pattern) {
  glob_t found = {};
  const bool any = glob(pattern.c_str(), GLOB_NOSORT | GLOB_BRACE, nullptr, &found) == 0;
  globfree(&found);
  return any;
}

// A value may be a list of patterns with weights: a*.bin:0.7,b*.bin:0.3.
bool exists_from(const fs::path& folder, const std::string& value) {
  const size_t end = std::min(value.find(','), value.size());
  const std::string first = value.substr(0, end);
  return matches(folder / value) || matches(folder / first) ||
         matches(folder / first.substr(0, first.rfind(':')));
}

bool is_relative_text(const std::string& value) {
  return !value.empty() && value.size() < 4096 && fs::path(value).is_relative();
}

// Whether an argument other than --run names something in the current folder.
bool names_something_here(const std::vector<std::string>& args, const fs::path& run) {
  const auto flags = std::find_if(args.begin(), args.end(),
                                  [](const std::string& a) { return a.starts_with("--"); });
  return std::any_of(flags, args.end(), [&](const std::string& a) {
    const std::string value =
        a.starts_with("--") && a.find('=') != a.npos ? a.substr(a.find('=') + 1) : a;
    return value != run && is_relative_text(value) && exists_from(fs::current_path(), value);
  });
}

}  // namespace

bool go_to_start_folder(const fs::path& run, std::vector<std::string>& args) {
  const fs::path start = started_in(run), here = fs::current_path();
  std::error_code none;
  if (start.empty() || start == here || !fs::is_directory(start, none)) return false;
  if (names_something_here(args, run)) return false;
  for (const TomlItem& item : read_toml(run / "config.toml"))
    for (const std::string& value : item.values) {
      if (!is_relative_text(value) || exists_from(here, value) || !exists_from(start, value))
        continue;
      const std::string absolute = fs::absolute(run).lexically_normal().string();
      for (size_t i = 0; i < args.size(); ++i) {
        if (args[i] == "--run" && i + 1 < args.size()) args[i + 1] = absolute;
        if (args[i].starts_with("--run=")) args[i] = "--run=" + absolute;
      }
      fs::current_path(start);
      say("hearth: {} = {} is relative to {}, where the run was started; continuing from that "
          "folder\n",
          item.key, value, start.string());
      return true;
    }
  return false;
}

}  // namespace hearth::inline cli

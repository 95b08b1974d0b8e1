// A build without PCRE2.
#include "rewards/regex.h"
#include "sys/error.h"

namespace hearth::inline rewards {

struct Regex::Compiled {};

Regex::Regex(std::string_view) {
  fail_usage("reward",
             "this build cannot use regex: rewards, because PCRE2 was missing: install "
             "libpcre2-dev and build again");
}

Regex::~Regex() = default;
std::optional<bool> Regex::found_in(std::string_view) const { return std::nullopt; }
const char* regex_library() { return ""; }

}  // namespace hearth::inline rewards

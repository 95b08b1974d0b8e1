// Without PCRE2 only the patterns that have scanners of their own can be used.
#include "formats/json.h"
#include "sys/error.h"
#include "text/tokenizer/split_regex.h"

namespace hearth::inline text {

struct SplitRegex::Compiled {};

SplitRegex::SplitRegex(std::string_view pattern, const std::string& where) {
  fail(where, "the regular expression {} needs PCRE2, which this build lacks", in_quotes(pattern));
}

SplitRegex::~SplitRegex() = default;

void SplitRegex::find(std::string_view, std::vector<Cut>&) const {}

}  // namespace hearth::inline text

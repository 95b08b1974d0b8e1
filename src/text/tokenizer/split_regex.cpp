// Patterns of tokenizer files with PCRE2. Its JIT compiler is used where it can be: it finds the
// same matches as the interpreter, which takes over where the JIT's stack ends.
#include "text/tokenizer/split_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>

#include "formats/json.h"
#include "sys/error.h"
#include "text/tokenizer/unicode.h"

namespace hearth::inline text {
namespace {

// ^ and $ are at the ends of lines, as in Oniguruma.
constexpr uint32_t split_syntax = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
constexpr size_t longest_pattern = size_t(1) << 16;
constexpr uint32_t most_steps = 10'000'000;        // of one match
constexpr uint32_t most_backtracking = 256 << 10;  // KiB

PCRE2_SPTR as_units(std::string_view s) { return reinterpret_cast<PCRE2_SPTR>(s.data()); }

std::string pcre2_message(int code) {
  char text[256] = "";
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return text;
}

template <auto release>
struct Releaser {
  template <class T>
  void operator()(T* p) const {
    release(p);
  }
};
template <auto release, class T>
std::unique_ptr<T, Releaser<release>> holding(T* created) {
  if (!created) throw std::bad_alloc();
  return std::unique_ptr<T, Releaser<release>>(created);
}

}  // namespace

struct SplitRegex::Compiled {
  std::string pattern, where;
  pcre2_code* code = nullptr;
  ~Compiled() { pcre2_code_free(code); }
};

SplitRegex::SplitRegex(std::string_view pattern, const std::string& where) {
  const std::string translated = pcre2_syntax(pattern, where);
  const auto rules = holding<pcre2_compile_context_free>(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(rules.get(), PCRE2_NEWLINE_LF);
  pcre2_set_max_pattern_length(rules.get(), longest_pattern);
  auto compiled = std::make_unique<Compiled>();
  compiled->pattern = pattern, compiled->where = where;
  int error = 0;
  PCRE2_SIZE at = 0;
  compiled->code = pcre2_compile(as_units(translated), translated.size(), split_syntax, &error, &at,
                                 rules.get());
  if (!compiled->code)
    fail(where, "expected a regular expression, got {}: {}", in_quotes(pattern),
         pcre2_message(error));
  pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);  // without it the interpreter runs
  compiled_ = std::move(compiled);
}

SplitRegex::~SplitRegex() = default;

void SplitRegex::find(std::string_view text, std::vector<Cut>& out) const {
  const auto found = holding<pcre2_match_data_free>(pcre2_match_data_create(1, nullptr));
  const auto limits = holding<pcre2_match_context_free>(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(limits.get(), most_steps);
  pcre2_set_heap_limit(limits.get(), most_backtracking);
  const char* end = text.data() + text.size();
  const auto match = [&](size_t from, uint32_t options) {
    return pcre2_match(compiled_->code, as_units(text), text.size(), from, options, found.get(),
                       limits.get());
  };
  size_t done = 0, last = std::string_view::npos;  // end of the parts, of the last match
  for (size_t from = 0; from <= text.size();) {
    int code = match(from, PCRE2_NO_UTF_CHECK);
    if (code == PCRE2_ERROR_JIT_STACKLIMIT) code = match(from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
    if (code == PCRE2_ERROR_NOMATCH) break;
    if (code == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
    if (code < 0)
      fail(compiled_->where, "the regular expression {} takes too long for a text of {} bytes: {}",
           in_quotes(compiled_->pattern), text.size(), pcre2_message(code));
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(found.get());
    const size_t begin = ends[0], stop = ends[1];
    if (begin == stop && last == stop) {  // an empty match directly after a match does not count
      from += from < text.size() ? size_t(read_utf8(text.data() + from, end).length) : 1;
      continue;
    }
    if (begin > done) out.push_back({done, begin, false});
    out.push_back({begin, stop, true});
    done = from = last = stop;
  }
  if (done < text.size()) out.push_back({done, text.size(), false});
}

}  // namespace hearth::inline text

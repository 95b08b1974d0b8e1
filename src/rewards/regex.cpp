// Regular expressions with PCRE2's interpreter. The JIT compiler is not used, because it counts its
// work differently, so that the limit would depend on the machine.
#include "rewards/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <new>
#include <utility>

#include "formats/json.h"
#include "sys/error.h"

namespace hearth::inline rewards {
namespace {

constexpr uint32_t syntax =
    PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT;
constexpr size_t max_pattern_bytes = size_t(1) << 16;
constexpr int64_t max_steps = 20'000'000;  // per search: about half a second
constexpr uint32_t max_kib = 64 * 1024;    // memory for backtracking

// Counts the steps of one search. PCRE2 restarts its own limit at every start position, which
// allows n^2 steps and more for a text of n bytes. So the interpreter reports every pattern item
// that it tries (PCRE2_AUTO_CALLOUT); a step is an item or 16 bytes of text.
struct Effort {
  int64_t left = max_steps;
  size_t at = 0;
};

int count_item(pcre2_callout_block* item, void* effort) {
  Effort& e = *static_cast<Effort*>(effort);
  const size_t from = std::exchange(e.at, item->current_position);
  e.left -= 1 + int64_t(std::max(from, e.at) - std::min(from, e.at)) / 16;
  return e.left < 0 ? PCRE2_ERROR_MATCHLIMIT : 0;
}

PCRE2_SPTR units(std::string_view s) { return reinterpret_cast<PCRE2_SPTR>(s.data()); }

std::string message_of(int code) {
  char text[256] = "";
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return text;
}

template <auto release>
struct Release {
  template <class T>
  void operator()(T* p) const {
    release(p);
  }
};
// Takes ownership of a PCRE2 object; null means out of memory.
template <auto release, class T>
std::unique_ptr<T, Release<release>> owned(T* created) {
  if (!created) throw std::bad_alloc();
  return std::unique_ptr<T, Release<release>>(created);
}

}  // namespace

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  ~Compiled() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern) {
  const auto rules = owned<pcre2_compile_context_free>(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(rules.get(), PCRE2_NEWLINE_LF);
  pcre2_set_max_pattern_length(rules.get(), max_pattern_bytes);
  int error = 0;
  PCRE2_SIZE at = 0;
  auto compiled = std::make_unique<Compiled>();
  compiled->code = pcre2_compile(units(pattern), pattern.size(), syntax, &error, &at, rules.get());
  if (!compiled->code)
    fail_usage("reward", "expected a regular expression after regex:, got {}: {} (byte {})",
               in_quotes(pattern), message_of(error), at);
  compiled_ = std::move(compiled);
}

Regex::~Regex() = default;

std::optional<bool> Regex::found_in(std::string_view text) const {
  const auto found = owned<pcre2_match_data_free>(pcre2_match_data_create(1, nullptr));
  const auto limits = owned<pcre2_match_context_free>(pcre2_match_context_create(nullptr));
  Effort effort;
  pcre2_set_callout(limits.get(), count_item, &effort);
  pcre2_set_match_limit(limits.get(), uint32_t(max_steps));
  pcre2_set_heap_limit(limits.get(), max_kib);
  const int code =
      pcre2_match(compiled_->code, units(text), text.size(), 0, 0, found.get(), limits.get());
  if (code >= 0) return true;
  if (code == PCRE2_ERROR_NOMATCH) return false;
  if (code == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
  return std::nullopt;
}

#define HEARTH_TEXT_OF(x) #x
#define HEARTH_VERSION_OF(major, minor) HEARTH_TEXT_OF(major) "." HEARTH_TEXT_OF(minor)
const char* regex_library() { return "PCRE2 " HEARTH_VERSION_OF(PCRE2_MAJOR, PCRE2_MINOR); }

}  // namespace hearth::inline rewards

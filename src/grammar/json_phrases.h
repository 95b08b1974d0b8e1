// JsonPhrases: the parts of JSON text as phrases of a grammar. White space and digits are bounded,
// so that a model cannot write them forever.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "grammar/byte_grammar.h"

namespace hearth::inline grammar {

// The bounds of a number; a number that is excluded does not match itself.
struct NumberBounds {
  std::optional<int64_t> least = {}, most = {};
  bool least_excluded = false, most_excluded = false;
};

class JsonPhrases {
 public:
  explicit JsonPhrases(ByteGrammar&);

  // Between tokens: nothing, a space, or one or two line breaks with up to 20 spaces or tabs.
  Phrase space() { return g_.call(space_); }
  // A character of a string; a string of some characters; a code point as a string writes it
  // (one way only, so that two different strings never mean the same key).
  Phrase character() { return g_.call(character_); }
  Phrase string(int64_t least, int64_t most);
  Phrase quoted(Phrase characters) {
    return g_.sequence({g_.text("\""), characters, g_.text("\"")});
  }
  Phrase written(const CodeSet&);
  // A string that is none of these.
  Phrase string_except(std::vector<std::string> names);
  Phrase formatted(const std::string& format);

  Phrase value() { return g_.call(value_); }
  Phrase object() { return g_.call(object_); }
  Phrase array() { return g_.call(array_); }
  Phrase number(const NumberBounds&);
  Phrase integer(const NumberBounds&);
  // The same value in one way of writing.
  Phrase literal(const nlohmann::ordered_json&);

  // `, value` after the first; key, colon and value.
  Phrase comma() { return g_.sequence({g_.text(","), space()}); }
  Phrase member(Phrase key, Phrase value);

 private:
  using Codes = std::vector<std::u32string>;
  Phrase except(const Codes& names, size_t begin, size_t end, size_t skip);
  Phrase digits_between(std::string_view low, std::string_view high, bool free_low, bool free_high);
  Phrase whole(int64_t low, int64_t high);
  Phrase magnitude(int64_t low, int64_t high, bool low_excluded, bool high_excluded);
  void define_value();

  ByteGrammar& g_;
  std::map<std::pair<int64_t, int64_t>, RuleId> strings_;  // by their lengths
  RuleId space_, character_, escapes_, anything_, value_, object_, array_;
};

}  // namespace hearth::inline grammar

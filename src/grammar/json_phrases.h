// JsonPhrases: the parts of JSON text as phrases of a grammar. White space and digits are bounded,
// so that a model cannot write them forever.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <tuple>

#include "grammar/byte_grammar.h"

namespace hearth::inline grammar {

// mantissa x 10^exponent.
struct Decimal {
  int64_t mantissa = 0;
  int exponent = 0;
};
Decimal decimal_of(const nlohmann::ordered_json& number);  // of at most 1e18 in size

// A bound of a number; one that is excluded does not match itself.
struct NumberLimit {
  Decimal at;
  bool excluded = false;
};
struct NumberBounds {
  std::vector<NumberLimit> least = {}, most = {};  // all of them hold
  std::optional<Decimal> multiple = {};            // more than 0
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
  // The numbers from low to high, in digits, with a point before the last `decimals` of them, that
  // are multiples of the step.
  struct DigitRange {
    std::string low, high;  // equally long
    int decimals;
    int64_t step;
  };
  // Where a number is: its digits so far are above the first ones of low, below those of high; what
  // is left must be `rest` modulo the step.
  struct DigitPlace {
    size_t at = 0;
    bool above = false, below = false;
    int64_t rest = 0;
    bool operator==(const DigitPlace&) const = default;
  };
  static bool can_end(const DigitRange&, const DigitPlace&);
  Phrase any_digits(int left, int decimals);
  Phrase digits(const DigitRange&, const DigitPlace&);
  Phrase bounded(NumberBounds, bool whole);
  void define_value();

  ByteGrammar& g_;
  std::map<std::pair<int64_t, int64_t>, RuleId> strings_;  // by their lengths
  // Digits that the bounds leave free, by step, decimals, digits left and what they must be.
  std::map<std::tuple<int64_t, int, int, int64_t>, RuleId> digits_;
  RuleId space_, character_, escapes_, anything_, value_, object_, array_;
};

}  // namespace hearth::inline grammar

// LineNumbers: the numbers in one line of JSON, found in a single pass without building a document.
// Logs have millions of such lines.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace hearth::inline board {

class LineNumbers {
 public:
  struct Item {
    std::string_view key;  // "reward", or "seconds.load" and "load.3" for nested values
    double value;          // true is 1, false is 0, null is NaN
  };

  // Returns false if the line is not a JSON object, or if it is nested too deeply; then there are
  // no items. NaN and Infinity are accepted. Texts are skipped, and so are numbers whose keys are
  // long, escaped or not valid UTF-8. The items are valid until the next call, while the line
  // exists.
  bool read(std::string_view line);
  const std::vector<Item>& items() const { return items_; }

 private:
  bool object(std::string_view prefix, int depth);
  bool array(std::string_view prefix, int depth);
  bool value(std::string_view key, int depth);
  bool text(std::string_view& to);
  bool number(std::string_view key);
  bool word(std::string_view expected);
  void add(std::string_view key, double);
  std::string_view join(std::string_view prefix, std::string_view key);
  char next();  // skips white space; 0 at the end
  bool take(char);

  const char *at_ = nullptr, *end_ = nullptr;
  std::vector<Item> items_;
  std::deque<std::string> joined_;  // keys of nested values; their addresses stay
};

}  // namespace hearth::inline board

// The text of the tokens of an example that training learns, or of the others.
#pragma once

#include <string>
#include <vector>

#include "data/examples/examples.h"
#include "served_folder.h"

namespace hearth {

inline std::string text_where(const Example& e, bool learned) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < e.tokens.size(); ++i)
    if (e.learned[i] == learned) ids.push_back(e.tokens[i]);
  return served_tokenizer().decode(ids);
}

}  // namespace hearth

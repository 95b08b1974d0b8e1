// The tokens that end a model's answers, from all places that name some.
#pragma once

#include <vector>

#include "model/files/folder.h"
#include "text/chat/chat_template.h"

namespace hearth::inline model {

// Those named in the model's folder or GGUF file and in the folder of its adapter, and the token
// that closes a turn of `chat` if there is one. The tokenizer's eos need not be among them. A
// broken file names none.
std::vector<int32_t> answer_ends_of(const ModelSource&, const ChatTemplate* chat, const Tokenizer&);

}  // namespace hearth::inline model

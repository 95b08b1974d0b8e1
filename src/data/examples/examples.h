// Rows of fine-tuning data as tokens with a mask of the learned ones. A row is a JSON object of one
// of these forms, or a document of a text or Parquet file:
//   SFT   {"messages": [..]}                        every assistant turn is learned
//         {"conversations": [..]}                   the same
//         {"prompt", "completion"}                  strings, or lists of messages: the completion
//         {"instruction", "input"?, "output"}       a user's message and its answer: the output
//         {"text"}                                  everything
//   DPO   {"prompt"?, "chosen", "rejected"}         strings or lists of messages
//         {"instruction", "input"?, "chosen", "rejected"}
// A message is {"role", "content"}, or ShareGPT's {"from", "value"} with human and gpt as roles.
// An assistant's message with "weight": 0 is not learned. "tools" of a row are for the template.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/examples/example_counts.h"
#include "sys/hash/hash.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline data {

struct Example {
  std::vector<int32_t> tokens;
  std::vector<bool> learned;  // per token; the first is never predicted
  bool cut = false;           // truncated at max_length
  bool spelled = false;       // it spells a special token, which was read as characters
  bool rendered = false;      // by the chat template
  bool empty = false;         // its answers have no text: only their end is learned
};

// Hashes the tokens and the mask.
void add_to(Sha256&, const Example&);

struct Preference {
  Example chosen, rejected;  // the same prompt, then the learned answer
};

// A value of a row, with lists of messages as as_messages() gives them, and its key for errors.
struct RowPart {
  const char* key;
  nlohmann::ordered_json value;
};

// How the spelling of a special token is read in a row that no chat template renders: as
// characters, like all external text, or as the token. A final end-of-text token is always read as
// the token.
enum class TextTokens { none, special };

// Encodes rows to examples.
class ExampleEncoder {
 public:
  // `chat` renders conversations and instructions (data/examples/templates.h); `now` is the date
  // for templates, default: the current time.
  ExampleEncoder(Tokenizer, ChatTemplate chat, int64_t max_length,
                 std::optional<std::time_t> now = {}, TextTokens = TextTokens::none);

  // `where` names the row in errors. Appends EOS if it is missing, then truncates to max_length.
  Example example(const nlohmann::ordered_json& row, const std::string& where) const;
  // The same, but a text longer than max_length becomes several examples that teach all of it.
  std::vector<Example> examples(const nlohmann::ordered_json& row, const std::string& where) const;
  Preference preference(const nlohmann::ordered_json& row, const std::string& where) const;

 private:
  struct Prompted {
    MarkedText prompt, completion;
    bool rendered = false;  // by the chat template
    bool empty = false;     // the completion has no text
  };
  // Templates get the tools of the row.
  Prompted joined(const nlohmann::ordered_json& row, const RowPart& prompt, const RowPart& answer,
                  const std::string& where) const;
  Prompted rendered(const nlohmann::ordered_json& row, const RowPart& prompt, const RowPart& answer,
                    const std::string& where) const;
  Prompted instructed(const nlohmann::ordered_json& row, const char* answer,
                      const std::string& where) const;
  Example learned_after(const Prompted&) const;
  Example conversation(const nlohmann::ordered_json& row, const char* key,
                       const std::string& where) const;
  std::string_view without_end(std::string_view text) const;
  MarkedText outside(std::string_view text, bool last) const;
  // Appends the ids of a text to the example; returns what a text after it starts with.
  TextStart add(Example&, const MarkedText&, bool learned, bool rendered = false,
                TextStart = TextStart::whole) const;
  Example ended(Example, size_t last_answer) const;
  Example whole_text(const nlohmann::ordered_json& row, const std::string& where) const;
  std::vector<Example> pieces_of(Example) const;
  Example within_length(Example) const;

  Tokenizer tokenizer_;
  ChatTemplate chat_;
  size_t max_length_;
  std::optional<std::time_t> now_;
  char text_mark_;  // for rows that are not conversations
  bool opens_with_bos_;
  int32_t turn_end_;
};

// The examples that have something to learn, with counts of the rows read.
template <class T>
struct Examples : ExampleCounts {
  std::vector<T> kept;
};
Examples<Example> read_examples(const std::vector<std::string>& files, const ExampleEncoder&);
Examples<Preference> read_preferences(const std::vector<std::string>& files, const ExampleEncoder&);

int64_t learned_tokens(const Example&);  // excluding the first token

}  // namespace hearth::inline data

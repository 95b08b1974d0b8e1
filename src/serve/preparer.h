// Preparer: turns a request body into the engine's input, or into the complete answer if no engine
// is needed. This is the slow part of a request (JSON, chat template, tokenizer), so it runs on
// worker threads and is entirely const.
#pragma once

#include <stop_token>
#include <variant>

#include "serve/admission.h"
#include "serve/model.h"
#include "serve/parse.h"

namespace hearth::inline serve {

// A call with its prompts as tokens, each within the context. The call's prompts and messages are
// dropped.
struct PreparedCall {
  CompletionCall call;
  std::vector<Tokens> prompts = {};
  std::vector<std::string> echoes = {};  // one per prompt; empty: no echo
  std::chrono::steady_clock::time_point arrived = std::chrono::steady_clock::now();
};
using Prepared = std::variant<PreparedCall, HttpResponse>;

class Preparer {
 public:
  // The model must outlive the preparer.
  Preparer(const ServeConfig&, const ServedModel&, std::string name);

  // For routes that read a body. Throws HttpError. A stop request ends it early with an error that
  // is not sent.
  Prepared prepare(Route::Id, const HttpRequest&, const std::stop_token& = {}) const;
  void check_model(const std::string& asked) const;

 private:
  Prepared dispatch(Route::Id, const HttpRequest&, const std::stop_token&) const;
  HttpResponse tokenize(const HttpRequest&) const;
  HttpResponse detokenize(const HttpRequest&) const;
  PreparedCall complete(CompletionCall, const std::stop_token&) const;
  Tokens chat_tokens(const CompletionCall&) const;
  Tokens tokens_of(const Prompt&) const;
  std::string tokens_text(const Tokens&) const;
  int64_t most_prompt_tokens() const;
  void fit(PreparedCall&) const;
  void bound(CompletionCall&, int64_t made, int64_t echoed) const;

  const ServeConfig config_;
  const ServedModel& model_;
  const std::string name_;
};

}  // namespace hearth::inline serve

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
  size_t model = 0;  // its place in the list of models
  std::vector<Tokens> prompts = {};
  std::vector<std::string> echoes = {};  // one per prompt; empty: no echo
  std::chrono::steady_clock::time_point arrived = std::chrono::steady_clock::now();
};
using Prepared = std::variant<PreparedCall, HttpResponse>;

class Preparer {
 public:
  // The models, at least one, must outlive the preparer.
  Preparer(const ServeConfig&, std::span<const NamedModel>);

  // For routes that read a body. Throws HttpError. A stop request ends it early with an error that
  // is not sent.
  Prepared prepare(Route::Id, const HttpRequest&, const std::stop_token& = {}) const;
  // The place of a model in the list; an empty name is the first one. HttpError 404.
  size_t find(const std::string& name) const;

 private:
  Prepared dispatch(Route::Id, const HttpRequest&, const std::stop_token&) const;
  HttpResponse tokenize(const HttpRequest&) const;
  HttpResponse detokenize(const HttpRequest&) const;
  PreparedCall complete(CompletionCall, const std::stop_token&) const;
  ToolFormat give_tools(const ServedModel&, Conversation&) const;
  void use_tools(const ServedModel&, CompletionCall&) const;
  void constrain(const ServedModel&, CompletionCall&) const;
  Tokens chat_tokens(const ServedModel&, const Conversation&, int64_t max_bytes) const;
  Tokens tokens_of(const ServedModel&, const Prompt&, const TextEncoding&) const;
  int64_t most_prompt_tokens(const ServedModel&) const;
  int64_t most_prompt_bytes(const ServedModel&) const;  // that can be as many tokens
  void fit(const ServedModel&, PreparedCall&) const;
  void bound(CompletionCall&, int64_t made, int64_t echoed) const;
  void bound_echoes(const CompletionCall&, std::span<const std::string> echoes) const;

  const ServeConfig config_;
  const std::span<const NamedModel> models_;
};

}  // namespace hearth::inline serve

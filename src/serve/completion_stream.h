// Exchange: one completion request on its way through the engine. The engine's thread puts events
// into its mailbox; the network thread turns them into output for the client.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>

#include "http/handler.h"
#include "serve/metrics.h"
#include "serve/preparer.h"
#include "serve/render.h"

namespace hearth::inline serve {

class Exchange : public OpenAnswer, public std::enable_shared_from_this<Exchange> {
 public:
  struct Place {  // all must outlive the exchange
    Engine& engine;
    const Tokenizer& tokenizer;
    ModelMetrics& metrics;
    Post post, work;  // to the network thread; to a worker
    std::function<void(Exchange&)> ended;
  };
  Exchange(Place, ResponseHead, PreparedCall, std::weak_ptr<Client>);

  // All called on the network thread. start() throws if the request is invalid.
  void start();
  void leave() override;
  void cancel();  // tell the client that the server is shutting down
  int64_t choices() const { return int64_t(states_.size()); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Event {
    int64_t choice = 0;
    std::string text = {}, finish_reason = {};
    std::vector<TokenLogprob> logprob = {};  // one or none
    Clock::time_point at = {};
  };
  struct End {
    size_t prompt;
    std::vector<Completion> completions;
    std::exception_ptr error;
  };
  struct ChoiceState {
    bool begun = false;
    int64_t offset = 0;           // characters sent, for logprobs
    Clock::time_point last = {};  // time of the last token
    std::optional<ToolParser> tools = {};
    int64_t calls = 0;  // tool calls sent
  };

  void submit(size_t prompt);
  template <class T>
  void leave_in(std::vector<T>& box, T);
  void take();
  void count_token(const Event&);
  void count_prompt(size_t prompt);
  void stream(Event&);
  void open_choice(int64_t choice);
  void send_part(ChoicePart);
  bool must_call() const { return prepared_.call.tools.choice == ToolUse::Choice::required; }
  void stream_tools(Event&, ChoicePart&);
  RenderedCall rendered(int64_t choice, int64_t index, ToolCall) const;
  void find_calls(ChoicePart&) const;
  void note(Client&) const;
  bool send(const nlohmann::ordered_json&, bool echoes = false);
  void end(End&);
  void finish();
  int64_t entries() const;
  HttpResponse render();  // on any thread, after the engine's last event
  void answer(HttpResponse);
  void end_stream();
  void answer_error(const HttpError&);
  Usage usage() const;

  const Place place_;
  const ResponseHead head_;
  PreparedCall prepared_;
  std::weak_ptr<Client> client_;
  std::vector<uint64_t> ids_;
  std::vector<ChoiceState> states_;
  std::vector<std::vector<Completion>> results_;  // per prompt
  std::vector<char> counted_;                     // per prompt: its tokens were
  size_t left_;                                   // unfinished prompts
  std::exception_ptr error_;
  bool cancelled_ = false;
  double first_token_ms_ = -1;

  std::mutex mutex_;
  std::vector<Event> events_;
  std::vector<End> ends_;
};

}  // namespace hearth::inline serve

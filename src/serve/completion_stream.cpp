#include "serve/completion_stream.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <set>
#include <utility>

#include "sys/error.h"

namespace hearth::inline serve {
namespace {

using nlohmann::ordered_json;

// An answer of up to this many tokens and alternatives is rendered directly, in about a
// millisecond; a worker renders a longer one, so that other connections do not wait.
constexpr int64_t few_entries = 1024;

uint64_t fresh_seed() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return random();
}

double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

HttpError as_http_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const HttpError& e) { return e; } catch (const Error& e) {
    return http_error(e);
  } catch (const std::exception& e) { return HttpError(500, fmt::format("[engine] {}", e.what())); }
}

}  // namespace

Exchange::Exchange(Place place, ResponseHead head, PreparedCall prepared,
                   std::weak_ptr<Client> client)
    : place_(std::move(place)),
      head_(std::move(head)),
      prepared_(std::move(prepared)),
      client_(std::move(client)),
      states_(prepared_.prompts.size() * size_t(prepared_.call.request.n)),
      results_(prepared_.prompts.size()),
      counted_(prepared_.prompts.size()),
      left_(prepared_.prompts.size()) {
  for (ChoiceState& s : states_)
    if (prepared_.call.tool_format != ToolFormat::none)
      s.tools.emplace(prepared_.call.tool_format, must_call(), prepared_.call.tools.parallel);
}

// --- on the engine's thread ---

void Exchange::start() {
  try {
    for (size_t i = 0; i < prepared_.prompts.size(); ++i) submit(i);
  } catch (...) {
    leave();
    throw;
  }
}

void Exchange::submit(size_t prompt) {
  Request r = prepared_.call.request;
  r.prompt = prepared_.prompts[prompt];
  // A draw depends on the seed, the sample and the position, so each prompt needs its own seed.
  r.sampling.seed = prepared_.call.seed ? *prepared_.call.seed : fresh_seed();
  const bool streams = prepared_.call.stream;
  const int64_t first = int64_t(prompt) * r.n;
  Listener listener;
  listener.token = [self = shared_from_this(), streams, first](const TokenEvent& t) {
    Event e{.choice = first + t.sample, .at = Clock::now()};
    if (streams) {
      e.text = t.text, e.finish_reason = t.finish_reason;
      if (t.logprob) e.logprob.push_back(*t.logprob);
    }
    self->leave_in(self->events_, std::move(e));
    return true;
  };
  listener.done = [self = shared_from_this(), prompt](std::vector<Completion> all,
                                                      std::exception_ptr error) {
    self->leave_in(self->ends_, End{prompt, std::move(all), error});
  };
  ids_.push_back(place_.engine.submit(std::move(r), std::move(listener)));
}

template <class T>
void Exchange::leave_in(std::vector<T>& box, T item) {
  const std::lock_guard lock(mutex_);
  if (events_.empty() && ends_.empty()) place_.post([self = shared_from_this()] { self->take(); });
  box.push_back(std::move(item));
}

// --- on the network thread ---

void Exchange::take() {
  std::vector<Event> events;
  std::vector<End> ends;
  {
    const std::lock_guard lock(mutex_);
    events.swap(events_), ends.swap(ends_);
  }
  for (Event& e : events) {
    count_token(e);
    if (prepared_.call.stream) stream(e);
  }
  for (End& e : ends) end(e);
}

void Exchange::leave() {
  client_.reset();
  for (const uint64_t id : ids_) place_.engine.cancel(id);
}

void Exchange::cancel() {
  cancelled_ = true;
  for (const uint64_t id : ids_) place_.engine.cancel(id);
}

void Exchange::count_token(const Event& e) {
  ChoiceState& s = states_[size_t(e.choice)];
  count_prompt(size_t(e.choice / prepared_.call.request.n));
  ++place_.metrics.generated_tokens;
  if (first_token_ms_ < 0) first_token_ms_ = seconds(e.at - prepared_.arrived) * 1e3;
  if (s.last != Clock::time_point())
    place_.metrics.between_tokens.observe(seconds(e.at - s.last));
  else if (e.choice % prepared_.call.request.n == 0)
    place_.metrics.first_token.observe(seconds(e.at - prepared_.arrived));
  s.last = e.at;
}

void Exchange::count_prompt(size_t prompt) {
  if (std::exchange(counted_[prompt], char(true))) return;
  place_.metrics.prompt_tokens += int64_t(prepared_.prompts[prompt].size());
}

bool Exchange::send(const ordered_json& j, bool echoes) {
  const auto client = client_.lock();
  if (client && client->send_event({.data = dump_json(j), .echoes = echoes})) return true;
  leave();
  return false;
}

void Exchange::open_choice(int64_t choice) {
  ChoiceState& s = states_[size_t(choice)];
  if (std::exchange(s.begun, true)) return;
  const size_t prompt = size_t(choice / prepared_.call.request.n);
  ChoicePart part{.index = choice, .opens = true};
  if (!head_.chat) part.text = prepared_.echoes[prompt];
  if (!head_.chat && part.text.empty()) return;
  s.offset += characters(part.text);
  send(render_chunk(place_.tokenizer, head_, part, prepared_.call.include_usage), true);
}

void Exchange::stream(Event& e) {
  if (client_.expired()) return;
  open_choice(e.choice);
  if (e.text.empty() && e.logprob.empty() && e.finish_reason.empty()) return;
  ChoiceState& s = states_[size_t(e.choice)];
  ChoicePart part{.index = e.choice, .text = e.text, .finish_reason = e.finish_reason};
  part.logprobs = e.logprob.empty() ? nullptr : &e.logprob;
  part.offset = s.offset;
  // Like the offsets of a whole answer, those of a stream count the tokens: the text of a token may
  // be held back, while it may be the start of a stop string.
  for (const TokenLogprob& p : e.logprob) s.offset += characters_of(place_.tokenizer, p.token);
  if (s.tools) return stream_tools(e, part);
  send_part(std::move(part));
}

void Exchange::send_part(ChoicePart part) {
  send(render_chunk(place_.tokenizer, head_, part, prepared_.call.include_usage));
}

RenderedCall Exchange::rendered(int64_t choice, int64_t index, ToolCall call) const {
  return {index, fmt::format("call_{}_{}_{}", head_.id, choice, index), std::move(call)};
}

// Text of a call is held back until the call is complete.
void Exchange::stream_tools(Event& e, ChoicePart& part) {
  ChoiceState& s = states_[size_t(e.choice)];
  ToolParser::Found found = s.tools->push(e.text);
  if (!e.finish_reason.empty()) {
    ToolParser::Found rest = s.tools->finish(e.finish_reason == "length");
    found.content += rest.content, found.partial = rest.partial;
    std::ranges::move(rest.calls, std::back_inserter(found.calls));
  }
  const std::string reason = std::exchange(part.finish_reason, "");
  part.text = found.content;
  if (!part.text.empty() || part.logprobs) send_part(part);
  for (ToolCall& call : found.calls) {
    ChoicePart head{.index = e.choice};
    head.calls.push_back(rendered(e.choice, s.calls++, std::move(call)));
    send_part(head);
    head.opened = true;
    send_part(head);
  }
  if (reason.empty()) return;
  const bool called = reason == "stop" && s.calls > 0 && !found.partial;
  send_part({.index = e.choice, .finish_reason = called ? "tool_calls" : reason});
}

void Exchange::end(End& e) {
  ModelMetrics& m = place_.metrics;
  results_[e.prompt] = std::move(e.completions);
  if (e.error && !error_) error_ = e.error;
  if (e.error) ++m.finished["error"];
  for (const Completion& c : results_[e.prompt]) {
    const bool cancelled = c.finish_reason == "cancelled";
    if (!cancelled) count_prompt(e.prompt);  // scored only: no token was generated
    ++m.finished[cancelled ? "abort" : c.finish_reason];
  }
  if (--left_ > 0) return;
  m.whole_request.observe(seconds(Clock::now() - prepared_.arrived));
  finish();
}

// --- the end ---

void Exchange::finish() {
  const auto self = shared_from_this();               // ended() may drop the last reference
  if (client_.expired()) return place_.ended(*this);  // nobody waits for the answer
  const bool whole = !error_ && !cancelled_ && !prepared_.call.stream;
  if (whole && entries() > few_entries) {
    // The engine has finished, so the network thread changes nothing that render() reads.
    place_.work([self] {
      self->place_.post([self, response = self->render()]() mutable {
        self->answer(std::move(response));
        self->place_.ended(*self);
      });
    });
    return;
  }
  if (error_)
    answer_error(as_http_error(error_));
  else if (cancelled_)
    answer_error(HttpError(503, "[server] the server is shutting down"));
  else if (whole)
    answer(render());
  else
    end_stream();
  place_.ended(*this);
}

void Exchange::answer_error(const HttpError& e) {
  const auto client = client_.lock();
  if (!client) return;
  note(*client);
  if (!prepared_.call.stream) return client->respond(error_response(e));
  client->send_event({.data = error_body(e)});
  client->end_events();
}

Usage Exchange::usage() const {
  Usage u;
  for (const Tokens& prompt : prepared_.prompts) u.prompt += int64_t(prompt.size());
  for (const auto& completions : results_)
    for (const Completion& c : completions) u.completion += int64_t(c.tokens.size());
  return u;
}

// The number of listed entries: tokens and their alternatives.
int64_t Exchange::entries() const {
  const CompletionCall& call = prepared_.call;
  const Usage u = usage();
  const int64_t echoed = call.echo ? u.prompt * call.request.n : 0;
  return (u.completion + echoed) * (1 + std::max<int64_t>(call.request.sampling.logprobs, 0));
}

// Separates the tool calls of a whole answer from its text.
void Exchange::find_calls(ChoicePart& part) const {
  ToolParser parser(prepared_.call.tool_format, must_call(), prepared_.call.tools.parallel);
  ToolParser::Found found = parser.push(part.text);
  ToolParser::Found rest = parser.finish(part.finish_reason == "length");
  part.text = found.content + rest.content;
  std::ranges::move(rest.calls, std::back_inserter(found.calls));
  for (ToolCall& c : found.calls)
    part.calls.push_back(rendered(part.index, int64_t(part.calls.size()), std::move(c)));
  if (!part.calls.empty() && !rest.partial && part.finish_reason == "stop")
    part.finish_reason = "tool_calls";
}

HttpResponse Exchange::render() try {
  const CompletionCall& call = prepared_.call;
  std::vector<ChoicePart> parts;
  std::vector<std::vector<TokenLogprob>> logprobs(states_.size());
  for (size_t p = 0; p < results_.size(); ++p) {
    for (Completion& c : results_[p]) {
      auto& scored = logprobs[parts.size()];
      if (call.echo && call.logprobs()) {
        scored.push_back(unpredicted(prepared_.prompts[p][0]));
        std::ranges::move(c.prompt_logprobs, std::back_inserter(scored));
      }
      std::ranges::move(c.logprobs, std::back_inserter(scored));
      const int64_t index = int64_t(parts.size());
      parts.push_back({.index = index,
                       .text = prepared_.echoes[p] + c.text,
                       .finish_reason = c.finish_reason,
                       .logprobs = call.logprobs() ? &scored : nullptr});
      if (call.tool_format != ToolFormat::none) find_calls(parts.back());
    }
  }
  return {.body = dump_json(render_response(place_.tokenizer, head_, parts, usage()))};
} catch (const std::exception& e) {
  return error_response(HttpError(500, fmt::format("[server] {}", e.what())));
}

void Exchange::answer(HttpResponse response) {
  const auto client = client_.lock();
  if (!client) return;
  note(*client);
  client->respond(std::move(response));
}

// For the request log.
void Exchange::note(Client& client) const {
  const Usage u = usage();
  AnswerNote n{.id = head_.id,
               .model = head_.model,
               .finish_reason = error_ ? "error" : "",
               .prompt_tokens = u.prompt,
               .completion_tokens = u.completion,
               .first_token_ms = first_token_ms_};
  std::set<std::string> reasons;
  for (const auto& completions : results_)
    for (const Completion& c : completions) {
      reasons.insert(c.finish_reason);
      if (c.queue_ms >= 0 && (n.queue_ms < 0 || c.queue_ms < n.queue_ms)) n.queue_ms = c.queue_ms;
    }
  for (const std::string& r : reasons) n.finish_reason += (n.finish_reason.empty() ? "" : ",") + r;
  client.note_answer(n);
}

void Exchange::end_stream() {
  const auto client = client_.lock();
  if (!client) return;
  const Usage u = usage();
  note(*client);
  // A completion without tokens had no token event: end its choice here.
  int64_t index = 0;
  for (const auto& completions : results_)
    for (const Completion& c : completions) {
      const ChoicePart last{.index = index++, .finish_reason = c.finish_reason};
      if (states_[size_t(last.index)].last != Clock::time_point()) continue;
      open_choice(last.index);
      if (!send(render_chunk(place_.tokenizer, head_, last, prepared_.call.include_usage))) return;
    }
  if (prepared_.call.include_usage && !send(render_usage_chunk(head_, u))) return;
  client->send_event({.data = "[DONE]"});
  client->end_events();
}

}  // namespace hearth::inline serve

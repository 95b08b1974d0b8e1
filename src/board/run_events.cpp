#include "board/run_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

namespace hearth::inline board {
namespace {

constexpr const char* file_names[] = {"log", "perf", "samples"};
constexpr double poll_seconds = 0.5;
constexpr auto comment_every = std::chrono::seconds(15);
constexpr auto look_every = std::chrono::seconds(2);  // at the state of the run
constexpr uint64_t read_bytes = 128 << 10;            // of a file at a time
constexpr size_t most_line = 256 << 10;               // bytes; longer lines are not sent
// A browser with so many bytes to read is sent no more before it has read some.
constexpr size_t most_unsent = 256 << 10;
constexpr double unsent_seconds = 0.05;  // until it is looked at again
static_assert(most_unsent + 2 * most_line <= 1 << 20, "HttpConfig closes streams beyond this");

}  // namespace

std::string LogOffsets::id() const { return fmt::format("{},{},{}", at[0], at[1], at[2]); }

std::optional<LogOffsets> LogOffsets::parse(std::string_view text) {
  LogOffsets o;
  for (size_t i = 0; i < files; ++i) {
    const std::string_view part = text.substr(0, text.find(','));
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), o.at[i]);
    if (error != std::errc{} || end != part.data() + part.size() || o.at[i] > INT64_MAX) return {};
    if (part.size() == text.size()) return i > 0 ? std::optional(o) : std::nullopt;
    text.remove_prefix(part.size() + 1);
  }
  return {};
}

RunEvents::RunEvents(Place place, const std::filesystem::path& run, const LogOffsets& from,
                     std::weak_ptr<Client> client)
    : place_(std::move(place)),
      client_(std::move(client)),
      tails_{LineTail(run / "log.jsonl", from.at[0]), LineTail(run / "perf.jsonl", from.at[1]),
             LineTail(run / "samples.jsonl", from.at[2])},
      offsets_(from),
      sent_(std::chrono::steady_clock::now()) {}

void RunEvents::start() {
  if (const auto client = client_.lock()) client->begin_events();
  tick();
}

void RunEvents::tick() {
  if (ended_) return;
  place_.http.work([self = shared_from_this()] {
    std::shared_ptr<const Batch> batch;  // none: a worker must not throw, so the stream ends
    try {
      batch = std::make_shared<const Batch>(self->read());
    } catch (const std::exception&) {}
    self->place_.http.post([self, batch] { batch ? self->deliver(batch, 0) : self->finish(); });
  });
}

void RunEvents::read_file(size_t file, Batch& batch) {
  const auto take = [&](std::string_view line, uint64_t end) {
    offsets_.at[file] = end;
    // A line that is not JSON would break the event that contains it.
    if (line.size() > most_line || !nlohmann::json::accept(line)) return;
    std::string data = fmt::format(R"({{"file":"{}","line":{}}})", file_names[file], line);
    std::ranges::replace(data, '\r',
                         ' ');  // white space in JSON, but the end of a line in an event
    batch.events.push_back({.id = offsets_.id(), .name = {}, .data = std::move(data)});
  };
  const LineTail::Outcome outcome = tails_[file].read(take, read_bytes);
  offsets_.at[file] = tails_[file].offset();
  batch.more = batch.more || outcome == LineTail::Outcome::some;
  if (outcome != LineTail::Outcome::reset) return;
  batch.reset = true;
  batch.events.push_back(
      {.id = {}, .name = "reset", .data = fmt::format(R"({{"file":"{}"}})", file_names[file])});
}

RunEvents::Batch RunEvents::read() {
  Batch batch;
  for (size_t file = 0; file < LogOffsets::files && !batch.reset; ++file) read_file(file, batch);
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < look_every) return batch;
  looked_ = now;
  if (std::string summary = place_.summary(); summary != summary_) {
    summary_ = summary;
    batch.events.push_back({.id = {}, .name = "state", .data = std::move(summary)});
  }
  return batch;
}

// Sends the events of a batch from the one with index `from` on. While the client has much to read,
// it is sent no more and nothing is read for it. If it reads nothing at all, its connection closes
// after write_seconds.
void RunEvents::deliver(const std::shared_ptr<const Batch>& whole, size_t from) {
  const auto client = client_.lock();
  if (ended_) return;
  if (!client) return end();
  const Batch& batch = *whole;
  const auto now = std::chrono::steady_clock::now();
  for (; from < batch.events.size(); ++from) {
    if (client->unsent() > most_unsent)
      return place_.http.after(
          unsent_seconds, [self = shared_from_this(), whole, from] { self->deliver(whole, from); });
    const Event& e = batch.events[from];
    if (!client->send_event({.data = e.data, .name = e.name, .id = e.id})) return end();
  }
  if (!batch.events.empty())
    sent_ = now;
  else if (now - sent_ > comment_every) {
    sent_ = now;
    if (!client->send_comment()) return end();
  }
  if (batch.reset) return finish();  // the browser reads the series again and comes back
  if (batch.more) return tick();
  place_.http.after(poll_seconds, [self = shared_from_this()] { self->tick(); });
}

void RunEvents::leave() { end(); }

void RunEvents::finish() {
  if (ended_) return;
  if (const auto client = client_.lock()) client->end_events();
  end();
}

void RunEvents::end() {
  if (std::exchange(ended_, true)) return;
  place_.ended(shared_from_this());
}

}  // namespace hearth::inline board

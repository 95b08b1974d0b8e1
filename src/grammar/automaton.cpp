#include "grammar/automaton.h"

#include <algorithm>
#include <utility>

#include "sys/error.h"

namespace hearth::inline grammar {
namespace {

using NodeKind = NetworkNode::Kind;

constexpr size_t most_places = 4096;       // of one state
constexpr int64_t first_work = 1'000'000;  // for the first state
constexpr int64_t most_bytes = int64_t(96) << 20;
constexpr StateId unknown = -2;

}  // namespace

ScratchSet::Slot& ScratchSet::slot_of(uint64_t value) {
  const size_t mask = slots_.size() - 1;
  uint64_t h = value * 0x9e3779b97f4a7c15u;
  for (size_t i = size_t(h ^ h >> 32) & mask;; i = (i + 1) & mask)
    if (slots_[i].round != round_ || slots_[i].value == value) return slots_[i];
}

bool ScratchSet::insert(uint64_t value) {
  if (2 * size_ >= slots_.size()) grow();
  Slot& slot = slot_of(value);
  if (slot.round == round_) return false;
  slot = {value, round_};
  ++size_;
  return true;
}

void ScratchSet::grow() {
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
  for (const Slot& s : old)
    if (s.round == round_) slot_of(s.value) = s;
}

size_t Automaton::PlacesHash::operator()(const std::vector<Place>& places) const {
  uint64_t h = 0x9e3779b97f4a7c15u + places.size();
  for (const Place& p : places) {
    h = (h ^ p.key()) * 0xff51afd7ed558ccdu;
    h ^= h >> 32;
  }
  return size_t(h);
}

Automaton::Automaton(std::shared_ptr<const Network> network)
    : network_(std::move(network)), work_left_(first_work) {
  frames_.assign(1, {Network::accept, -1, 0});
  int64_t work = first_work;
  visit({network_->start(), 0}, work);
  reached();
}

void Automaton::States::push(State s) {
  std::unique_ptr<State[]>& place = chunks_[size_t(size_) / chunk];
  if (!place) place = std::make_unique<State[]>(chunk);
  place[size_t(size_++) % chunk] = std::move(s);
}

StateId Automaton::step(StateId s, uint8_t byte, int64_t& work) {
  const State& from = states_[s];
  std::atomic<StateId>& after = from.after[size_t(network_->class_of(byte))];
  if (const StateId known = after.load(std::memory_order_acquire); known != unknown) return known;
  const std::lock_guard lock(mutex_);
  if (const StateId known = after.load(std::memory_order_relaxed); known != unknown) return known;
  const StateId next = make(from, byte, work);
  after.store(next, std::memory_order_release);  // with the state it names
  return next;
}

StateId Automaton::make(const State& from, uint8_t byte, int64_t& work) {
  work -= 1 + int64_t(from.places.size() / 4);
  if (work < 0) refuse();
  try {
    for (const Place& p : from.places) {
      const NetworkNode& n = (*network_)[p.node];
      if (n.low <= byte && byte <= n.high) visit({n.next, p.frame}, work);
    }
    return reached();
  } catch (...) {
    pending_.clear(), reading_.clear(), seen_.clear(), accepting_ = false;
    throw;
  }
}

StateId Automaton::read(StateId s, std::string_view bytes, int64_t& work) {
  for (const char b : bytes)
    if (s != dead) s = step(s, uint8_t(b), work);
  return s;
}

// Visits every place that can be reached from here without reading a byte.
void Automaton::visit(Place from, int64_t& work) {
  pending_.push_back(from);
  while (!pending_.empty()) {
    const Place p = pending_.back();
    pending_.pop_back();
    const NetworkNode& n = (*network_)[p.node];
    // Nothing that would nest too deeply before it ends.
    if (frames_[size_t(p.frame)].depth + n.need > most_frames) continue;
    if (!seen_.insert(p.key())) continue;
    if (--work < 0 || seen_.size() > most_places) refuse();
    switch (n.kind) {
      case NodeKind::byte:
        reading_.push_back(p);
        break;
      case NodeKind::split:
        pending_.push_back({n.next, p.frame});
        pending_.push_back({n.other, p.frame});
        break;
      case NodeKind::call:  // a call at the end of a rule returns to where the rule itself returns
        pending_.push_back({n.other, n.next == Network::accept ? p.frame : frame(n.next, p.frame)});
        break;
      case NodeKind::accept:
        if (p.frame == 0)
          accepting_ = true;
        else
          pending_.push_back({frames_[size_t(p.frame)].node, frames_[size_t(p.frame)].outer});
        break;
    }
  }
}

StateId Automaton::reached() {
  seen_.clear();
  std::vector<Place> places = std::exchange(reading_, {});
  const bool accepts = std::exchange(accepting_, false);
  if (places.empty() && !accepts) return dead;
  std::ranges::sort(places);
  if (const auto at = known_[accepts].find(places); at != known_[accepts].end()) return at->second;
  const auto classes = size_t(network_->classes());
  spend_bytes(int64_t(2 * places.size() * sizeof(Place) + 4 * classes) + 128);
  auto after = std::make_unique<std::atomic<StateId>[]>(classes);
  for (size_t i = 0; i < classes; ++i) after[i].store(unknown, std::memory_order_relaxed);
  const StateId made = states_.size();
  states_.push({places, std::move(after), accepts});
  known_[accepts].emplace(std::move(places), made);
  return made;
}

int32_t Automaton::frame(int32_t node, int32_t outer) {
  const uint64_t key = Place{node, outer}.key();
  if (const auto at = frame_of_.find(key); at != frame_of_.end()) return at->second;
  spend_bytes(64);
  frames_.push_back({node, outer, frames_[size_t(outer)].depth + 1});
  return frame_of_[key] = int32_t(frames_.size()) - 1;
}

void Automaton::spend_bytes(int64_t n) {
  if (bytes_ + n > most_bytes) refuse();
  bytes_ += n;
}

void Automaton::refuse() const {
  fail_usage(where(), "the text may continue in too many ways at once: make it less ambiguous");
}

}  // namespace hearth::inline grammar

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

Automaton::Automaton(Network network) : network_(std::move(network)), work_left_(first_work) {
  forget();
}

void Automaton::forget() {
  // Also what a step that threw has left.
  pending_.clear(), reading_.clear(), seen_.clear(), accepting_ = false;
  states_.clear(), frame_of_.clear(), bytes_ = 0;
  work_left_ = std::max(work_left_, first_work);
  for (auto& known : known_) known.clear();
  frames_.assign(1, {Network::accept, -1, 0});
  visit({network_.start(), 0});
  reached();
}

StateId Automaton::step(StateId s, uint8_t byte) {
  const size_t kind = size_t(network_.class_of(byte));
  if (const StateId known = states_[size_t(s)].after[kind]; known != unknown) return known;
  work_left_ -= 1 + int64_t(states_[size_t(s)].places.size() / 4);
  if (work_left_ < 0) refuse();
  for (const Place& p : states_[size_t(s)].places) {
    const NetworkNode& n = network_[p.node];
    if (n.low <= byte && byte <= n.high) visit({n.next, p.frame});
  }
  const StateId next = reached();
  return states_[size_t(s)].after[kind] = next;
}

StateId Automaton::read(StateId s, std::string_view bytes) {
  for (const char b : bytes)
    if (s != dead) s = step(s, uint8_t(b));
  return s;
}

// Visits every place that can be reached from here without reading a byte.
void Automaton::visit(Place from) {
  pending_.push_back(from);
  while (!pending_.empty()) {
    const Place p = pending_.back();
    pending_.pop_back();
    const NetworkNode& n = network_[p.node];
    // Nothing that would nest too deeply before it ends.
    if (frames_[size_t(p.frame)].depth + n.need > most_frames) continue;
    if (!seen_.insert(p.key())) continue;
    if (--work_left_ < 0 || seen_.size() > most_places) refuse();
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
  const auto [at, fresh] = known_[accepts].try_emplace(std::move(places), StateId(states_.size()));
  if (!fresh) return at->second;
  spend_bytes(int64_t(2 * at->first.size() * sizeof(Place)) + 4 * network_.classes() + 128);
  states_.push_back(
      {at->first, std::vector<StateId>(size_t(network_.classes()), unknown), accepts});
  return at->second;
}

int32_t Automaton::frame(int32_t node, int32_t outer) {
  const uint64_t key = Place{node, outer}.key();
  const auto [at, fresh] = frame_of_.try_emplace(key, int32_t(frames_.size()));
  if (fresh) {
    spend_bytes(64);
    frames_.push_back({node, outer, frames_[size_t(outer)].depth + 1});
  }
  return at->second;
}

void Automaton::spend_bytes(int64_t n) {
  bytes_ += n;
  if (bytes_ > most_bytes) refuse();
}

void Automaton::refuse() const {
  fail_usage(where(), "the text may continue in too many ways at once: make it less ambiguous");
}

}  // namespace hearth::inline grammar

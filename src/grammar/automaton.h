// Automaton: reads text byte by byte and says after each byte whether a grammar's text can continue
// or end here. Its states are made when they are first reached and then kept, so reading known text
// is a table look-up.
#pragma once

#include <string_view>
#include <unordered_map>

#include "grammar/network.h"

namespace hearth::inline grammar {

using StateId = int32_t;

// A set of numbers that is emptied at no cost, whatever it has held.
class ScratchSet {
 public:
  bool insert(uint64_t);  // whether it is new
  size_t size() const { return size_; }
  void clear() { ++round_, size_ = 0; }

 private:
  struct Slot {
    uint64_t value = 0, round = 0;  // 0: never used
  };
  Slot& slot_of(uint64_t);
  void grow();

  std::vector<Slot> slots_ = std::vector<Slot>(64);  // a power of two, at most half of them used
  uint64_t round_ = 1;
  size_t size_ = 0;
};

class Automaton {
 public:
  static constexpr StateId dead = -1;  // no text continues

  explicit Automaton(Network);

  StateId start() const { return 0; }
  // Throws a usage error if the budget of work or memory is spent; forget() is due then.
  StateId step(StateId, uint8_t byte);
  StateId read(StateId, std::string_view bytes);
  bool accepts(StateId s) const { return s != dead && states_[size_t(s)].accepts; }
  // Whether the text is complete and nothing may follow.
  bool ended(StateId s) const { return accepts(s) && states_[size_t(s)].places.empty(); }
  const std::string& where() const { return network_.where(); }

  // New states may take this much work from now on: places visited, and a quarter for places that
  // are only looked at.
  void allow(int64_t work) { work_left_ = work; }
  int64_t work_left() const { return work_left_; }
  // Bytes of the states; forget() drops all but the first.
  int64_t bytes() const { return bytes_; }
  void forget();

 private:
  // A node that the text may have reached, with the frame to return to.
  struct Place {
    int32_t node, frame;
    auto operator<=>(const Place&) const = default;
    uint64_t key() const { return uint64_t(uint32_t(node)) << 32 | uint32_t(frame); }
  };
  struct Frame {
    int32_t node, outer, depth;  // where to go on, the frame around it, frames up to here
  };
  struct State {
    std::vector<Place> places;   // nodes that read a byte, sorted
    std::vector<StateId> after;  // by class of the next byte
    bool accepts = false;
  };
  struct PlacesHash {
    size_t operator()(const std::vector<Place>&) const;
  };

  void visit(Place);
  StateId reached();  // the state of the places visited since the last call
  int32_t frame(int32_t node, int32_t outer);
  void spend_bytes(int64_t);
  [[noreturn]] void refuse() const;

  const Network network_;
  std::vector<State> states_;
  std::vector<Frame> frames_;
  std::unordered_map<uint64_t, int32_t> frame_of_;
  // By places; of states that accept, and of others.
  std::unordered_map<std::vector<Place>, StateId, PlacesHash> known_[2];
  int64_t work_left_, bytes_ = 0;

  ScratchSet seen_;
  std::vector<Place> pending_, reading_;
  bool accepting_ = false;
};

}  // namespace hearth::inline grammar

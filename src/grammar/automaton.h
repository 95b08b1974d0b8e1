// Automaton: reads text byte by byte and says after each byte whether a grammar's text can continue
// or end here. Its states are made when they are first reached and then kept, so reading known text
// is a table look-up. Threads may read at the same time: only making a state takes a lock.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

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

  explicit Automaton(std::shared_ptr<const Network>);
  explicit Automaton(Network n) : Automaton(std::make_shared<const Network>(std::move(n))) {}

  StateId start() const { return 0; }
  // Making states takes from `work`: places visited, and a quarter for places that are only looked
  // at. Throws a usage error if the work is spent, or the memory: a new automaton is due then.
  StateId step(StateId, uint8_t byte, int64_t& work);
  StateId read(StateId, std::string_view bytes, int64_t& work);
  bool accepts(StateId s) const { return s != dead && states_[s].accepts; }
  // Whether the text is complete and nothing may follow.
  bool ended(StateId s) const { return accepts(s) && states_[s].places.empty(); }
  const std::string& where() const { return network_->where(); }
  int64_t bytes() const { return bytes_; }  // of the states

  // For a single thread: the same with the work that was allowed last.
  void allow(int64_t work) { work_left_ = work; }
  StateId step(StateId s, uint8_t byte) { return step(s, byte, work_left_); }
  StateId read(StateId s, std::string_view bytes) { return read(s, bytes, work_left_); }

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
    std::vector<Place> places = {};                      // nodes that read a byte, sorted
    std::unique_ptr<std::atomic<StateId>[]> after = {};  // by class of the next byte
    bool accepts = false;
  };
  // Its elements never move, so a thread that knows the number of a state reads it without a
  // lock.
  class States {
   public:
    State& operator[](StateId s) const { return chunks_[size_t(s) / chunk][size_t(s) % chunk]; }
    StateId size() const { return size_; }
    void push(State);

   private:
    // States of 128 bytes each, and they take more, would fill the memory before the chunks.
    static constexpr size_t chunk = 512, most_chunks = 2048;
    std::vector<std::unique_ptr<State[]>> chunks_ =
        std::vector<std::unique_ptr<State[]>>(most_chunks);
    StateId size_ = 0;
  };
  struct PlacesHash {
    size_t operator()(const std::vector<Place>&) const;
  };

  // All called with the lock.
  StateId make(const State&, uint8_t byte, int64_t& work);
  void visit(Place, int64_t& work);
  StateId reached();  // the state of the places visited since the last call
  int32_t frame(int32_t node, int32_t outer);
  void spend_bytes(int64_t);
  [[noreturn]] void refuse() const;

  const std::shared_ptr<const Network> network_;
  std::mutex mutex_;
  States states_;
  std::vector<Frame> frames_;
  std::unordered_map<uint64_t, int32_t> frame_of_;
  // By places; of states that accept, and of others.
  std::unordered_map<std::vector<Place>, StateId, PlacesHash> known_[2];
  std::atomic<int64_t> bytes_ = 0;
  int64_t work_left_;

  ScratchSet seen_;
  std::vector<Place> pending_, reading_;
  bool accepting_ = false;
};

}  // namespace hearth::inline grammar

#include "tasks/chess/stockfish.h"

#include "sys/error.h"
#include "sys/process/line_process.h"
#include "tasks/chess/uci_reply.h"

namespace hearth::chess {

namespace fs = std::filesystem;

std::optional<fs::path> find_stockfish() { return find_program("stockfish", "/usr/games"); }

class StockfishPool::Engine {
 public:
  Engine(const StockfishSpec& spec, const std::atomic<bool>& abandoned)
      : spec_(spec), process_(spec.program) {
    process_.give_up_when(abandoned);
  }

  // Before uciok an engine may print anything, up to a limit.
  Trouble start() {
    const auto deadline = deadline_in(spec_.timeout_s);
    Trouble t = say({"uci"}, deadline);
    constexpr int most_lines = 1000;
    std::string line;
    for (int n = 0; t == Trouble::none && line != "uciok"; ++n) {
      if (n == most_lines) return Trouble::rubbish;
      t = trouble_of(process_.hear(line, deadline));
    }
    if (t == Trouble::none)
      t = say({"setoption name Threads value 1", "setoption name Hash value 1",
               fmt::format("setoption name MultiPV value {}", spec_.candidates)},
              deadline);
    return t == Trouble::none ? settle(deadline) : t;
  }

  Trouble search(Label& label, const Board& board) {
    const auto deadline = deadline_in(spec_.timeout_s);
    Trouble t = say({"ucinewgame"}, deadline);
    if (t == Trouble::none) t = settle(deadline);
    if (t == Trouble::none)
      t = say({"position fen " + board.fen(), fmt::format("go nodes {}", spec_.nodes)}, deadline);
    UciReply reply(board, spec_.candidates);
    std::string line;
    while (t == Trouble::none) {
      t = trouble_of(process_.hear(line, deadline));
      if (t != Trouble::none) break;
      const UciReply::State state = reply.feed(line);
      if (state == UciReply::State::bad) return Trouble::rubbish;
      if (state == UciReply::State::more) continue;
      label = reply.label();
      break;
    }
    return t;
  }

 private:
  Trouble say(std::initializer_list<std::string> lines, LineProcess::Deadline deadline) {
    for (const std::string& l : lines) {
      if (const Trouble t = trouble_of(process_.say(l, deadline)); t != Trouble::none) return t;
    }
    return Trouble::none;
  }

  // Sends isready and waits for the answer, so that all earlier commands are processed. Stockfish
  // may print an info string before it.
  Trouble settle(LineProcess::Deadline deadline) {
    Trouble t = say({"isready"}, deadline);
    std::string line;
    while (t == Trouble::none && line != "readyok") {
      t = trouble_of(process_.hear(line, deadline));
      if (t == Trouble::none && line != "readyok" && !line.starts_with("info string "))
        return Trouble::rubbish;
    }
    return t;
  }

  const StockfishSpec& spec_;
  LineProcess process_;
};

// A process and its statistics: used by one worker at a time, read by any thread.
struct StockfishPool::Slot {
  std::unique_ptr<Engine> engine;
  std::atomic<int64_t> answered = 0, missing = 0, died = 0, hung = 0, rubbish = 0, replaced = 0;

  void note(Trouble t) {
    missing += t == Trouble::missing, died += t == Trouble::died;
    hung += t == Trouble::hung, rubbish += t == Trouble::rubbish;
  }
};

StockfishPool::StockfishPool(StockfishSpec spec)
    : spec_(std::move(spec)), threads_(spec_.processes) {
  for (int i = 0; i < threads_.count(); ++i) {
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->engine = std::make_unique<Engine>(spec_, abandoned_);
    if (slots_.back()->engine->start() != Trouble::none)
      fail(spec_.program.string(), "this program did not answer as a UCI engine within {} s",
           spec_.timeout_s);
  }
}

StockfishPool::~StockfishPool() = default;

Label StockfishPool::label_one(Slot& slot, const Board& board) {
  Label label;
  if (board.legal_moves().empty()) return label;
  for (int attempt = 0; attempt < spec_.attempts; ++attempt) {
    Trouble t = Trouble::none;
    if (!slot.engine) {
      try {
        slot.engine = std::make_unique<Engine>(spec_, abandoned_);
        ++slot.replaced;
        t = slot.engine->start();
      } catch (const Error&) { t = Trouble::missing; }
    }
    if (t == Trouble::none) t = slot.engine->search(label, board);
    if (t == Trouble::none) {
      ++slot.answered;
      return label;
    }
    if (abandoned_) return {};
    slot.note(t);
    slot.engine.reset();
  }
  const int64_t failed = ++failed_;
  if (spec_.max_failures >= 0 && failed > spec_.max_failures) {
    const StockfishCounts c = counts();
    fail(spec_.program.string(),
         "Stockfish left {} positions without an answer: it could not be started {} times, died {} "
         "times, hung {} times, gave invalid answers {} times",
         failed, c.missing, c.died, c.hung, c.rubbish);
  }
  return {};
}

std::vector<Label> StockfishPool::label(std::span<const Board> boards) {
  std::vector<Label> labels(boards.size());
  threads_.run(int64_t(boards.size()), [&](int64_t i, int worker) {
    labels[size_t(i)] = label_one(*slots_[size_t(worker)], boards[size_t(i)]);
  });
  return labels;
}

StockfishCounts StockfishPool::counts() const {
  StockfishCounts sum;
  sum.failed = failed_;
  for (const auto& slot : slots_) {
    sum.answered += slot->answered, sum.replaced += slot->replaced;
    sum.missing += slot->missing, sum.died += slot->died;
    sum.hung += slot->hung, sum.rubbish += slot->rubbish;
  }
  return sum;
}

std::unique_ptr<StockfishPool> open_stockfish(const std::string& name, StockfishSpec spec) {
  if (name == "none") return nullptr;
  const std::optional<fs::path> program = name == "auto" ? find_stockfish() : fs::path(name);
  if (!program) return nullptr;
  spec.program = *program;
  return std::make_unique<StockfishPool>(std::move(spec));
}

}  // namespace hearth::chess

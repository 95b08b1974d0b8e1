#include "grammar/constraint.h"

#include <algorithm>

#include "formats/json.h"
#include "grammar/json_schema.h"
#include "grammar/tool_grammar.h"
#include "sys/cores.h"
#include "sys/error.h"

namespace hearth::inline grammar {
namespace {

constexpr int64_t mask_work = 4'000'000;      // places visited for one mask: about 0.1 s
constexpr size_t most_mask_bytes = 16 << 20;  // of one constraint
constexpr size_t most_constraints = 16;
constexpr size_t most_schema = 1 << 20;  // bytes

using Asked = ConstraintSpec::Kind;

nlohmann::ordered_json json_of(const ConstraintSpec& s) {
  if (s.text.size() > most_schema)
    fail_usage(s.where, "expected at most {} bytes of JSON, got {}", most_schema, s.text.size());
  try {
    return parse_ordered_json(s.text, s.where, {.max_bytes = most_schema});
  } catch (const Error& e) {  // the same error, with line and column, as one of usage
    const ErrorParts parts = parts_of(e, s.where);
    throw Error(parts.where, parts.what, true);
  }
}

ByteGrammar choice_grammar(const ConstraintSpec& s) {
  ByteGrammar g(s.where);
  g.set_root(g.one_of(json_of(s).get<std::vector<std::string>>()));
  return g;
}

ByteGrammar grammar_of(const ConstraintSpec& s) {
  ByteGrammar g = s.kind == Asked::json_object ? any_object_grammar(s.where)
                  : s.kind == Asked::regex     ? regex_grammar(s.text, s.where)
                  : s.kind == Asked::choice    ? choice_grammar(s)
                  : s.kind == Asked::tools     ? tools_grammar(json_of(s), s.where)
                                               : schema_grammar(json_of(s), s.where);
  if (!s.before.empty() || !s.after.empty())
    g.set_root(g.sequence({g.text(s.before), g.root(), g.text(s.after)}));
  return g;
}

// The model's own threads need the other cores.
int mask_threads() { return std::clamp(usable_threads() / 4, 1, 4); }

[[noreturn]] void refuse_work() {
  fail_usage("constraint",
             "finding the tokens that may continue the text takes too much work: make it less "
             "ambiguous");
}

}  // namespace

Constraint::Constraint(const ByteGrammar& g, Tokenizer tokenizer,
                       std::shared_ptr<const TokenTrie> trie, std::weak_ptr<TaskThreads> threads,
                       ConstraintLimits limits, std::vector<int32_t> marks)
    : tokenizer_(std::move(tokenizer)),
      trie_(std::move(trie)),
      threads_(std::move(threads)),
      network_(std::make_shared<const Network>(g)),
      limits_(limits),
      marks_(std::move(marks)),
      automaton_(std::make_shared<Automaton>(network_)) {
  if (automaton_->ended(automaton_->start())) fail_usage(g.where(), "only the empty text matches");
}

// A new automaton has no states yet. Threads that still read the old one keep it
// alive.
void Constraint::forget() {
  automaton_ = std::make_shared<Automaton>(network_);
  ++epoch_;
  masks_.clear(), used_.clear();
}

// Runs f with the automaton, whose states are forgotten when they are many or f fails.
template <class F>
auto Constraint::guarded(F&& f) {
  Epoch now;
  {
    const std::lock_guard lock(mutex_);
    if (automaton_->bytes() > limits_.state_bytes) forget();
    now = {epoch_, automaton_};
  }
  try {
    return f(now);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (epoch_ == now.number) forget();
    throw;
  }
}

// A long text may take more work to read again than a mask may, so only the budget of the whole
// text limits it. Without a limit, texts whose states do not fit in memory together would read
// themselves again at every token.
StateId Constraint::find(At& at, const Epoch& now) {
  if (at.epoch == now.number) return at.state;
  const int64_t left = std::max<int64_t>(*at.work_left, 0);
  int64_t work = left;
  try {
    at.state = now.automaton->read(now.automaton->start(), at.text, work);
  } catch (const Error&) {
    if (work < 0) refuse_work();
    throw;
  }
  at.epoch = now.number;
  *at.work_left -= left - work;
  return at.state;
}

Constraint::Reached Constraint::advance(At& at, std::string_view bytes) {
  return guarded([&](const Epoch& now) -> Reached {
    Automaton& automaton = *now.automaton;
    int64_t work = mask_work;
    const StateId s = automaton.read(find(at, now), bytes, work);
    at.text += bytes, at.state = s;
    return {s != Automaton::dead, automaton.accepts(s), automaton.ended(s)};
  });
}

std::shared_future<MaskPtr> Constraint::mask(const At& at) {
  const Key key{at.state, at.strips};
  std::unique_lock lock(mutex_);
  if (const auto found = masks_.find(key); at.epoch == epoch_ && found != masks_.end()) {
    used_.splice(used_.begin(), used_, found->second.used);
    return found->second.mask;
  }
  // The future is kept in masks_, so what fulfils it must not hold the constraint.
  const auto promise = std::make_shared<std::promise<MaskPtr>>();
  std::shared_future<MaskPtr> future = promise->get_future().share();
  if (at.epoch == epoch_) {
    used_.push_front(key);
    masks_[key] = {future, used_.begin()};
    if (masks_.size() > std::max<size_t>(16, most_mask_bytes * 8 / size_t(trie_->vocab() + 1))) {
      masks_.erase(used_.back());
      used_.pop_back();
    }
  }
  lock.unlock();
  const auto task = [weak = weak_from_this(), at, promise] {
    try {
      if (const auto self = weak.lock()) promise->set_value(self->compute(at));
    } catch (...) { promise->set_exception(std::current_exception()); }
  };
  if (const auto threads = threads_.lock())
    threads->post(task);
  else
    task();
  return future;
}

// Without the lock, so that others advance and compute masks meanwhile.
MaskPtr Constraint::compute(At at) {
  return guarded([&](const Epoch& now) {
    const StateId s = find(at, now);
    int64_t work = mask_work;
    TokenMask mask = trie_->allowed(*now.automaton, s, at.strips, work);
    for (const int32_t id : marks_) {
      if (now.automaton->read(s, tokenizer_.bytes_of(id), work) == Automaton::dead) continue;
      mask.bits[size_t(id) / 32] |= 1u << id % 32, mask.any = true;
    }
    *at.work_left -= mask_work - work;
    return std::make_shared<const TokenMask>(std::move(mask));
  });
}

ConstraintCursor::ConstraintCursor(std::shared_ptr<Constraint> c, bool strips)
    : constraint_(std::move(c)) {
  at_.epoch = uint64_t(-1);  // not read yet
  at_.strips = strips;
  at_.work_left = std::make_shared<std::atomic<int64_t>>(constraint_->limits_.text_work);
  accepts_ = constraint_->advance(at_, "").accepts;
  next_ = constraint_->mask(at_);
}

void ConstraintCursor::accept(int32_t token) {
  std::string_view bytes = constraint_->tokenizer().bytes_of(token);
  if (at_.strips && bytes.starts_with(' ')) bytes.remove_prefix(1);
  at_.strips = false;
  const Constraint::Reached r = constraint_->advance(at_, bytes);
  if (!r.valid)
    fail("constraint", "token {} does not continue the text, although its mask allows it", token);
  accepts_ = r.accepts, ended_ = r.ended;
  if (!ended_) next_ = constraint_->mask(at_);
}

const TokenMask& ConstraintCursor::mask() {
  const MaskPtr& mask = next_.get();
  if (*at_.work_left < 0) refuse_work();
  if (!mask->any && !accepts_)
    fail_usage("constraint", "no token of the model's vocabulary can continue the text");
  return *mask;
}

ConstraintMaker::ConstraintMaker(Tokenizer tokenizer, ConstraintLimits limits)
    : tokenizer_(std::move(tokenizer)), limits_(limits) {}

std::shared_ptr<Constraint> ConstraintMaker::make(const ConstraintSpec& spec) {
  if (spec.kind == ConstraintSpec::Kind::none) return nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!trie_) {
      trie_ = std::make_shared<const TokenTrie>(tokenizer_);
      threads_ = std::make_shared<TaskThreads>(limits_.threads ? limits_.threads : mask_threads());
    }
    const auto same = [&](const auto& k) { return !(k.first < spec) && !(spec < k.first); };
    if (const auto found = std::ranges::find_if(kept_, same); found != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, found);
      return kept_.front().second;
    }
  }
  std::vector<int32_t> marks;
  for (const std::string& text : spec.marks)
    if (const auto id = tokenizer_.special(text)) marks.push_back(*id);
  const auto made = std::make_shared<Constraint>(grammar_of(spec), tokenizer_, trie_, threads_,
                                                 limits_, std::move(marks));
  const std::lock_guard lock(mutex_);
  kept_.emplace_front(spec, made);
  if (kept_.size() > most_constraints) kept_.pop_back();
  return made;
}

}  // namespace hearth::inline grammar

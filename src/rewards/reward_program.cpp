#include "rewards/reward_program.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "formats/json.h"
#include "sys/error.h"
#include "sys/process/line_process.h"

namespace hearth::inline rewards {
namespace {

using nlohmann::json;

// The last nonempty line for a log: plain ASCII and short.
std::string last_line(std::string text) {
  constexpr size_t most = 200;
  const auto blank = [](char c) { return c == '\n' || c == '\r' || c == ' '; };
  while (!text.empty() && blank(text.back())) text.pop_back();
  text.erase(0, text.rfind('\n') + 1);
  if (text.size() > most) text.resize(most);
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return text;
}

constexpr std::pair<const char*, int64_t RewardProgramCounts::*> program_counts[] = {
    {"answered", &RewardProgramCounts::answered},   {"failed", &RewardProgramCounts::failed},
    {"abstained", &RewardProgramCounts::abstained}, {"missing", &RewardProgramCounts::missing},
    {"died", &RewardProgramCounts::died},           {"hung", &RewardProgramCounts::hung},
    {"rubbish", &RewardProgramCounts::rubbish},     {"replaced", &RewardProgramCounts::replaced},
    {"other_id", &RewardProgramCounts::other_id}};

// The end of a text on one line, with unprintable bytes escaped.
std::string quoted_end(const std::string& text) {
  constexpr size_t most = 1000;
  const size_t end = text.find_last_not_of(" \t\r\n");
  const std::string kept = text.substr(0, end == text.npos ? 0 : end + 1);
  const bool cut = kept.size() > most;
  return (cut ? "..." : "") + json(cut ? kept.substr(kept.size() - most) : kept)
                                  .dump(-1, ' ', true, json::error_handler_t::replace);
}

}  // namespace

ProgramReply read_reply(std::string_view line, int64_t id) {
  try {
    const json j = parse_json(line, "reward", {.max_bytes = size_t(1) << 20, .max_depth = 16});
    if (!j.is_object() || !j.contains("id") || !j.contains("reward")) return {};
    const json& r = j.at("reward");
    if (!r.is_null() && (!r.is_number() || !std::isfinite(r.get<double>()))) return {};
    if (j.at("id") != id) return {.other_id = true};
    return {.understood = true,
            .reward = r.is_null() ? std::nullopt : std::optional(r.get<double>())};
  } catch (const Error&) { return {}; }
}

// The outcome of one question.
struct RewardProgram::Asked {
  Trouble trouble = Trouble::none;
  bool other_id = false;  // it answered a different question
  std::optional<double> reward = {};
  std::string what = {};        // what the program did, as a verb phrase; with trouble
  std::string last_words = {};  // end of its stderr; with trouble
};

// A process and its state; used by one thread at a time.
struct RewardProgram::Slot {
  std::unique_ptr<LineProcess> process;
  bool started = false, greeted = false;  // ever started; the running process has answered
  int64_t asked = 0;
  std::atomic<int64_t> answered = 0, abstained = 0, missing = 0, died = 0, hung = 0, rubbish = 0,
                       replaced = 0, other_id = 0;

  void forget_counts() {
    answered = 0, abstained = 0, missing = 0, died = 0, hung = 0, rubbish = 0, replaced = 0;
    other_id = 0;
  }
  void note(const Asked& a) {
    const Trouble t = a.trouble;
    missing += t == Trouble::missing, died += t == Trouble::died;
    hung += t == Trouble::hung, rubbish += t == Trouble::rubbish;
    other_id += a.other_id;
  }
};

RewardProgram::RewardProgram(RewardProgramSpec spec) : spec_(std::move(spec)) {
  std::istringstream in(spec_.command);
  for (std::string word; in >> word;) words_.push_back(word);
  if (words_.empty()) fail_usage("reward", "expected program:COMMAND, got no command");
  for (int i = 0; i < spec_.processes; ++i) slots_.push_back(std::make_unique<Slot>());
}

RewardProgram::~RewardProgram() = default;

void RewardProgram::start(Slot& slot) {
  slot.replaced += slot.started;
  slot.started = true, slot.greeted = false;
  slot.process = std::make_unique<LineProcess>(
      find_program(words_[0]).value_or(words_[0]),
      std::vector<std::string>(words_.begin() + 1, words_.end()), LineProcess::Stderr::kept);
  slot.process->give_up_when(abandoned_);
}

// A process that fails is terminated.
RewardProgram::Asked RewardProgram::ask(Slot& slot, const PromptRow& row,
                                        const std::string& completion) {
  try {
    if (!slot.process) start(slot);
  } catch (const Error& e) {
    return {.trouble = Trouble::missing, .what = fmt::format("cannot run: {}", e.what())};
  }
  const double seconds = slot.greeted ? spec_.timeout_s : std::max(spec_.timeout_s, spec_.start_s);
  const auto deadline = deadline_in(seconds);
  const int64_t id = ++slot.asked;
  const json question{
      {"id", id}, {"prompt", row.prompt}, {"completion", completion}, {"row", row.row}};
  std::string line;
  bool other_id = false;
  Trouble trouble = trouble_of(
      slot.process->say(question.dump(-1, ' ', false, json::error_handler_t::replace), deadline));
  if (trouble == Trouble::none) trouble = trouble_of(slot.process->hear(line, deadline));
  if (trouble == Trouble::none) {
    const ProgramReply reply = read_reply(line, id);
    slot.greeted |= reply.understood;
    if (reply.understood) return {.reward = reply.reward};
    trouble = Trouble::rubbish, other_id = reply.other_id;
  }
  Asked a{.trouble = trouble, .other_id = other_id};
  if (trouble == Trouble::died)
    a.what = "ended without an answer";
  else if (trouble == Trouble::hung)
    a.what = fmt::format("gave no answer within {} s", seconds);
  else
    a.what = fmt::format("answered {} to question {}, expected {{\"id\": {}, \"reward\": NUMBER}}",
                         in_quotes(line), id, id);
  a.last_words = slot.process->last_words();
  slot.process.reset();
  return a;
}

void RewardProgram::probe(const PromptRow& row) {
  Asked a;
  for (int attempt = 0; attempt < spec_.attempts && !abandoned_; ++attempt) {
    a = ask(*slots_[0], row, row.answer().value_or(""));
    if (a.trouble == Trouble::none) return;
  }
  if (abandoned_) return;
  fail("reward program " + spec_.command,
       "the program gave no reward to a test question before the run: it {}{}", a.what,
       a.last_words.empty() ? "" : "; its stderr ends with " + quoted_end(a.last_words));
}

std::optional<double> RewardProgram::score_one(Slot& slot, const PromptRow& row,
                                               const std::string& completion) {
  for (int attempt = 0; attempt < spec_.attempts; ++attempt) {
    if (abandoned_) return std::nullopt;
    const Asked a = ask(slot, row, completion);
    if (a.trouble == Trouble::none) {
      ++(a.reward ? slot.answered : slot.abstained);
      return a.reward;
    }
    if (abandoned_) return std::nullopt;
    slot.note(a);
    remember(a);
  }
  const int64_t failed = ++failed_;
  if (spec_.max_failures >= 0 && failed > spec_.max_failures) {
    const RewardProgramCounts c = counts();
    const std::string said = said_last();
    fail("reward program " + spec_.command,
         "{} completions got no reward: the program could not be started {} times, died {} times, "
         "hung {} times, gave invalid answers {} times{}",
         failed, c.missing, c.died, c.hung, c.rubbish,
         said.empty() ? "" : "; its stderr ends with: " + said);
  }
  return std::nullopt;
}

void RewardProgram::remember(const Asked& a) {
  static_assert(int(Trouble::rubbish) == 4);  // the last value; a wrong id is counted separately
  const size_t kind = a.other_id ? 5 : size_t(a.trouble);
  if (!warned_.at(kind).exchange(true) && spec_.warn)
    spec_.warn(fmt::format(
        "the reward program {} {}{}", spec_.command, a.what,
        a.last_words.empty() ? "" : "; its stderr ends with " + quoted_end(a.last_words)));
  const std::string line = last_line(a.last_words);
  if (line.empty()) return;
  const std::lock_guard lock(saying_);
  said_ = line;
}

std::string RewardProgram::said_last() const {
  const std::lock_guard lock(saying_);
  return said_;
}

GroupScores RewardProgram::score(const PromptRow& row, std::span<const RewardText> texts,
                                 int worker) {
  GroupScores all;
  for (const RewardText& t : texts)
    all.push_back(score_one(*slots_.at(size_t(worker)), row, t.text));
  return all;
}

RewardProgramCounts RewardProgram::counts() const {
  RewardProgramCounts c = before_;
  c.failed = failed_;
  for (const auto& s : slots_) {
    c.answered += s->answered, c.abstained += s->abstained;
    c.missing += s->missing, c.died += s->died, c.hung += s->hung, c.rubbish += s->rubbish;
    c.replaced += s->replaced, c.other_id += s->other_id;
  }
  return c;
}

json RewardProgram::counted() const {
  const RewardProgramCounts c = counts();
  json j;
  for (const auto& [name, count] : program_counts) j[name] = c.*count;
  return j;
}

void RewardProgram::count_on(const StateFields& f) {
  for (const auto& [name, count] : program_counts)
    if (count != &RewardProgramCounts::other_id || f.has(name))  // older checkpoints lack it
      before_.*count = f.integer(name);
  for (const auto& slot : slots_) slot->forget_counts();  // those of steps that a run goes back on
  failed_ = before_.failed;
}

int64_t RewardProgram::failed_attempts() const {
  const RewardProgramCounts c = counts();
  return c.missing + c.died + c.hung + c.rubbish;
}

RewardFailures RewardProgram::failures() const {
  const RewardProgramCounts c = counts();
  RewardFailures f{.asked = c.answered + c.abstained + c.failed, .failed = c.failed};
  f.kinds = {{"answers with another id", c.other_id},
             {"answers without a valid reward", c.rubbish - c.other_id},
             {"died", c.died},
             {"no answer in time", c.hung},
             {"could not be run", c.missing},
             {"answers of null", c.abstained}};
  std::erase_if(f.kinds, [](const auto& kind) { return kind.second <= 0; });
  return f;
}

nlohmann::ordered_json RewardProgram::troubles() const {
  const RewardProgramCounts c = counts();
  nlohmann::ordered_json j{{"failed", c.failed},     {"abstained", c.abstained},
                           {"missing", c.missing},   {"died", c.died},
                           {"hung", c.hung},         {"rubbish", c.rubbish},
                           {"other_id", c.other_id}, {"replaced", c.replaced}};
  if (const std::string said = said_last(); !said.empty()) j["stderr"] = said;
  return j;
}

}  // namespace hearth::inline rewards

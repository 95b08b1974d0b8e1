#include "rewards/rewards.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "formats/json.h"
#include "rewards/answers.h"
#include "rewards/regex.h"
#include "rewards/reward_program.h"
#include "sys/error.h"
#include "sys/trimmed.h"

namespace hearth::inline rewards {
namespace {

// A rule that scores a completion by itself or against the row's answer.
class RuleReward : public RewardSource {
 public:
  using Rule = std::function<double(const RewardText&, const std::string& answer)>;
  enum class Wants { nothing, answer, number };
  RuleReward(std::string name, Wants wants, Rule rule)
      : name_(std::move(name)), wants_(wants), rule_(std::move(rule)) {}

  void check(const PromptRow& row) const override {
    if (wants_ == Wants::nothing) return;
    const auto answer = row.answer();
    if (!answer) fail(row.where, "the reward {} needs an \"answer\" in the row", name_);
    if (wants_ == Wants::number && !answer_number(*answer))
      fail(row.where, "expected a number in the answer for the reward {}, got {}", name_,
           in_quotes(*answer));
  }
  bool knows_answers() const override { return wants_ != Wants::nothing; }
  GroupScores score(const PromptRow& row, std::span<const RewardText> texts, int) override {
    const std::string answer = row.answer().value_or("");
    GroupScores all;
    for (const RewardText& t : texts) all.push_back(rule_(t, answer));
    return all;
  }

 private:
  std::string name_;
  Wants wants_;
  Rule rule_;
};

// 1 if the pattern is found. A search that reaches its limit gives no reward, like a failed
// program.
class RegexReward : public RewardSource {
 public:
  RegexReward(std::string pattern, const RewardSpec& spec)
      : pattern_(std::move(pattern)),
        regex_(pattern_),
        max_failures_(spec.max_failures),
        warn_(spec.warn) {}

  GroupScores score(const PromptRow&, std::span<const RewardText> texts, int) override {
    GroupScores all(texts.size());
    for (size_t i = 0; i < texts.size() && !abandoned_; ++i) {
      if (const std::optional<bool> found = regex_.found_in(texts[i].text))
        all[i] = double(*found);
      else
        count_failure(texts[i].text.size());
    }
    return all;
  }
  void abandon() override { abandoned_ = true; }
  int64_t failed() const override { return failed_; }
  RewardFailures failures() const override {
    RewardFailures f{.failed = failed_};
    if (f.failed > 0) f.kinds = {{"searches that reached the limit", f.failed}};
    return f;
  }
  nlohmann::ordered_json troubles() const override {
    if (failed_ == 0) return {};
    return {{"failed", failed_.load()}};
  }
  nlohmann::json counted() const override { return {{"failed", failed_.load()}}; }
  void count_on(const StateFields& f) override { failed_ = f.integer("failed"); }

 private:
  void count_failure(size_t bytes) {
    const int64_t failed = ++failed_;
    if (max_failures_ >= 0 && failed > max_failures_)
      fail("reward",
           "the search for the pattern {} reached its step limit on {} completions; simplify the "
           "pattern",
           shown(), failed);
    if (!warned_.exchange(true) && warn_)
      warn_(fmt::format(
          "the search for the pattern {} reached its step limit in a completion of {} bytes, "
          "which gets no reward; nested repeats such as (a+)+ and patterns without a leading ^ "
          "need the most steps",
          shown(), bytes));
  }
  std::string shown() const { return in_quotes(pattern_); }

  std::string pattern_;
  Regex regex_;
  int64_t max_failures_;
  std::function<void(const std::string&)> warn_;
  std::atomic<int64_t> failed_ = 0;  // including earlier processes of the run
  std::atomic<bool> abandoned_ = false, warned_ = false;
};

double number_argument(std::string_view text, const std::string& whole) {
  double x = 0;
  const auto r = std::from_chars(text.data(), text.data() + text.size(), x);
  if (r.ec != std::errc() || r.ptr != text.data() + text.size() || !std::isfinite(x))
    fail_usage("reward", "expected a number in {}, got {}", in_quotes(whole), in_quotes(text));
  return x;
}

struct ParsedReward {
  std::string name, argument;
  double weight = 1;
};

ParsedReward parse_reward(const std::string& text) {
  ParsedReward p;
  std::string_view rest = text;
  if (const size_t at = rest.rfind('@'); at != rest.npos) {
    const std::string_view tail = rest.substr(at + 1);
    double weight = 0;
    const auto r = std::from_chars(tail.data(), tail.data() + tail.size(), weight);
    // After an @, text that is not a number belongs to the argument.
    if (r.ec == std::errc() && r.ptr == tail.data() + tail.size() && std::isfinite(weight))
      p.weight = weight, rest = rest.substr(0, at);
  }
  const size_t colon = std::min(rest.find(':'), rest.size());
  p.name = rest.substr(0, colon);
  if (colon < rest.size()) p.argument = rest.substr(colon + 1);
  return p;
}

std::unique_ptr<RewardSource> make_rule(const ParsedReward& p, const std::string& text) {
  using Wants = RuleReward::Wants;
  const auto rule = [&](Wants wants, RuleReward::Rule r) {
    return std::make_unique<RuleReward>(p.name, wants, std::move(r));
  };
  if (p.name == "exact")
    return rule(Wants::answer, [](const RewardText& t, const std::string& answer) {
      return double(trimmed(t.text) == trimmed(answer));
    });
  if (p.name == "numeric")
    return rule(Wants::number, [](const RewardText& t, const std::string& answer) {
      return double(equal_number(t.text, answer));
    });
  if (p.name == "near") {
    const double within = p.argument.empty() ? 1e-3 : number_argument(p.argument, text);
    return rule(Wants::number, [within](const RewardText& t, const std::string& answer) {
      return double(near_number(t.text, answer, within));
    });
  }
  if (p.name == "length") {
    const double most = number_argument(p.argument, text);
    if (most < 1)
      fail_usage("reward", "expected length:N with N of at least 1, got {}", in_quotes(text));
    return rule(Wants::nothing, [most](const RewardText& t, const std::string&) {
      return std::clamp(2 - double(t.tokens) / most, 0.0, 1.0);
    });
  }
  return nullptr;
}

std::unique_ptr<RewardSource> make_reward(const ParsedReward& p, const std::string& text,
                                          const RewardSpec& spec) {
  if (auto rule = make_rule(p, text)) return rule;
  if (p.name == "regex") return std::make_unique<RegexReward>(p.argument, spec);
  if (p.name == "chess") return make_chess_reward(spec);
  if (p.name == "program")
    return std::make_unique<RewardProgram>(RewardProgramSpec{.command = p.argument,
                                                             .processes = spec.workers,
                                                             .timeout_s = spec.timeout_s,
                                                             .start_s = spec.start_s,
                                                             .max_failures = spec.max_failures,
                                                             .warn = spec.warn});
  const std::vector<std::string> known{"exact",  "numeric", "near",   "regex",
                                       "length", "chess",   "program"};
  const bool is_command = p.name.find_first_of("/. ") != p.name.npos;  // no name has one of these
  fail_usage("reward", "expected one of {}, got {}; {}", fmt::join(known, ", "), in_quotes(p.name),
             is_command ? "a program is given as program:" + text
                        : "the nearest is " + nearest(p.name, known));
}

}  // namespace

Rewards::Rewards(const RewardSpec& spec) {
  if (spec.rewards.empty()) fail_usage("reward", "at least one --reward is needed");
  if (spec.workers < 1 || spec.workers > 1024)
    fail_usage("reward_workers", "expected 1 to 1024 threads, got {}", spec.workers);
  if (!(spec.timeout_s > 0))
    fail_usage("reward_timeout", "expected a time above 0 seconds, got {}", spec.timeout_s);
  for (const std::string& text : spec.rewards) {
    const ParsedReward p = parse_reward(text);
    terms_.push_back({p.name == "program" ? "program:" + p.argument : p.name, p.weight,
                      make_reward(p, text, spec)});
  }
  for (int i = 0; i < spec.workers; ++i)
    threads_.emplace_back([this, i](std::stop_token stop) { work(i, stop); });
}

Rewards::~Rewards() {
  for (std::jthread& t : threads_) t.request_stop();
  abandon();
  for (std::jthread& t : threads_) t.join();
}

void Rewards::abandon() {
  for (const Term& t : terms_) t.source->abandon();
  const std::lock_guard lock(mutex_);
  queue_.clear();
}

void Rewards::check(std::span<const PromptRow> rows) const {
  for (const Term& t : terms_)
    for (const PromptRow& row : rows) t.source->check(row);
}

bool Rewards::probe(const PromptRow& row, const std::atomic<int>* stop) {
  auto done = std::async(std::launch::async, [&] {
    for (const Term& t : terms_) t.source->probe(row);
  });
  bool stopped = false;
  while (done.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    if (stopped || !stop || !*stop) continue;
    stopped = true;
    abandon();
  }
  done.get();
  return !stopped;
}

void Rewards::work(int worker, std::stop_token stop) {
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, stop, [this] { return !queue_.empty(); });
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task(worker);
  }
}

// A group whose parts are scored by several threads; the last one assembles the result in order.
struct Rewards::Parts {
  std::vector<RewardText> texts;
  std::vector<GroupRewards> parts;
  std::mutex mutex;
  size_t left = 0;
  std::exception_ptr error;  // the first error
  std::promise<GroupRewards> whole;

  bool failed() {
    const std::lock_guard lock(mutex);
    return bool(error);
  }
  void done() {
    const std::lock_guard lock(mutex);
    if (--left > 0) return;
    if (error) return whole.set_exception(error);
    GroupRewards all = std::move(parts[0]);
    for (size_t i = 1; i < parts.size(); ++i) {
      all.total.insert(all.total.end(), parts[i].total.begin(), parts[i].total.end());
      for (size_t t = 0; t < all.parts.size(); ++t)
        all.parts[t].insert(all.parts[t].end(), parts[i].parts[t].begin(), parts[i].parts[t].end());
    }
    whole.set_value(std::move(all));
  }
};

std::future<GroupRewards> Rewards::submit(const PromptRow& row, std::vector<RewardText> texts) {
  const bool apart =
      std::ranges::any_of(terms_, [](const Term& t) { return t.source->slow(); }) && !texts.empty();
  const auto group = std::make_shared<Parts>();
  group->texts = std::move(texts);
  group->left = apart ? group->texts.size() : 1;
  group->parts.resize(group->left);
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < group->left; ++i)
    queue_.emplace_back([this, &row, group, i, apart](int worker) {
      try {
        const std::span<const RewardText> all = group->texts;
        if (!group->failed()) group->parts[i] = score(row, apart ? all.subspan(i, 1) : all, worker);
      } catch (...) {
        const std::lock_guard guard(group->mutex);
        if (!group->error) group->error = std::current_exception();
      }
      group->done();
    });
  arrived_.notify_all();
  return group->whole.get_future();
}

std::optional<size_t> Rewards::answer_term() const {
  for (size_t t = 0; t < terms_.size(); ++t)
    if (terms_[t].source->knows_answers()) return t;
  return std::nullopt;
}

GroupRewards Rewards::score(const PromptRow& row, std::span<const RewardText> texts, int worker) {
  GroupRewards g;
  g.total.assign(texts.size(), 0.0);
  for (const Term& t : terms_) {
    const GroupScores scores = t.source->score(row, texts, worker);
    g.parts.emplace_back();
    for (size_t i = 0; i < texts.size(); ++i) {
      if (scores[i]) g.parts.back().push_back(*scores[i]);
      if (g.total[i])
        g.total[i] = scores[i] ? std::optional(*g.total[i] + t.weight * *scores[i]) : std::nullopt;
    }
  }
  return g;
}

std::vector<std::string> Rewards::names() const {
  std::vector<std::string> all;
  for (const Term& t : terms_) all.push_back(t.name);
  return all;
}

nlohmann::ordered_json Rewards::troubles() const {
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (const Term& t : terms_)
    if (nlohmann::ordered_json j = t.source->troubles(); !j.is_null()) all[t.name] = std::move(j);
  return all;
}

int64_t Rewards::failed() const {
  int64_t sum = 0;
  for (const Term& t : terms_) sum += t.source->failed();
  return sum;
}

int64_t Rewards::failed_attempts() const {
  int64_t sum = 0;
  for (const Term& t : terms_) sum += t.source->failed_attempts();
  return sum;
}

std::vector<RewardFailures> Rewards::failures() const {
  std::vector<RewardFailures> all;
  for (const Term& t : terms_) {
    RewardFailures f = t.source->failures();
    f.name = t.name;
    if (!f.kinds.empty()) all.push_back(std::move(f));
  }
  return all;
}

nlohmann::json Rewards::counted() const {
  nlohmann::json all = nlohmann::json::array();
  for (const Term& t : terms_) all.push_back(t.source->counted());
  return all;
}

void Rewards::count_on(const nlohmann::json& all, const std::string& where) {
  if (all.is_null()) return;
  if (!all.is_array() || all.size() != terms_.size())
    fail(where, "expected run.rewards to be a list of {} counts, got {}", terms_.size(),
         in_quotes(all.dump(-1, ' ', true)));
  for (size_t i = 0; i < terms_.size(); ++i)
    if (!all[i].is_null()) terms_[i].source->count_on({all[i], where, "run.rewards"});
}

}  // namespace hearth::inline rewards

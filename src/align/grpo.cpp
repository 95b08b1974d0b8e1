#include "align/grpo.h"

#include <fmt/format.h>

#include <algorithm>

#include "align/base.h"
#include "align/grpo_report.h"
#include "core/clock.h"
#include "core/error.h"
#include "data/permutation.h"
#include "infer/generation_config.h"
#include "io/checkpoint_dir.h"
#include "io/fields.h"
#include "io/hash.h"
#include "io/process_memory.h"
#include "io/terminal.h"
#include "io/trimmed.h"
#include "model/folder.h"
#include "train/checkpoint.h"
#include "train/log.h"
#include "train/run_folder.h"

namespace hearth {
namespace fs = std::filesystem;

namespace {

using nlohmann::ordered_json;

// Settings that change nothing of what a run has computed so far; the digest of the prompts knows
// of chat, chat_template and clock.
constexpr std::string_view free_settings_of_grpo[] = {
    "eval_every",     "eval_write",       "eval_prompts",   "eval_data",
    "target_exact",   "checkpoint_every", "keep",           "sample_every",
    "reward_workers", "recompute",        "reward_timeout", "reward_failures",
    "rollout_batch",  "batch_invariant",  "chat",           "clock",
    "reward_start",   "chat_template"};

class GrpoRun {
 public:
  GrpoRun(const GrpoRunSpec& spec, Backend& backend)
      : spec_(spec),
        config_(spec.config),
        backend_(backend),
        source_(open_base(config_.model, config_.lora)),
        model_(config_in_training(source_, config_.lora)),
        store_(backend, decoder_params(model_), to_dtype(config_.dtype)) {}

  GrpoResult run() {
    config_.check();
    expect_new_or_resumed(spec_.run, spec_.resume);
    const std::string toml = "# Written when the run began; `--resume` reads it back.\n" +
                             toml_lines(fields_to_json(config_));
    if (spec_.resume) expect_settings_of_run(spec_.run, toml, free_settings_of_grpo);
    read_data();
    RewardSpec rewards = config_.rewards();
    rewards.warn = spec_.warn;
    rewards_ = std::make_unique<Rewards>(rewards);
    rewards_->check(rows_);
    if (!eval_rows_.empty()) rewards_->check(eval_rows_);
    if (!rewards_->probe(rows_[0], spec_.stop)) return result("stopped");
    lock_ = open_run_folder(spec_.run, spec_.resume, toml);
    stepper_ = std::make_unique<GrpoStepper>(
        GrpoStepSpec{.config = config_,
                     .model = model_,
                     .tokenizer = &*tokenizer_,
                     .longest_prompt = longest_prompt_,
                     .stop_ids = ends_,
                     .interrupt = spec_.stop,
                     .load_reference = [this](ParamStore& to) { source_.load(to); }},
        store_, backend_, *rewards_);
    begin();
    if (!spec_.quiet) say("GRPO on {}\n", backend_.describe());
    log_ = std::make_unique<RunLog>(spec_.run, state_.log, state_.samples, config_.steps, true,
                                    spec_.warn);
    const bool finished =
        !checkpoint_.empty() && !evaluation_due() && (at_target() || state_.step >= config_.steps);
    evaluate();
    if (improved_) checkpoint();  // of a run that was stopped in this evaluation
    std::string reason = at_target() ? "target" : evaluation_due() ? "stopped" : "steps";
    if (finished && spec_.warn) spec_.warn(finished_already(spec_.run, state_.step, config_.steps));
    while (state_.step < config_.steps && reason == "steps") {
      if (step()) evaluate();
      if (at_target())
        reason = "target";
      else if ((spec_.stop && *spec_.stop) || stops_here())
        reason = "stopped";
      if (state_.step == config_.steps || reason != "steps" || improved_ ||
          due(config_.checkpoint_every))
        checkpoint();
    }
    log_->sync();
    if (!finished) report_rewards(reason);
    return result(reason);
  }

 private:
  bool due(int64_t every) const { return every > 0 && state_.step % every == 0; }
  bool stops_here() const {
    return spec_.stop_after_step > 0 && state_.step >= spec_.stop_after_step;
  }
  bool evaluation_due() const {
    return !eval_prompts_.empty() && state_.evaluated != state_.step &&
           (due(config_.eval_every) || state_.step == config_.steps);
  }
  bool at_target() const {
    return config_.target_exact > 0 && state_.last_exact >= config_.target_exact;
  }

  // --- before the first step ---
  void read_data() {
    tokenizer_ = tokenizer_beside(source_, model_);
    const PromptSpec spec{.form = config_.prompt_form,
                          .chat = [&]() -> const ChatTemplate& {
                            if (!chat_)
                              chat_ = run_template(config_.chat_template, source_.tokenizer(),
                                                   *tokenizer_);
                            return chat_->chat;
                          },
                          .message = config_.chat,
                          .now = time_of(config_.clock)};
    rows_ = read_prompts(config_.data, spec);
    rows_digest_ = digest_of(rows_);
    prompts_ = encode(rows_, config_.data);
    order_by_curriculum();
    // A template that asks says what closes its answers.
    ends_ = answer_ends_of(source_, chat_ ? &chat_->chat : nullptr, *tokenizer_);
    generation_ = read_generation_config(source_.path());
    asked_ = digest_of_tokens();
    if (config_.eval_data.empty()) return;
    eval_rows_ = read_prompts(config_.eval_data, spec);
    if (config_.eval_prompts > 0 && int64_t(eval_rows_.size()) > config_.eval_prompts)
      eval_rows_.resize(size_t(config_.eval_prompts));
    eval_prompts_ = encode(eval_rows_, config_.eval_data);
  }

  // Places of prompts by that number of theirs, those with the same one in the order of a pass.
  void order_by_curriculum() {
    if (config_.curriculum.empty()) return;
    const auto number = [&](size_t i) {
      const nlohmann::json& row = prompts_[i].row->row;
      const auto it = row.find(config_.curriculum);
      if (it == row.end() || !it->is_number())
        fail(prompts_[i].row->where, "expected a number as {} for --curriculum, got {}",
             in_quotes(config_.curriculum), it == row.end() ? "none" : it->dump().substr(0, 40));
      return it->get<double>();
    };
    const Permutation pass(prompts_.size(), config_.seed, 0);
    std::vector<std::pair<double, size_t>> all;
    for (size_t k = 0; k < prompts_.size(); ++k) {
      const size_t place = size_t(pass(k));
      all.emplace_back(number(place), place);
    }
    std::ranges::stable_sort(all, {}, &std::pair<double, size_t>::first);
    for (const auto& [value, place] : all) easy_first_.push_back(place);
  }

  // What the model is given, and where its completions end: texts alone do not say it.
  std::string digest_of_tokens() const {
    Sha256 hash;
    const auto add = [&](const std::vector<int32_t>& ids) {
      const uint64_t size = ids.size();
      hash.update(std::as_bytes(std::span(&size, 1)));
      hash.update(std::as_bytes(std::span(ids)));
    };
    for (const EncodedPrompt& p : prompts_) add(p.tokens);
    add(ends_);
    return hash.hex();
  }

  // Rows whose prompt leaves no room for a completion go, and that is said.
  std::vector<EncodedPrompt> encode(std::vector<PromptRow>& rows, const std::string& file) {
    std::vector<std::vector<int32_t>> tokens;
    const size_t read = rows.size();
    std::string first;
    std::erase_if(rows, [&](const PromptRow& row) {
      std::vector<int32_t> ids = prompt_tokens(row, *tokenizer_);
      const bool fits = !ids.empty() && int64_t(ids.size()) < model_.context;
      if (!fits && first.empty()) first = fmt::format("{}, has {}", row.where, ids.size());
      if (fits) tokens.push_back(std::move(ids));
      return !fits;
    });
    if (rows.empty())
      fail(file, "expected a prompt of 1 to {} tokens, got none: the first, {}", model_.context - 1,
           first);
    if (rows.size() < read && spec_.warn)
      spec_.warn(fmt::format("{}: {} of {} prompts left out, not of 1 to {} tokens: the first, {}",
                             file, read - rows.size(), read, model_.context - 1, first));
    std::vector<EncodedPrompt> all;
    for (size_t i = 0; i < rows.size(); ++i) {
      longest_prompt_ = std::max(longest_prompt_, int64_t(tokens[i].size()));
      all.push_back({&rows[i], std::move(tokens[i])});
    }
    return all;
  }

  void begin() {
    for (const Part p : {Part::weight, Part::grad, Part::moment1, Part::moment2}) store_.flat(p);
    if (model_.lora) begin_adapters(source_, store_, config_.seed);
    if (model_.lora || config_.beta > 0) base_ = model_digest(source_);
    if (const auto found = resumed_checkpoint(spec_.run, spec_.resume, spec_.warn))
      return load(*found);
    if (!model_.lora) source_.load(store_);
    state_.beta = config_.beta;
    stepper_->update().set_state({});
  }

  void load(const fs::path& dir) {
    const std::string where = expect_same_run(dir, {.kind = "grpo",
                                                    .settings = fields_to_json(config_),
                                                    .free = free_settings_of_grpo,
                                                    .base = base_,
                                                    .data = rows_digest_});
    const nlohmann::json saved = load_model_checkpoint(dir, model_, store_);
    if (saved.contains("asked") && saved["asked"] != asked_)
      fail(where,
           "expected the tokenizer and the ends of texts that the run began with, got others");
    state_ = GrpoState::from_json(trainer_fields(saved, where).object("run"));
    if (state_.beta != 0 && config_.beta == 0)
      fail(where, "expected run.beta to be 0, for this run has no reference model, got {}",
           state_.beta);
    if (!state_.best_step) state_.best_step = best_of_link(spec_.run, state_.step);
    rewards_->count_on(state_.rewards, where);
    stepper_->update().set_state(state_.update);
    checkpoint_ = dir, saved_ = state_.step;
    reconcile(spec_.run, dir, config_.keep);
  }

  // The next prompts in an order that is another in every pass over the data, the first pass by the
  // curriculum where there is one.
  std::vector<EncodedPrompt> next_prompts() const {
    std::vector<EncodedPrompt> chosen;
    const uint64_t n = prompts_.size();
    for (int64_t i = 0; i < config_.prompts; ++i) {
      const uint64_t k = uint64_t(state_.step * config_.prompts + i);
      const bool by_curriculum = k < easy_first_.size();
      chosen.push_back(
          prompts_[by_curriculum ? easy_first_[size_t(k)]
                                 : size_t(Permutation(n, config_.seed, k / n)(k % n))]);
    }
    return chosen;
  }

  // Runs what takes long and changes no weight: completions and their rewards. False where a signal
  // cut it short. What goes wrong in it costs nothing of what has been learned.
  template <class Work>
  bool sampled(Work work) {
    try {
      work();
      return true;
    } catch (const Interrupted&) {
      rewards_->abandon();
      return false;
    } catch (const Error&) {
      checkpoint_before_error();
      throw;
    }
  }

  void checkpoint_before_error() {
    try {
      checkpoint();
    } catch (const Error& e) {  // what went wrong first is what is told last
      if (spec_.warn) spec_.warn(e.what());
    }
  }

  // An update that was applied cannot be taken back: then the last checkpoint is the one to go on
  // from. Where all were skipped the weights are still those of the step before.
  StepFindings trained(RolloutBatch batch) {
    const GrpoState before = state_;
    try {
      return stepper_->train_on(std::move(batch), state_);
    } catch (const Error&) {
      const bool touched = state_.update.good_steps != before.update.good_steps;
      state_ = before;
      if (!touched) checkpoint_before_error();
      throw;
    }
  }

  // False where a signal came before the weights were touched: the step is not there.
  bool step() {
    const std::vector<EncodedPrompt> prompts = next_prompts();
    RolloutBatch batch;
    if (!sampled([&] { batch = stepper_->roll_out(prompts, state_); })) return false;
    const StepFindings f = trained(std::move(batch));
    state_.rewards = rewards_->counted();
    record(f);
    print(f);
    if (due(config_.sample_every))
      log_->sample(state_.step, first_group(f, prompts[0].row->prompt, config_.group));
    return true;
  }

  // --- what a step leaves behind ---
  void record(const StepFindings& f) {
    const RolloutBatch& b = f.batch;
    const StepSplit& s = f.seconds;
    const MemoryUse held = backend_.memory_use();
    log_->step({.step = state_.step,
                .tokens = state_.tokens,
                .loss = f.policy.loss,
                .lr = f.lr,
                .grad_norm = f.updates ? double(f.policy.update.grad_norm) : 0,
                .skipped = f.policy.update.skip != 0,
                .seconds = s.total,
                .tokens_per_s = double(b.tokens) / s.total,
                .memory = held.now ? held.now : resident_bytes(),
                .peak_memory = held.peak ? held.peak : peak_resident_bytes(),
                .more = found_in_step(f, config_, state_, rewards_->names()),
                .more_perf = split_of_step(f, *rewards_)});
    decode_s_ += s.decode, decoded_ += b.tokens, train_s_ += s.train, fed_ += f.fed;
    if (f.gap.most != 0 && gap_ == 0 && backend_.batch_invariant() && spec_.warn)
      spec_.warn(fmt::format("sampler and trainer differ by up to {:.2g}, and should not on {}",
                             f.gap.most, backend_.describe()));
    if (std::ranges::count(f.advantages.rewarded, 1) > 0)
      state_.last_reward = f.advantages.reward_mean;
    gap_ = LogprobGap::worse(gap_, f.gap.most);
  }

  // At most every other second.
  void print(const StepFindings& f) {
    if (spec_.quiet || (seconds_since(printed_) < 2 && state_.step != config_.steps)) return;
    printed_ = Clock::now();
    say("{}\n", step_line(f, config_, state_));
  }

  // Greedy completions of the held-out prompts, if it is time for them. One that a signal cuts
  // short is due again when the run goes on.
  void evaluate() {
    if (!evaluation_due()) return;
    const auto begin = Clock::now();
    const RolloutSpec spec = stepper_->rollout_spec(state_.step);
    std::vector<Rollout> made;
    std::vector<GroupRewards> rewards;
    const auto work = [&] {
      made = greedy_completions(stepper_->engine(), eval_prompts_, spec);
      std::vector<std::future<GroupRewards>> scores;
      for (const Rollout& r : made)
        scores.push_back(rewards_->submit(eval_rows_[r.prompt], {{r.text, r.completion_tokens()}}));
      for (auto& s : scores) rewards.push_back(await_rewards(s, spec));
    };
    if (sampled(work)) record_evaluation(made, rewards, seconds_since(begin));
  }

  // Whether a completion has its row's answer: as the reward that knows answers says it, else by
  // the text. Nothing where the row has none.
  std::optional<bool> has_answer(const PromptRow& row, const Rollout& r,
                                 const GroupRewards& rewards) const {
    const auto answer = row.answer();
    if (!answer) return std::nullopt;
    const auto term = rewards_->answer_term();
    if (!term) return trimmed(r.text) == trimmed(*answer);
    const std::vector<double>& had = rewards.parts[*term];
    return !had.empty() && had[0] == 1;
  }

  // The share that has the answer, and their reward.
  void record_evaluation(const std::vector<Rollout>& made, const std::vector<GroupRewards>& rewards,
                         double seconds) {
    state_.evaluated = state_.step, state_.rewards = rewards_->counted();
    double reward = 0;
    int64_t exact = 0, answers = 0, rewarded = 0;
    for (size_t i = 0; i < made.size(); ++i) {
      if (const auto x = rewards[i].total[0]) reward += *x, ++rewarded;
      if (const auto right = has_answer(eval_rows_[i], made[i], rewards[i]))
        ++answers, exact += *right;
    }
    evaluations_rewarded_ += rewarded;
    const std::optional<double> mean =
        rewarded ? std::optional(reward / double(rewarded)) : std::nullopt;
    ordered_json found{{"eval_reward", mean ? ordered_json(*mean) : ordered_json()},
                       {"eval_prompts", made.size()},
                       {"eval_unrewarded", int64_t(made.size()) - rewarded}};
    if (answers > 0) {
      state_.last_exact = double(exact) / double(answers);
      found["eval_exact"] = state_.last_exact;
    }
    log_->evaluation(state_.step, found, seconds);
    if (config_.eval_write) write_completions(made);
    improved_ = mean && state_.step > 0 && (!state_.best_reward || *mean > *state_.best_reward);
    if (improved_) state_.best_reward = mean;
    if (!spec_.quiet)
      say("step {}  evaluation: reward {}{}\n", state_.step,
          mean ? fmt::format("{:.4f}", *mean) : "none",
          answers ? fmt::format(", exact {:.4f}", state_.last_exact) : "");
  }

  // The rows with what the model made of them; a completion they had becomes the reference.
  void write_completions(const std::vector<Rollout>& made) const {
    AtomicFile file(spec_.run / fmt::format("eval-{}.jsonl", state_.step));
    for (const Rollout& r : made) {
      const PromptRow& row = eval_rows_[r.prompt];
      nlohmann::json out = row.row;
      if (out.contains("completion") && !out.contains("reference"))
        out["reference"] = out["completion"];
      out["prompt"] = row.prompt, out["completion"] = r.text;
      using Bad = nlohmann::json::error_handler_t;
      file.write(to_bytes(out.dump(-1, ' ', false, Bad::replace) + "\n"));
    }
    file.commit();
  }

  // A model that was asked by a template is asked by it later, too.
  ordered_json chat_source() const {
    return chat_ ? chat_->source : written_chat_template(source_.tokenizer());
  }

  // Nothing is written where nothing has been learned since the last one, unless that one has just
  // turned out to be the best: then it is written again, with this in its state.
  void checkpoint() {
    if (state_.step == saved_ && !improved_) return;
    log_->sync();
    state_.log = log_->log_mark(), state_.samples = log_->samples_mark();
    if (improved_) state_.best_step = state_.step;
    nlohmann::json trainer{{"version", 1},
                           {"grpo", fields_to_json(config_)},
                           {"data", rows_digest_},
                           {"asked", asked_},
                           {"run", state_.to_json()}};
    if (!base_.is_null()) {
      trainer["base"] = base_;
      trainer["base_path"] = path_from_run(source_.path(), spec_.run);
    }
    checkpoint_ = save_model_checkpoint(spec_.run,
                                        {.model = model_,
                                         .base = fs::absolute(source_.path()).string(),
                                         .tokenizer = &*tokenizer_,
                                         .chat_template = chat_source(),
                                         .ends = ends_,
                                         .generation = generation_,
                                         .trainer = std::move(trainer),
                                         .step = state_.step,
                                         .keep = config_.keep},
                                        store_);
    saved_ = state_.step, improved_ = false;
  }

  // A run that was never told a reward, because every question failed, is no success, nor is one
  // that ended with few.
  void report_rewards(const std::string& reason) const {
    const std::vector<RewardFailures> failures = rewards_->failures();
    for (const std::string& line : closing_warnings(state_, failures))
      if (spec_.warn) spec_.warn(line);
    const bool some = state_.unrewarded < state_.completions || evaluations_rewarded_ > 0;
    if (!some && rewards_->failed() > 0)
      fail("grpo", "not one of {} completions had a reward, because the program failed each time",
           state_.completions);
    if (reason != "stopped") expect_rewards_of_most(failures, checkpoint_);
  }

  GrpoResult result(const std::string& reason) const {
    GrpoResult r;
    r.steps = state_.step, r.updates = int64_t(state_.version);
    r.completions = state_.completions, r.tokens = state_.tokens;
    r.unrewarded = state_.unrewarded;
    r.reward = state_.last_reward, r.seconds = state_.seconds;
    if (state_.last_exact >= 0) r.exact = state_.last_exact;
    if (decode_s_ > 0) r.logprob_gap = gap_, r.rollout_tokens_per_s = double(decoded_) / decode_s_;
    if (train_s_ > 0) r.train_tokens_per_s = double(fed_) / train_s_;
    r.reason = reason, r.checkpoint = checkpoint_;
    return r;
  }

  const GrpoRunSpec& spec_;
  const GrpoConfig& config_;
  Backend& backend_;
  ModelSource source_;
  ModelConfig model_;  // resolved
  ParamStore store_;
  nlohmann::json base_;  // of adapters, or the reference; else null
  Fd lock_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<RunTemplate> chat_;  // where prompts go through one
  std::vector<PromptRow> rows_, eval_rows_;
  std::string rows_digest_, asked_;
  std::vector<int32_t> ends_;          // tokens that end a completion, beside the end of text
  nlohmann::ordered_json generation_;  // generation_config.json of the base, kept in checkpoints
  std::vector<EncodedPrompt> prompts_, eval_prompts_;
  std::vector<size_t> easy_first_;  // places of prompts in the first pass; empty: no curriculum
  int64_t longest_prompt_ = 0;
  std::unique_ptr<Rewards> rewards_;  // after the rows it may still read: it goes first
  std::unique_ptr<GrpoStepper> stepper_;
  std::unique_ptr<RunLog> log_;
  GrpoState state_;
  fs::path checkpoint_;
  int64_t saved_ = 0;      // the step of it
  bool improved_ = false;  // the best evaluation so far, of weights that are not saved yet
  Clock::time_point printed_ = {};
  double decode_s_ = 0, train_s_ = 0, gap_ = 0;  // of this process
  int64_t decoded_ = 0, fed_ = 0, evaluations_rewarded_ = 0;
};

}  // namespace

GrpoResult grpo(const GrpoRunSpec& spec, Backend& backend) { return GrpoRun(spec, backend).run(); }

}  // namespace hearth

#include "infer/generation.h"

#include <algorithm>

#include "sys/error.h"

namespace hearth::inline infer {

std::optional<TokenLogprob> wanted_logprob(const Job& job, std::span<const float> logits,
                                           std::optional<LogSum> sum, int32_t token) {
  if (job.sampling().logprobs < 0) return {};
  return token_logprob(logits, token, job.sampling().logprobs, sum);
}

Generation::Generation(const Job& job, int sample)
    : sampler(job.sampling(), job.request.prompt, uint32_t(sample)),
      job_(&job),
      sample_(uint32_t(sample)),
      text_(job.tokenizer, job.sampling().stop, job.request.prompt) {
  if (job.request.constraint)
    cursor_.emplace(job.request.constraint, job.tokenizer->strips_after(job.request.prompt.back()));
  if (job.limit == 0) finish("length");
}

int32_t Generation::draw(std::span<const float> logits) {
  return sampler.draw(logits.first(size_t(job_->vocab)), uint64_t(size()), barred(), allowed());
}

// A text that may end here may end by any token that stops it. Elsewhere none of them is allowed,
// not even one with bytes that would continue the text.
AllowedTokens Generation::allowed() {
  if (!cursor_) return job_->usable_tokens();
  const TokenMask& mask = cursor_->mask();
  const auto& ids = job_->stop_ids;
  if (cursor_->accepts()) return {mask.bits, ids};
  const auto continues = [&](int32_t id) { return id >= 0 && id < job_->vocab && mask.has(id); };
  if (std::ranges::none_of(ids, continues)) return {mask.bits, {}};
  unstopped_ = mask.bits;
  for (const int32_t id : ids)
    if (continues(id)) unstopped_[size_t(id) / 32] &= ~(1u << id % 32);
  if (std::ranges::all_of(unstopped_, [](uint32_t word) { return word == 0; }))
    fail_usage("constraint", "only a token that stops the text can continue it");
  return {unstopped_, {}};
}

void Generation::note_start() {
  if (completion.queue_ms < 0) completion.queue_ms = seconds_since(job_->start) * 1e3;
}

std::optional<SampleControls> Generation::controls(int64_t ahead) const {
  const SamplingSpec& s = job_->sampling();
  const bool barred = int64_t(completion.tokens.size()) + ahead < s.min_tokens;
  const bool as_trained = s.logprobs >= 0 && s.logprobs_at_temperature && s.temperature > 0;
  if (!s.by_row() || barred || s.logprobs > 1 || s.top_k > INT32_MAX) return {};
  if (masked() && as_trained) return {};
  const uint64_t bits = sampling_bits(s.seed, sample_, uint64_t(size() + ahead));
  return SampleControls{.temperature = s.temperature,
                        .min_p = s.min_p,
                        .top_p = s.top_p,
                        .top_k = int32_t(s.top_k),
                        .uniform_low = uint32_t(bits),
                        .uniform_high = uint32_t(bits >> 32),
                        .as_trained = as_trained,
                        .constrained = masked()};
}

std::span<const int32_t> Generation::barred() const {
  if (int64_t(completion.tokens.size()) >= job_->sampling().min_tokens) return {};
  return job_->stop_ids;
}

std::string Generation::append(int32_t token, std::optional<TokenLogprob> logprob) {
  completion.tokens.push_back(token);
  sampler.accept(token);
  if (logprob) completion.logprobs.push_back(std::move(*logprob));
  const int64_t count = int64_t(completion.tokens.size());
  if (count == 1) first_ = Clock::now();

  std::string piece;
  const auto& ids = job_->stop_ids;
  if (std::find(ids.begin(), ids.end(), token) != ids.end()) {
    finish("stop");
  } else {
    piece = text_.push(token, count >= job_->sampling().min_tokens);
    if (cursor_) cursor_->accept(token);
    if (text_.stopped() || (cursor_ && cursor_->ended()))
      finish("stop");
    else if (count >= job_->limit)
      finish("length");
  }
  if (finished()) piece += text_.finish();
  completion.text += piece;
  return piece;
}

void Generation::finish(const char* reason) {
  completion.finish_reason = reason;
  completion.matches = !cursor_ || cursor_->accepts();
  const int64_t count = int64_t(completion.tokens.size());
  if (count == 0) return;
  const double to_first = std::chrono::duration<double>(first_ - job_->start).count();
  completion.ttft_ms = to_first * 1e3;
  completion.tokens_per_s = count > 1 ? double(count - 1) / seconds_since(first_) : 1 / to_first;
}

}  // namespace hearth::inline infer

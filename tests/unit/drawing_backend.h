// DrawingBackend: a CPU that draws tokens itself, as GPUs do, for tests of steps that are launched
// before the host has seen the tokens of the one before.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "core/kernels.h"
#include "cpu/backend.h"

namespace hearth {

// The likeliest token of each row, or one by the row's bits.
inline void draw_rows(Stream&, const SampleArgs& args) {
  const Tensor& logits = args.logits;
  for (int64_t row = 0; row < logits.rows(); ++row) {
    const SampleControls& c = args.controls.as<const SampleControls>()[row];
    const std::span x(logits.as<float>() + row * logits.cols(), size_t(args.drawable));
    const auto all = std::ranges::max_element(x);
    const int32_t likeliest = int32_t(all - x.begin());
    const double most = double(*all);
    double sum = 0, tempered = 0, passed = 0;
    for (const float v : x) sum += std::exp(double(v) - most);
    if (c.constrained)
      for (size_t i = 0; i < x.size(); ++i) {
        const int32_t word =
            args.allowed.as<int32_t>()[row * args.allowed.cols() + int64_t(i / 32)];
        if (!(uint32_t(word) >> i % 32 & 1)) x[i] = -std::numeric_limits<float>::infinity();
      }
    const auto best = std::ranges::max_element(x);
    const auto weight = [&](float v, double temperature) {
      return std::exp((double(v) - double(*best)) / temperature);
    };
    size_t token = size_t(best - x.begin());
    if (c.temperature > 0) {
      for (const float v : x) tempered += weight(v, double(c.temperature));
      const double u = (double(c.uniform_high) + double(c.uniform_low) / 0x1p32) / 0x1p32;
      for (token = 0; token + 1 < x.size(); ++token)
        if ((passed += weight(x[token], double(c.temperature))) > u * tempered) break;
    }
    const auto log = [&](double v) { return float(v - most - std::log(sum)); };
    args.drawn.as<Drawn>()[row] = {int32_t(token), log(double(x[token])), likeliest, log(most)};
    args.tokens.as<int32_t>()[row] = int32_t(token);
  }
}

// Launches that read input tokens and that nothing has waited for, as on a card.
struct InputReads {
  struct Read {
    const std::byte* tokens;
    int64_t launch;
  };
  decltype(Kernels::embed) embed = nullptr;  // of the CPU
  std::vector<Read> unfinished = {};
  int64_t launches = 0;

  void finish(int64_t until) {
    std::erase_if(unfinished, [&](const Read& r) { return r.launch <= until; });
  }
};
inline InputReads input_reads;

inline void embed_noted(Stream& s, const EmbedArgs& args) {
  input_reads.unfinished.push_back({args.ids.data, ++input_reads.launches});
  input_reads.embed(s, args);
}

// A CPU that draws, as cards do. What it sends is only there when it is waited for.
class DrawingBackend final : public Backend {
 public:
  DrawingBackend() : inner_(make_cpu_backend(1)), table_(inner_->kernels()) {
    table_.sample = draw_rows;
    input_reads = {.embed = std::exchange(table_.embed, embed_noted)};
  }
  const Kernels& kernels() const override { return table_; }
  Stream& stream() override { return inner_->stream(); }
  std::string describe() const override { return "cpu that draws"; }
  std::byte* allocate(int64_t bytes, const std::string& what) override {
    std::byte* p = inner_->allocate(bytes, what);
    if (what.starts_with("engine.allowed")) masks_.insert(p), mask_size_ = bytes;
    return p;
  }
  void release(std::byte* p, int64_t bytes) override {
    masks_.erase(p);
    inner_->release(p, bytes);
  }
  void upload(std::byte* device, const void* host, int64_t bytes) override {
    for (const std::byte* mask : masks_)
      if (device >= mask && device < mask + mask_size_) mask_bytes += bytes;
    inner_->upload(device, host, bytes);
  }
  // Counts those that overwrite the inputs of a launch which may still run. Inputs are larger than
  // the tests' tokens.
  void upload_ahead(std::byte* device, const void* host, int64_t bytes) override {
    ++ahead;
    for (const InputReads::Read& r : input_reads.unfinished)
      races += device >= r.tokens && device < r.tokens + 64;
    upload(device, host, bytes);
  }
  void download(void* host, const std::byte* device, int64_t bytes) override {
    input_reads.finish(input_reads.launches);
    inner_->download(host, device, bytes);
  }
  void synchronize() override {}
  int64_t free_bytes() const override { return inner_->free_bytes(); }
  std::unique_ptr<Transfer> make_transfer(int64_t bytes, StreamKind) override {
    // Reads as late as it may: what was written there meanwhile shows.
    struct Late final : Transfer {
      explicit Late(int64_t bytes) : here(static_cast<size_t>(bytes)) {}
      void begin(const std::byte* device, int64_t bytes) override {
        from = device, size = bytes, until = input_reads.launches;
        std::ranges::fill(here, std::byte(0xff));
      }
      const std::byte* wait() override {
        input_reads.finish(until);
        std::copy_n(from, size, here.begin());
        size = 0;
        return here.data();
      }
      const std::byte* from = nullptr;
      int64_t size = 0, until = 0;
      std::vector<std::byte> here;
    };
    return std::make_unique<Late>(bytes);
  }

  int64_t ahead = 0, races = 0;  // uploads
  int64_t mask_bytes = 0;        // uploaded of masks

 private:
  std::unique_ptr<Backend> inner_;
  Kernels table_;
  std::set<const std::byte*> masks_;  // their memory, by turn
  int64_t mask_size_ = 0;
};

}  // namespace hearth

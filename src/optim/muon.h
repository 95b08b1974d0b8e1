// Muon (Jordan et al. 2024) and NorMuon: hidden matrices move along an orthogonalised momentum;
// AdamW updates everything else. The settings that AdamW does not have, and their schedule.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace hearth::inline optim {

// What the orthogonal update (R, C), whose singular values are about 1, is multiplied by.
// rms: 0.2 sqrt(max(R, C)), so that it is as large as AdamW's update and takes AdamW's learning
// rate and decay. spectral: sqrt(max(1, R / C)); the learning rate is then 20 to 100 times larger.
enum class MuonScale : uint8_t { rms, spectral };
inline std::span<const std::string_view> names_of(MuonScale) {
  static constexpr auto names = std::to_array<std::string_view>({"rms", "spectral"});
  return names;
}

// What is orthogonalised as one matrix: all heads of q, of k and of v, or one or two heads of them.
// In latent attention single and pair take the keys and the values of each head apart, because they
// alternate in one matrix.
enum class MuonHeads : uint8_t { all, single, pair };
inline std::span<const std::string_view> names_of(MuonHeads) {
  static constexpr auto names = std::to_array<std::string_view>({"all", "single", "pair"});
  return names;
}

struct MuonConfig {
  float momentum = 0.95f;
  int64_t momentum_warmup = 300, momentum_cooldown = 50;
  MuonScale muon_scale = MuonScale::rms;
  MuonHeads muon_heads = MuonHeads::all;
  bool cautious_decay = false;

  template <class V>
  void visit(V&& v) {
    v("momentum", momentum, "Muon: Nesterov momentum");
    v("momentum_warmup", momentum_warmup,
      "Muon: steps over which the momentum rises from 0.85; 0: none");
    v("momentum_cooldown", momentum_cooldown,
      "Muon: steps at the end over which it falls back to 0.85; 0: none");
    v("muon_scale", muon_scale,
      "Muon: size of an update; rms: as large as AdamW's, for AdamW's --lr; spectral: "
      "sqrt(max(1, rows / columns)), for an --lr 20 to 100 times larger");
    v("muon_heads", muon_heads,
      "Muon: heads of q, k and v that are orthogonalised together; all: as one matrix each; single "
      "or pair: one or two heads at a time");
    v("cautious_decay", cautious_decay,
      "Muon: decay only the weights that the update moves toward 0");
  }
  void check() const;  // names the flag of a value that cannot be used

  // The momentum of the 0-based step `it` of a run.
  float momentum_at(int64_t it, int64_t steps) const;
  bool operator==(const MuonConfig&) const = default;
};

}  // namespace hearth::inline optim

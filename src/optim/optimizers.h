// The available optimizers. A new one needs a line in each list of this file, its own file in this
// folder and, if it is elementwise, a rule in core/update_rules.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace hearth::inline optim {

struct Optimizer;   // optim/optimizer.h
struct UpdateSpec;  // its hyperparameters

enum class OptimizerKind : uint8_t { adamw, adamw_bf16, adamw_8bit, lion, muon, normuon };

inline constexpr const char* optimizer_help =
    "adamw: fp32 moments, 8 bytes per parameter; adamw_bf16: bf16 moments, rounded "
    "stochastically, 4 bytes; adamw_8bit: 8-bit moments with a scale per 256 parameters, 2 bytes; "
    "lion: sign of one fp32 momentum, 4 bytes; lion needs an --lr 3 to 10 times smaller than "
    "AdamW's and a --weight-decay larger by the same factor; muon: orthogonalised momentum for the "
    "matrices of the blocks, 4 bytes, AdamW for the rest; normuon: muon with a learning rate per "
    "neuron";

inline constexpr const char* beta1_help =
    "AdamW: decay rate of the first moment; Lion: weight of the momentum in the update, default "
    "0.9";
inline constexpr const char* beta2_help =
    "AdamW: decay rate of the second moment; Lion: decay rate of the momentum, default 0.99";

std::vector<Optimizer> adamw(const UpdateSpec&);
std::vector<Optimizer> adamw_bf16(const UpdateSpec&);
std::vector<Optimizer> adamw_8bit(const UpdateSpec&);
std::vector<Optimizer> lion(const UpdateSpec&);
std::vector<Optimizer> muon(const UpdateSpec&);
std::vector<Optimizer> normuon(const UpdateSpec&);

struct KnownOptimizer {
  std::string_view name;
  // Usually one; several if each updates some of the parameter groups.
  std::vector<Optimizer> (*make)(const UpdateSpec&);
  // Defaults of --beta1 and --beta2; absent: those of the command.
  std::optional<std::array<float, 2>> betas = {};
};

inline constexpr std::array known_optimizers{
    KnownOptimizer{"adamw", adamw},
    KnownOptimizer{"adamw_bf16", adamw_bf16},
    KnownOptimizer{"adamw_8bit", adamw_8bit},
    KnownOptimizer{"lion", lion, std::array{0.9f, 0.99f}},
    KnownOptimizer{"muon", muon},
    KnownOptimizer{"normuon", normuon},
};  // in the order of OptimizerKind

inline std::span<const std::string_view> names_of(OptimizerKind) {
  static constexpr auto names = [] {
    std::array<std::string_view, known_optimizers.size()> n;
    for (size_t i = 0; i < n.size(); ++i) n[i] = known_optimizers[i].name;
    return n;
  }();
  return names;
}

}  // namespace hearth::inline optim

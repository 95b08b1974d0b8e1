// An optimizer: the parameter groups it updates, the state it declares, and how it records its
// update. ParamStore allocates the declared state, checkpoints store it by name, and the memory
// plan counts it.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "core/params.h"
#include "core/tape.h"
#include "optim/muon.h"
#include "optim/optimizers.h"

namespace hearth::inline optim {

// Numbers of single parameter groups; absent: the group has the number of all groups.
using GroupNumbers = std::array<std::optional<float>, group_count>;
// From "embedding:75,head:27.5": the groups are matrix, head, embedding and vector; the numbers are
// 0 or more and, with `below`, less than that. `where` names the setting in errors.
GroupNumbers parse_groups(std::string_view text, std::string_view where,
                          float below = std::numeric_limits<float>::infinity());
// A group by that name; absent if there is none.
std::optional<Group> group_named(std::string_view);

struct UpdateSpec {
  OptimizerKind optimizer = OptimizerKind::adamw;
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float decay = 0.1f;
  bool decay_all = false;  // also decay embeddings and vectors
  // What differs between groups: factors on the learning rate, and values that replace those above.
  GroupNumbers rates = {}, beta1s = {}, beta2s = {}, decays = {};
  MuonConfig muon = {};
  // Products of fp32 matrices keep fp32's precision: fp32, not tf32. Muon then needs fewer.
  bool exact_f32 = false;
  // How far an update moves the selection biases of routers (BalanceBiasArgs); 0: not at all.
  float balance_rate = 0;
  bool tied_head = false;  // the head and the token table are one matrix: see optim/tied_head.h
  // Modules of multi-token prediction are clipped by their own gradient norm and skipped alone, so
  // that they do not affect the update of the model.
  bool modules_apart = false;

  // A note about all numbers of groups that the store lacks; empty: there are none.
  std::string oddity(const ParamStore&) const;
  float decay_of(Group g) const {
    const bool decayed = decay_all || g == Group::matrix || g == Group::head;
    return decays[size_t(g)].value_or(decayed ? decay : 0);
  }
  float rate_of(Group g) const { return rates[size_t(g)].value_or(1); }
  // A rule with the hyperparameters of a group.
  RuleSpec rule_of(UpdateRule rule, Group g) const {
    return {.rule = rule,
            .beta1 = beta1s[size_t(g)].value_or(beta1),
            .beta2 = beta2s[size_t(g)].value_or(beta2),
            .eps = eps,
            .decay = decay_of(g),
            .rate = rate_of(g)};
  }
};

// Which parameters an update changes: the modules of multi-token prediction may have a gate of
// their own (UpdateSpec::modules_apart).
enum class Updated : uint8_t { all, model, modules };

// The inputs of every optimizer; gradients come from the store.
struct UpdateVars {
  Var gate;     // UpdateState: whether to skip the step, gradient scale
  Var scalars;  // Scalars
  Updated which = Updated::all;
};

bool is_updated(Updated, const ParamSpec&);
// The elements of one group's range of a part that an update changes. They must be contiguous.
struct Stretch {
  int64_t begin = 0, end = 0;
};
Stretch stretch_of(const ParamStore&, Part, Group, Updated);
// These elements as a value.
Var updated_range(Tape&, const ParamStore&, Part, Group, Updated);
// Elements of a flat buffer or of a group's range of it.
Var elements(Tape&, Var flat, const Stretch&);

struct Optimizer {
  Groups groups = Groups::all();
  std::vector<SlotSpec> slots;
  std::function<void(Tape&, const ParamStore&, const UpdateVars&)> record;
  // FLOPs of the matrix products of one update; null: it has none.
  std::function<double(const ParamStore&)> product_flops = {};
};

// The optimizers of a run, which together cover every group exactly once.
std::vector<Optimizer> make_optimizers(const UpdateSpec&);

// Their slots, in the order used by the store and by checkpoints.
std::vector<SlotSpec> slots_of(const UpdateSpec&);

// Ranges of flat buffers; kernels see them as Pieces (core/kernel_args.h).
struct FlatPieces {
  std::vector<int64_t> begin;  // in elements
  int64_t size = 0;            // of each

  // Of this object's memory: an op that launches with it must own a copy.
  Pieces view() const { return {begin.data(), int64_t(begin.size()), size}; }
};

// What one pass of an elementwise rule reads and writes.
struct RuleVars {
  Var weight;        // only written where the rule does not read it
  Var squares = {};  // of the weights of nesterov, as in UpdateArgs
  Var master = {};
  std::vector<Var> slots = {};
  std::vector<Var> scales = {};  // of slots that hold 8-bit codes
  Var grad;
  Var factors = {};        // on the rows or columns of grad, as in UpdateArgs
  FlatPieces pieces = {};  // empty: all elements
  int64_t first = 0;       // as in UpdateArgs
};
void record_rule(Tape&, const RuleSpec&, const UpdateVars&, const RuleVars&);

// An optimizer that updates each weight from its own gradient and state only, in one pass over each
// group. Its slots are those of the rule, in order.
Optimizer elementwise(UpdateRule, std::vector<SlotSpec> slots, const UpdateSpec&,
                      Groups = Groups::all());

}  // namespace hearth::inline optim

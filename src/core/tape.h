// Tape: a step, recorded once as a flat list of nodes, differentiated, given memory and replayed.
//
//   Tape t;                             // 1. record: shapes only, nothing runs
//   head_loss(t, decoder(t, config, inputs, {}), weight, targets, {.grad = true});
//   differentiate(t);                   // 2. append the backward nodes
//   Exec step(std::move(t), memory);    // 3. prune, alias, plan one arena, bind to a backend
//   step.run();                         // 4. replay
//
// A recorded tape is in single-assignment form: exactly one node writes each temporary. Only views
// and values that outlive a replay (gradients, state) share memory.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/backend.h"
#include "core/kernels.h"
#include "core/params.h"

namespace hearth::inline core {

struct Var {
  int id = -1;
  explicit operator bool() const { return id >= 0; }
  bool operator==(const Var&) const = default;
};

// temp lives in the arena; the others live in named stores and outlast a replay. host is pinned
// host memory, which the device copies at full speed.
enum class Role : uint8_t { temp, input, param, grad, flat, state, constant, host };

// One term of the objective of a program. The objective is the sum of weight * value over the terms
// of its tape, and the gradients are those of the objective.
struct LossTerm {
  std::string name;      // in logs: "next_token", "z_loss"
  float weight = 1;      // the op that computes the term multiplies its gradient by this
  bool validate = true;  // validation reports the term too
  int64_t ahead = 0;     // tokens by which its targets are further than those of the first term
  // (1, 1) acc, before the weight: the sum over its targets in the step so far, divided by the
  // number of targets of the first term in the step.
  Var value = {};
};
constexpr int64_t most_loss_terms = 8;  // per tape

// The gradient of parameter `w` is the value named `w` + grad_suffix.
constexpr const char* grad_suffix = ".grad";
// The host writes a fed input `x` into the value named `x` + host_suffix.
constexpr const char* host_suffix = ".host";

struct Value {
  Shape shape;
  DType dtype = DType::f32;
  Role role = Role::temp;
  int storage = -1;    // id of the value that owns the memory; its own id unless it is a view
  int64_t offset = 0;  // bytes from the start of that memory
  std::string name;    // unique; temporaries have none
  int producer = -1;   // index of the node that writes it
  bool needs_grad = false;
  Part part = Part::weight;  // of a flat value, together with its group or its parameter
  std::optional<Group> group;
  std::string param;
  Var before;  // this value is act(before), written by the same node
  Act act = Act::none;
  bool dropped = false;  // not kept for the backward pass: recomputed on demand
  bool kept = false;     // not dropped by checkpoint(): small, and other values depend on it
  Var again;             // the recomputed value, once recorded
  Var grad;
  std::optional<DType> grad_dtype;  // if it differs from dtype
};

// A value rounded to fp8, as products read it.
struct Fp8Copies {
  Var y, yt;  // the value, and transposed: see QuantiseFp8Args; yt may be absent
  Var sums;   // partial column sums of the value; may be absent
  Var site;   // Fp8Site
};

// The state of a tape that records its products in fp8 (ops/fp8.cpp).
struct Fp8Recording {
  bool head = true;   // the products of the head too
  bool wgrad = true;  // gradients of weights too; otherwise those are products of the tape's dtype
  // The forward products too; otherwise they are those of a tape without fp8, to the bit, and so is
  // the head.
  bool forward = true;
  bool measured = false;  // every scale comes from the tensor itself, none from the previous step
  int64_t sites = 0;      // used so far
  std::vector<DType> formats = {};                 // of each site
  std::unordered_map<int, Fp8Copies> copies = {};  // by id of the value
  // Values that are act(x) or the gradient x * act'(aux), by id. Their rounding computes them from
  // x, so that the node that does is pruned unless something else reads the value.
  struct Source {
    Var x, aux = {};
    QuantiseFp8Spec spec = {};
  };
  std::unordered_map<int, Source> sources = {};
};

class Tape;
struct Node;
using In = std::span<const Tensor>;
using Out = std::span<const Tensor>;

// Outputs `out` and `out` + 1 of an op are sums and their parts, input `in` is what they are added
// to. Below 0: the op computes no sums.
struct SumPlaces {
  int out = -1, in = -1;
};

struct Op {
  const char* name = "";
  std::function<void(const Kernels&, Stream&, In, Out)> launch;
  std::function<bool(const Kernels&)> available;
  std::function<void(Tape&, const Node&)> backward;  // empty: no gradient flows through
  // (output, input) pairs that may share memory when no later node reads the input.
  std::vector<std::pair<int, int>> inplace;
  // Set on norms and on products with a weight, so that join_norms() recognises them.
  std::optional<NormSpec> norm = {};
  std::optional<GemmSpec> gemm = {};
  // Set on GLUs, on their gradients, and on products for the gradient of an input, so that
  // join_gates() recognises them.
  std::optional<Act> glu = {}, glu_slope = {};
  std::optional<GemmSpec> input_gradient = {};
  // The op can also compute the column sums of its first output, at these places; they are absent
  // until join_sums() finds an op that only sums those columns (sums_columns).
  SumPlaces sums = {};
  bool sums_columns = false;
  // The op can write its first output in fp8 too. Its last three outputs are then y, yt and sums of
  // an Fp8Output, its last two inputs the site and the scalars; all are absent until something
  // rounds the value. Outputs among these that no node reads are left out, and the first one as
  // well if an fp8 copy is read.
  bool fp8_result = false;
  bool pause = false;   // the host runs code here: see Exec::run_part
  bool copies = false;  // instead of a launch: copies the bytes of in[0] to out[0]
  // Index of the input that may be given as a parameter's quantised() form; -1: none.
  int quantisable = -1;
};

// An op that launches one entry of the kernels table: `call(entry, stream, in, out)`.
template <auto Entry, class F>
Op kernel_op(const char* name, F call) {
  Op op;
  op.name = name;
  op.launch = [call](const Kernels& k, Stream& s, In in, Out out) { call(k.*Entry, s, in, out); };
  op.available = [](const Kernels& k) { return k.*Entry != nullptr; };
  return op;
}

struct Node {
  std::shared_ptr<const Op> op;  // shared: a dropped value is recomputed by the same op
  std::vector<Var> in, out;      // an absent optional tensor is Var{}
  std::string where;             // scope it was recorded in: "blocks.3.attn"
  // The stream it runs on. Exec orders nodes of different streams wherever one writes memory that
  // another reads or writes; so far only copies leave StreamKind::compute.
  StreamKind stream = StreamKind::compute;
};

class Tape {
 public:
  // `params` is the dtype of weights and activations. Reductions and gradients of parameters are
  // kept in acc(): f32, or f64 if `params` is f64. `program` is the prefix of the values that
  // belong to this program alone: its inputs and results.
  explicit Tape(DType params = DType::f32, std::string program = "main")
      : loss_buffer(program + ".losses"), dtype_(params), program_(std::move(program)) {}
  DType dtype() const { return dtype_; }
  DType acc() const { return dtype_ == DType::f64 ? DType::f64 : DType::f32; }

  Var temp(Shape, DType);
  Var temp(Shape s) { return temp(s, dtype_); }
  // A buffer of this program, "program.name", that the host writes before a replay.
  Var input(const std::string& name, Shape s, DType d) {
    return feeding_ ? fed_input(name, s, d) : named(Role::input, program_ + "." + name, s, d);
  }
  // Feeds the inputs that `declare` declares: the host writes them into pinned host memory
  // ("program.name" + host_suffix), and they are copied to the device on StreamKind::upload while
  // the previous replay still computes. Must come first in a program.
  template <class F>
  auto feed(F declare) {
    feeding_ = true;
    auto declared = declare();
    feeding_ = false;
    pause();
    return declared;
  }
  // Ends a part of the program (Exec::run_part): what follows is a separate replay.
  void pause();
  // A buffer of this program, "program.name", that the host reads after a replay.
  Var result(const std::string& name, Shape s, DType d) {
    return named(Role::state, program_ + "." + name, s, d);
  }
  // A buffer shared by every program that names it.
  Var state(const std::string& name, Shape s, DType d) { return named(Role::state, name, s, d); }
  // A table known when recording, uploaded once. Equal names must have equal contents.
  Var constant(const std::string& name, Shape, std::span<const float> data);
  Var constant(const std::string& name, Shape, std::span<const int32_t> data);
  // A constant whose size depends on a user's setting. `make` computes rows [first, first + count)
  // when a program is bound to a memory that lacks them, so recording and planning cost nothing.
  using MakeRows = std::function<std::vector<float>(int64_t first, int64_t count)>;
  Var table(const std::string& name, Shape, MakeRows make);
  // The parameter `name` of the current scope; a second call with the same full name returns the
  // same Var. A parameter that is not trainable has no gradient, and values needed only for that
  // gradient are not computed.
  Var param(const std::string& name, Shape, Init, Group, bool trainable = true,
            std::vector<int64_t> stack = {}, std::vector<HeadRows> heads = {});
  // A vector in acc that has no gradient and that no optimizer reads or decays.
  Var wide_param(const std::string& name, Shape, Init);
  // One group's range of a flat buffer, or the whole buffer: what an elementwise optimizer updates
  // in one pass.
  Var flat(const ParamStore&, Part, std::optional<Group>);
  // One parameter's range of a flat buffer, for an optimizer that works matrix by matrix.
  Var of_param(const ParamStore&, Part, const ParamSpec&);
  Var find(const std::string& name) const;  // absent: Var{}

  Var view(Var, Shape);  // same elements, another shape
  Var rows(Var, int64_t begin,
           int64_t count);  // leading rows of a (rows, cols) reading; no gradient

  // A table, or its gradient, including the zero rows that pad it to a multiple of `row_tile` rows.
  Var whole_tiles(Var table);

  void push(Op, std::vector<Var> in, std::vector<Var> out);

  const Value& operator[](Var v) const { return values[size_t(v.id)]; }
  Value& operator[](Var v) { return values[size_t(v.id)]; }
  const Shape& shape(Var v) const { return (*this)[v].shape; }
  bool needs_grad(Var v) const { return v && (*this)[v].needs_grad; }

  // --- gradients ---
  Var grad(Var v) const { return (*this)[v].grad; }
  // Adds dv, a finished value that no node will overwrite, to the gradient of v.
  void add_grad(Var v, Var dv);
  // Where an op writes v's gradient, and the value it must add to it (absent: none).
  struct Sink {
    Var out, prior;
  };
  Sink grad_sink(Var v);
  // The host computes the gradient of y, a result: the program pauses after y, and the backward
  // pass reads the input `name` (shape of y, acc) that the host writes during the pause.
  void host_grad(Var y, const std::string& name);
  // Gradients of parameters and values of loss terms are added to the buffers instead of
  // overwriting them: for the second and later micro-batches of a step.
  bool accumulate = false;
  // Whether parameters have gradients; false in programs that only run forward.
  bool trains = true;

  // Set: linear layers are recorded as fp8 products of values of dtype() bf16.
  std::optional<Fp8Recording> fp8;

  // --- losses ---
  // Adds a term and returns its value, one row of loss_values(). The op that computes the term
  // writes the value and records the term's gradient.
  Var add_loss(LossTerm);
  std::vector<LossTerm> losses;  // the first is the loss of logs and of the step guard
  // The values of all terms, (most_loss_terms, 1) acc, so that the host reads them in one transfer.
  Var loss_values() { return state(loss_buffer, {most_loss_terms, 1}, acc()); }
  // Programs that accumulate one step use the same buffer; by default each program has its own.
  std::string loss_buffer;

  // A forward value for a backward rule to read: v itself, or v recomputed if it was dropped.
  Var saved(Var v);
  // Do not keep v for the backward pass.
  void drop(Var v) { (*this)[v].dropped = true; }
  // Keep v for the backward pass even inside a checkpoint().
  void keep(Var v) { (*this)[v].kept = true; }
  // Records `body` and drops all values it computes except its result and those of keep().
  Var checkpoint(const std::function<Var()>& body);

  class Scope {
   public:
    Scope(Tape& t, const std::string& name);
    ~Scope() { tape_.scope_.resize(length_); }
    Scope(const Scope&) = delete;

   private:
    Tape& tape_;
    size_t length_;
  };
  [[nodiscard]] Scope scope(const std::string& name) { return Scope(*this, name); }
  const std::string& where() const { return scope_; }
  // A hash of the current scope and `what`, the same in every recording: the salt of dropout.
  uint32_t salt(const std::string& what) const;

  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<ParamSpec> params;  // in order of first use
  std::unordered_map<int, std::vector<std::byte>> constants;
  std::unordered_map<int, MakeRows> tables;

 private:
  Var named(Role, const std::string& name, Shape, DType);
  Var constant(const std::string& name, Shape, DType, std::span<const std::byte>);
  Var fed_input(const std::string& name, Shape, DType);

  bool feeding_ = false;
  DType dtype_;
  std::string program_, scope_;
  std::unordered_map<std::string, int> by_name_;
};

// Walks the recorded nodes in reverse and lets each op append its backward. The loss ops have set
// the first gradients themselves (loss.cpp in ops/ops.h).
void differentiate(Tape&);

// Removes nodes that only write temporaries that no node reads, and outputs that no node reads
// where the op can leave them out (Op::fp8_result).
void prune(Tape&);

}  // namespace hearth::inline core

// Tape: a step recorded once as a flat list of nodes, then differentiated, given memory, replayed.
//
//   Tape t;                             // 1. record: shapes only, nothing runs
//   Var loss = decoder_loss(t, config, ...);
//   differentiate(t);                   // 2. append the backward nodes
//   Exec step(std::move(t), memory);    // 3. prune, alias, plan one arena, bind to a backend
//   step.run();                         // 4. replay
//
// A recorded tape is in single-assignment form: every temporary is written by one node. Only views,
// and values that live on between replays (gradients, state), share memory.
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

// temp lives in the arena; the others live in stores, by name, and outlast a replay. host is memory
// of the host that copies of the device reach at full speed.
enum class Role : uint8_t { temp, input, param, grad, flat, state, constant, host };

// One term of what a program minimises. The objective is the sum of weight * value over the terms
// of its tape, and the gradients are those of the objective.
struct LossTerm {
  std::string name;      // as logs name it: "next_token", "z_loss"
  float weight = 1;      // the op that computes the term multiplies its gradient by it
  bool validate = true;  // validation reports the term too
  Var value = {};        // (1, 1) acc: mean over the targets of the step so far, without the weight
};
constexpr int64_t most_loss_terms = 8;  // of one tape

// The gradient of parameter `w` is the value named `w` + this.
constexpr const char* grad_suffix = ".grad";
// What the host writes of a fed input `x` is the value named `x` + this.
constexpr const char* host_suffix = ".host";

struct Value {
  Shape shape;
  DType dtype = DType::f32;
  Role role = Role::temp;
  int storage = -1;    // the value that owns the memory; itself unless a view
  int64_t offset = 0;  // bytes from the start of that memory
  std::string name;    // unique; temporaries have none
  int producer = -1;   // node that writes it
  bool needs_grad = false;
  Part part = Part::weight;  // of a flat value, with its group or its parameter
  std::optional<Group> group;
  std::string param;
  Var before;  // this value is act(before), written by the same node
  Act act = Act::none;
  bool dropped = false;  // not kept for the backward pass: made again when it is asked for
  Var again;             // its second making, once recorded
  Var grad;
  std::optional<DType> grad_dtype;  // other than its own
};

class Tape;
struct Node;
using In = std::span<const Tensor>;
using Out = std::span<const Tensor>;

struct Op {
  const char* name = "";
  std::function<void(const Kernels&, Stream&, In, Out)> launch;
  std::function<bool(const Kernels&)> available;
  std::function<void(Tape&, const Node&)> backward;  // empty: no gradient passes
  // (output, input) pairs that may share memory when nobody reads the input afterwards.
  std::vector<std::pair<int, int>> inplace;
  // What join_norms() knows a norm, and a product that takes weights, by.
  std::optional<NormSpec> norm = {};
  std::optional<GemmSpec> gemm = {};
  bool pause = false;   // the host has its turn here: see Exec::run_part
  bool copies = false;  // instead of a launch: the bytes of in[0] go to out[0]
  // The input that may be a parameter's quantised() instead; none: -1.
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
  std::shared_ptr<const Op> op;  // shared: a dropped value is made again by the same op
  std::vector<Var> in, out;      // an absent optional tensor is Var{}
  std::string where;             // scope it was recorded in: "blocks.3.attn"
  // What it runs on. Exec orders nodes of different streams wherever one writes what another
  // touches; so far only nodes that copy leave StreamKind::compute.
  StreamKind stream = StreamKind::compute;
};

class Tape {
 public:
  // `params` is the dtype of weights and activations. Reductions and gradients of parameters are
  // kept in acc(): f32, or f64 when everything is.
  // `program` is the prefix of the values that belong to this program alone: its inputs and
  // results.
  explicit Tape(DType params = DType::f32, std::string program = "main")
      : loss_buffer(program + ".losses"), dtype_(params), program_(std::move(program)) {}
  DType dtype() const { return dtype_; }
  DType acc() const { return dtype_ == DType::f64 ? DType::f64 : DType::f32; }

  Var temp(Shape, DType);
  Var temp(Shape s) { return temp(s, dtype_); }
  // A buffer of this program that the host writes before a replay: "program.name".
  Var input(const std::string& name, Shape s, DType d) {
    return feeding_ ? fed_input(name, s, d) : named(Role::input, program_ + "." + name, s, d);
  }
  // Inputs that `declare` asks for are fed: the host writes them in its own memory ("program.name"
  // + host_suffix), and they go to the device on StreamKind::upload while the replay before still
  // computes. First of all in a program.
  template <class F>
  auto feed(F declare) {
    feeding_ = true;
    auto declared = declare();
    feeding_ = false;
    end_feed();
    return declared;
  }
  // The same for a result the host reads after it.
  Var result(const std::string& name, Shape s, DType d) {
    return named(Role::state, program_ + "." + name, s, d);
  }
  // A buffer shared by every program that names it.
  Var state(const std::string& name, Shape s, DType d) { return named(Role::state, name, s, d); }
  // A table known when recording, uploaded once. The same name must hold the same numbers.
  Var constant(const std::string& name, Shape, std::span<const float> data);
  Var constant(const std::string& name, Shape, std::span<const int32_t> data);
  // The same of a table whose size a user's number decides. `make` computes rows [first, first +
  // count) when a program is bound to a memory that lacks them: recording and planning cost
  // nothing.
  using MakeRows = std::function<std::vector<float>(int64_t first, int64_t count)>;
  Var table(const std::string& name, Shape, MakeRows make);
  // The parameter `name` of the current scope; asking again for a full name gives the same Var. One
  // that is not trainable has no gradient, and what only its gradient would need is not made.
  Var param(const std::string& name, Shape, Init, Group, bool trainable = true);
  // One group's stretch of a flat buffer, or all of it: what an optimizer sees in one pass.
  Var flat(const ParamStore&, Part, std::optional<Group>);
  // One parameter's share of it, for an optimizer that goes matrix by matrix.
  Var of_param(const ParamStore&, Part, const ParamSpec&);
  Var find(const std::string& name) const;  // absent: Var{}

  Var view(Var, Shape);  // same elements, another shape
  Var rows(Var, int64_t begin,
           int64_t count);  // leading rows of a (rows, cols) reading; no gradient

  // A table, or its gradient, with the zero rows that pad it to whole tiles of `row_tile`.
  Var whole_tiles(Var table);

  void push(Op, std::vector<Var> in, std::vector<Var> out);

  const Value& operator[](Var v) const { return values[size_t(v.id)]; }
  Value& operator[](Var v) { return values[size_t(v.id)]; }
  const Shape& shape(Var v) const { return (*this)[v].shape; }
  bool needs_grad(Var v) const { return v && (*this)[v].needs_grad; }

  // --- gradients ---
  Var grad(Var v) const { return (*this)[v].grad; }
  // The gradient of v gains dv, a finished value nobody will overwrite.
  void add_grad(Var v, Var dv);
  // A place for an op to write v's gradient, and what it must add to it (absent: nothing).
  struct Sink {
    Var out, prior;
  };
  Sink grad_sink(Var v);
  // The gradient of y, a result, is what the host makes of it: the program pauses, and goes on from
  // the input `name` (shape of y, acc) that the host has written meanwhile.
  void host_grad(Var y, const std::string& name);
  // Gradients of parameters and values of loss terms add to what the buffers hold rather than
  // overwrite: the second and later micro-batches of a step.
  bool accumulate = false;
  // Whether parameters have gradients; off in programs that only run forward.
  bool trains = true;

  // --- losses ---
  // Adds a term and gives it its value, one row of loss_values(). The op that computes the term
  // writes the value and records the term's gradient.
  Var add_loss(LossTerm);
  std::vector<LossTerm> losses;  // the first one is the loss of logs and of the step guard
  // The values of all terms, (most_loss_terms, 1) acc, so that the host reads them in one transfer.
  Var loss_values() { return state(loss_buffer, {most_loss_terms, 1}, acc()); }
  // Programs that accumulate one step name the same buffer; by default each program has its own.
  std::string loss_buffer;

  // What a backward rule reads of the forward pass: v itself, or its second making.
  Var saved(Var v);
  // Do not keep v for the backward pass.
  void drop(Var v) { (*this)[v].dropped = true; }
  // Records `body` and drops all it makes but its result.
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
  // A number for the current scope and `what`, the same in every recording: the salt of dropout.
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
  void end_feed();

  bool feeding_ = false;
  DType dtype_;
  std::string program_, scope_;
  std::unordered_map<std::string, int> by_name_;
};

// Walks the recorded nodes in reverse and lets each op append its backward. The loss ops have set
// the first gradients themselves (see ops/loss.h).
void differentiate(Tape&);

// Drops nodes that only write temporaries nobody reads.
void prune(Tape&);

// Lets products of a tape that does not train norm their own rows where the backend has that for so
// many of them and nothing else reads the norm's result: prune() then drops the norm.
void join_norms(Tape&, const Kernels&, Stream&);

}  // namespace hearth::inline core

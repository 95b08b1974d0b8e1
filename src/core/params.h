// ParamStore: all parameters of a model, and what training keeps for each of them, as flat buffers
// in one common order. The optimizer sees long ranges, programs see single tensors by name.
#pragma once

#include <array>
#include <cstring>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/backend.h"
#include "core/quantised.h"

namespace hearth::inline core {

// The groups that an optimizer distinguishes: hidden matrices, an untied head, look-up tables
// (which include a tied head), and vectors. By default the first two have weight decay.
enum class Group : uint8_t { matrix, head, embedding, vector };
constexpr int group_count = 4;

// A set of groups: those that one optimizer updates.
class Groups {
 public:
  constexpr Groups(std::initializer_list<Group> groups) {
    for (const Group g : groups) bits_ |= 1u << unsigned(g);
  }
  static constexpr Groups all() {
    return {Group::matrix, Group::head, Group::embedding, Group::vector};
  }
  constexpr bool has(Group g) const { return bits_ >> unsigned(g) & 1u; }
  bool operator==(const Groups&) const = default;

 private:
  unsigned bits_ = 0;
};

// Heads of one width, one below the other in a matrix.
struct HeadRows {
  int64_t count = 0, rows = 0;  // heads, and the rows of each
};

struct ParamSpec {
  std::string name;
  Shape shape;
  Init init;
  Group group = Group::matrix;
  bool trainable = true;  // false: frozen, with a weight and nothing else
  // If not plain, products read its quantised() form; a table is kept plain as well for look-ups.
  WeightFormat format = WeightFormat::plain;
  // Rows of the matrices stacked in this one (q, k and v; gate and up); empty: it is one matrix. An
  // optimizer of matrices takes them one by one.
  std::vector<int64_t> stack = {};
  // Heads whose rows these are, from the first row to the last; empty: none. Heads that follow each
  // other in one entry are of one kind (q, k or v).
  std::vector<HeadRows> heads = {};
  bool wide = false;  // in the dtype of gradients whatever the store's; frozen
  bool plain() const { return format == WeightFormat::plain || group == Group::embedding; }
};

// The size of a parameter in a flat buffer, in elements: padded to a multiple of 64 elements, and a
// table to a multiple of row_tile rows, so that a matrix unit may read and write past its last row
// (see Tape::whole_tiles). The padding is zero and stays so.
constexpr int64_t row_tile = 64;
int64_t padded_rows(const ParamSpec&);  // of a matrix
int64_t padded_size(const ParamSpec&);

// A slot: one kind of state that an optimizer keeps for every trained parameter of some groups. It
// lies in a flat buffer of its own, in the order of the weights.
struct SlotSpec {
  std::string name;                 // a checkpoint stores "name.parameter"
  std::optional<DType> dtype = {};  // absent: the dtype of gradients
  Groups groups = Groups::all();    // the parameters that have it
  // The shape of one parameter's state; null: the parameter's own, padded like the weights, so that
  // an elementwise kernel sees a group as one range.
  Shape (*shape)(const ParamSpec&) = nullptr;
  bool operator==(const SlotSpec&) const = default;
};
// Elements that a parameter takes in a slot's buffer.
int64_t slot_size(const SlotSpec&, const ParamSpec&);
// Bytes that a slot takes for these parameters; `acc` is the dtype of gradients.
int64_t slot_bytes(const SlotSpec&, std::span<const ParamSpec>, DType acc);

// The flat buffers of a store. Those from `slot` on are the slots, in the order of declaration.
enum class Part : uint8_t { weight, grad, master, slot };
constexpr Part slot_part(size_t i) { return Part(size_t(Part::slot) + i); }

class ParamStore {
 public:
  // Parameters are ordered by group, then by first use; each takes its padded_size(). Frozen ones
  // follow all others and exist in the weights only. `offload` keeps what only the optimizer reads
  // (slots, masters) in host memory.
  ParamStore(Backend&, std::vector<ParamSpec>, DType, bool offload = false);

  DType dtype() const { return dtype_; }
  DType dtype(Part) const;
  bool has_master() const { return dtype_ != acc_ && quantised_.empty(); }
  std::span<const ParamSpec> specs() const { return specs_; }
  int64_t count() const;  // parameters, padding not counted
  bool trainable(const std::string& name) const;
  bool wide(const std::string& name) const;

  // Declares the optimizer's slots. Declaring the same ones again is allowed; others are an error.
  void declare(const std::vector<SlotSpec>&);
  const std::vector<SlotSpec>& slots() const { return slot_specs_; }
  // The slot of this name that the parameters of a group have; an error if there is none.
  Part slot(std::string_view name, Group) const;
  // Whether a parameter has this part: frozen ones have only weights.
  bool has(Part, const ParamSpec&) const;
  std::string name(Part) const;  // "weights", "moment1"

  // Buffers are allocated on first use.
  Tensor flat(Part);
  int64_t flat_size(Part p = Part::weight) const {
    return p == Part::weight ? elements_ : begin_of(p).back();
  }
  Tensor range(Part, Group);  // one group's range of the flat order, without frozen parameters
  int64_t range_size(Group g, Part p = Part::weight) const {
    return begin_of(p)[size_t(g) + 1] - begin_of(p)[size_t(g)];
  }
  // The element of its group's range at which a trainable parameter begins.
  int64_t begin(Part, const ParamSpec&) const;
  Tensor get(Part, const std::string& name);
  Shape shape(Part, const ParamSpec&) const;  // of the tensor that get() returns
  // The weights that gemm_quantised reads; absent if the parameter is not quantised.
  Tensor quantised(const std::string& name) const;
  bool plain(const std::string& name) const {
    const auto it = index_.find(name);
    return it == index_.end() || specs_[it->second].plain();
  }
  bool has(const std::string& name) const { return index_.contains(name); }
  bool made(Part p) const { return buffers_[size_t(p)].data() != nullptr; }
  // Allocates all buffers that training needs.
  void make_all();
  int64_t part_bytes(Part p) const { return flat_size(p) * size_of(dtype(p)); }

  void initialise(uint64_t seed);
  void initialise(const std::string& name, uint64_t seed);
  // Copies from the host in float, for loading and saving. The first sets a weight and its master,
  // and quantises it if the parameter has a quantised form.
  void set(const std::string& name, std::span<const float>);
  void set(Part, const std::string& name, std::span<const float>);
  // From the bytes of a file, at any alignment: copied directly if `from` is the dtype here, else
  // converted in blocks. `first` is the element of the parameter that the bytes start at. The first
  // overload sets a weight and its master, of which the device computes one from the other; neither
  // accepts weights that are kept quantised only.
  void set(const std::string& name, int64_t first, DType from, std::span<const std::byte>);
  void set(Part, const std::string& name, int64_t first, DType from, std::span<const std::byte>);
  std::vector<float> values(Part, const std::string& name);

  Backend& backend() { return backend_; }

 private:
  using Begins = std::array<int64_t, group_count + 1>;  // of each group, in elements
  const Begins& begin_of(Part p) const {
    return p < Part::slot ? begin_ : slot_layouts_[size_t(p) - size_t(Part::slot)].begin;
  }
  const SlotSpec* slot_of(Part p) const {
    return p < Part::slot ? nullptr : &slot_specs_[size_t(p) - size_t(Part::slot)];
  }
  Tensor slice(Part, int64_t at, Shape);  // `at` in elements of the part
  const ParamSpec& spec_of(const std::string& name) const;
  void place(const ParamSpec&, size_t index);
  void add_quantised(const ParamSpec&);
  void initialise(const ParamSpec&, uint64_t seed, Threads&);
  void draw_on_device(const Tensor&, const Init&, uint64_t seed, const std::string& name);
  void set_quantised(const ParamSpec&, std::span<const float>);

  Backend& backend_;
  std::vector<ParamSpec> specs_;
  DType dtype_, acc_;
  bool offload_;
  std::vector<int64_t> offset_;  // in elements, per spec
  std::unordered_map<std::string, size_t> index_;
  Begins begin_{};
  int64_t elements_ = 0;  // including frozen parameters
  std::vector<SlotSpec> slot_specs_;
  struct SlotLayout {
    Begins begin{};
    std::vector<int64_t> offset;  // in elements, per spec
  };
  std::vector<SlotLayout> slot_layouts_;
  std::vector<Buffer> buffers_{size_t(Part::slot)};  // by part
  struct QuantisedParam {
    QuantLayout layout;
    Buffer memory;
  };
  std::map<std::string, QuantisedParam> quantised_;
};

// The parameters of a model that only runs: weights without masters.
inline std::vector<ParamSpec> frozen(std::vector<ParamSpec> all) {
  for (ParamSpec& p : all) p.trainable = false;
  return all;
}

}  // namespace hearth::inline core

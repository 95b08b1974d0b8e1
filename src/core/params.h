// ParamStore: every parameter of a model, and what training keeps beside it, as flat buffers of one
// common order. The optimizer sees long ranges, programs see single tensors by name.
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

// How a parameter starts. Every draw is keyed by (seed, name, element).
struct Init {
  enum class Kind : uint8_t { constant, normal, uniform } kind = Kind::constant;
  float scale = 0;  // the constant, the deviation, or the half width

  static Init zeros() { return {}; }
  static Init ones() { return {Kind::constant, 1}; }
  static Init constant(float x) { return {Kind::constant, x}; }
  static Init normal(float deviation) { return {Kind::normal, deviation}; }
  static Init uniform(float half_width) { return {Kind::uniform, half_width}; }
  bool operator==(const Init&) const = default;
};

// What an optimizer tells apart: hidden matrices, an untied head, look-up tables (a tied head is
// one), and vectors. By default the first two decay.
enum class Group : uint8_t { matrix, head, embedding, vector };
constexpr int group_count = 4;

// A set of groups: what one optimizer takes.
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

struct ParamSpec {
  std::string name;
  Shape shape;
  Init init;
  Group group = Group::matrix;
  bool trainable = true;  // else frozen: a weight and nothing beside it
  // Other than plain: kept as quantised() for products, and a table plain as well for look-ups.
  WeightFormat format = WeightFormat::plain;
  bool plain() const { return format == WeightFormat::plain || group == Group::embedding; }
};

// What a parameter takes of a flat buffer, in elements: whole tiles of 64 elements, and whole tiles
// of rows of a table, so that a matrix unit may read and write past its last row (see
// Tape::whole_tiles). What pads is zero and stays so.
constexpr int64_t row_tile = 64;
int64_t padded_rows(const ParamSpec&);  // of a matrix
int64_t padded_size(const ParamSpec&);

// A slot: one thing that an optimizer keeps for every trained parameter of some groups. It lies in
// a flat buffer of its own, in the order of the weights.
struct SlotSpec {
  std::string name;                 // a checkpoint stores "name.parameter"
  std::optional<DType> dtype = {};  // absent: as gradients are kept
  Groups groups = Groups::all();    // whose parameters have it
  // The shape of one parameter's state; null: the parameter's own, padded as the weights are, so
  // that an elementwise kernel sees a group as one range.
  Shape (*shape)(const ParamSpec&) = nullptr;
  bool operator==(const SlotSpec&) const = default;
};
// What a parameter takes of a slot's buffer, in elements.
int64_t slot_size(const SlotSpec&, const ParamSpec&);
// What a slot takes beside these parameters, in bytes; `acc` is the dtype of gradients.
int64_t slot_bytes(const SlotSpec&, std::span<const ParamSpec>, DType acc);

// The flat buffers of a store. Those from `slot` on are the slots, in the order of declaration.
enum class Part : uint8_t { weight, grad, master, slot };
constexpr Part slot_part(size_t i) { return Part(size_t(Part::slot) + i); }

class ParamStore {
 public:
  // The flat order goes by group, then by first use; each takes its padded_size(). Frozen ones lie
  // behind all others, in the weights alone.
  // `offload` keeps what only the optimizer reads (slots, masters) in the host's memory.
  ParamStore(Backend&, std::vector<ParamSpec>, DType, bool offload = false);

  DType dtype() const { return dtype_; }
  DType dtype(Part) const;
  bool has_master() const { return dtype_ != acc_ && quantised_.empty(); }
  std::span<const ParamSpec> specs() const { return specs_; }
  int64_t count() const;  // parameters, padding not counted
  int64_t trainable_count() const;
  bool trainable(const std::string& name) const;

  // Says what the optimizer keeps. The same again changes nothing; anything else is an error.
  void declare(const std::vector<SlotSpec>&);
  const std::vector<SlotSpec>& slots() const { return slot_specs_; }
  // The slot of this name that the parameters of a group have; an error when there is none.
  Part slot(std::string_view name, Group) const;
  // Whether a parameter has this part: frozen ones have weights alone.
  bool has(Part, const ParamSpec&) const;
  std::string name(Part) const;  // "weights", "moment1"

  // Buffers are made when first asked for.
  Tensor flat(Part);
  int64_t flat_size(Part p = Part::weight) const {
    return p == Part::weight ? elements_ : begin_of(p).back();
  }
  Tensor range(Part, Group);  // one group's stretch of the flat order, without frozen ones
  int64_t range_size(Group g, Part p = Part::weight) const {
    return begin_of(p)[size_t(g) + 1] - begin_of(p)[size_t(g)];
  }
  Tensor get(Part, const std::string& name);
  Shape shape(Part, const ParamSpec&) const;  // of what get() gives
  // What gemm_quantised takes for a parameter kept that way; absent for the others.
  Tensor quantised(const std::string& name) const;
  bool plain(const std::string& name) const {
    const auto it = index_.find(name);
    return it == index_.end() || specs_[it->second].plain();
  }
  bool has(const std::string& name) const { return index_.contains(name); }
  bool made(Part p) const { return buffers_[size_t(p)].data() != nullptr; }
  // Makes all buffers that training needs.
  void make_all();
  int64_t part_bytes(Part p) const { return flat_size(p) * size_of(dtype(p)); }

  void initialise(uint64_t seed);
  void initialise(const std::string& name, uint64_t seed);
  // Host copies in float, for loading and saving. The first sets a weight and its master, and
  // quantises what is kept so.
  void set(const std::string& name, std::span<const float>);
  void set(Part, const std::string& name, std::span<const float>);
  // From the bytes of a file, of any alignment: straight into place where `from` is the dtype here,
  // else converted in pieces. `first` is the element of the parameter that they begin with. The
  // first sets a weight and its master, of which the device makes one from the other; neither takes
  // weights that are kept quantised.
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
  Tensor slice(Part, int64_t at, Shape);
  const ParamSpec& spec_of(const std::string& name) const;
  void place(const ParamSpec&, size_t index);
  void add_quantised(const ParamSpec&);
  void set_quantised(const ParamSpec&, std::span<const float>);

  Backend& backend_;
  std::vector<ParamSpec> specs_;
  DType dtype_, acc_;
  bool offload_;
  std::vector<int64_t> offset_;  // in elements, per spec
  std::unordered_map<std::string, size_t> index_;
  Begins begin_{};
  int64_t elements_ = 0;  // frozen ones included
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

// The parameters of a model that is only run: weights, and no masters beside them.
inline std::vector<ParamSpec> frozen(std::vector<ParamSpec> all) {
  for (ParamSpec& p : all) p.trainable = false;
  return all;
}

// The values `init` gives elements [first, first + out.size()) of the parameter `name`; first is a
// multiple of 4.
void draw(std::span<float> out, const Init&, uint64_t seed, std::string_view name,
          int64_t first = 0);

// Named buffers that outlast a replay and are shared by programs: inputs, loss, scalars, caches.
class StateStore {
 public:
  explicit StateStore(Backend& b) : backend_(b) {}
  // Made on first ask; later asks must agree in shape and dtype. `host`: memory of the host, which
  // the host writes itself.
  Tensor get(const std::string& name, Shape, DType, bool host = false);
  Tensor find(const std::string& name) const;  // an unknown name is an error
  bool has(const std::string& name) const { return entries_.contains(name); }
  int64_t bytes(const std::string& prefix = {}) const;  // of all values whose names begin so
  void erase(const std::string& prefix);                // gives their memory back
  Backend& backend() const { return backend_; }

  template <class T>
  void write(const std::string& name, std::span<const T> v) {
    const Tensor t = find(name);
    check_size(name, t, int64_t(v.size_bytes()));
    backend_.upload(t.data, v.data(), t.bytes());
  }
  // The same of memory of the host. The caller knows that no copy reads it any more.
  template <class T>
  void write_host(const std::string& name, std::span<const T> v) {
    const Tensor t = find(name);
    check_size(name, t, int64_t(v.size_bytes()));
    std::memcpy(t.data, v.data(), v.size_bytes());
  }
  template <class T>
  void read(const std::string& name, std::span<T> v) const {
    const Tensor t = find(name);
    check_size(name, t, int64_t(v.size_bytes()));
    backend_.download(v.data(), t.data, t.bytes());
  }

 private:
  static void check_size(const std::string& name, const Tensor&, int64_t bytes);
  struct Entry {
    Buffer memory;
    Tensor tensor;
  };
  Backend& backend_;
  std::map<std::string, Entry> entries_;
};

}  // namespace hearth::inline core

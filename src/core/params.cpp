#include "core/params.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/math.h"
#include "sys/error.h"
#include "sys/threads.h"

namespace hearth::inline core {
namespace {

constexpr int64_t pad = 64;  // elements: 256 bytes of f32

// Converts values of the parameter `name`. A finite value beyond the range of the dtype (65504 in
// fp16) is an error, because it would silently become infinite.
void convert_in_range(std::byte* out, DType d, std::span<const float> in, const std::string& name) {
  if (convert_from_floats(out, d, in)) return;
  const auto is_lost = [&](const float& x) { return !convert_from_floats(out, d, {&x, 1}); };
  fail("weights", "expected values of {} within the range of {}, got {}; use bf16 or fp32", name,
       to_string(d), *std::ranges::find_if(in, is_lost));
}

void expect_in_range(const std::string& name, DType to, DType from,
                     std::span<const std::byte> bytes) {
  constexpr size_t piece = 1 << 20;  // elements
  const size_t size = size_t(size_of(from)), n = bytes.size() / size;
  std::vector<float> floats(std::min(n, piece));
  std::vector<std::byte> converted(floats.size() * size_t(size_of(to)));
  for (size_t i = 0; i < n; i += piece) {
    const std::span<float> part = std::span(floats).first(std::min(piece, n - i));
    convert_to_floats(part, from, bytes.data() + i * size);
    convert_in_range(converted.data(), to, part, name);
  }
}

// Draws elements from `first` on.
void draw_in_parallel(std::span<float> out, const ParamSpec& s, uint64_t seed, int64_t first,
                      Threads& threads) {
  constexpr int64_t stretch = 1 << 16;
  threads.ranges(int64_t(out.size()), stretch, [&](int64_t begin, int64_t end) {
    draw(out.subspan(size_t(begin), size_t(end - begin)), s.init, seed, s.name, first + begin);
  });
}

}  // namespace

int64_t padded_rows(const ParamSpec& s) {
  const bool table = s.group == Group::embedding || s.group == Group::head;
  return table ? round_up(s.shape[0], row_tile) : s.shape[0];
}
int64_t padded_size(const ParamSpec& s) {
  const int64_t n = s.shape.rank == 2 ? padded_rows(s) * s.shape[1] : s.shape.numel();
  return round_up(s.wide ? 2 * n : n, pad);  // a wide element takes the place of two halves
}

int64_t slot_size(const SlotSpec& slot, const ParamSpec& s) {
  if (!s.trainable || !s.plain() || !slot.groups.has(s.group)) return 0;
  return slot.shape ? round_up(slot.shape(s).numel(), pad) : padded_size(s);
}

int64_t slot_bytes(const SlotSpec& slot, std::span<const ParamSpec> specs, DType acc) {
  int64_t n = 0;
  for (const ParamSpec& s : specs) n += slot_size(slot, s);
  return n * size_of(slot.dtype.value_or(acc));
}

ParamStore::ParamStore(Backend& b, std::vector<ParamSpec> specs, DType d, bool offload)
    : backend_(b),
      specs_(std::move(specs)),
      dtype_(d),
      acc_(d == DType::f64 ? DType::f64 : DType::f32),
      offload_(offload),
      offset_(specs_.size()) {
  for (int g = 0; g < group_count; ++g) {
    for (size_t i = 0; i < specs_.size(); ++i)
      if (specs_[i].trainable && specs_[i].group == Group(g)) place(specs_[i], i);
    begin_[size_t(g) + 1] = elements_;
  }
  for (size_t i = 0; i < specs_.size(); ++i)
    if (!specs_[i].trainable) place(specs_[i], i);
}

void ParamStore::place(const ParamSpec& s, size_t index) {
  if (!index_.emplace(s.name, index).second)
    fail("params", "expected one parameter named {}, got two", s.name);
  if (s.wide && s.trainable)
    fail("params", "expected a wide parameter to be frozen, got {}", s.name);
  offset_[index] = elements_;
  if (s.plain()) elements_ += padded_size(s);
  if (s.format != WeightFormat::plain) add_quantised(s);
}

void ParamStore::add_quantised(const ParamSpec& s) {
  if (!backend_.multiplies(s.format))
    fail(s.name, "expected a format of weights that {} multiplies, got {}", backend_.describe(),
         to_string(s.format));
  const QuantLayout l(padded_rows(s), s.shape[1], s.format);
  if (l.cols > quant_most_k)
    fail(s.name, "expected rows of at most {} weights for {}, got {}", quant_most_k,
         to_string(s.format), l.cols);
  quantised_.emplace(s.name, QuantisedParam{l, Buffer(backend_, l.bytes(), s.name)});
}

Tensor ParamStore::quantised(const std::string& name) const {
  const auto it = quantised_.find(name);
  if (it == quantised_.end()) return {};
  const QuantLayout& l = it->second.layout;
  return {it->second.memory.data(), {l.bytes()}, panels_of(l.format)};
}

void ParamStore::set_quantised(const ParamSpec& s, std::span<const float> v) {
  const QuantisedParam& p = quantised_.at(s.name);
  std::vector<std::byte> host(size_t(p.layout.bytes()));
  Threads threads;
  quantise(host, p.layout, v, threads);
  backend_.upload(p.memory.data(), host.data(), p.layout.bytes());
}

int64_t ParamStore::count() const {
  int64_t n = 0;
  for (const ParamSpec& s : specs_) n += s.shape.numel();
  return n;
}

const ParamSpec& ParamStore::spec_of(const std::string& name) const {
  const auto it = index_.find(name);
  if (it == index_.end()) fail("params", "expected a parameter of this model, got {}", name);
  return specs_[it->second];
}

bool ParamStore::trainable(const std::string& name) const { return spec_of(name).trainable; }
bool ParamStore::wide(const std::string& name) const { return spec_of(name).wide; }

bool ParamStore::has(Part p, const ParamSpec& s) const {
  const SlotSpec* slot = slot_of(p);
  return p == Part::weight || (s.trainable && (!slot || slot->groups.has(s.group)));
}

DType ParamStore::dtype(Part p) const {
  const SlotSpec* slot = slot_of(p);
  return p == Part::weight ? dtype_ : slot && slot->dtype ? *slot->dtype : acc_;
}

std::string ParamStore::name(Part p) const {
  constexpr std::array names{"weights", "gradients", "master weights"};
  return p < Part::slot ? names[size_t(p)] : slot_of(p)->name;
}

Shape ParamStore::shape(Part p, const ParamSpec& s) const {
  const SlotSpec* slot = slot_of(p);
  return slot && slot->shape ? slot->shape(s) : s.shape;
}

void ParamStore::declare(const std::vector<SlotSpec>& slots) {
  if (slots == slot_specs_) return;
  if (!slot_specs_.empty())
    fail("params", "the parameters already have the state of another optimizer");
  for (size_t i = 0; i < slots.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      for (int g = 0; g < group_count; ++g)
        if (slots[i].name == slots[j].name && slots[i].groups.has(Group(g)) &&
            slots[j].groups.has(Group(g)))
          fail("params", "expected one slot named {} for a parameter, got two", slots[i].name);
  for (const SlotSpec& slot : slots) {
    SlotLayout& l = slot_layouts_.emplace_back();
    l.offset.assign(specs_.size(), 0);
    int64_t size = 0;
    for (int g = 0; g < group_count; ++g) {
      for (size_t i = 0; i < specs_.size(); ++i)
        if (specs_[i].group == Group(g) && slot_size(slot, specs_[i]))
          l.offset[i] = size, size += slot_size(slot, specs_[i]);
      l.begin[size_t(g) + 1] = size;
    }
    buffers_.emplace_back();
  }
  slot_specs_ = slots;
}

Part ParamStore::slot(std::string_view name, Group g) const {
  for (size_t i = 0; i < slot_specs_.size(); ++i)
    if (slot_specs_[i].name == name && slot_specs_[i].groups.has(g)) return slot_part(i);
  fail("params", "expected optimizer state that was declared, got {}", name);
}

void ParamStore::make_all() {
  for (const Part p : {Part::weight, Part::grad}) flat(p);
  for (size_t i = 0; i < slot_specs_.size(); ++i) flat(slot_part(i));
}

Tensor ParamStore::slice(Part p, int64_t at, Shape s) {
  Buffer& b = buffers_[size_t(p)];
  const bool offloaded = offload_ && p != Part::weight && p != Part::grad;
  if (!b.data() && flat_size(p)) b = Buffer(backend_, part_bytes(p), name(p), offloaded);
  return {b.data() + at * size_of(dtype(p)), s, dtype(p)};
}

Tensor ParamStore::flat(Part p) { return slice(p, 0, {flat_size(p)}); }

Tensor ParamStore::range(Part p, Group g) {
  return slice(p, begin_of(p)[size_t(g)], {range_size(g, p)});
}

int64_t ParamStore::begin(Part p, const ParamSpec& s) const {
  const size_t i = index_.at(s.name);
  const std::vector<int64_t>& offset =
      p < Part::slot ? offset_ : slot_layouts_[size_t(p) - size_t(Part::slot)].offset;
  return offset[i] - begin_of(p)[size_t(s.group)];
}

Tensor ParamStore::get(Part p, const std::string& name) {
  const ParamSpec& s = spec_of(name);
  if (p != Part::weight && !s.trainable)
    fail("params", "expected a parameter that is trained for {}, got {}, which is frozen",
         this->name(p), name);
  if (!has(p, s))
    fail("params", "expected a parameter that has {}, got {}, whose group has none", this->name(p),
         name);
  if (!s.plain())
    fail("params", "expected {} as plain weights, got {}, which only products read", name,
         to_string(s.format));
  const size_t i = index_.at(name);
  const int64_t at =
      p < Part::slot ? offset_[i] : slot_layouts_[size_t(p) - size_t(Part::slot)].offset[i];
  Tensor t = slice(p, at, shape(p, s));
  if (s.wide) t.dtype = acc_;
  return t;
}

void ParamStore::set(const std::string& name, std::span<const float> v) {
  const auto it = index_.find(name);
  if (it != index_.end()) {
    const ParamSpec& s = specs_[it->second];
    if (int64_t(v.size()) != s.shape.numel())
      fail("params", "expected {} numbers for {} {}, got {}", s.shape.numel(), name,
           to_string(s.shape), v.size());
    if (s.format != WeightFormat::plain) set_quantised(s, v);
    if (!s.plain()) return;
  }
  set(Part::weight, name, v);
  if (has_master() && trainable(name)) set(Part::master, name, v);
}

void ParamStore::set(Part p, const std::string& name, std::span<const float> v) {
  const Tensor t = get(p, name);
  if (int64_t(v.size()) != t.numel())
    fail("params", "expected {} numbers for {} {}, got {}", t.numel(), name, to_string(t.shape),
         v.size());
  if (t.dtype == DType::f32) return backend_.upload(t.data, v.data(), t.bytes());
  std::vector<std::byte> host(size_t(t.bytes()));
  convert_in_range(host.data(), t.dtype, v, name);
  backend_.upload(t.data, host.data(), t.bytes());
}

// If a weight has a master, only one of the two is uploaded, preferably in the dtype of the file,
// and the device converts it to the other.
void ParamStore::set(const std::string& name, int64_t first, DType from,
                     std::span<const std::byte> bytes) {
  if (!has_master() || !trainable(name)) return set(Part::weight, name, first, from, bytes);
  if (!backend_.runs(dtype_)) {  // it has no conversion kernel for this dtype
    for (const Part p : {Part::weight, Part::master}) set(p, name, first, from, bytes);
    return;
  }
  const bool narrow = from == dtype_;
  // The device rounds without a check. Every finite f32 of a model fits bf16.
  if (!narrow && dtype_ == DType::f16) expect_in_range(name, dtype_, from, bytes);
  set(narrow ? Part::weight : Part::master, name, first, from, bytes);
  const int64_t n = int64_t(bytes.size()) / size_of(from);
  const auto given = [&](Part p) {
    const Tensor t = get(p, name);
    return Tensor{t.data + first * size_of(t.dtype), {n}, t.dtype};
  };
  const Tensor weight = given(Part::weight), master = given(Part::master);
  if (n)
    backend_.kernels().copy(backend_.stream(),
                            {.y = narrow ? master : weight, .x = narrow ? weight : master});
}

void ParamStore::set(Part p, const std::string& name, int64_t first, DType from,
                     std::span<const std::byte> bytes) {
  constexpr int64_t piece = 1 << 20;  // elements
  const Tensor t = get(p, name);
  const int64_t n = int64_t(bytes.size()) / size_of(from);
  if (first < 0 || n > t.numel() || first > t.numel() - n)
    fail("params", "expected at most {} numbers from {} on for {} {}, got {}", t.numel() - first,
         first, name, to_string(t.shape), n);
  std::byte* to = t.data + first * size_of(t.dtype);
  if (from == t.dtype) return backend_.upload(to, bytes.data(), int64_t(bytes.size()));
  std::vector<float> floats(size_t(std::min(n, piece)));
  std::vector<std::byte> converted(
      t.dtype == DType::f32 ? 0 : floats.size() * size_t(size_of(t.dtype)));
  for (int64_t i = 0; i < n; i += piece) {
    const std::span<float> part = std::span(floats).first(size_t(std::min(piece, n - i)));
    convert_to_floats(part, from, bytes.data() + i * size_of(from));
    if (t.dtype != DType::f32) convert_in_range(converted.data(), t.dtype, part, name);
    const void* source = t.dtype == DType::f32 ? static_cast<const void*>(part.data())
                                               : static_cast<const void*>(converted.data());
    backend_.upload(to + i * size_of(t.dtype), source, int64_t(part.size()) * size_of(t.dtype));
  }
}

std::vector<float> ParamStore::values(Part p, const std::string& name) {
  const Tensor t = get(p, name);
  std::vector<float> out(size_t(t.numel()));
  if (t.dtype == DType::f32) {
    backend_.download(out.data(), t.data, t.bytes());
    return out;
  }
  std::vector<std::byte> host(size_t(t.bytes()));
  backend_.download(host.data(), t.data, t.bytes());
  convert_to_floats(out, t.dtype, host.data());
  return out;
}

void ParamStore::initialise(uint64_t seed) {
  Threads threads;  // the host needs 30 ns for a normal draw
  for (const ParamSpec& s : specs_) initialise(s, seed, threads);
}

void ParamStore::initialise(const std::string& name, uint64_t seed) {
  Threads threads(1);
  initialise(spec_of(name), seed, threads);
}

void ParamStore::initialise(const ParamSpec& s, uint64_t seed, Threads& threads) {
  const int64_t n = s.shape.numel();
  if (s.format != WeightFormat::plain) {
    std::vector<float> whole(static_cast<size_t>(n));
    draw_in_parallel(whole, s, seed, 0, threads);
    return set(s.name, whole);
  }
  const bool both = has_master() && s.trainable;
  const Tensor first = get(both ? Part::master : Part::weight, s.name);
  // fp16 goes through set(), which checks the range.
  if (backend_.kernels().draw && first.dtype == DType::f32 &&
      (!both || (backend_.runs(dtype_) && dtype_ != DType::f16))) {
    draw_on_device(first, s.init, seed, s.name);
    if (both)
      backend_.kernels().copy(backend_.stream(), {.y = get(Part::weight, s.name), .x = first});
    return;
  }
  constexpr int64_t piece = 4 << 20;  // elements: memory that is allocated once
  std::vector<float> drawn(size_t(std::min(n, piece)));
  for (int64_t at = 0; at < n; at += piece) {
    const std::span<float> part = std::span(drawn).first(size_t(std::min(piece, n - at)));
    draw_in_parallel(part, s, seed, at, threads);
    set(s.name, at, DType::f32, std::as_bytes(part));
  }
}

void ParamStore::draw_on_device(const Tensor& t, const Init& init, uint64_t seed,
                                const std::string& name) {
  constexpr int64_t room = 1 << 16;  // for one in 600,000 draws of a parameter
  const bool normal = init.kind == Init::Kind::normal;
  const Buffer doubts(backend_, normal ? room * 4 : 4, "draws that are in doubt");
  backend_.kernels().draw(backend_.stream(),
                          {.y = {t.data, {t.numel()}, t.dtype},
                           .doubts = {doubts.data(), {doubts.bytes() / 4}, DType::i32},
                           .init = init,
                           .key = draw_key(seed, name)});
  if (!normal) return;
  uint32_t count = 0;
  backend_.download(&count, doubts.data(), 4);
  const int64_t n = t.numel();
  std::vector<float> values;
  const auto draw_again = [&](int64_t begin, int64_t end) {
    values.resize(size_t(end - begin));
    draw(values, init, seed, name, begin);
    backend_.upload(t.data + begin * 4, values.data(), (end - begin) * 4);
  };
  if (int64_t(count) >= room) return draw_again(0, n);  // a deviation of 0, for example
  std::vector<uint32_t> fours(count);
  if (count) backend_.download(fours.data(), doubts.data() + 4, int64_t(count) * 4);
  for (const uint32_t f : fours) draw_again(4 * int64_t(f), std::min(n, 4 * (int64_t(f) + 1)));
}

}  // namespace hearth::inline core

#include "cuda/persistent/recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace hearth::cuda::persistent {
namespace {

constexpr int64_t most_packets = int64_t(16) << 20;  // 128 MiB

Recorder& of(Stream& s) { return static_cast<Recorder&>(s); }

template <class Args>
using Entry = void (*)(Stream&, const Args&);

template <class Args>
Entry<Args> refused_entry() {
  return [](Stream& s, const Args&) { of(s).refuse("a kernel that it does not have"); };
}

const uint16_t* bits(const Tensor& t) { return t.as<const uint16_t>(); }

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool simple(const GemmSpec& g) {
  return !g.ta && g.tb && !g.act_slope && g.single() && !g.symmetric;
}

bool overlap(const Tensor& a, const Tensor& b) {
  return a.data < b.data + b.bytes() && b.data < a.data + a.bytes();
}

}  // namespace

const Kernels& Recorder::kernels() {
  static const Kernels table = [] {
#define HEARTH_REFUSED(name, Args) \
  .name = [](Stream& s, const Args&) { of(s).refuse("the kernel " #name); },
    Kernels k{.name = "recorder", HEARTH_KERNELS(HEARTH_REFUSED)};
#undef HEARTH_REFUSED
    k.gemm_quantised = refused_entry<GemmQuantisedArgs>();
    k.quantise_fp8 = refused_entry<QuantiseFp8Args>();
    k.advance_fp8 = refused_entry<AdvanceFp8Args>();
    k.draw = refused_entry<DrawArgs>();
    k.embed = [](Stream& s, const EmbedArgs& a) { of(s).embed(a); };
    k.norm = [](Stream& s, const NormArgs& a) { of(s).norm(a); };
    k.gemm = [](Stream& s, const GemmArgs& a) { of(s).gemm(a); };
    k.norm_gemm = [](Stream& s, const NormGemmArgs& a) { of(s).norm_gemm(a); };
    k.gemm_glu = [](Stream& s, const GemmGluArgs& a) { return of(s).gemm_glu(a); };
    k.activation = [](Stream& s, const ActivationArgs& a) { of(s).activation(a); };
    k.qk_norm_rope = [](Stream& s, const QkNormRopeArgs& a) { of(s).qk_norm_rope(a); };
    k.attention_cached = [](Stream& s, const AttentionCachedArgs& a) { of(s).attention_cached(a); };
    k.sample = [](Stream& s, const SampleArgs& a) { of(s).sample(a); };
    return k;
  }();
  return table;
}

// --- what memory holds ---

void Recorder::refuse(std::string why) {
  if (refusal_.empty()) refusal_ = std::move(why);
}

bool Recorder::recording() {
  if (!embedded_) refuse("a program that does not begin with an embedding");
  if (ended_) refuse("a kernel after the logits");
  return refusal_.empty();
}

bool Recorder::expect(bool holds, const char* what) {
  if (!holds) refuse(what);
  return holds;
}

bool Recorder::plain(const Tensor& t, const char* what) {
  return expect(!t || (t.dtype == DType::bf16 && aligned(t.data)), what);
}

const Recorder::Value* Recorder::find(const Tensor& t) const {
  const auto it = std::ranges::find_if(values_, [&](const Value& v) {
    return v.tensor.data == t.data && v.tensor.numel() == t.numel() && t.dtype == DType::bf16;
  });
  return it == values_.end() ? nullptr : &*it;
}

const Recorder::Value* Recorder::source(const Tensor& t, const char* reader) {
  const Value* const v = find(t);
  if (!v) refuse(fmt::format("{} of something that no phase computes", reader));
  return v;
}

void Recorder::forget(const Tensor& t) {
  std::erase_if(values_, [&](const Value& v) { return overlap(v.tensor, t); });
}

void Recorder::define(Value v) {
  forget(v.tensor);
  values_.push_back(std::move(v));
}

// What is known once all packets of a wire are there. A block writes its last output of a product
// after it has read all that it reads there, so if every block has outputs, all have.
Recorder::Known Recorder::known_of_all(const Value& v) const {
  Known k = v.known;
  if (v.wire.phase < 0) return k;
  const Phase& from = plan_.phases[size_t(v.wire.phase)];
  if (v.of_attention)
    k.joined = v.wire.phase;
  else if (from.product.N / 2 >= limits_.blocks)
    k.finished = v.wire.phase;
  return k;
}

// The phase that is being recorded reads the wire.
void Recorder::read(const Wire& w) {
  for (Region& r : regions_)
    if (w.phase >= 0 && r.at == w.at) r.last_read = int(plan_.phases.size());
}

// Packets for a phase whose blocks know this much before they write. Packets of an earlier phase
// serve again if no later kernel can read them and all blocks have finished the last phase that
// does. Then no block still waits for what is overwritten. Nor can an old packet arrive after a new
// one: somebody has read every packet of a wire before, also those of padding.
uint32_t Recorder::reserve(int64_t packets, const Known& known) {
  const auto live = [&](const Region& r) {
    return std::ranges::any_of(
        values_, [&](const Value& v) { return v.wire.phase >= 0 && v.wire.at == r.at; });
  };
  for (Region& r : regions_)
    if (r.packets >= packets && r.packets <= 2 * packets && r.last_read <= known.finished &&
        !live(r)) {
      r.last_read = int(plan_.phases.size());
      return r.at;
    }
  const uint32_t at = append(packets);
  regions_.push_back({at, packets, int(plan_.phases.size())});
  return at;
}

// Wires begin at multiples of two packets, which are read together.
uint32_t Recorder::append(int64_t packets) {
  const int64_t at = plan_.packets;
  plan_.packets = round_up(at + packets, 2);
  if (plan_.packets > most_packets) refuse("more activations than the wires hold");
  return uint32_t(std::min(at, most_packets));
}

// --- kernels ---

void Recorder::embed(const EmbedArgs& a) {
  if (embedded_) return refuse("a second embedding");
  const int64_t rows = a.ids.numel(), width = a.w.cols();
  if (!expect(rows <= most_rows, "more than 8 rows")) return;
  embedded_ = few_rows_ = true;
  if (!plain(a.w, "an embedding that is not bf16") ||
      !plain(a.pos_w, "positions that are not bf16") ||
      !expect(width % 8 == 0, "a width that is no multiple of 8"))
    return;
  Step& s = plan_.step;
  s.rows = int(rows), s.width = int(width);
  s.ids = a.ids.as<const int32_t>(), s.table = bits(a.w), s.places = bits(a.pos_w);
  s.positions = a.positions.as<const int32_t>();
  define({.tensor = a.y, .wire = {.phase = from_embedding}});
}

void Recorder::norm(const NormArgs& a) {
  if (!recording()) return;
  if (a.residual || a.fp8) return refuse("a norm that does more than to normalise");
  const Value* const x = source(a.x, "a norm");
  if (!x) return;
  if (x->norm || x->turn) return refuse("a norm of a norm");
  Value y = *x;
  y.tensor = a.y, y.norm = a;
  define(std::move(y));
}

void Recorder::gemm(const GemmArgs& a) {
  if (!recording()) return;
  const GemmSpec& g = a.spec;
  if (a.aux || !simple(g)) return refuse("a product of another form");
  product({.c = a.c,
           .x = a.a,
           .w = a.b,
           .bias = a.bias,
           .prior = a.prior,
           .norm = {},
           .alpha = g.alpha,
           .act = g.act});
}

void Recorder::norm_gemm(const NormGemmArgs& a) {
  if (!recording()) return;
  if (!simple(a.gemm)) return refuse("a product of another form");
  product({.c = a.c,
           .x = a.x,
           .w = a.b,
           .bias = a.bias,
           .prior = a.prior,
           .norm = NormArgs{.y = a.x, .x = a.x, .gain = a.gain, .bias = a.shift, .spec = a.norm},
           .alpha = a.gemm.alpha,
           .act = a.gemm.act});
}

bool Recorder::gemm_glu(const GemmGluArgs& a) {
  if (!recording()) return true;
  if (a.slope || a.pre) {
    refuse("a GLU of another form");
    return true;
  }
  product({.c = a.c,
           .x = a.a,
           .w = a.b,
           .bias = {},
           .prior = {},
           .norm = {},
           .act = a.act,
           .glu = true});
  return true;
}

bool Recorder::check(const Product& p, const Value& x) {
  const int64_t N = p.w.rows(), K = p.w.cols(), rows = plan_.step.rows;
  return expect(!x.turn && !(x.norm && p.norm), "a product of a norm of a norm") &&
         plain(p.w, "weights that are not plain bf16") &&
         plain(p.bias, "a bias that is not bf16") &&
         expect(p.x.numel() == rows * K && K % 8 == 0 && K <= 32768,
                "a product whose width is no multiple of 8") &&
         expect(N % (p.glu ? 4 : 2) == 0, "a product with an odd number of outputs") &&
         expect(p.c.numel() == rows * (p.glu ? N / 2 : N), "a product of other rows") &&
         expect(p.c.dtype == DType::bf16 || (p.c.dtype == DType::f32 && !p.prior),
                "a product whose result is not bf16") &&
         expect(!p.prior || p.prior.numel() == p.c.numel(), "a prior of another shape");
}

void Recorder::product(const Product& p) {
  const Value* const in = source(p.x, "a product");
  if (!in || !check(p, *in)) return;
  const Value x = *in;
  const std::optional<NormArgs>& norm = p.norm ? p.norm : x.norm;
  ProductPhase f{.w = bits(p.w), .bias = bits(p.bias), .in = x.wire};
  f.N = int(p.glu ? p.w.rows() / 2 : p.w.rows()), f.K = int(p.w.cols());
  f.alpha = p.alpha, f.act = p.act, f.glu = p.glu;
  if (norm) {
    if (!plain(norm->gain, "a gain that is not bf16") || !plain(norm->bias, "a shift")) return;
    f.gain = bits(norm->gain), f.shift = bits(norm->bias);
    f.normed = true, f.norm = norm->spec.kind, f.eps = norm->spec.eps;
  }
  Known known = known_of_all(x);
  read(x.wire);
  if (p.prior) {
    const Value* const prior = source(p.prior, "a sum");
    if (!prior || !expect(!prior->norm && !prior->turn, "a sum of a norm")) return;
    f.prior = prior->wire;
    known = {std::max(known.finished, prior->known.finished),
             std::max(known.joined, prior->known.joined)};
    read(prior->wire);
  }
  const int64_t rows = plan_.step.rows;
  if (p.c.dtype == DType::f32)
    f.logits = p.c.as<float>(), logits_ = p.c, ended_ = true;
  else
    f.out = {reserve(rows * f.N / 2, known), int32_t(plan_.phases.size())};
  const int64_t entry = tile_rows * pitch_of(std::min(f.K, int32_t(chunk_columns)));
  largest_entry_ = std::max({largest_entry_, entry, int64_t(f.normed ? 4 * f.K : 0)});
  work_bytes_ = std::max(work_bytes_, rows * pitch_of(f.K));
  plan_.phases.push_back({.product = f});
  if (!ended_) define({.tensor = p.c, .wire = f.out, .known = known});
}

// Becomes part of the product before it, whose own result is then nowhere, and neither is what was
// to be computed from it.
void Recorder::activation(const ActivationArgs& a) {
  if (!recording()) return;
  const Value* const x = source(a.x, "an activation");
  if (!x) return;
  const bool last = x->wire.phase == int(plan_.phases.size()) - 1 && !x->norm && !x->turn;
  if (!last || x->wire.phase < 0 || plan_.phases.back().attends)
    return refuse("an activation that does not follow its product");
  ProductPhase& f = plan_.phases.back().product;
  if (f.act != Act::none || f.prior.phase != absent || f.alpha != 1)
    return refuse("an activation of a sum");
  f.act = a.act, f.glu = is_glu(a.act);
  if (f.glu && !expect(f.N % 4 == 0, "a GLU of an odd width")) return;
  if (f.glu) f.N /= 2;
  Value y{.tensor = a.y, .wire = x->wire, .known = x->known};
  std::erase_if(values_, [&](const Value& v) { return v.wire.phase == y.wire.phase; });
  define(std::move(y));
}

void Recorder::qk_norm_rope(const QkNormRopeArgs& a) {
  if (!recording()) return;
  const Value* const x = source(a.qkv, "a rotation");
  if (!x) return;
  if (x->norm || x->turn) return refuse("a rotation of a norm");
  Value y = *x;
  y.tensor = a.y, y.turn = a;
  define(std::move(y));
}

bool Recorder::set_turn(AttentionPhase& f, const QkNormRopeArgs& t) {
  const QkSpec& q = t.spec;
  if (q.heads != f.H || q.kv_heads != f.G || q.head_dim != f.D || (q.v_dim && q.v_dim != f.D))
    return expect(false, "a rotation of other heads");
  if (q.rotary &&
      !expect(t.positions.as<const int32_t>() == plan_.step.positions && t.rope.dtype == DType::f32,
              "a rotation by other positions"))
    return false;
  if (!plain(t.q_gain, "a gain that is not bf16") || !plain(t.k_gain, "a gain that is not bf16"))
    return false;
  f.rope = t.rope.as<const float>(), f.q_gain = bits(t.q_gain), f.k_gain = bits(t.k_gain);
  f.rotary = int(q.rotary), f.eps = q.eps, f.norm = q.norm;
  f.interleaved = q.interleaved, f.reverse = q.reverse;
  return true;
}

// All layers read the same positions and tables.
bool Recorder::set_tables(const AttentionCachedArgs& a) {
  Step& s = plan_.step;
  const auto* const tables = a.tables.as<const int32_t>();
  const auto* const positions = a.positions.as<const int32_t>();
  if (!s.positions) s.positions = positions;
  if (!s.tables) s.tables = tables, s.table_width = int(a.tables.shape[1]);
  return expect(
      s.tables == tables && s.positions == positions && s.table_width == a.tables.shape[1],
      "layers with other positions or tables");
}

bool Recorder::check_layouts(const AttentionCachedArgs& a) {
  const HeadLayout &q = a.q.layout, &k = a.k.layout;
  const QkvLayout packed = packed_qkv(q.heads, k.heads, q.width, q.width);
  return expect(a.k.tensor.data == a.q.tensor.data && a.v.tensor.data == a.q.tensor.data &&
                    packed == QkvLayout{q, k, a.v.layout},
                "heads that are not packed") &&
         expect(q.width % 8 == 0 && q.width <= most_head_dim, "heads of another width") &&
         expect(a.q.tensor.numel() == plan_.step.rows * q.token, "attention of other rows");
}

bool Recorder::check(const AttentionCachedArgs& a) {
  if (!a.spec.apart) few_rows_ = false;
  return expect(a.spec.apart, "several rows of a sequence") &&
         expect(!a.bias, "a bias by distance") && plain(a.cache, "a cache that is not bf16") &&
         expect(a.tables.shape[0] >= plan_.step.rows, "fewer tables than rows") &&
         check_layouts(a) && set_tables(a);
}

// One place serves the splits of all layers: a block overwrites a part of an earlier layer only
// after it has read a packet of q, and by then all blocks have joined their splits of that layer.
void Recorder::attention_cached(const AttentionCachedArgs& a) {
  if (!recording() || !check(a)) return;
  const Value* const in = source(a.q.tensor, "attention");
  if (!in) return;
  const Value x = *in;
  if (!expect(!x.norm && !x.of_attention && x.wire.phase >= 0, "attention over no product") ||
      !expect(x.known.joined >= last_attention_, "layers of attention side by side"))
    return;
  const int64_t rows = plan_.step.rows, D = a.q.layout.width;
  AttentionPhase f{.cache = a.cache.as<uint16_t>(), .in = x.wire};
  f.H = int(a.q.layout.heads), f.G = int(a.k.layout.heads), f.D = int(D);
  f.slopes = a.slopes.as<const float>();
  f.window = int(a.spec.window), f.scale = a.spec.scale, f.softcap = a.spec.softcap;
  if (x.turn && !set_turn(f, *x.turn)) return;
  const auto phase = int32_t(plan_.phases.size());
  read(x.wire);
  f.out = {reserve(rows * f.H * D / 2, x.known), phase};
  part_packets_ = std::max(part_packets_, rows * f.H * split_places * (D + 2));
  largest_entry_ = std::max(largest_entry_, cache_block * D * 2);
  const int keys = plan_.step.table_width * int(cache_block);
  const int pitch = plan_.step.score_pitch = std::max(whole_keys, split_size(keys));
  work_bytes_ = std::max(work_bytes_, unit_bytes(heads_at_once(f.H, f.G), f.D, pitch));
  plan_.phases.push_back({.attends = true, .attention = f});
  last_attention_ = phase;
  define({.tensor = a.y, .wire = f.out, .of_attention = true, .known = x.known});
}

void Recorder::sample(const SampleArgs& a) {
  if (!refusal_.empty()) return;
  if (!ended_ || plan_.sample || a.logits.data != logits_.data || a.allowed)
    return refuse("sampling from other logits");
  plan_.sample = a;
}

void Recorder::check_memory() {
  Layout& l = plan_.step.layout;
  l.work = int32_t(round_up(limits_.control_bytes, 128));
  l.ring = int32_t(l.work + round_up(work_bytes_, 128));
  const int64_t left = (limits_.shared_bytes - l.ring) / 128 * 128;
  l.ring_bytes = int32_t(std::max<int64_t>(left, 0));
  expect(left >= 2 * largest_entry_, "rows that leave too little shared memory for weights");
}

std::optional<StepPlan> Recorder::finish() {
  if (!ended_) refuse("a program without logits");
  if (last_attention_ < 0) refuse("a program without attention");
  if (!refusal_.empty()) return {};
  const uint32_t parts = append(part_packets_);
  for (Phase& f : plan_.phases) f.attention.parts = parts;
  check_memory();
  plan_.step.count = int(plan_.phases.size());
  if (!refusal_.empty()) return {};
  return plan_;
}

}  // namespace hearth::cuda::persistent

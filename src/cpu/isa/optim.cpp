// The update: gradient norm, the decision to clip or skip, and one pass of an optimizer's rule
// (core/update_rules.h). Memory bound: AdamW moves 28 bytes per fp32 parameter. State in 8-bit
// codes moves less but costs two table lookups per element and slot.
#include "cpu/isa/kernels.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {
namespace {

bool finite(float x) { return __builtin_isfinite(x); }

}  // namespace

void sum_squares(Stream& s, const SumSquaresArgs& args) {
  expect_dtypes("sum_squares", DType::f32, args.out, args.parts);
  const int64_t n = count(args.x), P = count(args.parts);
  by_dtype("sum_squares", args.x, [&]<class T>(T*) {
    const int64_t size = round_up((n + P - 1) / P, 64);
    parallel(cpu_stream(s).threads, P, [&](int64_t p, int) {
      const int64_t begin = smaller(n, p * size), end = smaller(n, begin + size);
      args.parts.as<float>()[p] = float(squares(args.x.as<const T>() + begin, end - begin));
    });
  });
  double total = 0;
  for (int64_t p = 0; p < P; ++p) total += double(args.parts.as<float>()[p]);
  *args.out.as<float>() = float(total);
}

void gate_update(Stream&, const GateUpdateArgs& args) {
  expect_dtypes("gate_update", DType::f32, args.squares, args.loss);
  UpdateState& st = *args.state.as<UpdateState>();
  const Scalars& sc = scalars_of(args.scalars);
  const float norm = __builtin_sqrtf(*args.squares.as<float>()) / sc.loss_scale;
  st.grad_norm = norm;
  st.loss = *args.loss.as<float>();
  if (!finite(norm) || !finite(st.loss)) {
    st.skip = 1;
    st.streak += 1;
    st.skipped += 1;
    st.grad_scale = 0;
    return;
  }
  st.skip = 0;
  st.streak = 0;
  st.good_steps += 1;
  const float clipped = sc.clip > 0 && norm > sc.clip ? sc.clip / (norm + 1e-6f) : 1.0f;
  st.grad_scale = clipped / sc.loss_scale;
}

namespace {

// The functions that a rule needs for vectors.
struct VectorMath {
  HEARTH_INLINE static vf sqrt(vf a) { return HEARTH_ISA::sqrt(a); }
};

// How the state of a range is rounded: the number of its first element, and the key.
struct Rounding {
  int64_t first = 0;
  RoundingKey key = {};

  // The random bits of the elements from i on.
  HEARTH_INLINE vu words(int64_t i) const {
    const uint64_t at = uint64_t(first + i);
    const vu low = vu{} + uint32_t(at) + (vu)lane_numbers();
    const vu carry = (vu)(low < uint32_t(at)) & 1u;
    return rounding_word(key, low, carry + uint32_t(at >> 32));
  }
};
HEARTH_INLINE vf rounded(vf a, vu word, int slot) {
  return select(a == a, from_bits(rounded_stochastically(bits(a), word, slot)), a);
}

// gradient(i, part) gives the gradient of the elements from i on.
template <class Rule, class T, class G, class... Slots>
void update_range(T* w, float* master, const G& gradient, const typename Rule::Factors& a,
                  const Rounding& rounding, int64_t n, Slots*... slots) {
  vectors(n, [&](int64_t i, auto part) {
    vf s[sizeof...(slots) + 1] = {part.get(slots + i)...};  // one to spare: none is no array
    const vf old = master ? part.get(master + i) : part.get(w + i);
    const vf fresh = Rule::template apply<VectorMath>(old, gradient(i, part), s, a);
    [[maybe_unused]] int k = 0;
    if constexpr ((std::is_same_v<Slots, bf16> || ...)) {
      const vu word = rounding.words(i);
      ((s[k] = std::is_same_v<Slots, bf16> ? rounded(s[k], word, k) : s[k], ++k), ...);
      k = 0;
    }
    (part.put(slots + i, s[k++]), ...);
    if (master) part.put(master + i, fresh);
    part.put(w + i, fresh);
  });
}

// Appends `left` more slots to the known ones, each in its own dtype, and calls f with all.
template <int left, class F, class... Slots>
void by_slots(const char* op, const UpdateArgs& args, const F& f, Slots*... known) {
  if constexpr (left == 0) {
    f(known...);
  } else {
    const Tensor& t = args.slots[sizeof...(known)];
    by_dtype(op, t,
             [&]<class S>(S*) { by_slots<left - 1>(op, args, f, known..., t.template as<S>()); });
  }
}

constexpr DynamicCode code_tables[] = {make_dynamic_code(false), make_dynamic_code(true)};

// A range whose slots are 8-bit codes, in blocks that share a scale.
template <class Rule, class T>
class CodedRange {
 public:
  CodedRange(const UpdateArgs& args, const UpdateState& st)
      : args_(args), factors_(Rule::factors(st, scalars_of(args.scalars), args.spec)) {
    expect_dtypes(Rule::name, DType::f32, args.master, args.grad);
    for (int k = 0; k < Rule::slots; ++k) {
      expect_dtype(Rule::name, DType::u8, args.slots[k]);
      expect_dtype(Rule::name, DType::f32, args.scales[k]);
    }
  }

  void update_block(int64_t block) const {
    const int64_t begin = block * code_block;
    const int64_t n = smaller(code_block, count(args_.weight) - begin);
    float state[Rule::slots][code_block], most[Rule::slots];
    for (int k = 0; k < Rule::slots; ++k) decode(state[k], k, block, n);
    apply(state, most, begin, n);
    for (int k = 0; k < Rule::slots; ++k) encode(state[k], most[k], k, block, n);
  }

 private:
  static const DynamicCode& table(int k) { return code_tables[Rule::is_signed(k)]; }

  void decode(float* state, int k, int64_t block, int64_t n) const {
    const uint8_t* codes = args_.slots[k].template as<const uint8_t>() + block * code_block;
    const float scale = args_.scales[k].template as<const float>()[block];
    for (int64_t i = 0; i < n; ++i) state[i] = table(k).value[codes[i]] * scale;
  }
  // New weights and new state, and the largest magnitude of each slot.
  void apply(float (&state)[Rule::slots][code_block], float (&most)[Rule::slots], int64_t begin,
             int64_t n) const {
    T* const w = args_.weight.template as<T>() + begin;
    float* const master = args_.master ? args_.master.template as<float>() + begin : nullptr;
    const float* const g = args_.grad.template as<const float>() + begin;
    vf top[Rule::slots] = {};
    vectors(n, [&](int64_t i, auto part) {
      vf s[Rule::slots];
      for (int k = 0; k < Rule::slots; ++k) s[k] = part.get(state[k] + i);
      const vf old = master ? part.get(master + i) : part.get(w + i);
      const vf fresh = Rule::template apply<VectorMath>(old, part.get(g + i), s, factors_);
      for (int k = 0; k < Rule::slots; ++k) {
        part.put(state[k] + i, s[k]);
        top[k] = max(top[k], part.only(abs(s[k]), 0));
      }
      if (master) part.put(master + i, fresh);
      part.put(w + i, fresh);
    });
    for (int k = 0; k < Rule::slots; ++k) most[k] = max_lane(top[k]);
  }
  void encode(const float* state, float most, int k, int64_t block, int64_t n) const {
    uint8_t* codes = args_.slots[k].template as<uint8_t>() + block * code_block;
    const BlockScale scale = block_scale(most);
    args_.scales[k].template as<float>()[block] = scale.scale;
    // The steps of DynamicCode::encode, each over the whole block: only the lookups are scalar.
    const DynamicCode& t = table(k);
    float x[code_block];
    uint32_t cells[code_block];
    int32_t levels[code_block];
    for (int64_t i = 0; i < n; ++i) x[i] = state[i] * scale.inverse, cells[i] = t.cell_of(x[i]);
    for (int64_t i = 0; i < n; ++i) levels[i] = t.level_of(cells[i], x[i]);
    for (int64_t i = 0; i < n; ++i) codes[i] = uint8_t(t.code_of(levels[i], x[i]));
  }

  const UpdateArgs& args_;
  typename Rule::Factors factors_;
};

void update_coded(Stream& s, const UpdateArgs& args, const UpdateState& st) {
  by_dtype(AdamwRule::name, args.weight, [&]<class T>(T*) {
    const CodedRange<AdamwRule, T> range(args, st);
    over_rows(s, ceil_div(count(args.weight), code_block), code_block,
              [&](int64_t begin, int64_t end) {
                for (int64_t block = begin; block < end; ++block) range.update_block(block);
              });
  });
}

// Calls f(static_cast<G*>(nullptr)) with the type of the gradient.
template <class Rule, class F>
void by_grad(const UpdateArgs& args, F&& f) {
  if constexpr (std::is_same_v<Rule, DescentRule>) {
    by_dtype(Rule::name, args.grad, f);
  } else {
    expect_dtypes(Rule::name, DType::f32, args.grad);
    f(static_cast<float*>(nullptr));
  }
}

// The descent of a matrix (R, C) with a factor for each row or column of its gradient.
template <class T, class G>
void descend_matrix(Stream& s, T* w, float* master, const G* g, const float* factors, int64_t R,
                    int64_t C, const DescentRule::Factors& a) {
  over_rows(s, R, C, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const auto gradient = [&](int64_t i, auto part) {
        return part.get(g + r * C + i) * (R < C ? part.get(factors + i) : broadcast(factors[r]));
      };
      update_range<DescentRule>(w + r * C, master ? master + r * C : nullptr, gradient, a, {}, C);
    }
  });
}

// The sums of squares of the matrices (n, R, C) that nesterov has written.
void sum_new_weights(Stream& s, const UpdateArgs& args) {
  expect_dtype(NesterovRule::name, DType::f32, args.squares);
  const int64_t R = args.weight.shape[1], C = args.weight.shape[2];
  by_dtype(NesterovRule::name, args.weight, [&]<class T>(T*) {
    parallel(cpu_stream(s).threads, args.weight.shape[0] * row_parts, [&](int64_t i, int) {
      const T* const x = args.weight.as<const T>() + i / row_parts * R * C;
      const int64_t p = i % row_parts;
      double total = 0;
      for (int64_t r = part_begin(R, p); r < part_begin(R, p + 1); ++r)
        total += squares(x + r * C, C);
      args.squares.as<float>()[i] = float(total);
    });
  });
}

// Calls f(begin in the temporary, begin in all other buffers, size) for every piece.
template <class F>
void each_piece(const UpdateArgs& args, F&& f) {
  const Pieces& p = args.pieces;
  if (!p.count) return f(0, 0, count(args.weight));
  for (int64_t i = 0; i < p.count; ++i) f(i * p.size, p.begin[i], p.size);
}

// Descent with factors on the gradients of all pieces.
void descend_matrices(Stream& s, const UpdateArgs& args, const UpdateState& st) {
  expect_dtypes(DescentRule::name, DType::f32, args.master, args.factors);
  const auto a = DescentRule::factors(st, scalars_of(args.scalars), args.spec);
  const int64_t R = args.grad.shape[1], C = args.grad.shape[2];
  by_dtype(DescentRule::name, args.weight, [&]<class T>(T*) {
    by_dtype(DescentRule::name, args.grad, [&]<class G>(G*) {
      for (int64_t i = 0; i < args.pieces.count; ++i) {
        const int64_t at = args.pieces.begin[i];
        descend_matrix(s, args.weight.as<T>() + at,
                       args.master ? args.master.as<float>() + at : nullptr,
                       args.grad.as<const G>() + i * R * C,
                       args.factors.as<const float>() + i * larger(R, C), R, C, a);
      }
    });
  });
}

}  // namespace

void update_weights(Stream& s, const UpdateArgs& args) {
  const UpdateState& st = *args.gate.as<const UpdateState>();
  if (st.skip != 0) return;
  if (args.scales[0]) return update_coded(s, args, st);
  if (args.factors) return descend_matrices(s, args, st);
  by_rule(args.spec.rule, [&]<class Rule>(Rule) {
    expect_dtypes(Rule::name, DType::f32, args.master);
    constexpr bool packs_weight = std::is_same_v<Rule, NesterovRule>;
    const typename Rule::Factors factors = Rule::factors(st, scalars_of(args.scalars), args.spec);
    const RoundingKey key = rounding_key(st, scalars_of(args.scalars));
    by_dtype(Rule::name, args.weight, [&]<class T>(T*) {
      by_slots<Rule::slots>(Rule::name, args, [&](auto*... slots) {
        by_grad<Rule>(args, [&]<class G>(G*) {
          each_piece(args, [&](int64_t packed, int64_t at, int64_t size) {
            T* const w = args.weight.as<T>() + (packs_weight ? packed : at);
            const G* const g = args.grad.as<const G>() + (packs_weight ? at : packed);
            float* const master = args.master ? args.master.as<float>() + at : nullptr;
            over_elements(s, size, [&](int64_t i, int64_t end) {
              const auto gradient = [&](int64_t k, auto part) { return part.get(g + i + k); };
              update_range<Rule>(w + i, master ? master + i : nullptr, gradient, factors,
                                 {args.first + at + i, key}, end - i, slots + at + i...);
            });
          });
        });
      });
    });
  });
  if (args.squares) sum_new_weights(s, args);
}

}  // namespace hearth::HEARTH_ISA

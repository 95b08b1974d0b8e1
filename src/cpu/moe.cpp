// Routing, sorting and grouped products of experts on the CPU, for every instruction set: the
// products call the gemm of the stream's set, and the rest is a small part of a step.
#include "cpu/moe.h"

#include <algorithm>
#include <cstring>

#include "cpu/router_row.h"
#include "cpu/stream.h"
#include "sys/error.h"
#include "sys/threads.h"

namespace hearth::inline cpu {
namespace {

constexpr int64_t router_rows = 64;  // tokens per piece of work

std::vector<float> floats_of(const Tensor& t) {
  std::vector<float> x(t ? size_t(t.numel()) : 0);
  if (t) convert_to_floats(x, t.dtype, t.data);
  return x;
}

void expect_floats(const char* op, const Tensor& t) {
  if (t.dtype != DType::f32) refuse_dtypes(op, DType::f32, t.dtype);
}

std::vector<float> fractions(const Tensor& offsets) {
  const int32_t* at = offsets.as<int32_t>();
  const int64_t E = offsets.numel() - 1;
  std::vector<float> f;
  for (int64_t e = 0; e < E; ++e) f.push_back(float(at[e + 1] - at[e]) / float(std::max(at[E], 1)));
  return f;
}

// The tokens whose pairs the offsets count, at least 1.
int64_t counted_tokens(const Tensor& offsets, int64_t k) {
  return std::max<int64_t>(1, offsets.as<int32_t>()[offsets.numel() - 1] / k);
}

bool does_count(const Tensor& counts, int64_t token) {
  return !counts || counts.as<int32_t>()[token] != 0;
}

const Scalars& scalars_in(const Tensor& t) {
  static const Scalars none;
  return t ? *t.as<const Scalars>() : none;
}

std::byte* row_of(const Tensor& t, int64_t row) {
  return t.data + row * t.cols() * size_of(t.dtype);
}

// The rows of a that the rows of c read, next to each other.
const std::byte* gathered(CpuStream& s, const Tensor& a, const Tensor& gather) {
  if (!gather) return a.data;
  const int64_t bytes = a.cols() * size_of(a.dtype), rows = gather.numel();
  std::byte* to = s.fp8_scratch.get(rows * bytes);
  const int32_t* from = gather.as<int32_t>();
  s.threads.ranges(rows, std::max<int64_t>(1, (1 << 17) / std::max<int64_t>(1, bytes)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t r = begin; r < end; ++r)
                       std::memcpy(to + r * bytes, a.data + from[r] * bytes, size_t(bytes));
                   });
  return to;
}

}  // namespace

void route(Stream& stream, const RouteArgs& args) {
  expect_floats("route", args.logits);
  const int64_t E = args.logits.cols(), k = args.ids.cols();
  const std::vector<float> bias = floats_of(args.bias);
  cpu_stream(stream).threads.ranges(
      args.logits.rows(), router_rows, [&](int64_t begin, int64_t end) {
        RouterRow<float> row(E, k, args.spec);
        for (int64_t t = begin; t < end; ++t)
          row.choose(args.ids.as<int32_t>() + t * k, args.weights.as<float>() + t * k,
                     args.logits.as<float>() + t * E, bias.empty() ? nullptr : bias.data());
      });
}

void route_bwd(Stream& stream, const RouteBwdArgs& args) {
  expect_floats("route_bwd", args.logits);
  const int64_t T = args.logits.rows(), E = args.logits.cols(), k = args.ids.cols();
  const std::vector<float> f = fractions(args.offsets);
  const Scalars& s = scalars_in(args.scalars);
  const float share = scaled_gradient(s, s.share) / float(counted_tokens(args.offsets, k));
  cpu_stream(stream).threads.ranges(T, router_rows, [&](int64_t begin, int64_t end) {
    RouterRow<float> row(E, k, args.spec);
    std::vector<float> d(static_cast<size_t>(E));
    for (int64_t t = begin; t < end; ++t) {
      const float weight = does_count(args.counts, t) ? share : 0;
      row.gradient(d.data(), args.dweights.as<float>() + t * k, args.ids.as<int32_t>() + t * k,
                   args.logits.as<float>() + t * E, f.data(), args.spec.balance * weight,
                   args.spec.z * weight);
      convert_from_floats(row_of(args.dlogits, t), args.dlogits.dtype, d);
    }
  });
}

void expert_rows(Stream&, const ExpertRowsArgs& args) {
  const int64_t E = args.offsets.numel() - 1, R = args.ids.numel(), k = args.ids.cols();
  const int32_t* ids = args.ids.as<int32_t>();
  int32_t *offsets = args.offsets.as<int32_t>(), *order = args.order.as<int32_t>();
  int32_t *tokens = args.tokens.as<int32_t>(), *place = args.place.as<int32_t>();
  std::fill_n(offsets, E + 1, 0);
  for (int64_t pair = 0; pair < R; ++pair) ++offsets[ids[pair] + 1];
  for (int64_t e = 0; e < E; ++e) offsets[e + 1] += offsets[e];
  if (args.counted) {
    int32_t* counted = args.counted.as<int32_t>();
    std::fill_n(counted, E + 1, 0);
    for (int64_t pair = 0; pair < R; ++pair)
      counted[ids[pair] + 1] += does_count(args.counts, pair / k);
    for (int64_t e = 0; e < E; ++e) counted[e + 1] += counted[e];
  }
  std::vector<int32_t> next(offsets, offsets + E);
  for (int64_t pair = 0; pair < R; ++pair) {
    const int32_t row = next[size_t(ids[pair])]++;
    order[row] = int32_t(pair);
    tokens[row] = int32_t(pair / k);
    place[pair] = row;
  }
}

void grouped_gemm(Stream& stream, const GroupedGemmArgs& args) {
  CpuStream& s = cpu_stream(stream);
  const int64_t N = args.c.cols(), K = args.a.cols(), G = args.offsets.numel() - 1;
  const int64_t size = size_of(args.a.dtype);
  const bool packed = is_panels(args.b.dtype);
  const std::byte* a = gathered(s, args.a, args.gather);
  const int32_t* offsets = args.offsets.as<int32_t>();
  for (int64_t g = 0; g < G; ++g) {
    const GemmProblem p{.c = row_of(args.c, offsets[g]),
                        .a = a + offsets[g] * K * size,
                        .b = packed ? args.b.data : args.b.data + g * N * K * size,
                        .m = offsets[g + 1] - offsets[g],
                        .n = N,
                        .k = K,
                        .lda = K,
                        .ldb = args.tb ? K : N,
                        .ldc = N,
                        .b_row = packed ? g * N : 0,
                        .tb = args.tb,
                        .c_type = args.c.dtype,
                        .ab_type = args.a.dtype};
    if (packed)
      gemm_quantised(s.threads, s.scratch, s.gemm, p);
    else
      gemm(s.threads, s.scratch, s.gemm, p);
  }
}

void grouped_gemm_weights(Stream& stream, const GroupedGemmWeightsArgs& args) {
  CpuStream& s = cpu_stream(stream);
  const int64_t N = args.dc.cols(), K = args.a.cols(), G = args.offsets.numel() - 1;
  const int64_t size = size_of(args.a.dtype), bytes = N * K * size_of(args.db.dtype);
  const std::byte* a = gathered(s, args.a, args.gather);
  const int32_t* offsets = args.offsets.as<int32_t>();
  for (int64_t g = 0; g < G; ++g) {
    std::byte* db = args.db.data + g * bytes;
    const int64_t rows = offsets[g + 1] - offsets[g];
    if (rows == 0 && !args.add) std::memset(db, 0, size_t(bytes));
    if (rows == 0) continue;
    gemm(s.threads, s.scratch, s.gemm,
         {.c = db,
          .a = row_of(args.dc, offsets[g]),
          .b = a + offsets[g] * K * size,
          .m = N,
          .n = K,
          .k = rows,
          .lda = N,
          .ldb = K,
          .ldc = K,
          .ta = true,
          .c_type = args.db.dtype,
          .ab_type = args.a.dtype,
          .residual = args.add ? db : nullptr});
  }
}

void router_stats(Stream& stream, const RouterStatsArgs& args) {
  expect_floats("router_stats", args.logits);
  const int64_t T = args.logits.rows(), E = args.logits.cols();
  const std::vector<float> f = fractions(args.offsets);
  const RouteSpec route{.kind = args.spec.kind};
  float* parts = args.parts.as<float>();
  cpu_stream(stream).threads.run(row_parts, [&](int64_t part, int) {
    RouterRow<float> row(E, args.spec.k, route);
    std::array<double, 3> sums = {};
    for (int64_t t = T * part / row_parts; t < T * (part + 1) / row_parts; ++t) {
      if (!does_count(args.counts, t)) continue;
      const std::array<float, 3> found = row.stats(args.logits.as<float>() + t * E, f.data());
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += double(found[i]);
    }
    for (size_t i = 0; i < sums.size(); ++i) parts[part * 3 + int64_t(i)] = float(sums[i]);
  });
  const double factor = double(args.spec.part) * double(scalars_in(args.scalars).share) /
                        double(counted_tokens(args.offsets, args.spec.k));
  for (int64_t i = 0; i < 3; ++i) {
    double sum = 0;
    for (int64_t p = 0; p < row_parts; ++p) sum += double(parts[p * 3 + i]);
    float& value = args.values.as<float>()[i];
    value = float((args.spec.add_values ? double(value) : 0) + factor * sum);
  }
  const int32_t* offsets = args.offsets.as<int32_t>();
  for (int64_t e = 0; e < E; ++e) {
    int32_t& load = args.load.as<int32_t>()[e];
    load = (args.spec.add_load ? load : 0) + offsets[e + 1] - offsets[e];
  }
}

void balance_bias(Stream&, const BalanceBiasArgs& args) {
  if (args.gate.as<const UpdateState>()->skip != 0) return;
  const int32_t* loads = args.load.as<int32_t>();
  const int64_t E = args.load.numel();
  int64_t sum = 0;
  for (int64_t e = 0; e < E; ++e) sum += loads[e];
  std::vector<float> bias = floats_of(args.bias);
  for (int64_t e = 0; e < E; ++e) {
    const int64_t lacking = sum - int64_t(loads[e]) * E;
    bias[size_t(e)] += args.rate * float((lacking > 0) - (lacking < 0));
  }
  convert_from_floats(args.bias.data, args.bias.dtype, bias);
}

}  // namespace hearth::inline cpu

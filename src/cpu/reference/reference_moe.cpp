// Reference kernels for mixtures of experts.
#include <algorithm>
#include <cmath>

#include "cpu/reference/reference_kernels.h"
#include "cpu/router_row.h"

namespace hearth::reference {
namespace {

// The fraction of all rows that each expert received.
Doubles fractions(const std::vector<int32_t>& offsets) {
  Doubles f;
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    f.push_back(double(offsets[e + 1] - offsets[e]) / double(std::max(offsets.back(), 1)));
  return f;
}

void store_ints(Tensor t, const std::vector<int32_t>& v) {
  std::copy(v.begin(), v.end(), t.as<int32_t>());
}

// The row of a for every row of c.
std::vector<int32_t> rows_of(Tensor gather, int64_t rows) {
  if (gather) return load_ints(gather);
  std::vector<int32_t> all;
  for (int64_t r = 0; r < rows; ++r) all.push_back(int32_t(r));
  return all;
}

// Which tokens count.
std::vector<int32_t> counts_of(Tensor counts, int64_t tokens) {
  return counts ? load_ints(counts) : std::vector<int32_t>(size_t(tokens), 1);
}

}  // namespace

void route(Stream&, const RouteArgs& args) {
  const int64_t T = args.logits.rows(), E = args.logits.cols(), k = args.ids.cols();
  const Doubles logits = load(args.logits), bias = load(args.bias);
  std::vector<int32_t> ids(size_t(T * k));
  Doubles weights(size_t(T * k));
  RouterRow<double> row(E, k, args.spec);
  for (int64_t t = 0; t < T; ++t)
    row.choose(&ids[size_t(t * k)], &weights[size_t(t * k)], &logits[size_t(t * E)],
               bias.empty() ? nullptr : bias.data());
  store_ints(args.ids, ids);
  store(args.weights, weights);
}

void route_bwd(Stream&, const RouteBwdArgs& args) {
  const int64_t T = args.logits.rows(), E = args.logits.cols(), k = args.ids.cols();
  const Doubles logits = load(args.logits), dweights = load(args.dweights);
  const std::vector<int32_t> ids = load_ints(args.ids);
  const std::vector<int32_t> offsets = load_ints(args.offsets), counts = counts_of(args.counts, T);
  const Doubles f = fractions(offsets);
  const Scalars s = load_scalars(args.scalars);
  const double share =
      scaled_gradient(s, double(s.share)) / double(std::max<int64_t>(1, offsets.back() / k));
  Doubles dlogits(size_t(T * E));
  RouterRow<double> row(E, k, args.spec);
  for (int64_t t = 0; t < T; ++t) {
    const double weight = counts[size_t(t)] ? share : 0;
    row.gradient(&dlogits[size_t(t * E)], &dweights[size_t(t * k)], &ids[size_t(t * k)],
                 &logits[size_t(t * E)], f.data(), double(args.spec.balance) * weight,
                 double(args.spec.z) * weight);
  }
  store(args.dlogits, dlogits);
}

void expert_rows(Stream&, const ExpertRowsArgs& args) {
  const int64_t E = args.offsets.numel() - 1, k = args.ids.cols();
  const std::vector<int32_t> ids = load_ints(args.ids);
  std::vector<int32_t> offsets, order;
  for (int64_t e = 0; e < E; ++e) {
    offsets.push_back(int32_t(order.size()));
    for (size_t pair = 0; pair < ids.size(); ++pair)
      if (ids[pair] == e) order.push_back(int32_t(pair));
  }
  offsets.push_back(int32_t(order.size()));
  std::vector<int32_t> tokens, place(ids.size());
  for (size_t r = 0; r < order.size(); ++r) {
    tokens.push_back(int32_t(order[r] / k));
    place[size_t(order[r])] = int32_t(r);
  }
  store_ints(args.offsets, offsets);
  store_ints(args.order, order);
  store_ints(args.tokens, tokens);
  store_ints(args.place, place);
  if (!args.counted) return;
  const std::vector<int32_t> counts = load_ints(args.counts);
  std::vector<int32_t> counted{0};
  for (int64_t e = 0; e < E; ++e) {
    int32_t n = counted.back();
    for (size_t pair = 0; pair < ids.size(); ++pair)
      n += ids[pair] == e && counts[pair / size_t(k)] != 0;
    counted.push_back(n);
  }
  store_ints(args.counted, counted);
}

void grouped_gemm(Stream&, const GroupedGemmArgs& args) {
  const int64_t N = args.c.cols(), K = args.a.cols(), G = args.offsets.numel() - 1;
  const bool packed = is_panels(args.b.dtype);
  const Doubles a = packed ? rounded_rows(args.a) : load(args.a);
  const Doubles b = packed ? unpacked(args.b, G * N, K) : load(args.b);
  const std::vector<int32_t> offsets = load_ints(args.offsets);
  const std::vector<int32_t> from = rows_of(args.gather, args.c.rows());
  Doubles c(size_t(args.c.numel()));
  for (int64_t g = 0; g < G; ++g)
    for (int64_t r = offsets[size_t(g)]; r < offsets[size_t(g + 1)]; ++r)
      for (int64_t n = 0; n < N; ++n) {
        double dot = 0;
        for (int64_t i = 0; i < K; ++i)
          dot += a[size_t(from[size_t(r)] * K + i)] *
                 b[size_t(g * N * K + (args.tb ? n * K + i : i * N + n))];
        c[size_t(r * N + n)] = dot;
      }
  store(args.c, c);
}

void grouped_gemm_weights(Stream&, const GroupedGemmWeightsArgs& args) {
  const int64_t N = args.dc.cols(), K = args.a.cols(), G = args.offsets.numel() - 1;
  const Doubles a = load(args.a), dc = load(args.dc);
  const std::vector<int32_t> offsets = load_ints(args.offsets);
  const std::vector<int32_t> from = rows_of(args.gather, args.dc.rows());
  Doubles db = start_from(args.db, args.add);
  for (int64_t g = 0; g < G; ++g)
    for (int64_t r = offsets[size_t(g)]; r < offsets[size_t(g + 1)]; ++r)
      for (int64_t n = 0; n < N; ++n)
        for (int64_t i = 0; i < K; ++i)
          db[size_t((g * N + n) * K + i)] +=
              dc[size_t(r * N + n)] * a[size_t(from[size_t(r)] * K + i)];
  store(args.db, db);
}

void expert_activation(Stream&, const ExpertActivationArgs& args) {
  const int64_t R = args.y.rows(), N = args.y.cols(), W = args.x.cols();  // W = 2N for a GLU
  const Doubles x = load(args.x), weights = load(args.weights);
  const std::vector<int32_t> order = load_ints(args.order);
  Doubles y(size_t(R * N));
  for (int64_t r = 0; r < R; ++r)
    for (int64_t i = 0; i < N; ++i) {
      const double up = is_glu(args.act) ? x[size_t(r * W + N + i)] : 1;
      y[size_t(r * N + i)] =
          weights[size_t(order[size_t(r)])] * activate(args.act, x[size_t(r * W + i)]).y * up;
    }
  store(args.y, y);
}

void expert_activation_bwd(Stream&, const ExpertActivationBwdArgs& args) {
  const int64_t R = args.dy.rows(), N = args.dy.cols(), W = args.x.cols();
  const Doubles dy = load(args.dy), x = load(args.x), weights = load(args.weights);
  const std::vector<int32_t> order = load_ints(args.order);
  Doubles dx(size_t(R * W)), dweights(size_t(args.dweights.numel()));
  for (int64_t r = 0; r < R; ++r) {
    const size_t pair = size_t(order[size_t(r)]);
    for (int64_t i = 0; i < N; ++i) {
      const double g = dy[size_t(r * N + i)];
      const double up = is_glu(args.act) ? x[size_t(r * W + N + i)] : 1;
      const Slope<double> gate = activate(args.act, x[size_t(r * W + i)]);
      dx[size_t(r * W + i)] = weights[pair] * g * gate.dy * up;
      if (is_glu(args.act)) dx[size_t(r * W + N + i)] = weights[pair] * g * gate.y;
      dweights[pair] += g * gate.y * up;
    }
  }
  store(args.dx, dx);
  store(args.dweights, dweights);
}

void combine_rows(Stream&, const CombineRowsArgs& args) {
  const int64_t T = args.place.rows(), k = args.place.cols(), C = args.x.cols();
  const Doubles x = load(args.x), prior = load(args.prior);
  const std::vector<int32_t> place = load_ints(args.place);
  Doubles y(size_t(T * C));
  for (int64_t t = 0; t < T; ++t)
    for (int64_t c = 0; c < C; ++c) {
      double sum = value_or(prior, t * C + c, 0);
      for (int64_t j = 0; j < k; ++j) sum += x[size_t(place[size_t(t * k + j)] * C + c)];
      y[size_t(t * C + c)] = sum;
    }
  store(args.y, y);
}

void router_stats(Stream&, const RouterStatsArgs& args) {
  const int64_t T = args.logits.rows(), E = args.logits.cols();
  const Doubles logits = load(args.logits);
  const std::vector<int32_t> offsets = load_ints(args.offsets);
  const Doubles f = fractions(offsets);
  const std::vector<int32_t> counts = counts_of(args.counts, T);
  const double part = double(args.spec.part) * load_scalars(args.scalars).share /
                      double(std::max<int64_t>(1, offsets.back() / args.spec.k));
  Doubles values = start_from(args.values, args.spec.add_values);
  const RouteSpec route{.kind = args.spec.kind};
  RouterRow<double> row(E, args.spec.k, route);
  for (int64_t t = 0; t < T; ++t) {
    if (!counts[size_t(t)]) continue;
    const std::array<double, 3> found = row.stats(&logits[size_t(t * E)], f.data());
    for (size_t i = 0; i < found.size(); ++i) values[i] += part * found[i];
  }
  store(args.values, values);
  for (int64_t e = 0; e < E; ++e) {
    int32_t& load = args.load.as<int32_t>()[e];
    load = (args.spec.add_load ? load : 0) + offsets[size_t(e + 1)] - offsets[size_t(e)];
  }
}

void balance_bias(Stream&, const BalanceBiasArgs& args) {
  UpdateState gate;
  std::copy_n(args.gate.data, sizeof gate, reinterpret_cast<std::byte*>(&gate));
  if (gate.skip != 0) return;
  const std::vector<int32_t> loads = load_ints(args.load);
  int64_t sum = 0;
  for (const int32_t x : loads) sum += x;
  Doubles bias = load(args.bias);
  for (size_t e = 0; e < bias.size(); ++e) {
    const int64_t lacking = sum - int64_t(loads[e]) * int64_t(loads.size());
    bias[e] += double(args.rate) * double((lacking > 0) - (lacking < 0));
  }
  store(args.bias, bias);
}

}  // namespace hearth::reference

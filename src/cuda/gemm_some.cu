// Products of some rows (decoding many sequences) on Hopper: c (M, N) = act(a (M, K) wᵀ + bias), M
// from 17 to 64. All is latency here. A block has all rows of c by 64 columns, and so much of K
// that two blocks fit on a processor: the next kernel's blocks start beside this one's, and have
// all of w that they need before this one has ended. The blocks of a cluster have the rest of K;
// each adds up some rows of everybody's sums, in the order of the blocks.
//
// The rows of a may be normed. The norm of a row x is ((x - mean) / deviation) gain + shift, so its
// product with w is (x · (gain w) - mean Σ gain w) / deviation + Σ shift w: gain is multiplied into
// w, and both sums are made, before a is there; sums over x and x² are made beside the product.
#include "cuda/cluster.cuh"
#include "cuda/early.cuh"
#include "cuda/eight.cuh"
#include "cuda/gemm_some.cuh"
#include "cuda/gemm_some.h"

namespace hearth::cuda {
namespace {

using namespace hopper;

// The sum over eight lanes side by side, in all of them.
__device__ __forceinline__ float2 sum_of_eight(float2 x) {
#pragma unroll
  for (int step = 1; step < 8; step *= 2) {
    x.x += __shfl_xor_sync(~0u, x.x, step);
    x.y += __shfl_xor_sync(~0u, x.y, step);
  }
  return x;
}

template <class T, int Split, bool Normed>
struct SomeBlock {
  static constexpr int own_rows = some_rows / Split;  // that a block finishes
  const SomeArgs<T>& p;
  const SomeShared lies;
  const uint32_t base;
  unsigned char* const memory;
  const int part;          // of K
  const int first, begin;  // of the columns of c; of a

  __device__ __forceinline__ SomeBlock(const SomeArgs<T>& args, unsigned char* aligned)
      : p(args),
        lies(args.panels, Split, Normed),
        base(shared_at(aligned)),
        memory(aligned),
        part(Split > 1 ? cluster_rank() : 0),
        first(int(blockIdx.x) / Split * some_columns),
        begin(part * args.panels * some_panel) {}

  __device__ __forceinline__ uint32_t rows_arrived(int panel) const {
    return base + uint32_t(lies.barriers + 8 * panel);
  }
  __device__ __forceinline__ uint32_t weights_arrived() const { return rows_arrived(some_panels); }
  __device__ __forceinline__ uint32_t terms_arrived() const {
    return rows_arrived(some_panels + 1);
  }
  __device__ __forceinline__ uint32_t sums_arrived() const { return rows_arrived(some_panels + 2); }
  __device__ __forceinline__ uint32_t rows_at(int panel) const {
    return base + uint32_t(panel * some_panel_bytes);
  }
  __device__ __forceinline__ uint32_t weights_at(int panel) const {
    return rows_at(panel) + uint32_t(lies.w);
  }

  // One thread.
  __device__ __forceinline__ void prepare() const {
    for (int i = 0; i < some_panels + 3; ++i) barrier_init(rows_arrived(i), 1);
    barrier_init_fence();
  }
  // One thread, as for the rows.
  __device__ __forceinline__ void copy_weights() const {
    const int vector = 2 * min(max(p.K - begin, 0), p.panels * some_panel);  // bytes of a gain
    int bytes = p.panels * some_panel_bytes;
    if constexpr (Normed) bytes += vector * ((p.gain != nullptr) + (p.shift != nullptr));
    barrier_expect(weights_arrived(), uint32_t(bytes));
    for (int i = 0; i < p.panels; ++i)
      tma_load(weights_at(i), p.w, weights_arrived(), begin + i * some_panel, first);
    if (Normed && vector > 0) {
      const auto copy = [&](int to, const T* from) {
        if (from) bulk_load(base + uint32_t(to), from + begin, uint32_t(vector), weights_arrived());
      };
      copy(lies.gain, p.gain), copy(lies.shift, p.shift);
    }
    for (int i = 0; i < p.panels; ++i) barrier_expect(rows_arrived(i), some_panel_bytes);
    constexpr int others = Split - 1;
    barrier_expect(terms_arrived(), uint32_t(Normed ? others * some_columns * 8 : 0));
    barrier_expect(sums_arrived(),
                   uint32_t(others * own_rows * (some_columns * 4 + (Normed ? 8 : 0))));
    prefetch_map(p.a);
  }
  __device__ __forceinline__ void copy_rows(int panel) const {
    tma_load(rows_at(panel), p.a, rows_arrived(panel), begin + panel * some_panel, 0);
  }

  // Of eight threads to a row of a panel, each has a chunk.
  static __device__ __forceinline__ int chunk() { return int(threadIdx.x) % 8; }
  __device__ __forceinline__ uint4 eight_of(int vector, bool real, int panel) const {
    const int k = panel * some_panel + 8 * chunk();
    if (!real || begin + k >= p.K) return {0, 0, 0, 0};
    return *reinterpret_cast<const uint4*>(memory + vector + 2 * k);
  }

  // To this place of the block that has another part of K, and counted by its barrier there.
  template <class V>
  __device__ __forceinline__ void send(int to_part, int place, uint32_t bar, const V& x) const {
    put_in_block(in_block(base + uint32_t(place), to_part), in_block(bar, to_part), x);
  }

  // Multiplies gain into w; what the norm takes from each column, and adds to it, to every block
  // that finishes rows of these columns. Two warpgroups: two columns to a thread.
  __device__ __forceinline__ void norm_weights() const {
    const int column = int(threadIdx.x) / 8;
    float2 term[2] = {};
#pragma unroll 2
    for (int i = 0; i < p.panels; ++i) {
      float gain[8], shift[8], w[8];
      eight_floats<T>(gain, eight_of(lies.gain, p.gain, i));
      eight_floats<T>(shift, eight_of(lies.shift, p.shift, i));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        auto* const at = reinterpret_cast<uint4*>(memory + lies.w + i * some_panel_bytes +
                                                  swizzled(column + 32 * half, chunk()));
        eight_floats<T>(w, *at);
#pragma unroll
        for (int e = 0; e < 8; ++e) term[half].y = fmaf(w[e], shift[e], term[half].y);
        if (p.gain) {
#pragma unroll
          for (int e = 0; e < 8; ++e) w[e] *= gain[e];
          const uint4 scaled = {pack(w[0], w[1], T()), pack(w[2], w[3], T()), pack(w[4], w[5], T()),
                                pack(w[6], w[7], T())};
          *at = scaled;
          eight_floats<T>(w, scaled);
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) term[half].x += w[e];
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 sum = sum_of_eight(term[half]);
      const int place = lies.terms + (part * some_columns + column + 32 * half) * 8;
      if (chunk() == part) *reinterpret_cast<float2*>(memory + place) = sum;
      if (chunk() < Split && chunk() != part) send(chunk(), place, terms_arrived(), sum);
    }
    async_fence();  // w is read by wgmma
  }

  // Sums over the elements of rows and over their squares, by a warpgroup beside those that
  // multiply: products of sixteen rows of a warp with ones, and with themselves, eight at a time,
  // of which the diagonal counts.
  __device__ __forceinline__ void sum_rows() const {
    const int lane = int(threadIdx.x) % 32, first_row = int(threadIdx.x) % 128 / 32 * 16;
    const uint32_t one = pack(1.0f, 1.0f, T());
    float sum[4] = {}, upper[4] = {}, lower[4] = {};
    for (int i = 0; i < p.panels; ++i) {
      barrier_wait(rows_arrived(i), 0);
#pragma unroll
      for (int k = 0; k < some_panel / 16; ++k) {
        uint32_t x[4];
        load_matrices(x, rows_at(i) + swizzled(first_row + lane % 16, 2 * k + lane / 16));
        cuda::multiply(sum, x, one, one, T());
        cuda::multiply(upper, x, x[0], x[2], T());
        cuda::multiply(lower, x, x[1], x[3], T());
      }
    }
    const int group = lane / 4, odd = group % 2;  // a thread has columns 2 (lane % 4), and one more
    if (lane % 4 != group / 2) return;
    send_row(first_row + group, {sum[0], odd ? upper[1] : upper[0]});
    send_row(first_row + 8 + group, {sum[2], odd ? lower[3] : lower[2]});
  }
  __device__ __forceinline__ void send_row(int row, float2 sums) const {
    const int owner = row / own_rows;
    const int place = lies.rows + (part * own_rows + row % own_rows) * 8;
    if (owner == part)
      *reinterpret_cast<float2*>(memory + place) = sums;
    else
      send(owner, place, sums_arrived(), sums);
  }

  __device__ __forceinline__ void multiply(float (&sum)[16]) const {
    const uint32_t columns = threadIdx.x / 128 * (some_panel_bytes / 2);
    if constexpr (!Normed) barrier_wait(weights_arrived(), 0);
    for (int i = 0; i < p.panels; ++i) {
      barrier_wait(rows_arrived(i), 0);
      wgmma_fence();
      const uint64_t a = desc_k_major(rows_at(i)), w = desc_k_major(weights_at(i) + columns);
#pragma unroll
      for (int k = 0; k < some_panel / 16; ++k)
        Wgmma<T, 32>::template ss<0, 0>(sum, a + uint64_t(2 * k), w + uint64_t(2 * k), i + k > 0);
      wgmma_commit();
    }
    wgmma_wait<0>();
    pin(sum);
  }

  // Where sums of a row lie in the block that finishes them, by the part of K they are of.
  __device__ __forceinline__ int sums_place(int from, int owner, int row, int column) const {
    const int slot = (from < owner ? from : from - 1) * own_rows;
    return (from == owner ? lies.w : lies.sums + slot * SomeShared::sum_pitch * 4) +
           (row * SomeShared::sum_pitch + column) * 4;
  }
  // Of the sums a warpgroup has half of the columns, and a thread two rows and four pairs of
  // columns: two threads side by side make fours of them.
  __device__ __forceinline__ void send_sums(const float (&sum)[16]) const {
    const int lane = int(threadIdx.x) % 32, odd = lane % 2;
    const int column = int(threadIdx.x) / 128 * 32 + lane % 4 / 2 * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = int(threadIdx.x) / 32 % 4 * 16 + 8 * half + lane / 4, owner = row / own_rows;
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const float *left = &sum[4 * j + 2 * half], *right = &sum[4 * j + 4 + 2 * half];
        const float x = __shfl_xor_sync(~0u, odd ? left[0] : right[0], 1);
        const float y = __shfl_xor_sync(~0u, odd ? left[1] : right[1], 1);
        const float4 four = odd ? float4{x, y, right[0], right[1]} : float4{left[0], left[1], x, y};
        const int place = sums_place(part, owner, row % own_rows, column + 8 * (j + odd));
        if (owner == part)
          *reinterpret_cast<float4*>(memory + place) = four;
        else
          send(owner, place, sums_arrived(), four);
      }
    }
  }
  // Of everybody, in the order of the parts.
  __device__ __forceinline__ void join(float (&x)[8], int row, int column) const {
#pragma unroll
    for (int r = 0; r < Split; ++r) {
      const auto* v = reinterpret_cast<const float4*>(memory + sums_place(r, part, row, column));
      x[0] += v[0].x, x[1] += v[0].y, x[2] += v[0].z, x[3] += v[0].w;
      x[4] += v[1].x, x[5] += v[1].y, x[6] += v[1].z, x[7] += v[1].w;
    }
  }
  // Mean (0 without) and 1 / deviation, of sums of one pass: of a row whose mean is a hundred
  // deviations they keep two digits, where its elements in bf16 have kept no more.
  __device__ __forceinline__ float2 row_stats(int row) const {
    float2 all = {0, 0};
#pragma unroll
    for (int r = 0; r < Split; ++r) {
      const float2 v = reinterpret_cast<const float2*>(memory + lies.rows)[r * own_rows + row];
      all.x += v.x, all.y += v.y;
    }
    const float mean = p.layer ? all.x * p.each : 0;
    return {mean, rsqrtf(fmaxf(fmaf(-mean, mean, all.y * p.each), 0) + p.eps)};
  }
  // What the norm takes from eight columns, and adds to them.
  __device__ __forceinline__ void column_terms(float (&take)[8], float (&add)[8],
                                               int column) const {
#pragma unroll
    for (int r = 0; r < Split; ++r)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const auto* terms = reinterpret_cast<const float2*>(memory + lies.terms);
        const float2 v = terms[r * some_columns + column + e];
        take[e] += v.x, add[e] += v.y;
      }
  }
};

constexpr int some_threads(bool normed) { return normed ? 384 : 256; }

template <class T, int Split, bool Normed>
__global__ void __launch_bounds__(some_threads(Normed), 2)
    multiply_some(const __grid_constant__ SomeArgs<T> p) {
  extern __shared__ __align__(1024) unsigned char some_memory[];
  using Block = SomeBlock<T, Split, Normed>;
  const Block block(p, some_memory + (1024 - shared_at(some_memory) % 1024) % 1024);
  const int warp = int(threadIdx.x) / 32;
  const bool multiplies = !Normed || warp < 8;
  let_next_start();
  if (threadIdx.x == 0) block.prepare();
  __syncthreads();
  if (Split > 1) arrive_begun();
  if (!p.weight) wait_for_previous();
  if (threadIdx.x == 0) block.copy_weights();
  // A thread finishes eight columns of a row, or of two.
  constexpr int rows_at_once = some_threads(Normed) / 8;
  const int column = int(threadIdx.x) % 8 * 8, row = int(threadIdx.x) / 8;
  const int first_row = block.part * Block::own_rows;
  float bias[8] = {}, take[8] = {}, prior[8] = {}, sum[16] = {};
  SomeEight<T>(p, 0, block.first + column).read_bias(bias);
  if (Split > 1) wait_for_cluster();
  if constexpr (Normed) {
    if (multiplies) {
      barrier_wait(block.weights_arrived(), 0);
      block.norm_weights();
    }
    __syncthreads();
  }
  wait_for_previous();
  if (threadIdx.x % 32 == 0 && warp < p.panels) block.copy_rows(warp);
  const auto read_prior = [&](int r) {
    if (r < Block::own_rows) SomeEight<T>(p, first_row + r, block.first + column).read_prior(prior);
  };
  read_prior(row);
  if constexpr (Normed) {
    barrier_wait(block.terms_arrived(), 0);
    block.column_terms(take, bias, column);
    if (!multiplies) block.sum_rows();
  }
  if (multiplies) {
    block.multiply(sum);
    named_sync(1, 256);  // all are done with w
    block.send_sums(sum);
  }
  __syncthreads();
  barrier_wait(block.sums_arrived(), 0);
#pragma unroll 1
  for (int r = row; r < Block::own_rows; r += rows_at_once) {
    const SomeEight<T> eight(p, first_row + r, block.first + column);
    if (eight.count <= 0) break;
    if (r > row) read_prior(r);
    float x[8] = {};
    block.join(x, r, column);
    if constexpr (Normed) {
      const float2 stats = block.row_stats(r);
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] = fmaf(-stats.x, take[e], x[e]) * stats.y;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] += bias[e];
    eight.finish(x, prior);
  }
}

struct SomePlan {
  int split = 0, panels = 0;  // 0: it does not fit
  int shared = 0;
};

// As few parts of K as let two blocks be on a processor at once; or one, where K is long.
SomePlan some_plan(const Card& card, int64_t K, bool normed) {
  constexpr int64_t half = 113 * 1024;  // of a processor's memory, less what a block costs
  for (const int64_t most : {std::min(half, card.shared_bytes), card.shared_bytes})
    for (int split = 1; split <= some_cluster; split *= 2) {
      const auto panels = int(ceil_div(ceil_div(K, split), some_panel));
      const int bytes = SomeShared(panels, split, normed).end + 1024;
      if (panels <= some_panels && bytes <= most) return {split, panels, bytes};
    }
  return {};
}

template <class T>
CUtensorMap some_map(const Tensor& m) {
  const auto type = std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                              : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return tensor_map({.data = m.data,
                     .type = type,
                     .dims = 2,
                     .size = {cuuint64_t(m.cols()), cuuint64_t(m.rows())},
                     .stride = {cuuint64_t(m.cols()) * 2},
                     .box = {some_panel, some_rows}});
}

template <class T>
SomeArgs<T> some_args(const SomePlan& plan, const Tensor& c, const Tensor& aux, const Tensor& a,
                      const Tensor& b, const Tensor& bias, const Tensor& prior,
                      const GemmSpec& spec) {
  return {.a = some_map<T>(a),
          .w = some_map<T>(b),
          .bias = as<T>(bias),
          .prior = prior.data,
          .c = c.data,
          .aux = aux.data,
          .M = int(a.rows()),
          .N = int(c.cols()),
          .K = int(a.cols()),
          .panels = plan.panels,
          .alpha = spec.alpha,
          .act = spec.act,
          .weight = spec.weight,
          .wide = c.dtype == DType::f32,
          .eights = c.cols() % 8 == 0 && packs_fit(c.cols(), c, aux, bias, prior)};
}

template <bool Normed, class T>
void launch_some(CudaStream& s, const SomePlan& plan, const SomeArgs<T>& args) {
  const EarlyLaunch shape{.blocks = dim3(unsigned(ceil_div(args.N, some_columns) * plan.split)),
                          .threads = some_threads(Normed),
                          .cluster = unsigned(plan.split),
                          .shared = plan.shared};
  const auto launch = [&]<int Split>(Number<Split>) {
    launch_early(s, multiply_some<T, Split, Normed>, shape, args);
  };
  switch (plan.split) {
    case 1:
      return launch(Number<1>{});
    case 2:
      return launch(Number<2>{});
    case 4:
      return launch(Number<4>{});
    default:
      return launch(Number<8>{});
  }
}

bool some_sixteen(DType d) { return d == DType::bf16 || d == DType::f16; }

// Calls f with a pointer of the type of a.
template <class F>
void some_types(const Tensor& a, F f) {
  a.dtype == DType::bf16 ? f(static_cast<__nv_bfloat16*>(nullptr))
                         : f(static_cast<__half*>(nullptr));
}

constexpr int64_t some_widest = 8192;  // columns of c: beyond them cuBLASLt has enough to do

bool some_takes(const CudaStream& s, int64_t M, int64_t N, int64_t K, DType dtype) {
  return s.some_rows && s.hopper_kernels && M > 16 && M <= some_rows && some_sixteen(dtype) &&
         K % 8 == 0 && N <= some_widest && some_plan(s.card, K, true).split;
}

}  // namespace

bool gemm_some_takes(const CudaStream& s, const Tensor& c, const Tensor& a, const Tensor& b,
                     const GemmSpec& spec) {
  return some_takes(s, a.rows(), c.cols(), a.cols(), a.dtype) && !spec.ta && spec.tb &&
         !spec.act_slope && (c.dtype == a.dtype || c.dtype == DType::f32) &&
         packs_fit(a.cols(), a, b);
}

void gemm_some(CudaStream& s, Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior,
               const GemmSpec& spec) {
  const SomePlan plan = some_plan(s.card, a.cols(), false);
  some_types(a, [&]<class T>(T*) {
    launch_some<false>(s, plan, some_args<T>(plan, c, aux, a, b, bias, prior, spec));
  });
  check_launch("gemm");
}

bool norm_gemm_some_takes(const CudaStream& s, int64_t rows, int64_t width, int64_t columns,
                          DType dtype) {
  return some_takes(s, rows, columns, width, dtype);
}

void norm_gemm_some(CudaStream& s, Tensor c, Tensor x, Tensor gain, Tensor shift, Tensor b,
                    Tensor bias, Tensor prior, const NormSpec& norm, const GemmSpec& spec) {
  const SomePlan plan = some_plan(s.card, x.cols(), true);
  some_types(x, [&]<class T>(T*) {
    SomeArgs<T> args = some_args<T>(plan, c, {}, x, b, bias, prior, spec);
    args.gain = as<T>(gain), args.shift = as<T>(shift);
    args.eps = norm.eps, args.layer = norm.kind == Norm::layer, args.each = 1 / float(x.cols());
    launch_some<true>(s, plan, args);
  });
  check_launch("norm_gemm");
}

}  // namespace hearth::cuda

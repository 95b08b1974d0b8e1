#include "model/files/tensor_rows.h"

#include <algorithm>
#include <cstring>

#include "sys/error.h"

namespace hearth::inline model {
namespace {

// Converts weights for a file, which must not have infinite values where the model has none.
void narrow(std::byte* out, DType d, std::span<const float> in) {
  if (convert_from_floats(out, d, in)) return;
  const auto is_lost = [&](const float& x) { return !convert_from_floats(out, d, {&x, 1}); };
  fail("weights", "expected values within the range of the requested dtype, got {}",
       *std::ranges::find_if(in, is_lost));
}

// Transposes (rows, cols) to (cols, rows) in cache-sized tiles.
std::vector<float> transpose(std::span<const float> in, int64_t rows, int64_t cols) {
  constexpr int64_t tile = 32;
  std::vector<float> out(in.size());
  for (int64_t r0 = 0; r0 < rows; r0 += tile)
    for (int64_t c0 = 0; c0 < cols; c0 += tile)
      for (int64_t r = r0; r < std::min(rows, r0 + tile); ++r)
        for (int64_t c = c0; c < std::min(cols, c0 + tile); ++c)
          out[size_t(c * rows + r)] = in[size_t(r * cols + c)];
  return out;
}

// A gain below a half has finer steps than itself less 1 has in f32, so such gains are stored in
// f64, which holds the difference exactly.
FileTensor without_offset(FileTensor t) {
  t.offset = 0;
  return t;
}
std::vector<float> from_exact(Bytes file, double offset) {
  std::vector<float> out;
  for (size_t at = 0; at < file.size(); at += sizeof(double)) {
    double x = 0;
    std::memcpy(&x, file.data() + at, sizeof x);
    out.push_back(float(x + offset));
  }
  return out;
}
std::vector<std::byte> to_exact(std::span<const float> values, double offset) {
  std::vector<std::byte> out(values.size() * sizeof(double));
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = double(values[i]) - offset;
    std::memcpy(out.data() + i * sizeof x, &x, sizeof x);
  }
  return out;
}

}  // namespace

std::vector<float> to_floats(const StoredTensor& t) {
  if (t.unpack) return t.unpack(t.bytes);
  std::vector<float> out(size_t(t.numel()));
  convert_to_floats(out, t.dtype, t.bytes.data());
  return out;
}

std::vector<std::byte> from_floats(std::span<const float> in, DType d) {
  std::vector<std::byte> out(in.size() * size_t(size_of(d)));
  narrow(out.data(), d, in);
  return out;
}

void stream_elements(const ByteSink& sink, Backend& backend, const Tensor& t, int64_t first,
                     int64_t count, DType to) {
  constexpr int64_t piece = 1 << 20;  // elements
  const size_t most = size_t(std::min(count, piece));
  const int64_t size = size_of(t.dtype);
  std::vector<std::byte> raw(most * size_t(size));
  std::vector<float> floats(to == t.dtype ? 0 : most);
  std::vector<std::byte> converted(to == t.dtype ? 0 : most * size_t(size_of(to)));
  backend.enter_thread();  // this may be a thread that writes one shard
  for (int64_t i = 0; i < count; i += piece) {
    const size_t n = size_t(std::min(piece, count - i));
    backend.download(raw.data(), t.data + (first + i) * size, int64_t(n) * size);
    if (to == t.dtype) {
      sink(Bytes(raw).first(n * size_t(size)));
      continue;
    }
    const std::span<float> part = std::span(floats).first(n);
    convert_to_floats(part, t.dtype, raw.data());
    narrow(converted.data(), to, part);
    sink(Bytes(converted).first(n * size_t(size_of(to))));
  }
}

std::vector<float> to_rows(const FileTensor& t, std::vector<float> file) {
  if (t.offset != 0)  // adding 0 would change the sign of -0
    for (float& x : file) x += t.offset;
  if (t.transposed) return transpose(file, t.shape[0], t.shape[1]);
  if (t.order.empty()) return file;
  const int64_t rows = t.shape[0], cols = int64_t(file.size()) / rows;
  std::vector<float> out(file.size());
  for (int64_t i = 0; i < rows; ++i)
    std::copy_n(file.begin() + i * cols, cols, out.begin() + t.order[size_t(i)] * cols);
  return out;
}

std::vector<float> to_rows(const FileTensor& t, const StoredTensor& stored) {
  if (t.offset != 0 && stored.dtype == DType::f64)
    return to_rows(without_offset(t), from_exact(stored.bytes, double(t.offset)));
  return to_rows(t, to_floats(stored));
}

std::vector<float> from_rows(const FileTensor& t, std::span<const float> param) {
  const int64_t n = t.numel();
  if (t.transposed) return transpose(param, t.shape[1], t.shape[0]);
  const int64_t rows = t.shape[0], cols = n / rows;
  param = param.subspan(size_t(t.row * cols), size_t(n));
  std::vector<float> out(param.begin(), param.end());
  for (int64_t i = 0; i < int64_t(t.order.size()); ++i)
    std::copy_n(param.begin() + t.order[size_t(i)] * cols, cols, out.begin() + i * cols);
  if (t.offset != 0)
    for (float& x : out) x -= t.offset;
  return out;
}

std::vector<std::byte> from_rows(const FileTensor& t, std::span<const float> param, DType dtype) {
  if (dtype == DType::f64 && t.offset != 0)
    return to_exact(from_rows(without_offset(t), param), double(t.offset));
  return from_floats(from_rows(t, param), dtype);
}

void stream_rows(const ByteSink& sink, const FileTensor& t, ParamStore& store, Part part,
                 DType dtype) {
  const Tensor param = store.get(part, t.param);
  const int64_t n = t.numel(), first = t.row * (n / t.shape[0]);
  if (t.same_layout()) return stream_elements(sink, store.backend(), param, first, n, dtype);
  std::vector<std::byte> bytes;
  bytes.reserve(size_t(n) * sizeof(float));
  stream_elements([&](Bytes b) { bytes.insert(bytes.end(), b.begin(), b.end()); }, store.backend(),
                  param, first, n, DType::f32);
  FileTensor rows = t;
  rows.row = 0;
  const std::span values(reinterpret_cast<const float*>(bytes.data()), size_t(n));
  sink(from_rows(rows, values, dtype));
}

}  // namespace hearth::inline model

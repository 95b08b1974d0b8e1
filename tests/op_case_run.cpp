// Recorder and CaseRun: give an op case memory and random inputs, and read its results.
#include <cmath>
#include <limits>

#include "op_cases.h"

namespace hearth::cases {
namespace {

constexpr const char* gradient_suffix = ".d";

}  // namespace

double rounded(double x, DType d) {
  if (d == DType::bf16) return float(bf16(float(x)));
  if (d == DType::f16) return float(f16(float(x)));
  return d == DType::f32 ? float(x) : x;
}

Numbers read(Backend& b, Tensor t) {
  b.synchronize();
  std::vector<std::byte> host(size_t(t.bytes()));
  b.download(host.data(), t.data, t.bytes());
  const Tensor h{host.data(), t.shape, t.dtype};
  Numbers x(size_t(t.numel()));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = t.dtype == DType::f64    ? h.as<double>()[i]
           : t.dtype == DType::f32  ? h.as<float>()[i]
           : t.dtype == DType::u8   ? h.as<uint8_t>()[i]
           : t.dtype == DType::bf16 ? float(h.as<bf16>()[i])
                                    : float(h.as<f16>()[i]);
  return x;
}

void write(Backend& b, Tensor t, const Numbers& x) {
  std::vector<std::byte> host(size_t(t.bytes()));
  const Tensor h{host.data(), t.shape, t.dtype};
  for (size_t i = 0; i < x.size(); ++i) {
    if (t.dtype == DType::f64)
      h.as<double>()[i] = x[i];
    else if (t.dtype == DType::f32)
      h.as<float>()[i] = float(x[i]);
    else if (t.dtype == DType::bf16)
      h.as<bf16>()[i] = bf16(float(x[i]));
    else
      h.as<f16>()[i] = f16(float(x[i]));
  }
  b.upload(t.data, host.data(), t.bytes());
}

double error_of(const Numbers& got, const Numbers& want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double top = 0, worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    top = std::max(top, std::abs(want[i]));
    const double e = std::abs(got[i] - want[i]);
    worst = std::max(worst, std::isnan(e) ? std::numeric_limits<double>::infinity() : e);
  }
  return worst / std::max(top, 1e-30);
}

std::vector<std::unique_ptr<Backend>> fast_backends(int threads) {
  std::vector<std::unique_ptr<Backend>> all;
  for (Isa isa : usable_isas()) all.push_back(make_cpu_backend(threads, isa));
  return all;
}

Var Recorder::copied(Var from, Var to) {
  Op op = kernel_op<&Kernels::copy>(
      "copy", [](auto* f, Stream& s, In in, Out out) { f(s, {.y = out[0], .x = in[0]}); });
  op.backward = [](Tape& t, const Node& n) { t.add_grad(n.in[0], t.grad(n.out[0])); };
  t.push(std::move(op), {from}, {to});
  return to;
}

Var Recorder::x(const std::string& name, Shape s, double half_width) {
  const Var leaf = t.input(name, s, t.dtype());
  t[leaf].needs_grad = true;
  inputs_.push_back({name, leaf, half_width});
  return copied(leaf, t.temp(s));
}

Var Recorder::weight(const std::string& name, Shape s) {
  return t.param(name, s, Init::uniform(float(1 / std::sqrt(double(s[-1])))), Group::matrix);
}

Var Recorder::vector(const std::string& name, int64_t n) {
  return t.param(name, {n}, Init::uniform(1), Group::vector);
}

Var Recorder::ids(const std::string& name, Shape s, const std::function<int64_t(int64_t)>& f) {
  std::vector<int32_t> v;
  for (int64_t i = 0; i < s.numel(); ++i) v.push_back(int32_t(f(i)));
  ids_[name] = v;
  return t.input(name, s, DType::i32);
}

void Recorder::output(Var y) {
  const std::string name = "y" + std::to_string(outputs_.size());
  const Shape s = t.shape(y);
  outputs_.push_back(name);
  if (t.needs_grad(y)) {
    const DType dtype = t[y].dtype;
    const Var dy = t.input("d" + name, s, dtype);
    inputs_.push_back({"d" + name, dy, 1});
    t.add_grad(y, copied(dy, t.temp(s, dtype)));
  }
  copied(y, t.result(name, s, t.acc()));
}

void Recorder::losses() { terms_ = t.losses; }

void Recorder::finish() {
  for (const Input& x : inputs_)
    if (const Var d = t.grad(x.leaf))
      copied(d, t.result(x.name + gradient_suffix, t.shape(x.leaf), t.acc()));
}

CaseRun::CaseRun(Backend& b, DType dtype, const OpCase& c, const Dims& d, DType rounded_to)
    : backend_(b) {
  Tape t(dtype, "case");
  recorder_ = std::make_unique<Recorder>(t, d);
  c.record(*recorder_);
  differentiate(t);
  recorder_->finish();
  params_ = std::make_unique<ParamStore>(b, t.params, dtype);
  memory_ = std::make_unique<Memory>(b, params_.get());
  exec_ = std::make_unique<Exec>(std::move(t), *memory_);
  fill(rounded_to);
}

void CaseRun::fill(DType rounded_to) {
  const auto put = [&](const std::string& name, const Init& init, Tensor to) {
    std::vector<float> drawn(size_t(to.numel()));
    draw(drawn, init, 5, name);
    Numbers x(drawn.begin(), drawn.end());
    for (double& v : x) v = rounded(v, rounded_to);
    write(backend_, to, x);
  };
  for (const auto& in : recorder_->inputs_)
    put(in.name, Init::uniform(float(in.half_width)), memory_->state.find("case." + in.name));
  for (const ParamSpec& p : params_->specs())
    put(p.name, p.init, params_->get(Part::weight, p.name));
  int64_t targets = 0;
  for (const auto& [name, v] : recorder_->ids_) {
    memory_->state.write<int32_t>("case." + name, v);
    if (name == "targets")
      for (int32_t x : v) targets += x >= 0;
  }
  Scalars s;
  s.seed_lo = 11, s.seed_hi = 13, s.step = 3, s.micro = 1;
  if (targets) s.inv_targets = 1 / float(targets);
  if (memory_->state.has("scalars"))
    memory_->state.write<Scalars>("scalars", std::span<const Scalars>(&s, 1));
}

void CaseRun::run() {
  exec_->run();
  backend_.synchronize();
}

std::vector<Named> CaseRun::outputs() {
  std::vector<Named> r;
  for (const std::string& name : recorder_->outputs_)
    r.push_back({name, read(backend_, memory_->state.find("case." + name))});
  if (recorder_->terms_.empty()) return r;
  const Numbers values = read(backend_, memory_->state.find("case.losses"));
  for (size_t i = 0; i < recorder_->terms_.size(); ++i)
    r.push_back({recorder_->terms_[i].name, {values[i]}});
  return r;
}

std::vector<std::string> CaseRun::inputs() const {
  std::vector<std::string> r;
  for (const auto& in : recorder_->inputs_)
    if (memory_->state.has("case." + in.name + gradient_suffix)) r.push_back(in.name);
  for (const ParamSpec& p : params_->specs())
    if (params_->made(Part::grad)) r.push_back(p.name);
  return r;
}

Tensor CaseRun::tensor(const std::string& input) {
  return params_->has(input) ? params_->get(Part::weight, input)
                             : memory_->state.find("case." + input);
}

Numbers CaseRun::get(const std::string& input) { return read(backend_, tensor(input)); }
void CaseRun::set(const std::string& input, const Numbers& x) { write(backend_, tensor(input), x); }

std::vector<Named> CaseRun::gradients() {
  std::vector<Named> r;
  for (const std::string& name : inputs())
    r.push_back({name, read(backend_, params_->has(name) ? params_->get(Part::grad, name)
                                                         : memory_->state.find("case." + name +
                                                                               gradient_suffix))});
  return r;
}

std::vector<Named> with_numbers_joined(std::vector<Named> all) {
  std::vector<Named> r;
  Named numbers{"single numbers", {}};
  for (Named& g : all)
    if (g.values.size() == 1)
      numbers.values.push_back(g.values[0]);
    else
      r.push_back(std::move(g));
  if (!numbers.values.empty()) r.push_back(std::move(numbers));
  return r;
}

double CaseRun::objective() {
  double sum = 0;
  const std::vector<LossTerm>& terms = recorder_->terms_;
  for (const Named& y : outputs()) {
    for (const LossTerm& term : terms)
      if (term.name == y.name) sum += double(term.weight) * y.values[0];
    if (!memory_->state.has("case.d" + y.name)) continue;
    const Numbers dy = get("d" + y.name);
    for (size_t i = 0; i < dy.size(); ++i) sum += y.values[i] * dy[i];
  }
  return sum;
}

}  // namespace hearth::cases

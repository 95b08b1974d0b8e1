// One op case, three uses: value, gradient, speed. A case records a small program; a CaseRun gives
// it memory on a backend and the same random inputs everywhere, and reads its results.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "core/exec.h"
#include "cpu/backend.h"
#include "ops/ops.h"

namespace hearth::cases {

// N: outputs of a product, or the hidden width.
struct Dims {
  int64_t B = 2, T = 5, C = 12, N = 9, H = 4, D = 8, V = 11;
};

using Numbers = std::vector<double>;

// Records a case. Activations pass through a copy, so that they are temporaries that ops may
// overwrite, as in a model.
class Recorder {
 public:
  Recorder(Tape& t, const Dims& d) : t(t), d(d) {}

  Var x(const std::string& name, Shape, double half_width = 1);  // an activation with a gradient
  Var weight(const std::string& name, Shape);                    // U(+-1/sqrt(in))
  Var vector(const std::string& name, int64_t n);                // U(+-1)
  Var ids(const std::string& name, Shape, const std::function<int64_t(int64_t)>&);
  void output(Var);  // compare this value; its gradient is random
  void losses();     // compare the loss terms of the tape; their gradients are recorded with them

  Tape& t;
  const Dims d;

 private:
  friend class CaseRun;
  void finish();  // after differentiate(): makes the gradients of activations results
  Var copied(Var from, Var to);

  struct Input {
    std::string name;
    Var leaf;
    double half_width;
  };
  std::vector<Input> inputs_;  // activations and output gradients
  std::map<std::string, std::vector<int32_t>> ids_;
  std::vector<std::string> outputs_;
  std::vector<LossTerm> terms_;
};

struct OpCase {
  std::string name;
  std::function<void(Recorder&)> record;
  std::vector<Dims> small;  // sizes for values and gradients
  Dims large;               // size for speed
  // Attention: whether query i may see key j of row b, beyond causality.
  std::function<bool(int64_t b, int64_t i, int64_t j)> sees = {};
  // Attention: the width of a v head for q and k heads of D, and whether all three share a tensor.
  std::function<int64_t(int64_t D)> v_width = {};
  bool packed = true;
};

inline void PrintTo(const OpCase& c, std::ostream* out) { *out << c.name; }

const std::vector<OpCase>& op_cases();
std::vector<OpCase> attention_cases();  // the attention cases of op_cases()
std::vector<OpCase> head_cases();       // the cases of the head, which op_cases() has too
std::vector<OpCase> mla_cases();        // the cases of latent attention, which op_cases() has too
std::vector<OpCase> moe_cases();        // the cases of experts, which op_cases() has too

struct Named {
  std::string name;
  Numbers values;
};
// The same, with all single numbers joined into one entry at the end, for comparisons relative to
// the size of an entry: one sum alone may be so small that it is nothing but rounding.
std::vector<Named> with_numbers_joined(std::vector<Named>);

class CaseRun {
 public:
  // Inputs are drawn in float and rounded to `rounded`, whatever the program's dtype is.
  CaseRun(Backend&, DType, const OpCase&, const Dims&, DType rounded);
  void run();

  // The scalar that is differentiated: the sum of outputs times their gradients, or the weighted
  // sum of the loss terms.
  double objective();
  std::vector<Named> outputs();
  std::vector<Named> gradients();
  std::vector<std::string> inputs() const;  // names for gradients(), in the same order
  Numbers get(const std::string& input);
  void set(const std::string& input, const Numbers&);

  const Tape& tape() const { return exec_->tape(); }
  Exec& exec() { return *exec_; }

 private:
  Tensor tensor(const std::string& input);
  void fill(DType rounded);

  Backend& backend_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<ParamStore> params_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Exec> exec_;
};

// A tensor of any float dtype, read and written as double; bytes can be read too.
Numbers read(Backend&, Tensor);
void write(Backend&, Tensor, const Numbers&);
double rounded(double, DType);

// Largest difference / largest magnitude of `want`; infinite if there is a NaN or the sizes differ.
double error_of(const Numbers& got, const Numbers& want);

// Allowed distance from the same program in f64, relative to the largest element.
struct Tolerance {
  DType dtype;
  double value, gradient;
};
inline constexpr Tolerance tolerances[] = {{DType::f32, 1e-5, 2e-5}, {DType::bf16, 1.5e-2, 2.5e-2}};

// The fast CPU backend, once per instruction set that this machine can run.
std::vector<std::unique_ptr<Backend>> fast_backends(int threads);

}  // namespace hearth::cases

#include "cuda/persistent/fused_steps.h"

#include <utility>

#include "cuda/kernels.h"
#include "cuda/persistent/recorder.h"
#include "cuda/persistent/step.h"
#include "sys/error.h"
#include "sys/terminal.h"

namespace hearth::cuda::persistent {

// A step with its phases in device memory.
class FusedStep final : public Replay {
 public:
  FusedStep(FusedSteps& all, StepPlan plan) : all_(all), plan_(std::move(plan)) {}
  ~FusedStep() override {
    if (!phases_) return;
    cudaStreamSynchronize(all_.stream_.handle);  // it may still run
    all_.stream_.memory.release(phases_, bytes_);
  }

  void place() {
    bytes_ = int64_t(plan_.phases.size() * sizeof(Phase));
    all_.hold(plan_.packets);
    phases_ = static_cast<Phase*>(all_.stream_.memory.allocate(bytes_, "a fused step"));
    plan_.step.phases = phases_;
    check(cudaMemcpyAsync(phases_, plan_.phases.data(), size_t(bytes_), cudaMemcpyHostToDevice,
                          all_.stream_.handle),
          "an upload");
    check(cudaStreamSynchronize(all_.stream_.handle), "an upload");
  }
  cudaError_t launch() {
    plan_.step.number = all_.take_numbers(plan_.step.count);
    plan_.step.wires = all_.wires_;
    return launch_step(all_.stream_, plan_.step);
  }
  void run() override {
    check(launch(), "a fused step");
    if (plan_.sample) sample(all_.stream_, *plan_.sample);
  }

 private:
  FusedSteps& all_;
  StepPlan plan_;
  Phase* phases_ = nullptr;
  int64_t bytes_ = 0;
};

FusedSteps::~FusedSteps() {
  if (wires_) stream_.memory.release(wires_, bytes_);
}

// Steps read the address at every launch, so the wires may move.
void FusedSteps::hold(int64_t packets) {
  const int64_t bytes = packets * int64_t(sizeof(uint64_t));
  if (bytes <= bytes_) return;
  // Earlier steps keep the old ones if there is no memory for more.
  void* const wires = stream_.memory.allocate(bytes, "the wires of fused steps");
  cudaStreamSynchronize(stream_.handle);  // the old ones may still be in use
  if (wires_) stream_.memory.release(wires_, bytes_);
  wires_ = static_cast<uint64_t*>(wires), bytes_ = bytes;
  check(cudaMemsetAsync(wires_, 0, size_t(bytes_), stream_.handle), "clearing memory");
}

// A number is used again only after everything that has it is gone.
uint32_t FusedSteps::take_numbers(int phases) {
  if (next_ > UINT32_MAX - uint32_t(phases)) {
    check(cudaMemsetAsync(wires_, 0, size_t(bytes_), stream_.handle), "clearing memory");
    next_ = 1;
  }
  const uint32_t first = next_;
  next_ += uint32_t(phases);
  return first;
}

std::unique_ptr<Replay> FusedSteps::refuse(const std::string& why) {
  if (told_.insert(why).second)
    say("hearth: a decode step runs kernel by kernel, not as one kernel: {}\n", why);
  return {};
}

std::unique_ptr<Replay> FusedSteps::fuse(const Backend::LaunchOn& launch) {
  Recorder recorder({.blocks = stream_.card.processors,
                     .shared_bytes = stream_.card.shared_bytes,
                     .control_bytes = control_bytes()});
  launch(Recorder::kernels(), recorder);
  std::optional<StepPlan> plan = recorder.finish();
  if (!plan) return recorder.decodes_few_rows() ? refuse("it has " + recorder.refusal()) : nullptr;
  if (const std::string why = prepare_step(stream_, plan->step.layout.bytes()); !why.empty())
    return refuse(why);
  try {
    auto step = std::make_unique<FusedStep>(*this, std::move(*plan));
    step->place();
    // A trial, because some errors show only here. What the step writes it writes again.
    cudaError_t e = step->launch();
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream_.handle);
    if (e == cudaSuccess) return step;
    cudaGetLastError();
    return refuse(cudaGetErrorString(e));
  } catch (const Error& e) { return refuse(e.what()); }
}

}  // namespace hearth::cuda::persistent

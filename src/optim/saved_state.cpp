#include "optim/saved_state.h"

#include <fmt/ranges.h>

#include <set>

#include "model/files/tensor_rows.h"
#include "sys/error.h"

namespace hearth::inline optim {
namespace {

constexpr const char* master_name = "master";

std::vector<int64_t> dims(const Shape& s) { return {s.dim.begin(), s.dim.begin() + s.rank}; }

// Calls visit(part, parameter, name on disk) for everything a checkpoint stores, in file order.
template <class F>
void each_saved(const ParamStore& store, F&& visit) {
  std::vector<std::pair<Part, std::string>> parts;
  for (size_t i = 0; i < store.slots().size(); ++i)
    parts.emplace_back(slot_part(i), store.slots()[i].name);
  if (store.has_master()) parts.emplace_back(Part::master, master_name);
  for (const auto& [part, name] : parts)
    for (const ParamSpec& p : store.specs())
      if (p.trainable && store.has(part, p)) visit(part, p, name + "." + p.name);
}

// Throws if the tensors are the state of another optimizer.
void expect_same_slots(const std::filesystem::path& file, const Safetensors& saved,
                       const ParamStore& store) {
  std::set<std::string> want, got;
  for (const SlotSpec& s : store.slots()) want.insert(s.name);
  for (const auto& [name, tensor] : saved.tensors()) got.insert(name.substr(0, name.find('.')));
  got.erase(master_name);
  if (want != got)
    fail(file.string(),
         "expected the optimizer state {}, got {}: the checkpoint was written by another "
         "optimizer; resume with the --optimizer that the run started with",
         fmt::join(want, ", "), got.empty() ? "none" : fmt::format("{}", fmt::join(got, ", ")));
}

}  // namespace

std::vector<TensorToWrite> optimizer_tensors(ParamStore& store) {
  std::vector<TensorToWrite> out;
  each_saved(store, [&](Part part, const ParamSpec& p, std::string name) {
    const Tensor t = store.get(part, p.name);  // allocated now, by one thread
    out.push_back({std::move(name), t.dtype, dims(t.shape),
                   [&backend = store.backend(), t](const ByteSink& sink) {
                     stream_elements(sink, backend, t, 0, t.numel(), t.dtype);
                   }});
  });
  return out;
}

void load_optimizer(const std::filesystem::path& state, ParamStore& store) {
  const Safetensors saved(state, "optimizer");
  const std::filesystem::path file = state / "optimizer.safetensors";  // or its shards
  expect_same_slots(file, saved, store);
  each_saved(store, [&](Part part, const ParamSpec& p, const std::string& name) {
    const StoredTensor& got = saved.at(name);
    const Tensor t = store.get(part, p.name);
    if (got.dtype != t.dtype || got.shape != dims(t.shape))
      fail(file.string(), "expected {} as {} {}, got {} ({}): the run started with another {}",
           name, to_string(t.dtype), to_string(t.shape), to_string(got.dtype),
           fmt::join(got.shape, ", "), got.dtype != t.dtype ? "--optimizer" : "model");
    store.backend().upload(t.data, got.bytes.data(), t.bytes());
  });
  // The model's files may hold less than the weights had: gemma's gains are stored without their 1.
  if (!store.has_master()) return;
  Backend& backend = store.backend();
  for (const ParamSpec& p : store.specs())
    if (p.trainable && store.has(Part::master, p))
      backend.kernels().copy(backend.stream(), {.y = store.get(Part::weight, p.name),
                                                .x = store.get(Part::master, p.name)});
}

}  // namespace hearth::inline optim

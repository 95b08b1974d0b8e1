#include "core/state_store.h"

#include "sys/error.h"

namespace hearth::inline core {

Tensor StateStore::get(const std::string& name, Shape s, DType d, bool host) {
  auto it = entries_.find(name);
  if (it == entries_.end()) {
    Buffer memory(backend_, s.numel() * size_of(d), name, host);
    const Tensor t{memory.data(), s, d};
    it = entries_.emplace(name, Entry{std::move(memory), t, host}).first;
  }
  const Tensor& t = it->second.tensor;
  if (!(t.shape == s) || t.dtype != d)
    fail("state", "expected {} to be {} {}, as another program has it, got {} {}", name,
         to_string(t.dtype), to_string(t.shape), to_string(d), to_string(s));
  return t;
}

const StateStore::Entry& StateStore::entry(const std::string& name) const {
  const auto it = entries_.find(name);
  if (it == entries_.end()) fail("state", "expected a value some program declared, got {}", name);
  return it->second;
}

int64_t StateStore::bytes(const std::string& prefix) const {
  int64_t n = 0;
  for (auto it = entries_.lower_bound(prefix); it != entries_.end(); ++it) {
    if (!it->first.starts_with(prefix)) break;
    n += it->second.memory.bytes();
  }
  return n;
}

void StateStore::erase(const std::string& prefix) {
  auto it = entries_.lower_bound(prefix);
  while (it != entries_.end() && it->first.starts_with(prefix)) it = entries_.erase(it);
}

void expect_elements(const std::string& name, const Tensor& t, DType d, int64_t element_bytes) {
  if (t.dtype == d && t.bytes() % element_bytes == 0) return;
  fail("state", "expected {} to have elements {} of {} bytes, got {} {}", name, to_string(d),
       element_bytes, to_string(t.dtype), to_string(t.shape));
}

void expect_size(const std::string& name, const Tensor& t, int64_t bytes) {
  if (t.bytes() != bytes)
    fail("state", "expected {} bytes for {} {}, got {}", t.bytes(), name, to_string(t.shape),
         bytes);
}

void expect_range(const std::string& name, int64_t size, int64_t first, int64_t count) {
  if (first < 0 || first + count > size)
    fail("state", "expected a part of the {} elements of {}, got elements {} to {}", size, name,
         first, first + count);
}

}  // namespace hearth::inline core

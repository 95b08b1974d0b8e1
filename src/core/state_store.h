// StateStore: named buffers that outlast a replay and are shared by programs (inputs, losses,
// scalars, caches). StateRef: one of them, looked up once by its name, with a checked element type.
#pragma once

#include <cstring>
#include <map>
#include <span>
#include <string>
#include <type_traits>

#include "core/backend.h"

namespace hearth::inline core {

class StateStore {
 public:
  explicit StateStore(Backend& b) : backend_(b) {}
  // Allocated when first asked for; later calls must agree in shape and dtype. `host`: memory of
  // the host, which the host writes itself.
  Tensor get(const std::string& name, Shape, DType, bool host = false);
  Tensor find(const std::string& name) const { return entry(name).tensor; }
  bool has(const std::string& name) const { return entries_.contains(name); }
  int64_t bytes(const std::string& prefix = {}) const;  // of all values whose names begin so
  void erase(const std::string& prefix);                // gives their memory back
  Backend& backend() const { return backend_; }

  // One transfer by name, for code that makes only one; others keep a StateRef.
  template <class T>
  void write(const std::string& name, std::span<const T> v);
  template <class T>
  void read(const std::string& name, std::span<T> v) const;

 private:
  struct Entry {
    Buffer memory;
    Tensor tensor;
    bool host;
  };
  const Entry& entry(const std::string& name) const;  // an unknown name is an error

  template <class T>
  friend class StateRef;
  Backend& backend_;
  std::map<std::string, Entry> entries_;
};

// The checks of StateRef. Each throws one line that names the value.
void expect_elements(const std::string& name, const Tensor&, DType, int64_t element_bytes);
void expect_size(const std::string& name, const Tensor&, int64_t bytes);
void expect_range(const std::string& name, int64_t size, int64_t first, int64_t count);

// Elements T of a value: float, int32_t, ..., or a struct that lies in bytes (u8). An unknown name
// and another element type fail when the handle is made, so it is made where its program is.
//
// The store owns the memory. A handle is valid until the store erases the name or is destroyed.
// Only a ProgramCache erases names, those of the programs that it drops: handles of such programs
// are kept beside them in the cache (see ShapePrograms), and are dropped with them.
template <class T>
class StateRef {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  StateRef() = default;  // absent
  StateRef(const StateStore& store, const std::string& name)
      : backend_(&store.backend()), name_(name) {
    const StateStore::Entry& e = store.entry(name);
    tensor_ = e.tensor, host_ = e.host;
    expect_elements(name, tensor_, dtype_of<T>(), int64_t(sizeof(T)));
  }
  explicit operator bool() const { return bool(tensor_); }
  const Tensor& tensor() const { return tensor_; }
  int64_t size() const { return tensor_.bytes() / int64_t(sizeof(T)); }

  // The whole value. Memory of the host is written at once: the caller knows that no copy reads it
  // any more.
  void upload(std::span<const T> v) const {
    expect_size(name_, tensor_, int64_t(v.size_bytes()));
    if (host_)
      std::memcpy(tensor_.data, v.data(), v.size_bytes());
    else
      backend_->upload(tensor_.data, v.data(), tensor_.bytes());
  }
  void upload(const T& x) const { upload(std::span<const T>(&x, 1)); }
  void download(std::span<T> v) const {
    expect_size(name_, tensor_, int64_t(v.size_bytes()));
    backend_->download(v.data(), tensor_.data, tensor_.bytes());
  }

  // Elements from `first` on, as many as the span has.
  void upload_part(int64_t first, std::span<const T> v) const {
    backend_->upload(at(first, v.size()), v.data(), int64_t(v.size_bytes()));
  }
  // The same with Backend::upload_ahead.
  void upload_part_ahead(int64_t first, std::span<const T> v) const {
    backend_->upload_ahead(at(first, v.size()), v.data(), int64_t(v.size_bytes()));
  }
  void download_part(int64_t first, std::span<T> v) const {
    backend_->download(v.data(), at(first, v.size()), int64_t(v.size_bytes()));
  }

 private:
  std::byte* at(int64_t first, size_t count) const {
    expect_range(name_, size(), first, int64_t(count));
    return tensor_.data + first * int64_t(sizeof(T));
  }

  Backend* backend_ = nullptr;
  std::string name_;
  Tensor tensor_;
  bool host_ = false;
};

template <class T>
void StateStore::write(const std::string& name, std::span<const T> v) {
  StateRef<T>(*this, name).upload(v);
}
template <class T>
void StateStore::read(const std::string& name, std::span<T> v) const {
  StateRef<T>(*this, name).download(v);
}

}  // namespace hearth::inline core

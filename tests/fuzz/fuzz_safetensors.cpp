#include "formats/safetensors.h"
#include "fuzz.h"

int fuzz_safetensors(const uint8_t* data, size_t size) {
  return hearth::fuzz::taken([&] {
    const auto file = std::as_bytes(std::span(data, size));
    for (const auto& [name, t] : hearth::parse_safetensors(file, "fuzz").tensors) {
      hearth::fuzz::require(t.bytes.empty() ||
                            (t.bytes.data() >= file.data() && &t.bytes.back() <= &file.back()));
      hearth::fuzz::require(hearth::checked_bytes(t.shape, size_of(t.dtype)) ==
                            int64_t(t.bytes.size()));
    }
  });
}

hearth::fuzz::Seeds seeds_safetensors() {
  const auto file = [](std::string header, size_t data) {
    return hearth::fuzz::bytes_of(uint64_t(header.size())) + header + std::string(data, 'x');
  };
  return {file("{}", 0), file(R"({"__metadata__":{"format":"pt"}})", 0),
          file(R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
               R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},)"
               R"("c":{"dtype":"I64","shape":[],"data_offsets":[22,30]},)"
               R"("d":{"dtype":"U8","shape":[0,5],"data_offsets":[30,30]}})",
               30)};
}

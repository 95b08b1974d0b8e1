#include "data/holdout.h"

#include <algorithm>
#include <cmath>

#include "data/jsonl.h"
#include "data/permutation.h"
#include "sys/error.h"

namespace hearth::inline data {
namespace {

// A hash in [0, 1).
double hash_of(std::string_view text) {
  uint64_t hash = text.size();
  while (!text.empty()) {
    uint64_t word = 0;
    const size_t n = std::min<size_t>(8, text.size());
    for (size_t i = 0; i < n; ++i) word |= uint64_t(uint8_t(text[i])) << (8 * i);
    hash = mix64(hash ^ word);
    text.remove_prefix(n);
  }
  return double(mix64(hash) >> 11) * 0x1p-53;
}

struct Hashes {
  double lowest = 1, highest = 0;
  int64_t count = 0;
  bool both_sides_of(double threshold) const {
    return count > 0 && lowest < threshold && highest >= threshold;
  }
};

// Hashes of the documents, or of all pieces, up to the first that shows both sides.
Hashes look(const DocumentSpec& spec, double threshold, bool pieces) {
  DocumentReader reader(spec);
  Hashes seen;
  std::string unescaped;
  for (Document d; !seen.both_sides_of(threshold) && reader.next(d);) {
    if (!d.begins && !pieces) continue;  // belongs to the side of its document
    std::string_view text = d.raw;
    if (d.json) {
      if (!flat_text(unescaped, text, spec.column))
        unescaped =
            jsonl_text(text, document_place(spec, d.file, d.line), {spec.column, spec.column_flag});
      text = unescaped;
    }
    if (text.empty()) continue;
    const double hash = hash_of(text);
    seen.lowest = std::min(seen.lowest, hash);
    seen.highest = std::max(seen.highest, hash);
    ++seen.count;
  }
  return seen;
}

}  // namespace

bool is_validation(std::string_view text, double threshold) { return hash_of(text) < threshold; }

SideRule choose_sides(DocumentSpec spec, double fraction) {
  const bool piped = std::find(spec.inputs.begin(), spec.inputs.end(), "-") != spec.inputs.end();
  if (fraction == 0 || piped || look(spec, fraction, false).both_sides_of(fraction))
    return {fraction, false};
  spec.piece = std::min(side_piece_bytes, spec.longest);
  const Hashes seen = look(spec, fraction, true);
  if (seen.count == 0) return {fraction, false};  // no text at all; reported later
  if (seen.lowest == seen.highest)
    fail("--val-fraction",
         "expected text to split into training and validation data, got one piece of at most {} "
         "bytes: provide more text, or drop --val-fraction",
         spec.piece);
  if (seen.both_sides_of(fraction)) return {fraction, true};
  const double moved = seen.lowest >= fraction ? std::nextafter(seen.lowest, 1.0) : seen.highest;
  return {moved, true};
}

}  // namespace hearth::inline data

// llm.c's evaluation files: a header of 256 int32 (magic, version, examples, bytes of the longest),
// then each example as uint16: 65535, size in bytes, index, label, number of completions, then
// length and tokens of the context and of every completion.
#include <algorithm>
#include <cstring>

#include "data/token_stats.h"
#include "sys/error.h"

namespace hearth::inline data {
namespace {

constexpr int64_t eval_header_bytes = 1024;
constexpr int32_t eval_magic = 20240522, eval_version = 1;
constexpr int64_t example_mark = 65535;

class EvalFileReader {
 public:
  EvalFileReader(const std::filesystem::path& path, int64_t vocab)
      : where_(path.string()), map_(path), vocab_(vocab) {}

  EvalStat read() {
    const int64_t bytes = int64_t(map_.bytes().size());
    if (bytes < eval_header_bytes)
      fail(where_, "expected a header of {} bytes, got a file of {} bytes", eval_header_bytes,
           bytes);
    int32_t head[4];
    std::memcpy(head, map_.bytes().data(), sizeof head);
    if (head[0] != eval_magic)
      fail(where_, "expected magic {} at byte 0, got {}", eval_magic, head[0]);
    if (head[1] != eval_version)
      fail(where_, "expected version {} at byte 4, got {}", eval_version, head[1]);
    if (head[2] < 0) fail(where_, "expected a count of examples >= 0 at byte 8, got {}", head[2]);
    if (bytes % 2 != 0)
      fail(where_, "expected an even number of bytes (uint16), got an extra byte at byte {}",
           bytes - 1);
    at_ = eval_header_bytes;
    int64_t longest_bytes = 0;
    for (stat_.examples = 0; stat_.examples < head[2]; ++stat_.examples)
      longest_bytes = std::max(longest_bytes, example());
    if (at_ != bytes)
      fail(where_, "expected the end after {} examples at byte {}, got {} bytes more", head[2], at_,
           bytes - at_);
    if (longest_bytes != head[3])
      fail(where_, "expected {} bytes of the longest example at byte 12, got {}", longest_bytes,
           head[3]);
    return stat_;
  }

 private:
  int64_t next(const char* what) {
    if (at_ + 2 > int64_t(map_.bytes().size()))
      fail(where_, "expected {} of example {} at byte {}, got the end of the file", what,
           stat_.examples, at_);
    uint16_t word;
    std::memcpy(&word, map_.bytes().data() + at_, 2);
    at_ += 2;
    return word;
  }

  void expect(bool good, const char* wanted, int64_t got) const {
    if (!good)
      fail(where_, "expected {} in example {} at byte {}, got {}", wanted, stat_.examples, at_ - 2,
           got);
  }

  int64_t tokens() {
    const int64_t count = next("a length");
    for (int64_t i = 0; i < count; ++i) {
      const int64_t t = next("a token");
      expect(t != example_mark && (vocab_ == 0 || t < vocab_),
             "a token below the vocabulary's size", t);
      stat_.max_token = std::max(stat_.max_token, t);
    }
    return count;
  }

  // Reads one example; returns its size in bytes.
  int64_t example() {
    const int64_t begin = at_;
    const int64_t mark = next("the mark");
    expect(mark == example_mark, "the mark 65535", mark);
    const int64_t bytes = next("the size"), index = next("the index");
    expect(index == stat_.examples, "the index of the example", index);
    const int64_t label = next("the label"), completions = next("the count of completions");
    expect(label < completions, "more completions than the label", completions);
    const int64_t context = tokens();
    stat_.context_tokens += context;
    for (int64_t i = 0; i < completions; ++i) {
      const int64_t n = tokens();
      stat_.completion_tokens += n;
      stat_.longest = std::max(stat_.longest, context + n);
    }
    stat_.completions += completions;
    if (at_ - begin != bytes)
      fail(where_, "expected {} bytes in example {} as stated at byte {}, got {}", bytes,
           stat_.examples, begin + 2, at_ - begin);
    return bytes;
  }

  std::string where_;
  MappedFile map_;
  int64_t vocab_, at_ = 0;
  EvalStat stat_;
};

}  // namespace

bool is_eval_file(const std::filesystem::path& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return false;
  const MappedFile map(path);
  int32_t magic = 0;
  if (map.bytes().size() >= 4) std::memcpy(&magic, map.bytes().data(), 4);
  return magic == eval_magic;
}

EvalStat stat_eval_file(const std::filesystem::path& path, int64_t vocab) {
  return EvalFileReader(path, vocab).read();
}

}  // namespace hearth::inline data

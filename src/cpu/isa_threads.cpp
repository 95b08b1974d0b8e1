#include "cpu/isa_threads.h"

#include "sys/threads.h"

namespace hearth::inline cpu {

void run_pieces(Threads& threads, int64_t pieces, void (*body)(void*, int64_t, int), void* state) {
  threads.run(pieces, [=](int64_t piece, int worker) { body(state, piece, worker); });
}

int thread_count(const Threads& threads) { return threads.count(); }

}  // namespace hearth::inline cpu

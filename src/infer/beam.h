// Beam search over the slots of a runner.
#pragma once

#include "infer/sequence.h"

namespace hearth {

// The job's best n completions, best first; fewer when there are no more sequences. Uses the slots
// from 0 on, as many as it has beams, and ends when no beam, were it to end now, would rank above
// the worst of as many finished ones.
std::vector<Completion> beam_search(Runner&, const Job&, EngineStats&);

}  // namespace hearth

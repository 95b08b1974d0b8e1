#include <cmath>

#include "fuzz.h"
#include "rewards/reward_program.h"

// One line of a reward program, as an answer to question 7.
int fuzz_reward_reply(const uint8_t* data, size_t size) {
  const hearth::ProgramReply reply = hearth::read_reply(hearth::fuzz::text_of(data, size), 7);
  hearth::fuzz::require(reply.understood || !reply.reward);
  hearth::fuzz::require(!reply.reward || std::isfinite(*reply.reward));
  return reply.understood;
}

hearth::fuzz::Seeds seeds_reward_reply() {
  return {R"({"id": 7, "reward": 0.5})", R"({"id":7,"reward":null})",
          R"({"reward": -1e30, "id": 7, "why": ["a", {"b": 1}]})"};
}

// The engine on the card under constraints: greedy texts are the CPU's, sampled ones match, and
// steps run ahead of the host as they do without constraints.
#include "cuda_case.h"
#include "grammar/constraint.h"
#include "unit/infer_model.h"
#include "unit/schema_cases.h"

namespace hearth::cases {
namespace {

using test::card;

const char* schema =
    R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}, "n": {"type":
    "integer", "minimum": -20, "maximum": 300}, "l": {"type": "array", "items": {"enum": ["ab",
    "abc", null]}, "maxItems": 3}}, "required": ["name", "l"]})";

ModelConfig config() {
  ModelConfig c = tiny_config();
  c.vocab = 257, c.context = 256, c.dim = 64, c.heads = 4, c.hidden = 128;
  return c;
}

std::vector<Request> requests(ConstraintMaker& maker, float temperature, bool constrained) {
  std::vector<Request> all;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Request r{.prompt = {int32_t(seed), 5},
              .sampling = {.temperature = temperature, .seed = seed, .max_tokens = 120}};
    if (constrained && seed % 3)
      r.constraint = maker.make(
          {.kind = ConstraintSpec::Kind::json_schema, .text = schema, .where = "schema"});
    all.push_back(std::move(r));
  }
  return all;
}

TEST(CudaConstrained, TextsMatch) {
  HEARTH_NEEDS_A_CARD();
  const Tokenizer t = byte_tokenizer();
  ConstraintMaker maker(t);
  const auto cpu = make_cpu_backend(1);
  TinyModel here(*cpu, config()), there(card(), config());
  const EngineSpec spec{.max_batch = 16, .tokenizer = &t};
  Engine host = here.engine(spec), device = there.engine(spec);
  const auto want = host.run(requests(maker, 0, true)), got = device.run(requests(maker, 0, true));
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(want[i][0].text, got[i][0].text) << i;
  EXPECT_GT(device.stats().followed, 10);
  const SchemaJson judged = SchemaJson::parse(schema);
  const auto sampled = device.run(requests(maker, 1.3f, true));
  const auto free = device.run(requests(maker, 1.3f, false));
  for (size_t i = 0; i < sampled.size(); ++i) {
    const Completion& c = sampled[i][0];
    if (i % 3 == 0) {
      EXPECT_EQ(c.tokens, free[i][0].tokens);  // not constrained: as if it were alone
    } else {
      EXPECT_EQ(c.finish_reason, "stop");
      EXPECT_TRUE(SchemaJudge(judged).fits(SchemaJson::parse(c.text))) << c.text;
    }
  }
}

}  // namespace
}  // namespace hearth::cases

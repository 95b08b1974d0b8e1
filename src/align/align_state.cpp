#include "align/align_state.h"

namespace hearth {

using nlohmann::json;

json AlignState::to_json() const {
  json j{{"step", step},
         {"tokens", tokens},
         {"update", update_to_json(update)},
         {"train_seconds", train_seconds}};
  if (last_val) j["last_val"] = *last_val;
  if (last_val_step) j["last_val_step"] = *last_val_step;
  if (best_val) j["best"] = *best_val;
  if (best_step) j["best_step"] = *best_step;
  put_mark(j, "log", log);
  return j;
}

AlignState AlignState::from_json(const StateFields& f) {
  AlignState s;
  s.step = f.integer("step", 0, max_step), s.tokens = f.integer("tokens");
  s.update = update_of(f);
  s.log = mark_of(f, "log");
  if (f.has("best")) s.best_val = f.number("best");
  // Older ones say 0 where there is none.
  if (f.has("best_val") && f.number("best_val") != 0) s.best_val = f.number("best_val");
  s.best_step = best_step_of(f, s.step);
  if (f.has("last_val")) s.last_val = f.number("last_val");
  s.last_val_step = last_val_step_of(f, s.step);
  s.train_seconds = f.number("train_seconds", 0);
  return s;
}

}  // namespace hearth

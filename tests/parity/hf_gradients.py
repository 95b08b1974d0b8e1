#!/usr/bin/env python3
"""Compares the gradients of one step with those of transformers in float64, for every model_type.

  python3 tests/parity/hf_gradients.py build/hearth tests/parity/results/hf_gradients.json [cpu|cuda]

hearth writes a random model as a Hugging Face folder, and the tokens, loss and gradients of one step on
it in fp32. For every tensor of the folder the error is ||ours - theirs|| / ||theirs||. transformers
computes norms, rotations and the softmax in float32 in any dtype, so both sides round.
The last argument is the device that hearth computes on.
"""
import json, os, pathlib, sys, tempfile

from hf_models import DEVICE, EXPERTS, HEARTH, OUT, TRAINED, hearth

LIMIT = 1e-4


def gradients_of(folder, tokens, targets, work):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
    kind = json.load(open(folder / "config.json"))["model_type"]
    plain = dict(experts_implementation="eager") if kind in EXPERTS else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64,
                                                 attn_implementation="eager", **plain).eval()
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    # transformers joins some tensors when it loads them, and parts them when it saves them.
    used = {name for name, p in model.named_parameters() if p.grad is not None}
    for p in model.parameters():
        p.data = torch.zeros_like(p) if p.grad is None else p.grad
    model.save_pretrained(work / "gradients", max_shard_size="50GB")
    return kind, float(loss.detach()), len(used), load_file(work / "gradients" / "model.safetensors")


def compared(case):
    from safetensors.torch import load_file
    name, flags = case
    with tempfile.TemporaryDirectory() as t:
        work = pathlib.Path(t)
        hearth("doctor", "gradients", "--device", DEVICE, *flags, "--dtype", "fp32", "--batch", 2, "--seq",
               48, "--out", work / "step.safetensors", "--model-folder", work / "model")
        step = load_file(work / "step.safetensors")
        ours = {k[5:]: v.double() for k, v in step.items() if k.startswith("grad/")}
        kind, loss, parameters, theirs = gradients_of(work / "model", step["tokens"].long(),
                                                      step["targets"].long(), work)
        if not kind.startswith(name.split()[0]):
            raise RuntimeError(f"hearth wrote the model_type {kind}")
        missing = sorted(set(ours) - set(theirs))
        if missing:
            raise RuntimeError(f"transformers has no gradient of {missing[:3]}")
        errors = {k: float((ours[k] - theirs[k]).norm() / theirs[k].norm().clamp_min(1e-12)) for k in ours}
        worst = max(errors, key=errors.get)
        return {"model": name, "model_type": kind, "tensors": len(ours), "parameters_there": parameters,
                "loss_error": abs(float(step["loss"][0]) - loss), "worst": worst,
                "worst_error": errors[worst], "mean_error": sum(errors.values()) / len(errors)}


def one(case):
    try:
        return compared(case)
    except Exception as e:  # the table should say which
        return {"model": case[0], "error": f"{type(e).__name__}: {e}"[:400]}


def good(row):
    return "error" not in row and row["worst_error"] <= LIMIT and row["loss_error"] <= LIMIT


def main():
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rows = [one(case) for case in TRAINED]
    passed = sum(map(good, rows))
    report = {"transformers": transformers.__version__, "torch": torch.__version__, "limit": LIMIT,
              "models": len(rows), "passed": passed, "rows": rows}
    with open(OUT, "w") as f:
        json.dump(report, f, indent=1)
        f.write("\n")
    for row in rows:
        print("ok  " if good(row) else "FAIL", json.dumps(row))
    print(f"{passed} of {len(rows)}")
    sys.exit(0 if passed == len(rows) else 1)


if __name__ == "__main__":
    main()

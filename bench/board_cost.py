#!/usr/bin/env python3
"""What the board costs a training run on this machine.

Trains GPT-2 124M several times in turn, without a board, with a board that nobody reads, and with
a board that three readers follow as the page does: one event stream each, the list of runs every
4 seconds, and the series again every 2 seconds. Prints the mean step time of each kind as a JSON
line. The steps during which programs are recorded and tuned are left out.

  board_cost.py build/hearth tokens.bin [--rounds 2] [--steps 80]
"""
import argparse, json, pathlib, shutil, statistics, subprocess, tempfile, threading, time, urllib.request

PORT = 8097


def reader(stop, counts):
    base = f"http://127.0.0.1:{PORT}"

    def get(path):
        with urllib.request.urlopen(base + path, timeout=5) as r:
            return r.read()

    def follow(run):
        try:
            with urllib.request.urlopen(f"{base}/api/runs/{run}/events", timeout=5) as r:
                while not stop.is_set() and r.readline():
                    counts["lines"] += 1
        except OSError:
            pass

    run, listed = None, 0.0
    while not stop.is_set():
        try:
            if run is None or time.time() - listed > 4:
                runs = json.loads(get("/api/runs"))["runs"]
                counts["bytes"] += 1
                listed = time.time()
                if runs and run is None:
                    run = urllib.request.quote(runs[0]["id"], safe="")
                    get("/")
                    threading.Thread(target=follow, args=(run,), daemon=True).start()
            if run is not None:
                get(f"/api/runs/{run}")
                counts["bytes"] += len(get(f"/api/runs/{run}/series?keys=loss,lr,grad_norm,ms,mfu&points=2000"))
            time.sleep(2 if run else 0.3)
        except (OSError, ValueError, KeyError):
            time.sleep(0.3)


def train(a, folder, board, readers):
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    call = [a.hearth, "pretrain", "--device", "cuda", "--dtype", "bf16", "--preset", "gpt2", "--data", a.tokens, "--run",
            str(run), "--steps", str(a.steps), "--batch", "64", "--seq", "1024", "--eval-every", "0",
            "--checkpoint-every", "0", "--stop-after-step", str(a.steps - 1)]
    if board:
        call += ["--board", str(PORT)]
    stop, counts = threading.Event(), {"lines": 0, "bytes": 0}
    threads = [threading.Thread(target=reader, args=(stop, counts), daemon=True) for _ in range(readers)]
    for t in threads:
        t.start()
    done = subprocess.run(call, capture_output=True, text=True)
    stop.set()
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    lines = [json.loads(l) for l in open(run / "perf.jsonl")]
    ms = [l["ms"] for l in lines if "ms" in l and l.get("step", 0) > a.warmup]
    return ms, counts


def main():
    p = argparse.ArgumentParser()
    p.add_argument("hearth")
    p.add_argument("tokens")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--steps", type=int, default=80)
    p.add_argument("--warmup", type=int, default=15)
    a = p.parse_args()
    kinds = {"no board": (False, 0), "board, nobody reads": (True, 0), "board, three readers": (True, 3)}
    steps = {k: [] for k in kinds}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(a.rounds):
            for kind, (board, readers) in kinds.items():
                ms, counts = train(a, pathlib.Path(folder), board, readers)
                steps[kind] += ms
                if readers and not counts["lines"]:
                    raise SystemExit("the readers received no event")
    base = statistics.fmean(steps["no board"])
    for kind, ms in steps.items():
        mean = statistics.fmean(ms)
        print(json.dumps({"bench": "board", "case": kind, "steps": len(ms), "mean_ms": round(mean, 3),
                          "median_ms": round(statistics.median(ms), 3), "cost": round(mean / base - 1, 5)}))


main()

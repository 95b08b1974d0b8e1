// The requests that lm-evaluation-harness' `local-completions` sends (token ids, echo, logprobs 1, max_tokens 1)
// against `hearth eval` on the same items: summed log-probabilities, greedy flags and the metrics made of them.
//   node tests/parity/lm_eval_requests.mjs HEARTH MODEL LAMBADA.jsonl ARC.jsonl [ITEMS] [RESULT.json]
// Starts a server of its own on a free port. Exits 1 at a difference.
import { spawn, spawnSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";

const [hearth, model, lambadaFile, arcFile, itemsFlag = "100", result] = process.argv.slice(2);
const items = Number(itemsFlag);
const lines = (file) => readFileSync(file, "utf8").split("\n").filter((l) => l).slice(0, items).map((l) => JSON.parse(l));

const server = spawn(hearth, ["serve", "--model", model, "--port", "0", "--device", "cpu", "--dtype", "fp32", "--json"]);
const { url, model: name } = await new Promise((resolve, reject) => {
  server.stdout.on("data", (d) => resolve(JSON.parse(String(d).split("\n")[0])));
  server.on("exit", (code) => reject(new Error(`the server ended with ${code}`)));
});

async function post(route, body) {
  const r = await fetch(url + route, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } });
  if (!r.ok) throw new Error(`${route}: ${r.status} ${await r.text()}`);
  return r.json();
}
const tokenize = async (prompt) => (await post("/tokenize", { prompt, add_special_tokens: false })).tokens;

// As the harness: encoded together, cut where the context alone ends; the front is lost where it is too long.
async function pair(context, continuation, longest) {
  const spaces = context.length - context.trimEnd().length;
  if (spaces) [context, continuation] = [context.slice(0, -spaces), context.slice(-spaces) + continuation];
  const all = await tokenize(context + continuation);
  const first = (await tokenize(context)).length;
  const cut = Math.max(0, all.length - longest);
  return { tokens: all.slice(cut), first: Math.max(1, first - cut) };
}

async function score(context, continuation, longest) {
  const { tokens, first } = await pair(context, continuation, longest);
  const answer = await post("/v1/completions", { model: name, prompt: tokens, echo: true, logprobs: 1, max_tokens: 1, temperature: 0 });
  const { token_logprobs, top_logprobs } = answer.choices[0].logprobs;
  let sum = 0, greedy = true;
  for (let i = first; i < tokens.length; ++i) {
    sum += token_logprobs[i];
    greedy &&= Math.max(...Object.values(top_logprobs[i])) === token_logprobs[i];
  }
  return { sum, greedy };
}

function evaluated(task, data, context) {
  const r = spawnSync(hearth, ["eval", "--model", model, "--task", task, "--data", data, "--limit", String(items), "--context", String(context), "--device", "cpu", "--dtype", "fp32", "--json"], { encoding: "utf8" });
  if (r.status) throw new Error(r.stderr);
  return Object.fromEntries(JSON.parse(r.stdout.trim().split("\n").at(-1)).metrics.map((m) => [m.metric, m.value]));
}

const checks = [];
function check(what, ours, theirs) {
  const different = Math.abs(ours - theirs) > 1e-5 * Math.abs(theirs);
  checks.push({ what, eval: ours, requests: theirs, different });
  console.log(`${different ? "DIFFERENT" : "equal"} ${what}: eval ${ours}, requests ${theirs}`);
}

try {
  const context = (await (await fetch(url + "/v1/models")).json()).data[0].max_model_len;
  const longest = context - 1; // the one generated needs a place
  let sum = 0, right = 0;
  const texts = lines(lambadaFile);
  for (const { text } of texts) {
    const at = text.lastIndexOf(" ");
    const s = await score(text.slice(0, at), text.slice(at), longest);
    sum += s.sum, right += s.greedy;
  }
  const lambada = evaluated("lambada", lambadaFile, longest - 1);
  check("lambada perplexity", lambada.perplexity, Math.exp(-sum / texts.length));
  check("lambada acc", lambada.acc, right / texts.length);

  let acc = 0, accNorm = 0;
  const questions = lines(arcFile);
  for (const q of questions) {
    const choices = q.question.choices;
    const gold = choices.findIndex((c) => c.label === q.answerKey);
    const sums = [];
    for (const c of choices) sums.push((await score(`Question: ${q.question.stem}\nAnswer:`, ` ${c.text}`, longest)).sum);
    const best = (v) => v.indexOf(Math.max(...v));
    acc += best(sums) === gold;
    accNorm += best(sums.map((s, i) => s / [...choices[i].text].length)) === gold;
  }
  const arc = evaluated("choices", arcFile, longest - 1);
  check("arc acc", arc.acc, acc / questions.length);
  check("arc acc_norm", arc.acc_norm, accNorm / questions.length);
} finally {
  server.removeAllListeners("exit");
  server.kill("SIGTERM");
}
if (result) writeFileSync(result, JSON.stringify({ items, checks }, null, 1) + "\n");
process.exit(checks.length === 4 && checks.every((c) => !c.different) ? 0 : 1);

// A server with the routes of hearth and invented data: runs (one of them live) and models that
// stream. `npm run mock` starts it; the browser tests start it themselves.
import { createReadStream, existsSync } from 'node:fs';
import { createServer } from 'node:http';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const dist = join(dirname(fileURLToPath(import.meta.url)), '..', 'dist');
const csp = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// Noise that is the same in every run of the tests.
const noise = (i, salt = 0) => {
  const x = Math.sin(i * 12.9898 + salt * 78.233) * 43758.5453;
  return 2 * (x - Math.floor(x)) - 1;
};

// --- runs ---

const flat = (line) => Object.fromEntries(Object.entries(line).flatMap(([k, v]) => (Array.isArray(v) ? v.map((x, i) => [`${k}.${i}`, x]) : [[k, v]])));

class File {
  lines = [];
  numbers = []; // lines with an entry of an array as a key of its own
  ends = []; // byte offset after each line
  append(line) {
    this.lines.push(line);
    this.numbers.push(Object.values(line).some(Array.isArray) ? flat(line) : line);
    this.ends.push((this.ends.at(-1) ?? 0) + Buffer.byteLength(JSON.stringify(line)) + 1);
  }
  get bytes() {
    return this.ends.at(-1) ?? 0;
  }
}

class Run {
  constructor(id, task, { steps, salt = 0, name = id.split('/').at(-1), lr = 3e-3, state = 'finished', trouble = null, experts = 0 }) {
    Object.assign(this, { id, task, steps, salt, name, lr, state, trouble, experts });
    this.log = new File();
    this.perf = new File();
    this.samples = new File();
    this.listeners = new Set();
    this.rollouts = new Map();
    this.step = 0;
    this.started = Date.now() - 3600e3 * (1 + salt);
    this.updated = this.started;
    this.config = { data: ['data/train/*.bin'], steps, lr, clip: 1, optimizer: 'adamw', schedule: 'cosine', seed: salt, dim: 768, layers: 12,
      ...(task === 'grpo' && { reward: ['exact', 'format:<answer>@0.2'], group: 8, prompts: 4 }) };
    if (task !== 'grpo') this.put('log', { step: 0, val_loss: 10.9 });
  }

  put(file, line) {
    this[file].append(line);
    this.updated = Date.now();
    for (const tell of this.listeners) tell(file, line);
  }

  // What a resumed run does: the log is cut back, and streams end with a reset.
  cut(step) {
    const kept = this.log.lines.filter((l) => l.step <= step);
    this.log = new File();
    for (const line of kept) this.log.append(line);
    this.step = step;
    for (const tell of this.listeners) tell('reset', {});
  }

  advance(count = 1) {
    for (; count > 0 && this.step < this.steps; --count) {
      const s = ++this.step;
      const t = s / this.steps;
      const e = (salt) => noise(s, this.salt + salt);
      const line = { step: s, tokens: s * 65536, loss: 2.6 + 7.5 * Math.exp(-s / 180) + 0.12 * e(1) + 0.1 * this.salt, lr: this.lr * Math.min(1, s / 50) * (0.55 + 0.45 * Math.cos(Math.PI * t)), grad_norm: 0.6 + 3 * Math.exp(-s / 60) + 0.3 * Math.abs(e(2)) };
      if (s % 617 === 0) Object.assign(line, { skipped: true, spike: true, loss: line.loss + 3 });
      if (s % 899 === 0) line.skipped = true;
      if (this.task === 'grpo') Object.assign(line, this.policy(s, e));
      if (this.experts > 0) line.expert_load = Array.from({ length: this.experts }, (_, i) => 1 + 0.2 * e(20 + i));
      this.put('log', line);
      const perf = { step: s, ms: 420 + 12 * e(3), tokens_per_s: 156000 + 4000 * e(4), tflops: 410 + 9 * e(4), mfu: 0.47 + 0.01 * e(4), memory_bytes: 41e9, peak_memory_bytes: 43e9, celsius: 58 + 3 * e(5), watts: 640 + 30 * e(6), utilisation: 97 + 2 * e(7), device_memory_bytes: 44e9 };
      if (this.task === 'grpo') Object.assign(perf, { rollout_ms: 260, reward_wait_ms: 4, score_ms: 0, train_ms: 150, rollout_tokens_per_s: 92000, train_tokens_per_s: 181000 });
      this.put('perf', perf);
      if (s % 100 === 0 && this.task !== 'grpo') this.put('log', { step: s, val_loss: line.loss - 0.05 * e(8) });
      if (s % 200 === 0 || s === 1) this.put('samples', { step: s, text: `Once upon a time, at step ${s}, there was a small fire in the hearth.\nIt burned <b>quietly</b>.` });
    }
    if (this.step >= this.steps && this.state === 'running') {
      this.state = 'finished';
      for (const tell of this.listeners) tell('state', this.info());
    }
  }

  policy(s, e) {
    const reward = 0.9 - 0.75 * Math.exp(-s / 120) + 0.04 * e(11);
    if (s % 20 === 0 || s === 1) this.rollouts.set(s, make_rollouts(s, reward));
    return { reward, reward_std: 0.35 - 0.2 * reward + 0.02 * e(12), equal_groups: 0.2 + 0.4 * reward, unrewarded: 0, length: 60 + 30 * reward + 6 * e(13), length_min: 20, length_max: 128 - 10 * Math.abs(e(14)), truncated: 0.05 + 0.02 * e(15), kl: 0.002 * s ** 0.5, kl_old: 0.001 + 0.0005 * e(16), beta: 0.02, entropy: 1.4 * Math.exp(-s / 300) + 0.03 * e(17), clip_low: 0.01 + 0.004 * e(18), clip_high: 0.02 + 0.006 * e(19), logprob_gap_max: 0, logprob_gap_mean: 0, logprob_gap_tokens: 4096, trained_tokens: 4000, updates: 1, version: s, completions: 32 * s, reward_0: reward - 0.05, reward_1: 0.2 * Math.min(1, s / 100), ...(s % 50 === 0 && { eval_reward: reward + 0.02, eval_exact: reward - 0.08 }) };
  }

  info() {
    const last = (key, file = this.log) => file.lines.findLast((l) => l[key] !== undefined)?.[key] ?? null;
    return { id: this.id, name: this.name, task: this.task, state: this.state, step: this.step, steps: this.steps, updated: new Date(this.updated).toISOString(), started: new Date(this.started).toISOString(), loss: last('loss'), val_loss: last('val_loss'), reward: last('reward'), tokens_per_s: last('tokens_per_s', this.perf), mfu: last('mfu', this.perf), params: 124e6, model: 'gpt2', trouble: this.trouble };
  }

  detail() {
    const keys = (file) => [...new Set(file.numbers.flatMap((l) => Object.keys(l)))].filter((k) => k !== 'step');
    const log = keys(this.log);
    return { run: this.info(), config: this.config, config_text: Object.entries(this.config).map(([k, v]) => `${k} = ${JSON.stringify(v)}`).join('\n'), keys: { log, perf: keys(this.perf) }, steps_logged: this.step, best: { step: 1900, value: 2.61, key: 'val_loss' }, checkpoints: [{ step: 1000, bytes: 1.5e9, latest: false, best: true }, { step: this.step, bytes: 1.5e9, latest: true, best: false }], memory: { weights: 0.25e9, gradients: 0.5e9, 'optimizer state': 1e9, activations: 38e9 }, seconds: { model: 1.2, data: 0.4, first_steps: 9, steps: 830, evaluate: 41, save: 3, total: 884.6 } };
  }

  series(keys, { x, from, to, points }) {
    const xs = { tokens: (s) => s * 65536, time: (s) => s * 0.42, step: (s) => s }[x];
    const series = {};
    for (const key of keys) {
      const file = [this.log, this.perf].find((f) => f.numbers.some((l) => key in l));
      if (!file) continue;
      const all = file.numbers.filter((l) => key in l).map((l) => [xs(l.step), l[key] === true ? 1 : l[key]]).filter(([u]) => u >= from && u <= to);
      series[key] = all.length <= points ? { x: all.map((p) => p[0]), mean: all.map((p) => p[1]), decimated: false } : decimate(all, points);
    }
    return { x, series, offset: { log: this.log.bytes, perf: this.perf.bytes } };
  }
}

function decimate(all, points) {
  const low = all[0][0];
  const width = (all.at(-1)[0] - low) / points;
  const out = { x: [], min: [], max: [], mean: [], decimated: true };
  for (let i = 0; i < all.length; ) {
    const bucket = Math.min(points - 1, Math.floor((all[i][0] - low) / width));
    const part = [];
    const x = all[i][0];
    for (; i < all.length && Math.min(points - 1, Math.floor((all[i][0] - low) / width)) === bucket; ++i) if (all[i][1] !== null) part.push(all[i][1]);
    out.x.push(x);
    out.min.push(part.length ? Math.min(...part) : null);
    out.max.push(part.length ? Math.max(...part) : null);
    out.mean.push(part.length ? part.reduce((a, b) => a + b, 0) / part.length : null);
  }
  return out;
}

function make_rollouts(step, reward) {
  return Array.from({ length: 32 }, (_, i) => {
    const group = Math.floor(i / 8);
    const right = noise(i, step) / 2 + 0.5 < reward;
    const tokens = `First I add the two numbers, then I check: the answer is ${right ? 42 : 17 + i}.`.match(/\s?\S+/g).slice(0, 8 + ((i * 7) % 12));
    return { step, group, index: i % 8, prompt: `What is ${group + 20} plus ${22 - group}?`, completion: tokens.join(''), tokens: tokens.length, ...(i % 8 < 4 && { token_texts: tokens }), logprobs: tokens.map((_, j) => -(Math.abs(noise(j, i + step)) ** 3) * 6), reward: right ? 1.2 : 0.2, rewards: [right ? 1 : 0, 0.2], advantage: right ? 0.8 : -0.9, truncated: i % 11 === 0 };
  });
}

function make_runs() {
  const runs = [
    new Run('pretrain/base', 'pretrain', { steps: 2000, salt: 1 }),
    new Run('pretrain/wide', 'pretrain', { steps: 1500, salt: 2, lr: 1e-3 }),
    new Run('grpo/arithmetic', 'grpo', { steps: 400, salt: 3 }),
    new Run('long', 'sft', { steps: 60_000, salt: 4 }),
    new Run('odd/<img src=x onerror=alert(1)> & "quotes" %2e', 'dpo', { steps: 5, salt: 5, state: 'damaged', name: '<img src=x onerror=alert(1)>', trouble: 'log.jsonl: line 3 is not JSON <script>alert(1)</script>' }),
  ];
  for (const r of runs) r.advance(r.steps);
  for (const r of runs) r.updated = r.started + 900e3;
  const live = new Run('live', 'pretrain', { steps: 5000, state: 'running', experts: 4 });
  live.started = Date.now() - 60e3;
  live.advance(120);
  return [...runs, live];
}

// --- models ---

const pieces_of = (text) => text.match(/\s?[^\s]+|\s+$|\s/g) ?? [];

const markdown = `# A heading

Some **bold**, *slanted* and \`code\` text, with a [link](https://example.com/page).

- one
- two
  - nested

\`\`\`python
def f(x):
    return x + 1  # <b>not bold</b>
\`\`\`

| a | b |
|---|---|
| 1 | 2 |
`;

function answer_to(text) {
  if (/markdown/i.test(text)) return markdown;
  const count = /long/i.test(text) ? 300 : 40;
  const words = 'the fire in the hearth burns low and the night outside is clear so we sit and count the sparks'.split(' ');
  return `You said "${text.trim().slice(-60)}".` + Array.from({ length: count }, (_, i) => ` ${words[i % words.length]}`).join('');
}

const known = new Set(['model', 'messages', 'prompt', 'stream', 'stream_options', 'temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty', 'max_tokens', 'seed', 'logprobs', 'top_logprobs', 'continue_final_message']);

function plan(body, chat) {
  for (const k of Object.keys(body)) if (!known.has(k)) throw Object.assign(new Error(`[${k}] expected a known field`), { status: 400 });
  if (!chat) return pieces_of(answer_to(body.prompt));
  const [question, begun] = body.continue_final_message ? body.messages.slice(-2) : [body.messages.at(-1)];
  return pieces_of(answer_to(question.content).slice(begun?.content.length ?? 0));
}

async function complete(body, chat, request, response, state) {
  const pieces = plan(body, chat).slice(0, body.max_tokens ?? 1000);
  response.writeHead(200, { 'Content-Type': 'text/event-stream' });
  const send = (json) => response.write(`data: ${JSON.stringify(json)}\n\n`);
  let left = false;
  response.on('close', () => (left = true));
  for (const [i, piece] of pieces.entries()) {
    await new Promise((resolve) => setTimeout(resolve, i === 0 ? 60 : state.token_ms));
    if (left) return void ++state.cancelled;
    const logprob = -(noise(i) ** 2) * 5;
    const top = [[piece, logprob], [' another', logprob - 0.7], [' third', logprob - 1.9]].slice(0, 3);
    const logprobs = body.logprobs === undefined ? null : chat
      ? { content: [{ token: piece, logprob, bytes: null, top_logprobs: top.map(([token, logprob]) => ({ token, logprob })) }] }
      : { tokens: [piece], token_logprobs: [logprob], top_logprobs: [Object.fromEntries(top)] };
    const finish_reason = i < pieces.length - 1 ? null : body.max_tokens && pieces.length === body.max_tokens ? 'length' : 'stop';
    send({ choices: [{ index: 0, ...(chat ? { delta: { content: piece } } : { text: piece }), logprobs, finish_reason }] });
  }
  if (body.stream_options?.include_usage) send({ choices: [], usage: { prompt_tokens: 5, completion_tokens: pieces.length } });
  response.end('data: [DONE]\n\n');
}

// --- http ---

const types = { html: 'text/html; charset=utf-8', js: 'text/javascript', css: 'text/css' };

function page(name, response) {
  const file = join(dist, name);
  if (!existsSync(file)) return void response.writeHead(503).end('run npm run build first');
  response.writeHead(200, { 'Content-Type': types[name.split('.').at(-1)], 'Content-Security-Policy': csp, 'X-Content-Type-Options': 'nosniff', 'Referrer-Policy': 'no-referrer', 'Cache-Control': 'no-cache' });
  createReadStream(file).pipe(response);
}

function events(run, url, response, state) {
  response.writeHead(200, { 'Content-Type': 'text/event-stream' });
  const at = { log: Number(url.searchParams.get('log')), perf: Number(url.searchParams.get('perf')) };
  const send = (file, line) => response.write(`id: ${at.log},${at.perf}\ndata: ${JSON.stringify({ file, line })}\n\n`);
  for (const file of ['log', 'perf'])
    run[file].ends.forEach((end, i) => {
      if (end > at[file]) (at[file] = end), send(file, run[file].lines[i]);
    });
  const tell = (file, line) => {
    if (file === 'reset') return void response.end('event: reset\ndata: {"file":"log"}\n\n');
    if (file === 'state') return void response.write(`event: state\ndata: ${JSON.stringify(line)}\n\n`);
    if (file in at) at[file] = run[file].bytes;
    send(file, line);
  };
  run.listeners.add(tell);
  state.sockets.add(response);
  response.on('close', () => (run.listeners.delete(tell), state.sockets.delete(response)));
}

function api(runs, url, response, state) {
  const json = (body) => response.writeHead(200, { 'Content-Type': 'application/json' }).end(JSON.stringify(body));
  if (url.pathname === '/api/info') return json({ program: 'hearth', version: '2.0 (mock)', pages: ['runs', 'chat'], root: 'runs', readonly: true });
  if (url.pathname === '/api/runs') return json({ runs: runs.map((r) => r.info()) });
  const [, , , id, what] = url.pathname.split('/');
  const run = runs.find((r) => r.id === decodeURIComponent(id ?? ''));
  if (!run) throw Object.assign(new Error('[run] there is no such run'), { status: 404 });
  const q = url.searchParams;
  if (what === undefined) return json(run.detail());
  if (what === 'samples') return json({ samples: run.samples.lines });
  if (what === 'events') return events(run, url, response, state);
  if (what === 'rollouts') {
    const steps = [...run.rollouts.keys()];
    const step = q.has('step') ? Number(q.get('step')) : (steps.at(-1) ?? null);
    return json({ steps, step, rollouts: run.rollouts.get(step) ?? [] });
  }
  if (what === 'series') {
    state.series.push(url.search);
    if (q.get('keys').split(',').length > 64) throw Object.assign(new Error('[keys] expected at most 64 keys'), { status: 400 });
    return json(run.series(q.get('keys').split(',').map(decodeURIComponent), { x: q.get('x') ?? 'step', from: Number(q.get('from') ?? 0), to: Number(q.get('to') ?? 1e18), points: Number(q.get('points') ?? 2000) }));
  }
  throw Object.assign(new Error('not found'), { status: 404 });
}

async function chat(url, request, response, state) {
  const json = (body) => response.writeHead(200, { 'Content-Type': 'application/json' }).end(JSON.stringify(body));
  if (url.pathname === '/v1/models')
    return json({ object: 'list', data: [['ember', true], ['spark', true], ['base', false]].map(([id, chat_template]) => ({ id, object: 'model', max_model_len: 4096, chat_template })) });
  let text = '';
  for await (const part of request) text += part;
  const body = JSON.parse(text);
  state.requests.push(body);
  return complete(body, url.pathname.includes('chat'), request, response, state);
}

export async function start({ port = 0, key = '', live_ms = 100, token_ms = 12 } = {}) {
  const runs = make_runs();
  const live = runs.at(-1);
  const state = { cancelled: 0, requests: [], series: [], sockets: new Set(), token_ms };
  const timer = setInterval(() => live.advance(), live_ms);
  const server = createServer(async (request, response) => {
    const url = new URL(request.url, 'http://mock');
    try {
      if (url.pathname === '/') return page('index.html', response);
      if (/^\/app\.(js|css)$/.test(url.pathname)) return page(url.pathname.slice(1), response);
      if (key && request.headers.authorization !== `Bearer ${key}`) throw Object.assign(new Error('a key is needed'), { status: 401 });
      if (url.pathname.startsWith('/api/')) return api(runs, url, response, state);
      await chat(url, request, response, state);
    } catch (e) {
      response.writeHead(e.status ?? 500, { 'Content-Type': 'application/json' }).end(JSON.stringify({ error: { message: e.message } }));
    }
  });
  await new Promise((resolve) => server.listen(port, '127.0.0.1', resolve));
  const close = () => (clearInterval(timer), server.closeAllConnections(), server.close());
  return { url: `http://127.0.0.1:${server.address().port}`, runs, live, state, close };
}

if (process.argv[1] === fileURLToPath(import.meta.url))
  console.log((await start({ port: Number(process.env.PORT ?? 8090), key: process.env.MOCK_KEY ?? '' })).url);

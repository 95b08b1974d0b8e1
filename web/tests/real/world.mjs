// What the tests look at: runs of every kind and a served model, all made by the real program in a
// few seconds.
import { spawn } from 'node:child_process';
import { closeSync, cpSync, mkdirSync, mkdtempSync, openSync, readFileSync, writeFileSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

// What the chat model was taught to answer. The second one must stay text.
export const taught = {
  hello: 'The fire in the hearth burns low.',
  hostile: '<img src=x onerror="hacked=1"> [go](javascript:hacked=1)',
};
export const hostile_name = '<img src=x onerror="window.hacked=1"> & %2e';
export const million = 1_000_000; // steps of the long run

const running = new Set();
export function end_all() {
  for (const child of running) child.kill('SIGKILL');
}

function start(program, args, cwd) {
  const child = spawn(program, args, { cwd, stdio: ['ignore', 'ignore', 'pipe'], env: { ...process.env, NO_COLOR: '1' } });
  child.text = '';
  child.stderr.on('data', (d) => (child.text += d));
  child.ended = new Promise((resolve) => child.on('exit', (code, signal) => (running.delete(child), resolve(code ?? signal))));
  running.add(child);
  return child;
}

async function run(program, args, cwd) {
  const child = start(program, args, cwd);
  const code = await child.ended;
  if (code !== 0) throw new Error(`hearth ${args.join(' ')} ended with ${code}: ${child.text}`);
}

// Starts a server and waits for the address that it prints.
async function serve(program, args, cwd) {
  const child = start(program, args, cwd);
  const end = Date.now() + 60_000;
  for (;;) {
    const found = /(http:\/\/127\.0\.0\.1:\d+)\b[^\n]*\n/.exec(child.text);
    if (found) return found[1];
    if (!running.has(child) || Date.now() > end) throw new Error(`hearth ${args.join(' ')} does not listen: ${child.text}`);
    await new Promise((r) => setTimeout(r, 20));
  }
}

const small = '--context 2048 --layers 2 --dim 64 --heads 4 --hidden 128 --seq 32 --dtype fp32 --threads 1'.split(' ');
const pretrain = (name, lr, steps, ...more) =>
  ['pretrain', '--run', `runs/${name}`, '--data', 'tokens/train_000001.bin', '--tokenizer', 'tokenizer', ...small, '--lr', lr, '--steps', String(steps), ...more];

async function train(hearth, folder) {
  const make = (...args) => run(hearth, args, folder);
  await make('data', 'arithmetic', '--digits', '1', '--out', 'sums');
  writeFileSync(join(folder, 'text.txt'), readFileSync(join(folder, 'sums/pretrain.txt'), 'utf8').repeat(20)); // enough for a batch
  await make('tokenizer', 'train', '--input', 'text.txt', '--vocab', '257', '--out', 'tokenizer');
  await make('data', 'prepare', '--tokenizer', 'tokenizer', '--input', 'text.txt', '--out', 'tokens');
  const measured = ['--batch', '8', '--val', 'tokens/train_000001.bin', '--eval-tokens', '512', '--eval-every', '40', '--sample-every', '40', '--sample-tokens', '16'];
  await Promise.all([
    make(...pretrain('pretrain/base', '5e-3', 120, ...measured)),
    make(...pretrain('pretrain/wide', '1e-3', 80, ...measured)),
  ]);
  const rows = Object.entries(taught).map(([user, assistant]) => JSON.stringify({ messages: [{ role: 'user', content: user }, { role: 'assistant', content: assistant }] }));
  writeFileSync(join(folder, 'chat.jsonl'), rows.join('\n') + '\n');
  const aligned = ['--model', 'runs/pretrain/base', '--dtype', 'fp32', '--threads', '1'];
  await Promise.all([
    make('sft', '--run', 'runs/sft/chat', ...aligned, '--data', 'chat.jsonl', '--steps', '250', '--batch', '2', '--max-length', '128', '--lr', '5e-3', '--checkpoint-every', '25', '--keep', '20'),
    make('grpo', '--run', 'runs/grpo/arithmetic', ...aligned, '--data', 'sums/prompts.jsonl', '--eval-data', 'sums/heldout.jsonl', '--reward', 'exact', '--reward', 'length:2@0.2', '--steps', '40', '--prompts', '4', '--group', '4', '--max-completion', '4', '--lr', '1e-3', '--eval-every', '10', '--train-equal'),
  ]);
}

// Runs that no training leaves: one with a name and texts that would be code in a page, and one with
// a million logged steps.
function invent(folder) {
  const runs = join(folder, 'runs');
  const odd = join(runs, 'odd', hostile_name);
  cpSync(join(runs, 'pretrain', 'base'), odd, { recursive: true });
  writeFileSync(join(odd, 'samples.jsonl'), JSON.stringify({ step: 1, text: taught.hostile }) + '\n');
  writeFileSync(join(odd, 'config.toml'), `steps = 120\nlr = 0.1\nnote = ${JSON.stringify(taught.hostile)}\n`);
  const long = join(runs, 'long');
  mkdirSync(long);
  writeFileSync(join(long, 'config.toml'), `steps = ${million}\n`);
  const file = openSync(join(long, 'log.jsonl'), 'w');
  for (let step = 1; step <= million; ) {
    let lines = '';
    for (const end = Math.min(million, step + 9_999); step <= end; ++step)
      lines += `{"step":${step},"loss":${(2 + 8 / (1 + step / 5000) + ((step * 7919) % 1000) / 4000 + (step === 765_432 ? 5 : 0)).toFixed(4)},"lr":0.001}\n`;
    writeSync(file, lines);
  }
  closeSync(file);
}

export async function make_world(hearth) {
  if (!hearth) throw new Error('[HEARTH] expected the path of the program');
  const folder = mkdtempSync(join(tmpdir(), 'hearth-web-'));
  try {
    await train(hearth, folder);
    invent(folder);
    const board = await serve(hearth, ['board', 'runs', '--port', '0'], folder);
    const step = (n) => ['--model', `runs/sft/chat/checkpoints/step-${String(n).padStart(8, '0')}`];
    // Two checkpoints of one run and a model without a chat template.
    const models = ['step-00000250', 'step-00000025', 'base'];
    const chat = await serve(hearth, ['serve', ...step(250), ...step(25), '--model', 'runs/pretrain/base', '--port', '0', '--threads', '1', '--dtype', 'fp32'], folder);
    for (let i = 0; (await fetch(`${chat}/health`)).status !== 200; ++i) {
      if (i > 600) throw new Error('hearth serve does not become healthy');
      await new Promise((r) => setTimeout(r, 50));
    }
    return { hearth, folder, board, chat, models };
  } catch (e) {
    e.message += ` (in ${folder})`;
    throw e;
  }
}

// --- for the tests, in processes of their own ---

export const world = process.env.HEARTH_WORLD ? JSON.parse(process.env.HEARTH_WORLD) : null;

// Trains until it is stopped.
export function start_training(id) {
  const child = start(world.hearth, pretrain(id, '1e-3', 100_000, '--batch', '32'), world.folder);
  return { id, log: () => log_of(id), end: async () => (child.kill('SIGTERM'), await child.ended) };
}

export const serve_more = (args) => serve(world.hearth, args, world.folder);

export function log_of(id) {
  return readFileSync(join(world.folder, 'runs', id, 'log.jsonl'), 'utf8').split('\n').slice(0, -1).map((l) => JSON.parse(l));
}

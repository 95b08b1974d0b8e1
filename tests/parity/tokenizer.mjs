// Compares `hearth tokenizer` with the npm packages tiktoken and @huggingface/tokenizers: the GPT-2
// vocabulary on a text, on every code point, on random Unicode and on random bytes; and a trained
// tokenizer.json (optional) as Hugging Face reads it. Prints figures, exits 1 at a difference.
//   node tests/parity/tokenizer.mjs NODE_MODULES HEARTH r50k_base.tiktoken TEXT [TRAINED_DIR]
// What the packages see is text, so strings with invalid UTF-8 are checked against a plain
// implementation here: U+FFFD for each invalid byte in the pattern, the byte itself in the merges.
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const [modulesFlag, hearth, ranksFile, textFile, trained] = process.argv.slice(2);
const modules = resolve(modulesFlag);
const require = createRequire(modules + "/");
const { Tiktoken } = require(modules + "/tiktoken");
const { Tokenizer } = require(modules + "/@huggingface/tokenizers");

const pattern = String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`;
const ranksText = readFileSync(ranksFile, "latin1");
const tiktoken = new Tiktoken(ranksText, { "<|endoftext|>": 50256 }, pattern);

let failed = false;
function report(name, cases, tokens, different, example) {
  console.log(`${name}: ${cases} strings, ${tokens} tokens, ${different} differ`);
  if (different) console.log(`  first: ${example}`);
  failed ||= different > 0;
}

function run(tokenizer, args, input) {
  const r = spawnSync(hearth, ["tokenizer", "encode", "--tokenizer", tokenizer, ...args], {
    input, maxBuffer: 1 << 30 });
  if (r.status !== 0) throw new Error(`${r.stderr}`);
  return r.stdout;
}
const numbers = (line) => (line === "" ? [] : line.split(" ").map(Number));
const encodeWhole = (tokenizer, bytes) => numbers(run(tokenizer, ["--raw"], bytes).toString().trimEnd());
// Strings without line feeds, a line each.
function encodeLines(tokenizer, list) {
  const input = Buffer.concat(list.flatMap((b) => [b, Buffer.from("\n")]));
  return run(tokenizer, [], input).toString().split("\n").slice(0, list.length).map(numbers);
}

const equal = (a, b) => a.length === b.length && a.every((x, i) => x === b[i]);
function compare(name, tokenizer, list, oracle) {
  const ours = encodeLines(tokenizer, list);
  let different = 0, tokens = 0, example = "";
  list.forEach((bytes, i) => {
    const theirs = Array.from(oracle(bytes));
    tokens += theirs.length;
    if (equal(ours[i], theirs)) return;
    if (different++ === 0) example = `${bytes.toString("hex")}: ours ${ours[i]}, theirs ${theirs}`;
  });
  report(name, list.length, tokens, different, example);
}

// xorshift32: the same strings every time.
let state = 12345;
function random(n) {
  state ^= state << 13; state ^= state >>> 17; state ^= state << 5;
  return (state >>> 0) % n;
}

const alphabets = ["abc XYZ", " \t\u0085\u00a0\u3000\u2028\r", "0123456789½²Ⅷ٣", "'sS'tT're've'm'll'd ",
  "éßЖжΩ漢字かな한글", "🦙😶‍🌫️👩‍👩‍👧🇩🇪", "!?.,;:-_()[]{}<|>", "\u0301\u200d\ufeff\ufffd\u0000"].map((s) => [...s]);
function randomText() {
  let s = "";
  for (let n = 1 + random(40); n > 0; --n) {
    const kind = random(alphabets.length + 1);
    const c = kind < alphabets.length ? alphabets[kind][random(alphabets[kind].length)]
      : String.fromCodePoint(random(4) ? random(0x3000) : random(0x110000));
    for (let k = random(4) ? 1 : 1 + random(5); k > 0; --k) s += c;
  }
  return Buffer.from(s.toWellFormed().replaceAll("\n", " "), "utf8");
}
function randomBytes() {
  const b = Buffer.alloc(1 + random(60));
  const wide = random(3);
  for (let i = 0; i < b.length; ++i) {
    b[i] = wide === 0 ? random(256) : wide === 1 ? 0x20 + random(0x60) : 0xc0 + random(0x40) * (random(3) > 0) - 0x40 * random(2);
    if (b[i] === 10) b[i] = 32;
  }
  return b;
}

// The plain implementation for bytes that are no text.
const ranks = new Map();
for (const line of ranksText.split("\n")) {
  if (!line) continue;
  const [token, rank] = line.split(" ");
  ranks.set(Buffer.from(token, "base64").toString("latin1"), Number(rank));
}
function bpe(word) {
  const parts = [...word];
  for (;;) {
    let best = -1, lowest = Infinity;
    for (let i = 0; i + 1 < parts.length; ++i) {
      const rank = ranks.get(parts[i] + parts[i + 1]) ?? Infinity;
      if (rank < lowest) [best, lowest] = [i, rank];
    }
    if (best < 0) return parts.map((p) => ranks.get(p));
    parts.splice(best, 2, parts[best] + parts[best + 1]);
  }
}
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
function characters(bytes) {
  const list = [];
  for (let i = 0; i < bytes.length;) {
    let found = null;
    for (let n = 1; n <= 4 && i + n <= bytes.length && !found; ++n) {
      try {
        found = { text: strict.decode(bytes.subarray(i, i + n)), n };
      } catch { /* not a whole character yet */ }
    }
    found ??= { text: "\ufffd", n: 1 };
    list.push({ text: found.text, bytes: bytes.subarray(i, i + found.n).toString("latin1") });
    i += found.n;
  }
  return list;
}
// JavaScript's \s has U+FEFF and lacks U+0085; the space of tiktoken and Hugging Face is White_Space.
const words = new RegExp(pattern.replaceAll("\\s", "\\p{White_Space}")
  .replaceAll("\\S", "\\P{White_Space}"), "gu");
function plain(bytes) {
  const list = characters(bytes);
  const ids = [];
  let at = 0;
  for (const word of list.map((c) => c.text).join("").match(words) ?? []) {
    const n = [...word].length;
    ids.push(...bpe(list.slice(at, at + n).map((c) => c.bytes).join("")));
    at += n;
  }
  return ids;
}

const text = readFileSync(textFile);
const whole = text.toString("utf8");
const oracle = (bytes) => tiktoken.encode(bytes.toString("utf8"), [], []);
{
  const ours = encodeWhole(ranksFile, text), theirs = Array.from(tiktoken.encode(whole, [], []));
  const at = theirs.findIndex((x, i) => x !== ours[i]);
  report("tiktoken, whole text", 1, theirs.length, equal(ours, theirs) ? 0 : 1, `token ${at}`);
}
{
  const list = [];
  for (let c = 0; c < 0x110000; ++c) {
    if (c === 10 || (c >= 0xd800 && c < 0xe000)) continue;
    const s = String.fromCodePoint(c);
    list.push(Buffer.from(`x${s}x 1${s}1 ${s}${s} .${s}. ${s}`));
  }
  compare("tiktoken, every code point", ranksFile, list, oracle);
}
compare("tiktoken, random Unicode", ranksFile, Array.from({ length: 20000 }, randomText), oracle);
const bytes = Array.from({ length: 20000 }, randomBytes);
compare("plain implementation, random bytes", ranksFile, bytes, plain);
compare("tiktoken, random bytes after UTF-8 replacement", ranksFile,
  bytes.map((b) => Buffer.from(b.toString("utf8"))), oracle);

if (trained) {
  const load = (name) => JSON.parse(readFileSync(`${trained}/${name}`, "utf8"));
  const hf = new Tokenizer(load("tokenizer.json"), load("tokenizer_config.json"));
  const encode = (s) => hf.encode(s, { add_special_tokens: false }).ids;
  const documents = whole.split("<|endoftext|>");
  const lines = documents.flatMap((d) => d.split("\n"));
  compare("Hugging Face, trained, lines of the text", trained, lines.map((l) => Buffer.from(l)),
    (b) => encode(b.toString("utf8")));
  let different = 0, tokens = 0;
  for (const d of documents.filter((_, i) => i % 50 === 0)) {
    const theirs = encode(d), ours = encodeWhole(trained, Buffer.from(d));
    tokens += theirs.length;
    different += !equal(ours, theirs);
  }
  report("Hugging Face, trained, whole documents (every 50th)", Math.ceil(documents.length / 50),
    tokens, different, "a document");
  // Special tokens: recognised on both sides.
  const special = numbers(run(trained, ["--raw", "--special"], whole).toString().trimEnd());
  const theirs = encode(whole);
  report("Hugging Face, trained, whole text with special tokens", 1, theirs.length,
    equal(special, theirs) ? 0 : 1, `token ${theirs.findIndex((x, i) => x !== special[i])}`);
}
process.exit(failed ? 1 : 0);

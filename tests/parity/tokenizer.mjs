// Compares `hearth tokenizer` with npm packages: tiktoken (wasm) for the patterns gpt2, cl100k, o200k,
// llama3 and qwen2, llama-tokenizer-js for Llama-2's pieces, @huggingface/tokenizers for files that
// hearth writes. Prints figures, puts them into RESULTS, exits 1 at a difference.
//   npm i tiktoken @huggingface/tokenizers llama-tokenizer-js llama3-tokenizer-js
//   node tests/parity/tokenizer.mjs NODE_MODULES HEARTH DATA SCRATCH RESULTS [CASES]
// DATA is the folder with text/ (wikipedia_12mb.txt or stories.txt) and tokenizers/, plain or packed by xz, SCRATCH
// a folder to fill. The packages take text alone, so strings of any bytes are checked against tiktoken's rule for them (_encode_bytes of its
// Python package) written out here; tests/parity/tokenizer_ids.py asks that function itself.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const [modulesFlag, hearth, data, scratch, resultsFile, casesFlag] = process.argv.slice(2);
const cases = Number(casesFlag ?? 100000);
const modules = resolve(modulesFlag);
const require = createRequire(modules + "/");
const { Tiktoken } = require(modules + "/tiktoken");
const { Tokenizer } = require(modules + "/@huggingface/tokenizers");
mkdirSync(scratch, { recursive: true });

const results = [];
let failed = false;
function keep(result) {
  results.push(result);
  writeFileSync(resultsFile, "[\n" + results.map((r) => "  " + JSON.stringify(r)).join(",\n") + "\n]\n");
}
function report(tokenizer, check, strings, tokens, different, example) {
  keep({ tokenizer, check, strings, tokens, different });
  console.log(`${tokenizer}, ${check}: ${strings} strings, ${tokens} tokens, ${different} differ`);
  if (different) console.log(`  first: ${example}`);
  failed ||= different > 0;
}
function command(args, input) {
  const r = spawnSync(hearth, ["tokenizer", ...args], { input, maxBuffer: 1 << 30 });
  if (r.status !== 0) throw new Error(`hearth tokenizer ${args.join(" ")}: ${r.stderr}`);
  return r.stdout.toString();
}
const numbers = (line) => (line === "" ? [] : line.split(" ").map(Number));
const encodeWhole = (file, bytes, ...more) =>
  numbers(command(["encode", "--raw", "--tokenizer", file, ...more], bytes).trimEnd());
function encodeAll(file, list, ...more) {
  const length = (b) => { const n = Buffer.alloc(4); n.writeUInt32LE(b.length); return n; };
  const input = Buffer.concat(list.flatMap((b) => [length(b), b]));
  return command(["encode", "--records", "--tokenizer", file, ...more], input).split("\n").map(numbers);
}
const equal = (a, b) => a.length === b.length && a.every((x, i) => x === b[i]);
function compare(tokenizer, check, file, list, oracle, ...more) {
  const ours = encodeAll(file, list, ...more);
  let different = 0, tokens = 0, example = "";
  list.forEach((bytes, i) => {
    const theirs = Array.from(oracle(bytes));
    tokens += theirs.length;
    if (equal(ours[i], theirs)) return;
    if (different++ === 0) example = `${bytes.toString("hex")}: ours ${ours[i]}, theirs ${theirs}`;
  });
  report(tokenizer, check, list.length, tokens, different, example);
}
const unpack = (file) => spawnSync("xz", ["-dc", file], { maxBuffer: 1 << 30 }).stdout;
const there = (name) => existsSync(`${data}/${name}`) || existsSync(`${data}/${name}.xz`);
const input = (name) => (existsSync(`${data}/${name}`) ? readFileSync(`${data}/${name}`) : unpack(`${data}/${name}.xz`));

// xorshift32: the same strings every time.
let state = 12345;
function random(n) {
  state ^= state << 13; state ^= state >>> 17; state ^= state << 5;
  return (state >>> 0) % n;
}
const alphabets = ["abc XYZ", " \t\u0085\u00a0\u3000\u2028\r\n", "0123456789½²Ⅷ٣", "'sS'ſ'tT're'RE've'm'LL'll'd ",
  "éßЖжΩǅʰªاक漢字かな한글", "🦙😶‍🌫️👩‍👩‍👧🇩🇪", "!?.,;:-_()[]{}<|>/", "\u0301\u0323\u093f\u200d\ufeff\ufffd\u0000\u2581",
  "\n\n \r\n", "aA", " the and of The IBM's DON'T Hello world's "].map((s) => [...s]);
function randomText() {
  let s = "";
  for (let n = 1 + random(40); n > 0; --n) {
    const kind = random(alphabets.length + 1);
    const c = kind === alphabets.length - 1 ? alphabets[kind].join("").split(/(?= )/)[random(8)]
      : kind < alphabets.length ? alphabets[kind][random(alphabets[kind].length)]
      : String.fromCodePoint(random(4) ? random(0x3000) : random(0x110000));
    for (let k = random(4) ? 1 : 1 + random(5); k > 0; --k) s += c;
  }
  return Buffer.from(s.toWellFormed(), "utf8");
}
function randomBytes() {
  const text = random(2) ? randomText() : Buffer.alloc(0);
  const b = Buffer.alloc(1 + random(60));
  const wide = random(4);
  for (let i = 0; i < b.length; ++i)
    b[i] = wide === 0 ? random(256) : wide === 1 ? 0x20 + random(0x60)
      : wide === 2 ? 0xc0 + random(0x40) * (random(3) > 0) - 0x40 * random(2) : [32, 10, 9, 0xff, 97][random(5)];
  return Buffer.concat([text, b, random(3) ? Buffer.alloc(0) : randomText()]);
}

// Patterns as JavaScript has them, for the words of bytes.
const contraction = "'(?:[sSſtTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])";
const upper = String.raw`[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, lower = String.raw`[\p{Ll}\p{Lm}\p{Lo}\p{M}]`;
const S = String.raw`[\t-\r \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]`;
const spaces = `${S}+(?!${S.replace("[", "[^")})|${S}+`;
const lead = String.raw`[^\r\n\p{L}\p{N}]?`, symbols = String.raw` ?(?:(?!${S})[^\p{L}\p{N}])+`;
const words = {
  gpt2: String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+|${symbols}|${spaces}`,
  cl100k: String.raw`${contraction}|${lead}\p{L}+|\p{N}{1,3}|${symbols}[\r\n]*|${S}+$|${S}*[\r\n]+|${spaces}`,
  llama3: String.raw`${contraction}|${lead}\p{L}+|\p{N}{1,3}|${symbols}[\r\n]*|${S}*[\r\n]+|${spaces}`,
  qwen2: String.raw`${contraction}|${lead}\p{L}+|\p{N}|${symbols}[\r\n]*|${S}*[\r\n]+|${spaces}`,
  o200k: String.raw`${lead}${upper}*${lower}+(?:${contraction})?|${lead}${upper}+${lower}*(?:${contraction})?`
    + String.raw`|\p{N}{1,3}|${symbols}[\r\n/]*|${S}*[\r\n]+|${spaces}`,
};

// A vocabulary by ranks: tiktoken itself, and its rule for bytes.
class Ranks {
  constructor(name, regex, file, nfc = false) {
    Object.assign(this, { name, file, nfc, words: new RegExp(words[name], "gu") });
    this.text = readFileSync(file, "latin1");
    this.tiktoken = new Tiktoken(this.text, {}, regex);
    this.ranks = new Map();
    this.bytes = [];
    for (const line of this.text.split("\n")) {
      if (!line) continue;
      const [token, rank] = line.split(" ");
      this.bytes[Number(rank)] = Buffer.from(token, "base64").toString("latin1");
      this.ranks.set(this.bytes[Number(rank)], Number(rank));
    }
  }
  encode(text) { return Array.from(this.tiktoken.encode(this.nfc ? text.normalize("NFC") : text, [], [])); }
  merge(word) {  // latin1
    if (this.ranks.has(word)) return [this.ranks.get(word)];
    const parts = [...word];
    for (;;) {
      let best = -1, lowest = Infinity;
      for (let i = 0; i + 1 < parts.length; ++i) {
        const rank = this.ranks.get(parts[i] + parts[i + 1]) ?? Infinity;
        if (rank < lowest) [best, lowest] = [i, rank];
      }
      if (best < 0) return parts.map((p) => this.ranks.get(p));
      parts.splice(best, 2, parts[best] + parts[best + 1]);
    }
  }
  encodeBytes(bytes) {
    const stretches = characters(bytes);
    if (stretches.every((s) => s.text !== undefined)) return this.encode(bytes.toString("utf8"));
    const normal = (s) => (s.text === undefined ? s.bytes : Buffer.from(this.nfc ? s.text.normalize("NFC") : s.text));
    const prefix = stretches[0].text === undefined ? Buffer.alloc(0) : normal(stretches[0]);
    const text = prefix.toString("utf8"), ids = text ? this.encode(text) : [];
    const last = text ? this.encode(text.match(this.words).at(-1)).length : 0;
    let kept = ids.length - last;
    const blank = (id) => /^[ \n\t]*$/.test(this.bytes[id]);
    if (last > 0 && blank(ids[kept])) while (kept > 0 && blank(ids[kept - 1])) --kept;
    const rest = ids.slice(kept).map((id) => this.bytes[id]).join("")
      + Buffer.concat(stretches.slice(prefix.length ? 1 : 0).map(normal)).toString("latin1");
    return [...ids.slice(0, kept), ...this.merge(rest)];
  }
}
// Stretches of well-formed UTF-8, and single bytes that are none.
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
function characters(bytes) {
  const list = [];
  const length = (i) => {
    for (let n = 1; n <= 4 && i + n <= bytes.length; ++n)
      try { if ([...strict.decode(bytes.subarray(i, i + n))].length === 1) return n; } catch { /* not yet */ }
    return 0;
  };
  for (let i = 0; i < bytes.length;) {
    let end = i;
    for (let n; end < bytes.length && (n = length(end)) > 0;) end += n;
    if (end > i) list.push({ text: strict.decode(bytes.subarray(i, end)) });
    else list.push({ bytes: bytes.subarray(i, ++end) });
    i = end;
  }
  return list;
}

// Files.
const letterBytes = (() => {
  const back = new Map();
  let next = 256;
  for (let b = 0; b < 256; ++b)
    back.set(String.fromCodePoint((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : next++), b);
  return (letters) => Buffer.from([...letters].map((c) => back.get(c)));
})();
function writeRanks(name, tokens) {
  writeFileSync(`${scratch}/${name}.tiktoken`, tokens.map((t, i) => `${t.toString("base64")} ${i}\n`).join(""));
  return `${scratch}/${name}.tiktoken`;
}
function encoderFile(name) {
  const { bpe_ranks } = JSON.parse(readFileSync(`${modules}/tiktoken/encoders/${name}.json`));
  const tokens = [];
  for (const line of bpe_ranks.split("\n")) {
    const [, first, ...list] = line.split(" ");
    list.forEach((t, i) => { tokens[Number(first) + i] = Buffer.from(t, "base64"); });
  }
  return writeRanks(name, tokens);
}
const qwenDir = `${scratch}/qwen2.5`;
mkdirSync(qwenDir, { recursive: true });
writeFileSync(`${qwenDir}/tokenizer.json`, input("tokenizers/qwen2.5/tokenizer.json"));
const qwen = JSON.parse(readFileSync(`${qwenDir}/tokenizer.json`));
const qwenTokens = [];
for (const [t, id] of Object.entries(qwen.model.vocab)) qwenTokens[id] = letterBytes(t);
const llama3 = (await import(`${modules}/llama3-tokenizer-js/bundle/llama3-tokenizer-with-baked-data.js`)).default;

const classic = (digits) => String.raw`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}${digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`;
const list = [
  new Ranks("gpt2", String.raw`'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s`,
    `${data}/tokenizers/gpt2/r50k_base.tiktoken`),
  new Ranks("cl100k", String.raw`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s`,
    encoderFile("cl100k_base")),
  new Ranks("o200k", JSON.parse(readFileSync(`${modules}/tiktoken/encoders/o200k_base.json`)).pat_str, encoderFile("o200k_base")),
  new Ranks("llama3", classic("{1,3}"), writeRanks("llama3", llama3.vocabById.slice(0, 128000).map(letterBytes))),
  new Ranks("qwen2", classic(""), writeRanks("qwen", qwenTokens), true),
];
list.at(-1).file = qwenDir;  // with its normaliser

const text = input(["text/wikipedia_12mb.txt", "text/stories.txt"].find(there)), whole = text.toString("utf8");
const textFile = `${scratch}/text.txt`;
writeFileSync(textFile, text);
const points = [];
for (let c = 0; c < 0x110000; ++c) {
  if ((c >= 0xd800 && c < 0xe000) || (c >= 0x32000 && c < 0xe0000) || c >= 0xe0200) continue;
  const s = String.fromCodePoint(c);
  points.push(Buffer.from(`x${s}x 1${s}1 ${s}${s} .${s}. ${s}A${s}\n${s}`));
}
for (const ranks of list) {
  const { name, file } = ranks, oracle = (b) => ranks.encode(b.toString("utf8"));
  const start = performance.now(), theirs = ranks.encode(whole);
  const theirSpeed = text.length * 1e-3 / (performance.now() - start);
  const ours = encodeWhole(file, text);
  report(name, "tiktoken, whole text", 1, theirs.length, equal(ours, theirs) ? 0 : 1,
    `token ${theirs.findIndex((x, i) => x !== ours[i])}`);
  compare(name, "tiktoken, code points", file, points, oracle);
  compare(name, "tiktoken, random Unicode", file, Array.from({ length: cases }, randomText), oracle);
  compare(name, "tiktoken's rule for bytes, random bytes", file, Array.from({ length: cases }, randomBytes),
    (b) => ranks.encodeBytes(b));
  const bench = JSON.parse(command(["bench", "--json", "--repeats", "3", "--tokenizer", file, "--input", textFile]));
  keep({ tokenizer: name, check: "speed, MB/s on one core", hearth: bench.value, tiktoken_wasm: theirSpeed });
  console.log(`${name}: ${bench.value.toFixed(1)} MB/s, tiktoken (wasm) ${theirSpeed.toFixed(1)} MB/s`);
}

// Files that hearth writes, as Hugging Face's package reads them. It has JavaScript's regular
// expressions, which see other spaces than Unicode's, so it gets the lines of the text.
const documents = whole.split("<|endoftext|>"), lines = documents.slice(0, 100).flatMap((d) => d.split("\n"));
function hugging(tokenizer, check, dir) {
  const hf = new Tokenizer(JSON.parse(readFileSync(`${dir}/tokenizer.json`)), {});
  compare(tokenizer, check, dir, lines.map((l) => Buffer.from(l)),
    (b) => hf.encode(b.toString("utf8"), { add_special_tokens: false }).ids);
}
for (const { name, file } of list.filter((r) => r.name !== "cl100k")) {  // no \z in JavaScript
  const dir = `${scratch}/trained-${name}`;
  command(["train", "--pattern", name, "--vocab", "8192", "--input", textFile, "--out", dir, "--json"]);
  hugging(name, "Hugging Face, trained and saved, lines of text", dir);
  command(["save", "--tokenizer", file, "--out", `${scratch}/saved-${name}`]);
  hugging(name, "Hugging Face, read and saved, lines of text", `${scratch}/saved-${name}`);
}

// Llama-2's pieces, in the two ways that tokenizer.json has them.
const llama2 = (await import(`${modules}/llama-tokenizer-js/llama-tokenizer.js`)).default;
const mark = "\u2581", replace = (from, to) => ({ type: "Replace", pattern: { String: from }, content: to });
const special = (id) => ({ id, content: llama2.vocabById[id], single_word: false, lstrip: false, rstrip: false, normalized: false, special: true });
const file = (normalizer, pre_tokenizer) => ({
  version: "1.0", truncation: null, padding: null, added_tokens: [0, 1, 2].map(special), normalizer, pre_tokenizer,
  post_processor: { type: "TemplateProcessing",
    single: [{ SpecialToken: { id: "<s>", type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } }],
    pair: [{ SpecialToken: { id: "<s>", type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } },
      { SpecialToken: { id: "<s>", type_id: 1 } }, { Sequence: { id: "B", type_id: 1 } }],
    special_tokens: { "<s>": { id: "<s>", ids: [1], tokens: ["<s>"] } } },
  decoder: { type: "Sequence", decoders: [replace(mark, " "), { type: "ByteFallback" }, { type: "Fuse" },
    { type: "Strip", content: " ", start: 1, stop: 0 }] },
  model: { type: "BPE", dropout: null, unk_token: "<unk>", continuing_subword_prefix: null, end_of_word_suffix: null,
    fuse_unk: true, byte_fallback: true, ignore_merges: false,
    vocab: Object.fromEntries(llama2.vocabById.map((t, i) => [t, i])),
    merges: [...llama2.merges.entries()].sort((a, b) => a[1] - b[1]).map(([pair]) => pair) } });
const variants = {
  "llama2-prepend": file({ type: "Sequence", normalizers: [{ type: "Prepend", prepend: mark }, replace(" ", mark)] }, null),
  "llama2-metaspace": file(null, { type: "Metaspace", replacement: mark, prepend_scheme: "first", split: false }),
};
for (const [name, json] of Object.entries(variants)) {
  const dir = `${scratch}/${name}`;
  mkdirSync(dir, { recursive: true });
  writeFileSync(`${dir}/tokenizer.json`, JSON.stringify(json));
  // Metaspace adds its space only where there is none.
  const leads = (s) => name === "llama2-prepend" || !/^[ \u2581]/.test(s);
  const oracle = (b) => { const s = b.toString("utf8"); return s === "" ? [1] : llama2.encode(s, true, leads(s)); };
  compare(name, "llama-tokenizer-js, documents", dir, documents.map((d) => Buffer.from(d)), oracle, "--template");
  compare(name, "llama-tokenizer-js, random Unicode", dir, Array.from({ length: cases }, randomText), oracle, "--template");
  command(["save", "--tokenizer", dir, "--out", `${scratch}/saved-${name}`]);
  compare(name, "llama-tokenizer-js, saved, random Unicode", `${scratch}/saved-${name}`,
    Array.from({ length: cases / 10 }, randomText), oracle, "--template");
  const bench = JSON.parse(command(["bench", "--json", "--repeats", "3", "--tokenizer", dir, "--input", textFile]));
  keep({ tokenizer: name, check: "speed, MB/s on one core", hearth: bench.value });
  console.log(`${name}: ${bench.value.toFixed(1)} MB/s`);
}
process.exit(failed ? 1 : 0);

// Writes JSONL of any length to standard output, from a text file whose documents are separated by
// <|endoftext|> lines. The documents are repeated, each time with different numbers and words
// inserted, so that neither a compressor nor a tokenizer's cache sees the same line twice.
//   xz -dc wikipedia_12mb.txt.xz > wiki.txt
//   node bench/make_jsonl.mjs wiki.txt 2000000000 | zstd -3 -o corpus.jsonl.zst
import { readFileSync, writeSync } from 'node:fs';

const [file, bytes] = process.argv.slice(2);
const documents = readFileSync(file, 'utf8').split('\n<|endoftext|>\n');
const words = [...new Set(documents.slice(0, 200).join(' ').split(/\s+/))];

let state = 1;
const random = (n) => {  // a linear congruential generator: the same bytes on every machine
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return Math.floor(state / 4294967296 * n);
};

const write = (text) => {
  const data = Buffer.from(text);
  for (let at = 0; at < data.length;) {
    try {
      at += writeSync(1, data, at);
    } catch (e) {
      if (e.code !== 'EAGAIN') throw e;
    }
  }
  return data.length;
};

for (let written = 0, n = 0; written < Number(bytes);) {
  let block = '';
  for (; block.length < 1 << 20; ++n) {
    const text = documents[n % documents.length].split(' ');
    for (let i = random(30); i < text.length; i += 1 + random(30))
      text[i] = random(4) ? words[random(words.length)] : String(random(1000000));
    const row = { text: text.join(' '), id: `<urn:uuid:${n}>`, url: `https://example.org/${n}`,
                  language: 'en', language_score: 0.9 + random(1000) / 10000, token_count: text.length };
    block += JSON.stringify(row) + '\n';
  }
  written += write(block);
}

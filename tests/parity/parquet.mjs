// Parquet files of other writers against hearth: DuckDB (every codec and encoding it has, both page
// versions), hyparquet-writer, parquet-wasm (arrow-rs) and @dsnp/parquetjs, read back by `hearth data
// prepare` with a tokenizer of bytes, must give the very texts that were written.
//   npm i @duckdb/node-api hyparquet-writer parquet-wasm apache-arrow @dsnp/parquetjs   (outside the repository)
//   node tests/parity/parquet.mjs NPM_FOLDER build/hearth SCRATCH_FOLDER
// Prints a line a file and exits 1 if any differs.
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';

const [npm, hearth, scratch] = process.argv.slice(2).map((p) => resolve(p));
const require = createRequire(join(npm, 'package.json'));
rmSync(scratch, { recursive: true, force: true });
mkdirSync(scratch, { recursive: true });

// Nulls, empty, long, of all planes, repeated (dictionaries) and alike (deltas); many row groups.
const texts = [];
let state = 7;
const random = (n) => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) % n;
const words = ['naïve', 'the', '日本語', '😀', 'a\nb', '\u0000', 'ß', '"quoted"', '\\', 'Z'.repeat(50)];
for (let i = 0; i < 30000; ++i) {
  if (i % 11 === 3) texts.push(null);
  else if (i % 13 === 5) texts.push('');
  else if (i % 3 === 0) texts.push(words[random(words.length)]);
  else if (i % 3 === 1) texts.push(`https://example.org/page/${String(i).padStart(8, '0')}`);
  else texts.push(Array.from({ length: random(60) }, () => words[random(words.length)]).join(' '));
}
texts[777] = 'long '.repeat(300000);
const required = texts.map((t) => t ?? 'was null');

// A byte-level tokenizer without merges: ids are bytes in GPT-2's order; decoded here by its vocabulary.
const bytes = [];
for (let b = 0; b < 256; ++b) bytes.push(b);
const printable = (b) => (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
const letters = {};
let next = 256;
for (const b of bytes) letters[b] = String.fromCodePoint(printable(b) ? b : next++);
const vocab = Object.fromEntries(bytes.map((b) => [letters[b], b]));
vocab['<|endoftext|>'] = 256;
mkdirSync(join(scratch, 'tok'));
writeFileSync(join(scratch, 'tok', 'tokenizer.json'), JSON.stringify({
  version: '1.0', added_tokens: [{ id: 256, content: '<|endoftext|>', single_word: false, lstrip: false,
    rstrip: false, normalized: false, special: true }],
  normalizer: null, pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
  post_processor: null, decoder: { type: 'ByteLevel' },
  model: { type: 'BPE', vocab, merges: [] } }));

function readBack(file) {
  const out = join(scratch, 'out');
  rmSync(out, { recursive: true, force: true });
  execFileSync(hearth, ['data', 'prepare', '--tokenizer', join(scratch, 'tok'), '--input', file, '--out', out,
    '--shard-tokens', '100000000'], { stdio: ['ignore', 'ignore', 'pipe'] });
  const shard = readFileSync(join(out, 'train_000001.bin'));
  const ids = new Uint16Array(shard.buffer, shard.byteOffset + 1024, (shard.length - 1024) / 2);
  const found = [];
  let begin = -1;
  for (let i = 0; i <= ids.length; ++i)
    if (i === ids.length || ids[i] === 256) {
      if (begin >= 0) found.push(Buffer.from(ids.subarray(begin, i)).toString('utf8'));
      begin = i + 1;
    }
  return found;
}

let failures = 0, files = 0;
function check(name, file, wanted) {
  const expected = wanted.filter((t) => t !== null && t !== '');
  let verdict = 'equal';
  try {
    const found = readBack(file);
    if (found.length !== expected.length) verdict = `${found.length} texts instead of ${expected.length}`;
    const at = found.findIndex((t, i) => t !== expected[i]);
    if (at >= 0) verdict = `text ${at} differs`;
  } catch (e) {
    verdict = String(e.stderr ?? e).trim();
  }
  ++files;
  failures += verdict !== 'equal';
  console.log(`${name}: ${expected.length} texts, ${verdict}`);
}

// ---- DuckDB -----------------------------------------------------------------------------------
const { DuckDBInstance } = require('@duckdb/node-api');
const db = await (await DuckDBInstance.create(':memory:')).connect();
writeFileSync(join(scratch, 'in.json'), texts.map((text, id) => JSON.stringify({ id, text })).join('\n'));
await db.run(`create table t as select * from read_json('${join(scratch, 'in.json')}',
  format='newline_delimited', columns={id:'BIGINT', text:'VARCHAR'}, maximum_object_size=100000000) order by id`);
const version = (await (await db.run('select version() as v')).getRows())[0][0];
const few = texts.map((t, i) => (t === null ? null : words[i % 4]));  // DuckDB makes dictionaries of these
await db.run(`create table f as select id, case when text is null then null
  else ['${words.slice(0, 4).join("','")}'][1 + id % 4] end as text from t`);
for (const codec of ['uncompressed', 'snappy', 'gzip', 'zstd'])
  for (const pages of ['v1', 'v2'])
    for (const [source, wanted] of [['t', texts], ['f', few]]) {
      const file = join(scratch, `duckdb-${codec}-${pages}-${source}.parquet`);
      await db.run(`copy (select * from ${source} order by id) to '${file}' (format parquet, codec '${codec}',
        parquet_version ${pages}, row_group_size 5000)`);
      const encodings = await (await db.run(`select distinct encodings from parquet_metadata('${file}')
        where path_in_schema = 'text'`)).getRows();
      check(`duckdb ${version} ${codec} ${pages} [${encodings.flat().join('; ')}]`, file, wanted);
    }

// ---- hyparquet-writer -------------------------------------------------------------------------
const { parquetWriteBuffer } = await import(join(npm, 'node_modules/hyparquet-writer/src/index.js'));
for (const codec of ['UNCOMPRESSED', 'SNAPPY'])
  for (const [kind, data] of [['optional', texts], ['required', required]])
    for (const encoding of [undefined, 'PLAIN', 'DELTA_LENGTH_BYTE_ARRAY', 'DELTA_BYTE_ARRAY']) {
      const file = join(scratch, `hyparquet-${codec}-${kind}-${encoding}.parquet`);
      try {
        writeFileSync(file, Buffer.from(parquetWriteBuffer({
          codec, rowGroupSize: 4000,
          columnData: [{ name: 'text', data, type: 'STRING', nullable: kind === 'optional', encoding }] })));
      } catch (e) {
        console.log(`hyparquet-writer ${codec} ${kind} ${encoding}: not written (${e.message})`);
        continue;
      }
      check(`hyparquet-writer ${codec} ${kind} ${encoding ?? 'default'}`, file, data);
    }

// ---- parquet-wasm: arrow-rs -------------------------------------------------------------------
const arrow = require('apache-arrow');
const wasm = require('parquet-wasm');
const ipc = arrow.tableToIPC(arrow.tableFromArrays({ text: texts }), 'stream');
for (const codec of ['UNCOMPRESSED', 'SNAPPY', 'GZIP', 'ZSTD'])
  for (const pages of [1, 2])
    for (const encoding of ['PLAIN', 'RLE_DICTIONARY', 'DELTA_LENGTH_BYTE_ARRAY', 'DELTA_BYTE_ARRAY']) {
      const file = join(scratch, `wasm-${codec}-${pages}-${encoding}.parquet`);
      let builder = new wasm.WriterPropertiesBuilder()
        .setCompression(wasm.Compression[codec])
        .setWriterVersion(pages === 1 ? wasm.WriterVersion.V1 : wasm.WriterVersion.V2)
        .setMaxRowGroupSize(7000).setDataPageSizeLimit(20000);
      builder = encoding === 'RLE_DICTIONARY' ? builder.setDictionaryEnabled(true)
        : builder.setDictionaryEnabled(false).setEncoding(wasm.Encoding[encoding]);
      writeFileSync(file, wasm.writeParquet(wasm.Table.fromIPCStream(ipc), builder.build()));
      check(`parquet-wasm ${codec} v${pages} ${encoding}`, file, texts);
    }

// ---- parquetjs --------------------------------------------------------------------------------
const parquetjs = require('@dsnp/parquetjs');
for (const compression of ['UNCOMPRESSED', 'SNAPPY', 'GZIP'])
  for (const useDataPageV2 of [false, true]) {
    const file = join(scratch, `parquetjs-${compression}-${useDataPageV2}.parquet`);
    const schema = new parquetjs.ParquetSchema({ text: { type: 'UTF8', optional: true, compression } });
    const writer = await parquetjs.ParquetWriter.openFile(schema, file, { useDataPageV2, rowGroupSize: 3000 });
    for (const text of texts) await writer.appendRow(text === null ? {} : { text });
    await writer.close();
    check(`parquetjs ${compression} v${useDataPageV2 ? 2 : 1}`, file, texts);
  }

console.log(`${files} files, ${failures} differ`);
process.exit(failures ? 1 : 0);

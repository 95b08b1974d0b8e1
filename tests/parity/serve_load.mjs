// Load on hearth serve: streams, whole answers, cancels, malformed bodies and slow readers, mixed,
// from 200 clients at once. Prints counts, latencies and the server's memory before and after. Exits 1 if a stream
// was cut, a request that must succeed failed, or cache blocks stayed in use; it judges no time.
//   hearth serve --model DIR --port 8123 --batch 200 --queue 1000 --cache-gib 0.05
//   (a cache this small is soon touched whole, so that what memory grows by is the server's)
//   node tests/parity/serve_load.mjs 8123 SECONDS [CLIENTS] > tests/parity/results/serve_load.json
import http from 'node:http';
import net from 'node:net';

const [port = '8123', seconds = '30', width = '200'] = process.argv.slice(2);
const agent = new http.Agent({ keepAlive: true, maxSockets: 1000 });
const end = () => Date.now() + Number(seconds) * 1000;
const counts = {}, gaps = [], firsts = [];
const count = (what) => { counts[what] = (counts[what] ?? 0) + 1; };
let state = 12345;
const random = (n) => { state ^= state << 13; state ^= state >>> 17; state ^= state << 5; return (state >>> 0) % n; };

function post(path, body, { leaveAfter } = {}) {
  return new Promise((done) => {
    const begin = performance.now();
    let last = 0;
    const r = http.request({ port, path, method: 'POST', agent, headers: { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) } }, (answer) => {
      let text = '', bytes = 0;
      answer.on('data', (d) => {
        const now = performance.now();
        if (path.includes('completions') && body.includes('"stream":true')) (last ? gaps : firsts).push(now - (last || begin));
        last = now;
        bytes += d.length;
        if (text.length < 1e5) text += d;
        if (leaveAfter && bytes > leaveAfter) { r.destroy(); done('left'); }
      });
      answer.on('end', () => done(answer.statusCode === 200 && body.includes('"stream":true') && !text.includes('[DONE]') ? 'cut' : answer.statusCode));
      answer.on('error', () => done('left'));
    });
    r.on('error', (e) => done(leaveAfter ? 'left' : `error ${e.code}`));
    if (leaveAfter === 0) setTimeout(() => { r.destroy(); done('left'); }, random(30));
    r.end(body);
  });
}
function raw(bytes) {
  return new Promise((done) => {
    const s = net.connect(Number(port), '127.0.0.1', () => s.write(bytes));
    let text = '';
    s.on('data', (d) => { text += d; });
    s.on('error', () => done('reset'));
    s.on('close', () => done(text.slice(9, 12) || 'closed'));
    s.setTimeout(5000, () => s.destroy());
  });
}
const good = { prompt: 'Once upon a time', max_tokens: 24, ignore_eos: true };
const text = JSON.stringify(good);
function damaged() {
  const b = Buffer.from(JSON.stringify({ ...good, n: 2, stop: ['x'], messages: [{ role: 'user', content: 'a' }] }));
  for (let i = 0; i <= random(4); ++i) b[random(b.length)] = random(256);
  return b.toString('latin1');
}
const kinds = [
  ['stream', () => post('/v1/completions', JSON.stringify({ ...good, stream: true, max_tokens: 16 + random(64) }))],
  ['stream', () => post('/v1/chat/completions', JSON.stringify({ messages: [{ role: 'user', content: 'hi' }], max_tokens: 24, stream: true }))],
  ['whole', () => post('/v1/completions', JSON.stringify({ ...good, n: 1 + random(4), logprobs: random(5) }))],
  ['leaves stream', () => post('/v1/completions', JSON.stringify({ ...good, stream: true, n: 4, max_tokens: 60 }), { leaveAfter: 1 + random(3000) })],
  ['leaves waiting', () => post('/v1/completions', JSON.stringify({ ...good, n: 4, max_tokens: 60 }), { leaveAfter: 0 })],
  ['malformed body', () => post(random(2) ? '/v1/completions' : '/v1/chat/completions', damaged())],
  ['malformed head', () => raw(Buffer.from([...Array(1 + random(200))].map(() => random(256))).toString('latin1') + '\r\n\r\n')],
  ['cut head', () => raw(`POST /v1/completions HTTP/1.1\r\nContent-Length: ${text.length + 5}\r\nConnection: close\r\n\r\n${text.slice(0, random(text.length))}`)],
];
const get = (path) => new Promise((done) => http.get({ port, path, agent }, (a) => { let t = ''; a.on('data', (d) => { t += d; }); a.on('end', () => done(t)); }));
const gauge = async (name) => Number((await get('/metrics')).match(new RegExp(`^${name}(?:\\{\\S*\\})? (\\S+)$`, 'm'))[1]);
async function phase(kindsOf, until) {
  await Promise.all([...Array(Number(width))].map(async () => {
    while (Date.now() < until) {
      const [name, f] = kindsOf[random(kindsOf.length)];
      count(`${name}: ${await f()}`);
    }
  }));
}
const percentile = (a, p) => (a.sort((x, y) => x - y), Number((a[Math.floor((a.length - 1) * p)] ?? 0).toFixed(2)));
// A request that was left may begin late: the end is when no block was in use for ten looks.
const settle = async () => { for (let i = 0, free = 0; i < 1000 && free < 10; ++i) {
  free = (await gauge('hearth:kv_blocks_used')) > 0 ? 0 : free + 1;
  await new Promise((d) => setTimeout(d, 20));
} };

await phase(kinds, Date.now() + 5000);  // memory that is taken once is taken
await settle();
const before = await gauge('process_resident_memory_bytes');
gaps.length = firsts.length = 0;
for (const k of Object.keys(counts)) delete counts[k];
await phase(kinds, end());
await settle();
const mixed = { counts: { ...counts }, rss_before: before, rss_after: await gauge('process_resident_memory_bytes'), kv_blocks_used: await gauge('hearth:kv_blocks_used') };
for (const k of Object.keys(counts)) delete counts[k];
gaps.length = firsts.length = 0;
await phase(kinds.slice(0, 1), end());
await settle();
const left = await gauge('hearth:kv_blocks_used');
console.log(JSON.stringify({
  clients: Number(width), seconds: Number(seconds), mixed,
  streams: { counts, first_ms: { p50: percentile(firsts, 0.5), p99: percentile(firsts, 0.99) }, between_ms: { p50: percentile(gaps, 0.5), p99: percentile(gaps, 0.99) },
    rss_after: await gauge('process_resident_memory_bytes'), kv_blocks_used: left },
}, null, 1));
// What each kind of request may come to.
const allowed = { stream: [200], whole: [200], 'leaves stream': ['left', 200], 'leaves waiting': ['left', 200],
  'malformed body': [200, 400], 'malformed head': [400, 403, 404, 405], 'cut head': ['closed', 'reset', 400] };
const wrong = [...Object.keys(mixed.counts), ...Object.keys(counts)].filter((what) => {
  const [kind, outcome] = what.split(': ');
  return !allowed[kind].some((a) => String(a) === outcome);
});
for (const kind of Object.keys(allowed))
  if (!Object.keys(mixed.counts).some((what) => what.startsWith(`${kind}: `))) wrong.push(`${kind}: never sent`);
if (mixed.kv_blocks_used + left > 0) wrong.push('cache blocks in use after the last request');
if (wrong.length) console.error(`serve_load: unexpected: ${wrong.join('; ')}`);
process.exit(wrong.length ? 1 : 0);

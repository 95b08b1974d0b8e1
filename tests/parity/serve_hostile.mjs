// Hostile requests to hearth serve, and how long /health takes meanwhile, measured by a process of
// its own. First 8 clients post chats of 4 MiB at once, then COUNT requests are malformed, cut off,
// slow, half-closed, oversized, pipelined, wrongly encoded or abandoned, 64 at a time. Prints what
// they got, the latencies, and what the server still holds afterwards. Loopback only. Exits 1 if /health
// failed, a request timed out or got a 5xx, or the server held something back afterwards; it judges no time.
//   hearth serve --model DIR --port 8123 --header-seconds 3 --body-seconds 3
//   node tests/parity/serve_hostile.mjs 8123 [COUNT=20000] [CHAT_SECONDS=20]
import { fork } from 'node:child_process';
import http from 'node:http';
import net from 'node:net';

const [port = '8123', count = '20000', chatSeconds = '20', role] = process.argv.slice(2);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const percentile = (a, p) => Number((a[Math.floor((a.length - 1) * p)] ?? 0).toFixed(2));

// --- the prober, a process of its own: one question every 10 ms on a connection that stays ---
async function probe() {
  const agent = new http.Agent({ keepAlive: true });
  const times = [];
  let going = true, bad = 0;
  process.on('message', () => { going = false; });
  while (going) {
    const begin = performance.now();
    await new Promise((done) => {
      const r = http.get({ port, path: '/health', agent }, (a) => { a.resume(); a.on('end', () => { if (a.statusCode !== 200) ++bad; done(); }); });
      r.on('error', () => { ++bad; done(); });
    });
    times.push(performance.now() - begin);
    await sleep(10);
  }
  times.sort((x, y) => x - y);
  process.send({ asked: times.length, not_200: bad, p50_ms: percentile(times, 0.5), p99_ms: percentile(times, 0.99), max_ms: percentile(times, 1) });
  process.exit(0);
}
async function during(attack) {
  const child = fork(process.argv[1], [port, count, chatSeconds, 'probe']);
  await sleep(300);
  const begin = Date.now(), outcome = await attack();
  child.send('stop');
  const health = await new Promise((done) => child.on('message', done));
  return { seconds: (Date.now() - begin) / 1000, ...outcome, health };
}

// --- the attack ---
let state = 20261116;
const random = (n) => { state ^= state << 13; state ^= state >>> 17; state ^= state << 5; return (state >>> 0) % n; };
// Sends pieces with pauses between them, then closes its half, leaves, or waits for the end.
function raw(pieces, { pause = 0, half = false, leave = -1, reset = false } = {}) {
  return new Promise((done) => {
    let text = '';
    const s = net.connect({ port: Number(port), host: '127.0.0.1', allowHalfOpen: true }, async () => {
      for (const p of pieces) {
        if (s.destroyed) return;
        s.write(p, 'latin1');
        if (pause) await sleep(pause);
      }
      if (half) s.end();
      if (leave >= 0) setTimeout(() => { reset ? s.resetAndDestroy() : s.destroy(); done('left'); }, leave);
    });
    s.on('data', (d) => { if (text.length < 512) text += d.toString('latin1'); });
    s.on('end', () => { s.end(); });
    const status = () => text.replace(/^(HTTP\/1.1 100 Continue\r\n\r\n)+/, '').slice(9, 12);
    s.on('error', () => done(status() || 'reset'));
    s.on('close', () => done(status() || 'closed'));
    s.setTimeout(20000, () => { s.destroy(); done('timeout'); });
  });
}
const json = 'Host: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n';
const post = (path, body, headers = json) => `POST ${path} HTTP/1.1\r\n${headers}Content-Length: ${Buffer.byteLength(body, 'latin1')}\r\n\r\n${body}`;
const good = JSON.stringify({ prompt: 'Once upon a time', max_tokens: 8, ignore_eos: true });
const paths = ['/v1/completions', '/v1/chat/completions', '/tokenize', '/detokenize'];
const bytes = (n) => [...Array(n)].map(() => String.fromCharCode(random(256))).join('');
function damaged(text) {
  const b = Buffer.from(text, 'latin1');
  for (let i = 0; i <= random(4); ++i) b[random(b.length)] = random(256);
  return b.toString('latin1');
}
const long = 'a'.repeat(200000);
const kinds = {
  'random bytes': () => raw([`${bytes(1 + random(300))}\r\n\r\n`], { half: true }),
  'damaged head': () => raw([damaged(post(paths[random(4)], good))], { half: true }),
  'damaged body': () => raw([post(paths[random(4)], damaged(good))]),
  'deep body': () => raw([post(paths[random(4)], '['.repeat(5000 + random(50000)))]),
  'many values': () => raw([post(paths[random(4)], `{"prompt":[${'[],'.repeat(30000)}[]],"messages":[${'{},'.repeat(20000)}{}],"tokens":[${'1,'.repeat(50000)}1]}`)]),
  'long text': () => raw([post(random(2) ? '/tokenize' : '/v1/completions', `{"prompt":"${long}"}`)]),
  'giant header': () => raw([`GET /health HTTP/1.1\r\nHost: localhost\r\nX: ${'x'.repeat(20000 + random(100000))}\r\n\r\n`]),
  'many headers': () => raw([`GET /health HTTP/1.1\r\nHost: localhost\r\n${'X: y\r\n'.repeat(random(4000))}Connection: close\r\n\r\n`]),
  'giant length': () => raw([`POST /v1/completions HTTP/1.1\r\n${json}Content-Length: ${4194305 + random(1e9)}\r\n\r\n${good}`]),
  'two framings': () => raw([`POST /tokenize HTTP/1.1\r\n${json}${['Transfer-Encoding: gzip, chunked', 'Transfer-Encoding: chunked, identity', 'Transfer-Encoding: chunked\r\nContent-Length: 4', 'Content-Length: 4\r\nContent-Length: 5', 'Transfer-Encoding: gzip'][random(5)]}\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET /health HTTP/1.1\r\n\r\n`]),
  'wrong chunks': () => raw([`POST /tokenize HTTP/1.1\r\n${json}Transfer-Encoding: chunked\r\n\r\n${['zz', 'ffffffffffffffff', '-1', '5;' + 'e'.repeat(random(30000))][random(4)]}\r\n${good}`], { half: true }),
  'wrong type': () => raw([post('/v1/completions', good, 'Host: localhost\r\nConnection: close\r\nContent-Type: text/plain\r\n')]),
  'foreign page': () => raw([post('/v1/completions', good, `${json.replace('localhost', random(2) ? 'evil.example' : 'localhost')}Origin: https://evil.example\r\n`)]),
  'slow head': () => raw([...`GET /health HTTP/1.1\r\nHost: localhost\r\nX: ${'y'.repeat(10)}`], { pause: 60, leave: 0 }),
  'slow body': () => raw([`POST /v1/completions HTTP/1.1\r\n${json}Content-Length: ${good.length}\r\n\r\n`, ...good.match(/.{1,8}/g)], { pause: 100 }),
  'cut body': () => raw([post('/v1/completions', good).slice(0, -1 - random(good.length - 1))], { half: true }),
  'half-closed': () => raw([post('/v1/completions', good)], { half: true }),
  'pipelined': () => raw([`GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n`.repeat(1 + random(50)) + post('/v1/completions', good)]),
  'leaves at once': () => raw([post('/v1/completions', JSON.stringify({ prompt: 'a', max_tokens: 200, n: 4, ignore_eos: true, stream: random(2) === 1 }))], { leave: random(30), reset: random(2) === 1 }),
  'leaves a long body': () => raw([post('/v1/chat/completions', `{"messages":[{"role":"user","content":"${long}"}]}`)], { leave: random(10), reset: random(2) === 1 }),
  'connects only': () => raw([], { leave: random(200) }),
};
async function hostile() {
  const counts = {}, names = Object.keys(kinds);
  let sent = 0;
  await Promise.all([...Array(64)].map(async () => {
    while (sent < Number(count)) {
      const name = names[sent++ % names.length];
      const what = `${name}: ${await kinds[name]()}`;
      counts[what] = (counts[what] ?? 0) + 1;
    }
  }));
  return { requests: sent, counts: Object.fromEntries(Object.entries(counts).sort()) };
}
async function chats() {
  const body = JSON.stringify({ messages: [{ role: 'user', content: 'Once upon a time, there was. '.repeat(1 << 17).slice(0, (4 << 20) - 200) }], max_tokens: 4 });
  const tokenize = JSON.stringify({ prompt: 'Once upon a time, there was. '.repeat(1 << 17).slice(0, 1 << 20) });
  const counts = {}, until = Date.now() + Number(chatSeconds) * 1000;
  await Promise.all([...Array(8)].map(async (_, i) => {
    for (let round = i; Date.now() < until; ++round) {
      const [path, text] = round % 4 === 3 ? ['/tokenize', tokenize] : ['/v1/chat/completions', body];
      const what = `${path} ${await raw([post(path, text)])}`;
      counts[what] = (counts[what] ?? 0) + 1;
    }
  }));
  return { clients: 8, body_bytes: body.length, counts };
}
const get = (path) => new Promise((done, fail) => http.get({ port, path }, (a) => { let t = ''; a.on('data', (d) => { t += d; }); a.on('end', () => done(t)); }).on('error', fail));
const gauge = async (name) => Number((await get('/metrics')).match(new RegExp(`^${name}(?:\\{\\S*\\})? (\\S+)$`, 'm'))?.[1] ?? 0);

if (role === 'probe') {
  await probe();
} else {
  const idle = await during(() => sleep(3000).then(() => ({})));
  const before = await gauge('process_resident_memory_bytes');
  const large = await during(chats), attack = await during(hostile);
  // A request that was left may begin late: the end is when nothing was held for ten looks.
  const settle = async () => { for (let i = 0, free = 0; i < 1000 && free < 10; ++i) {
    free = (await gauge('hearth:kv_blocks_used')) + (await gauge('hearth:pending_body_bytes')) > 0 ? 0 : free + 1;
    await sleep(20);
  } };
  await settle();
  const answer = JSON.parse(await new Promise((done) => http.request({ port, path: '/v1/completions', method: 'POST', headers: { 'Content-Type': 'application/json' } }, (a) => { let t = ''; a.on('data', (d) => { t += d; }); a.on('end', () => done(t)); }).end(good)));
  await settle();
  const after = {
    kv_blocks_used: await gauge('hearth:kv_blocks_used'), pending_body_bytes: await gauge('hearth:pending_body_bytes'), connections: await gauge('hearth:connections'),
    rss_before: before, rss_after: await gauge('process_resident_memory_bytes'), completion_tokens: answer.usage.completion_tokens };
  console.log(JSON.stringify({ idle, chats_of_4_MiB: large, hostile: attack, after }, null, 1));
  const wrong = Object.keys({ ...large.counts, ...attack.counts }).filter((what) => /(timeout|5\d\d)$/.test(what));
  for (const [when, { health }] of Object.entries({ idle, large, attack }))
    if (health.not_200 || !health.asked) wrong.push(`/health ${when}: ${health.not_200} of ${health.asked} not 200`);
  if (after.kv_blocks_used + after.pending_body_bytes > 0) wrong.push('blocks or bodies held afterwards');
  if (after.completion_tokens !== 8) wrong.push(`${after.completion_tokens} tokens afterwards instead of 8`);
  if (wrong.length) console.error(`serve_hostile: unexpected: ${wrong.join('; ')}`);
  process.exit(wrong.length ? 1 : 0);
}

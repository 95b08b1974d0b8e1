// Whether the time of a 401 tells how much of the key was right: wrong at the first digit, wrong at the last, and
// right, in turn, on one connection. Prints medians and Welch's t of first against last (beyond 4.5 would tell).
//   hearth serve --model DIR --port 8123 --api-key 0123456789abcdef0123456789abcdef
//   node tests/parity/serve_key_time.mjs 8123 20000 > tests/parity/results/serve_key_time.json
import net from 'node:net';

const [port = '8123', rounds = '20000', key = '0123456789abcdef0123456789abcdef'] = process.argv.slice(2);
const keys = { first: 'x' + key.slice(1), last: key.slice(0, -1) + 'x', right: key };
const socket = net.connect(Number(port), '127.0.0.1');
socket.setNoDelay(true);
let held = '', wake = () => {};
socket.on('data', (d) => { held += d; wake(); });
socket.on('close', () => { console.error('serve_key_time: the server closed the connection'); process.exit(1); });
async function ask(given) {
  const begin = process.hrtime.bigint();
  socket.write(`GET /v1/models/none HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${given}\r\n\r\n`);
  for (;;) {
    const head = held.indexOf('\r\n\r\n');
    const length = head < 0 ? 0 : Number(/content-length: (\d+)/i.exec(held)[1]);
    if (head >= 0 && held.length >= head + 4 + length) {
      const took = Number(process.hrtime.bigint() - begin) / 1000, status = Number(held.slice(9, 12));
      held = held.slice(head + 4 + length);
      return [status, took];
    }
    await new Promise((done) => { wake = done; });
  }
}
const times = { first: [], last: [], right: [] }, statuses = {};
for (let i = 0; i < Number(rounds); ++i)
  for (const name of Object.keys(keys).sort(() => Math.random() - 0.5)) {
    const [status, took] = await ask(keys[name]);
    statuses[`${name}: ${status}`] = (statuses[`${name}: ${status}`] ?? 0) + 1;
    times[name].push(took);
  }
// The slowest twentieth is the machine's, not the server's.
const kept = (a) => a.sort((x, y) => x - y).slice(0, Math.floor(a.length * 0.95));
const mean = (a) => a.reduce((x, y) => x + y, 0) / a.length;
const variance = (a, m) => a.reduce((x, y) => x + (y - m) ** 2, 0) / (a.length - 1);
const [f, l] = [kept(times.first), kept(times.last)], [mf, ml] = [mean(f), mean(l)];
const t = (mf - ml) / Math.sqrt(variance(f, mf) / f.length + variance(l, ml) / l.length);
console.log(JSON.stringify({
  rounds: Number(rounds), statuses, t: Number(t.toFixed(2)),
  median_us: Object.fromEntries(Object.entries(times).map(([k, a]) => [k, Number(a[a.length >> 1].toFixed(2))])),
  mean_us: { first: Number(mf.toFixed(3)), last: Number(ml.toFixed(3)) } }));
process.exit(0);

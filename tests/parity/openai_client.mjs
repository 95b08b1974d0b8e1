// hearth serve against OpenAI's own client, version 6: every call a program would make.
//   npm install --prefix /tmp/openai openai@6
//   hearth serve --model DIR --port 8123 --name m --api-key sk-test
//   NODE_PATH is not read for modules, so run it from there:
//   cp tests/parity/openai_client.mjs /tmp/openai && node /tmp/openai/openai_client.mjs 8123 sk-test > \
//     tests/parity/results/openai_client.json
import OpenAI, { APIError, AuthenticationError, BadRequestError, NotFoundError } from 'openai';
import { VERSION } from 'openai/version';
import assert from 'node:assert/strict';

const [port = '8123', apiKey = 'sk-test'] = process.argv.slice(2);
const base = `http://127.0.0.1:${port}`;
const client = new OpenAI({ apiKey, baseURL: `${base}/v1`, maxRetries: 0 });
const model = 'm';
const messages = [{ role: 'user', content: 'Once upon a time' }];
const results = [];

async function check(name, f) {
  try {
    results.push({ name, ok: true, saw: await f() });
  } catch (e) {
    results.push({ name, ok: false, error: String(e).slice(0, 300) });
  }
}
async function gather(stream) {
  const chunks = [];
  for await (const c of stream) chunks.push(c);
  return chunks;
}
async function refused(type, status, f) {
  const e = await f().then(() => null, (error) => error);
  assert.ok(e instanceof type, `expected ${type.name}, got ${e}`);
  assert.equal(e.status, status);
  assert.ok(e.error.message && e.error.type && e.error.code);
  return `${e.status} ${e.code}`;
}
const used = async () => {
  const text = await (await fetch(`${base}/metrics`, { headers: { Authorization: `Bearer ${apiKey}` } })).text();
  return Number(text.match(/^hearth:kv_blocks_used\S* (\d+)$/m)[1]);
};

await check('models.list', async () => {
  const page = await client.models.list();
  assert.equal(page.data[0].id, model);
  assert.equal((await client.models.retrieve(model)).id, model);
});
await check('completions', async () => {
  const r = await client.completions.create({ model, prompt: 'Once', max_tokens: 8, temperature: 0 });
  assert.equal(r.object, 'text_completion');
  assert.equal(r.usage.completion_tokens, 8);
  assert.equal(r.choices[0].finish_reason, 'length');
  return r.choices[0].text;
});
await check('completions streamed equal completions', async () => {
  const ask = { model, prompt: ['Once', 'The cat'], max_tokens: 12, seed: 7, n: 2 };
  const whole = await client.completions.create(ask);
  const chunks = await gather(await client.completions.create({ ...ask, stream: true }));
  assert.equal(whole.choices.length, 4);
  for (const c of whole.choices) {
    const text = chunks.flatMap((k) => k.choices).filter((k) => k.index === c.index).map((k) => k.text).join('');
    assert.equal(text, c.text);
  }
  return chunks.length;
});
await check('token ids and lists of them', async () => {
  const { tokens } = await client.post('/../tokenize', { body: { prompt: 'Once upon' } });
  const byText = await client.completions.create({ model, prompt: 'Once upon', max_tokens: 6, temperature: 0 });
  const byIds = await client.completions.create({ model, prompt: tokens, max_tokens: 6, temperature: 0 });
  const byLists = await client.completions.create({ model, prompt: [tokens, tokens], max_tokens: 6, temperature: 0 });
  assert.equal(byIds.choices[0].text, byText.choices[0].text);
  assert.equal(byLists.choices[1].text, byText.choices[0].text);
  assert.equal((await client.post('/../detokenize', { body: { tokens } })).prompt, 'Once upon');
});
await check('echo with logprobs, as lm-evaluation-harness scores', async () => {
  const { tokens } = await client.post('/../tokenize', { body: { prompt: 'Once upon a time there was' } });
  const r = await client.completions.create({ model, prompt: [tokens], max_tokens: 1, logprobs: 1, echo: true, temperature: 0, seed: 1234 });
  const l = r.choices[0].logprobs;
  assert.equal(l.token_logprobs.length, tokens.length + 1);
  assert.equal(l.token_logprobs[0], null);
  assert.equal(l.top_logprobs[0], null);
  let greedy = 0;
  l.token_logprobs.slice(1).forEach((p, i) => {
    const top = Math.max(...Object.values(l.top_logprobs[i + 1]));
    assert.ok(p <= top);
    greedy += p === top;
  });
  assert.equal(l.token_logprobs.at(-1), Math.max(...Object.values(l.top_logprobs.at(-1))));
  assert.ok(r.choices[0].text.startsWith('Once upon a time there was'));
  return { greedy, of: tokens.length };
});
await check('seed', async () => {
  const ask = (seed) => client.completions.create({ model, prompt: 'Once', max_tokens: 24, seed, temperature: 1.5 }).then((r) => r.choices[0].text);
  assert.equal(await ask(1), await ask(1));
  assert.notEqual(await ask(1), await ask(2));
});
await check('stop', async () => {
  const ask = { model, prompt: 'Once', max_tokens: 40, temperature: 0 };
  const { text } = (await client.completions.create(ask)).choices[0];
  const stop = text.slice(10, 14);
  const cut = (await client.completions.create({ ...ask, stop: [stop, 'never there'] })).choices[0];
  assert.equal(cut.text, text.slice(0, text.indexOf(stop)));
  assert.equal(cut.finish_reason, 'stop');
});
await check('chat', async () => {
  const r = await client.chat.completions.create({ model, messages, max_completion_tokens: 10, seed: 3, logprobs: true, top_logprobs: 3, n: 2 });
  assert.equal(r.object, 'chat.completion');
  assert.equal(r.choices.length, 2);
  assert.equal(r.choices[0].message.role, 'assistant');
  const [first] = r.choices[0].logprobs.content;
  assert.equal(first.top_logprobs.length, 3);
  assert.deepEqual(first.bytes, [...Buffer.from(first.token)]);
  return r.usage;
});
await check('chat streamed with usage', async () => {
  const ask = { model, messages, max_completion_tokens: 20, seed: 3 };
  const whole = await client.chat.completions.create(ask);
  const chunks = await gather(await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } }));
  assert.equal(chunks[0].choices[0].delta.role, 'assistant');
  assert.equal(chunks.map((c) => c.choices[0]?.delta.content ?? '').join(''), whole.choices[0].message.content);
  assert.equal(chunks.at(-2).choices[0].finish_reason, whole.choices[0].finish_reason);
  assert.deepEqual(chunks.at(-1).usage, whole.usage);
  assert.equal(chunks[0].usage, null);
});
await check('chat stream helper', async () => {
  const runner = client.chat.completions.stream({ model, messages, max_completion_tokens: 8, seed: 1 });
  assert.equal(typeof (await runner.finalContent()), 'string');
});
await check('response_format', async () => {
  const schema = { type: 'object', properties: { ok: { type: 'boolean' }, n: { type: 'integer', minimum: 0, maximum: 99 } },
    required: ['ok', 'n'], additionalProperties: false };
  const r = await client.chat.completions.create({ model, messages, max_tokens: 60,
    response_format: { type: 'json_schema', json_schema: { name: 's', strict: true, schema } } });
  const value = JSON.parse(r.choices[0].message.content);
  assert.equal(typeof value.ok, 'boolean');
  assert.ok(Number.isInteger(value.n));
});
await check('errors', async () => ({
  key: await refused(AuthenticationError, 401, () => new OpenAI({ apiKey: 'no', baseURL: `${base}/v1`, maxRetries: 0 }).models.list()),
  model: await refused(NotFoundError, 404, () => client.completions.create({ model: 'other', prompt: 'x' })),
  route: await refused(NotFoundError, 404, () => client.embeddings.create({ model, input: 'x' })),
  range: await refused(BadRequestError, 400, () => client.completions.create({ model, prompt: 'x', temperature: 9 })),
  context: await refused(BadRequestError, 400, () => client.completions.create({ model, prompt: 'x', max_tokens: 60000 })),
  tools: await refused(BadRequestError, 400, () => client.chat.completions.create({ model, messages, tools: [{ type: 'function', function: { name: 'f' } }] })),
  format: await refused(BadRequestError, 400, () => client.chat.completions.create({ model, messages, response_format: { type: 'json_schema', json_schema: { name: 's', schema: { not: {} } } } })),
}));
await check('abort while streaming and while waiting', async () => {
  const ask = { model, prompt: 'Once', max_tokens: 100, n: 16, ignore_eos: true };
  const stream = await client.completions.create({ ...ask, stream: true });
  for await (const _ of stream) break;  // leaves the loop, and so the connection
  const abort = new AbortController();
  const waiting = client.completions.create(ask, { signal: abort.signal });
  setTimeout(() => abort.abort(), 20);
  await waiting.then(() => {}, (e) => assert.ok(e instanceof APIError));
  // The server may begin the second one only after it was left, so one look at no blocks is not the end.
  let free = 0;
  for (let i = 0; i < 500 && free < 10; ++i) {
    free = (await used()) === 0 ? free + 1 : 0;
    await new Promise((done) => setTimeout(done, 20));
  }
  assert.equal(free, 10);
});
await check('sixty-four at once', async () => {
  const all = await Promise.all([...Array(64).keys()].map((seed) =>
    client.completions.create({ model, prompt: 'Once', max_tokens: 16, seed })));
  assert.equal(all.filter((r) => r.choices[0].text.length > 0).length, 64);
  const [alone] = (await client.completions.create({ model, prompt: 'Once', max_tokens: 16, seed: 5 })).choices;
  assert.equal(all[5].choices[0].text, alone.text);
});

console.log(JSON.stringify({ client: `openai ${VERSION}`, passed: results.filter((r) => r.ok).length, of: results.length, results }, null, 1));
process.exitCode = results.every((r) => r.ok) ? 0 : 1;

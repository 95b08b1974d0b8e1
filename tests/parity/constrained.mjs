// 1,000 constrained answers of a served model over 16 JSON schemas: Ajv validates every one of them. Requests go to
// both routes, streamed and whole, greedy and sampled, at several at a time.
//   npm install --prefix /tmp/ajv ajv@8 ajv-formats@3
//   hearth serve --model DIR --name m --port 8123
//   node tests/parity/constrained.mjs /tmp/ajv/node_modules 8123 1000
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const [modules, port, count = '1000'] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const Ajv = require('ajv/dist/2020').default;
const ajv = new Ajv({ strict: false, allErrors: true, multipleOfPrecision: 6 });
require('ajv-formats').default(ajv);

const text = { type: 'string', maxLength: 8 };
const object = (properties, required = Object.keys(properties), more = {}) => ({ type: 'object', properties, required, additionalProperties: false, ...more });
const schemas = {
  person: object({ name: { type: 'string', minLength: 1, maxLength: 10 }, age: { type: 'integer', minimum: 0, maximum: 130 }, member: { type: 'boolean' } }),
  optional: object({ a: text, b: { type: ['integer', 'null'], minimum: -9, maximum: 9 }, c: { type: 'number', exclusiveMinimum: 0, maximum: 1 }, d: text }, ['b']),
  list: { type: 'array', items: { type: 'integer', minimum: -1000, maximum: 25 }, minItems: 2, maxItems: 5 },
  tuple: { type: 'array', prefixItems: [{ type: 'boolean' }, text, { type: 'integer', exclusiveMaximum: 7, minimum: 0 }], items: false, minItems: 3 },
  choice: object({ kind: { enum: ['red', 'green', 'very dark blue', 7, null] }, exact: { const: { k: ['v', 1.5] } } }),
  formats: object({ day: { type: 'string', format: 'date' }, at: { type: 'string', format: 'date-time' }, time: { type: 'string', format: 'time' },
    id: { type: 'string', format: 'uuid' }, ip: { type: 'string', format: 'ipv4' } }),
  mail: object({ mail: { type: 'string', format: 'email' }, code: { type: 'string', pattern: '^[A-Z]{2}-\\d{3,5}$' }, path: { type: 'string', pattern: '^(/[a-z"\\\\]{1,4}){1,3}$' } }),
  union: { oneOf: [object({ type: { const: 'circle' }, r: { type: 'number', minimum: 0 } }), object({ type: { const: 'box' }, w: { type: 'integer', minimum: 1, maximum: 50 } })] },
  tree: { $ref: '#/$defs/node', $defs: { node: object({ v: { type: 'integer', minimum: 0, maximum: 9 }, left: { anyOf: [{ $ref: '#/$defs/leaf' }, { type: 'null' }] } }, ['v', 'left']),
    leaf: { anyOf: [{ type: 'boolean' }, object({ w: text })] } } },
  names: object({ é: { type: 'boolean' }, 'a"b': { type: 'null' }, 'a b': { allOf: [{ type: 'integer', minimum: -3, maximum: 3 }] } }, ['é']),
  multiples: object({ week: { type: 'integer', multipleOf: 7, minimum: -100, maximum: 1000 }, price: { type: 'number', multipleOf: 0.01, minimum: 0.05, maximum: 99.99 },
    half: { type: 'number', multipleOf: 0.5, exclusiveMinimum: -3.5, exclusiveMaximum: 12.25 } }),
  decimals: object({ share: { type: 'number', exclusiveMinimum: 0.1, maximum: 0.35 }, near: { type: 'number', minimum: -0.75, exclusiveMaximum: 100 } }),
  addresses: object({ host: { type: 'string', format: 'hostname' }, v6: { type: 'string', format: 'ipv6' }, site: { type: 'string', format: 'uri', maxLength: 60 },
    wait: { type: 'string', format: 'duration' } }),
  lengths: object({ slug: { type: 'string', pattern: '^[a-z0-9]+(-[a-z0-9]+)*$', minLength: 3, maxLength: 12 }, mail: { type: 'string', format: 'email', maxLength: 24 },
    secure: { type: 'string', format: 'uri', pattern: '^https:', maxLength: 40 } }),
  dictionary: object({ scores: { type: 'object', propertyNames: { pattern: '^[a-z]{1,3}$' }, additionalProperties: { type: 'integer', minimum: 0, maximum: 9 }, minProperties: 1, maxProperties: 3 },
    extra: { type: 'object', patternProperties: { '^x-[a-z]{1,4}$': { type: 'boolean' } }, additionalProperties: false, maxProperties: 2 } }),
  merged: { allOf: [{ $ref: '#/$defs/base' }, { properties: { id: { maximum: 40 }, note: text }, required: ['note'] }],
    $defs: { base: { type: 'object', properties: { id: { type: 'integer', minimum: 1 } }, required: ['id'] } } },
};

const names = Object.keys(schemas);
const validate = Object.fromEntries(names.map((n) => [n, ajv.compile(schemas[n])]));
const seen = Object.fromEntries(names.map((n) => [n, new Set()]));
const failures = [];

async function ask(i) {
  const name = names[i % names.length], chat = i % 3 === 0, stream = i % 4 === 1;
  const prompt = `Once upon a time, number ${i}:`;
  const body = { max_tokens: 900, seed: i, temperature: i % 7 === 0 ? 0 : 0.7 + (i % 5) / 4, stream,
    response_format: { type: 'json_schema', json_schema: { name, strict: true, schema: schemas[name] } },
    ...(chat ? { messages: [{ role: 'user', content: prompt }] } : { prompt }) };
  const response = await fetch(`http://127.0.0.1:${port}/v1/${chat ? 'chat/' : ''}completions`,
    { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });
  const answer = await response.text();
  if (response.status !== 200) return failures.push(`${name}: ${response.status} ${answer}`);
  const parts = stream
    ? answer.split('\n').filter((l) => l.startsWith('data: {')).map((l) => JSON.parse(l.slice(6)).choices[0])
    : [JSON.parse(answer).choices[0]];
  const written = parts.map((c) => c.text ?? c.message?.content ?? c.delta?.content ?? '').join('');
  const reason = parts.at(-1).finish_reason;
  if (reason !== 'stop') return failures.push(`${name}: ended by ${reason}: ${written}`);
  let value;
  try { value = JSON.parse(written); } catch (e) { return failures.push(`${name}: ${e}: ${written}`); }
  if (!validate[name](value)) failures.push(`${name}: ${ajv.errorsText(validate[name].errors)}: ${written}`);
  seen[name].add(written);
}

let next = 0;
await Promise.all(Array.from({ length: 16 }, async () => { while (next < Number(count)) await ask(next++); }));
const distinct = Object.fromEntries(names.map((n) => [n, seen[n].size]));
console.log(JSON.stringify({ requests: next, valid: next - failures.length, distinct }, null, 1));
for (const f of failures.slice(0, 20)) console.error(f);
assert.equal(failures.length, 0);
for (const n of names) assert.ok(distinct[n] > 3, `${n}: ${distinct[n]} different answers`);

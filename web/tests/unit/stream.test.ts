import assert from 'node:assert/strict';
import { test } from 'node:test';
import { bytes, compact, duration, number } from '../../src/lib/format';
import { EventParser } from '../../src/lib/sse';
import { read_chunk } from '../../src/chat/chunk';

test('events arrive whole, however the bytes are cut', () => {
  const stream = ': hello\n\nid: 10,20\ndata: {"a":1}\n\nevent: reset\ndata:\n\ndata: x\r\ndata: y\r\n\r\ndata: cut';
  const all = [
    { event: 'message', id: '10,20', data: '{"a":1}' },
    { event: 'reset', id: '10,20', data: '' },
    { event: 'message', id: '10,20', data: 'x\ny' },
  ];
  for (const size of [1, 2, 3, 7, stream.length]) {
    const parser = new EventParser();
    const found = [];
    for (let i = 0; i < stream.length; i += size) found.push(...parser.feed(stream.slice(i, i + size)));
    assert.deepEqual(found, all, `pieces of ${size}`);
  }
});

test('chunks of both routes', () => {
  const chat = read_chunk({ choices: [{ delta: { content: 'a' }, finish_reason: null,
    logprobs: { content: [{ token: 'a', logprob: -1, top_logprobs: [{ token: 'b', logprob: -2 }] }] } }] });
  assert.deepEqual(chat, { text: 'a', tokens: [{ text: 'a', logprob: -1, top: [['b', -2]] }], finish: null, count: null });
  const plain = read_chunk({ choices: [{ text: 'a', finish_reason: 'length',
    logprobs: { tokens: ['a'], token_logprobs: [-1], top_logprobs: [{ b: -2, a: -1 }] } }] });
  assert.deepEqual(plain, { text: 'a', tokens: [{ text: 'a', logprob: -1, top: [['a', -1], ['b', -2]] }], finish: 'length', count: null });
  assert.equal(read_chunk({ choices: [], usage: { completion_tokens: 7 } }).count, 7);
});

test('formats', () => {
  assert.deepEqual([number(0.000123), number(2.34567), number(1234567), number(null), number(0)], ['1.23e-4', '2.346', '1.23M', '–', '0']);
  assert.deepEqual([compact(1500), compact(12)], ['1.5k', '12']);
  assert.deepEqual([bytes(512), bytes(3 * 2 ** 30)], ['512 B', '3 GiB']);
  assert.deepEqual([duration(5), duration(125), duration(7260), duration(300000)], ['5 s', '2 min 5 s', '2 h 1 min', '3 d 11 h']);
});

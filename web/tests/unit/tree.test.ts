import assert from 'node:assert/strict';
import { webcrypto } from 'node:crypto';
import { test } from 'node:test';
import {
  add_message, change_message, children_of, mark_cut, new_conversation, newest_leaf, path_to, read_export, request_messages,
  set_pane, write_export, type Message,
} from '../../src/chat/tree';

(globalThis as any).crypto ??= webcrypto; // Node 18 has no global one

const message = (id: string, parent: string | null, role: Message['role'], created: number): Message => ({ id, parent, role, text: id, created });

function sample() {
  let c = new_conversation('m', 'chat', 'be brief');
  for (const m of [message('q', null, 'user', 1), message('a', 'q', 'assistant', 2), message('b', 'q', 'assistant', 3), message('q2', null, 'user', 4), message('c', 'b', 'user', 5)])
    c = add_message(c, m);
  return c;
}

test('branches', () => {
  const c = sample();
  assert.deepEqual(path_to(c, 'c').map((m) => m.id), ['q', 'b', 'c']);
  assert.deepEqual(children_of(c, 'q').map((m) => m.id), ['a', 'b']);
  assert.deepEqual(children_of(c, null).map((m) => m.id), ['q', 'q2']);
  assert.equal(newest_leaf(c, 'q'), 'c');
  assert.equal(newest_leaf(c, 'a'), 'a');
  assert.equal(c.title, 'q');
  assert.deepEqual(request_messages(c, path_to(c, 'q')), [{ role: 'system', content: 'be brief' }, { role: 'user', content: 'q' }]);
});

test('changes leave the old conversation as it was', () => {
  const c = sample();
  const d = set_pane(change_message(c, 'a', { text: 'new' }), 0, { leaf: 'a' });
  assert.deepEqual([c.messages.a!.text, d.messages.a!.text, c.panes[0]!.leaf, d.panes[0]!.leaf], ['a', 'new', null, 'a']);
  assert.equal(change_message(c, 'unknown', { text: 'x' }), c);
});

test('an answer is cut when its tab was reloaded, or long ago', () => {
  const c = { ...change_message(sample(), 'a', { status: 'streaming', tab: 't' }), updated: 1000 };
  assert.equal(mark_cut(c, 't', 1001).messages.a!.status, 'cut');
  assert.equal(mark_cut(c, 'other', 1001).messages.a!.status, 'streaming');
  assert.equal(mark_cut(c, 'other', 9000).messages.a!.status, 'cut');
});

test('an export can be imported', () => {
  const c = set_pane(change_message(sample(), 'a', { status: 'done', tokens: [{ text: 'a', logprob: -1, top: [['b', -2]] }] }), 0, { leaf: 'c' });
  const [d] = read_export(write_export([c]));
  assert.notEqual(d!.id, c.id);
  assert.deepEqual(JSON.parse(JSON.stringify({ ...d, id: c.id })), JSON.parse(JSON.stringify({ ...c, messages: Object.fromEntries(Object.values(c.messages).map((m) => [m.id, m.role === 'assistant' && !m.status ? { ...m, status: 'cut' } : m])) })));
});

test('a hostile import does no harm', () => {
  assert.throws(() => read_export('nonsense'), /not JSON/);
  assert.throws(() => read_export('{"a":1}'), /no conversations/);
  const file = { format: 'hearth-chat', conversations: [{ title: 5, mode: {}, panes: [{ model: 1, leaf: 'gone' }], messages: {
    x: { id: 'x', parent: 'y', role: 'admin', text: {}, created: 'now', extra: 1, tokens: [null, { text: 1, logprob: 'x', top: [[1]] }] },
    y: { id: 'y', parent: 'x', role: 'assistant', text: 'y' },
    z: { id: 'z', parent: 'missing' },
    bad: null,
  } }, null] };
  const [c, d] = read_export(JSON.stringify(file).replace('"z":', '"__proto__":'));
  assert.equal(c!.messages.x!.role, 'user');
  assert.equal(c!.messages.x!.text, '');
  assert.equal('extra' in c!.messages.x!, false);
  assert.equal(c!.messages.z!.parent, null);
  assert.equal(path_to(c!, 'x').length, 2); // x and y point at each other
  newest_leaf(c!, 'x');
  assert.equal(c!.panes[0]!.leaf, null);
  assert.deepEqual(d!.messages, {});
});

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { charts_for, key_label } from '../../src/runs/catalogue';
import { append, ema, empty_series, histogram, join, nearest, recent, tidy, value_range, values_of } from '../../src/runs/series';

test('the moving average has no bias toward its start and skips gaps', () => {
  assert.deepEqual(ema([2, 2, null, 2], 0.9).map((v) => v && Math.round(v * 1e9) / 1e9), [2, 2, null, 2]);
  assert.deepEqual(ema([1, 3], 0), [1, 3]);
  const [, second] = ema([0, 1], 0.5);
  assert.ok(Math.abs(second! - 2 / 3) < 1e-12);
});

test('a live point is added once', () => {
  const s = empty_series();
  assert.ok(append(s, 1, 5));
  assert.ok(!append(s, 1, 6));
  assert.ok(!append(s, 0, 6));
  assert.ok(append(s, 2, null));
  assert.deepEqual(s, { x: [1, 2], mean: [5, null], decimated: false });
  const d = { x: [1], mean: [5], min: [4], max: [6], decimated: true };
  append(d, 2, 7);
  assert.deepEqual(d, { x: [1, 2], mean: [5, 7], min: [4, 7], max: [6, 7], decimated: true });
});

test('values of a line', () => {
  assert.deepEqual(values_of({ step: 1, loss: 2, kl: null, spike: true, source: {}, note: 'x' }), [['loss', 2], ['kl', null], ['spike', 1]]);
});

// The cases of tests/unit/test_board_columns.cpp, and the limits of src/board/line_numbers.cpp.
test('entries of arrays and objects have the names that the server gives', () => {
  const line = { step: 1, load: [1, 2.5, [3]], seconds: { load: 1.5, deep: { x: 7, step: 8 } }, texts: ['a', null, false], empty: {}, list: [] };
  assert.deepEqual(values_of(line), [
    ['load.0', 1], ['load.1', 2.5], ['load.2.0', 3], ['seconds.load', 1.5], ['seconds.deep.x', 7], ['seconds.deep.step', 8],
    ['texts.1', null], ['texts.2', 0],
  ]);
  assert.deepEqual(values_of(JSON.parse('{"huge":1e999,"last":4}')), [['huge', null], ['last', 4]]);
  assert.deepEqual(values_of({ '': 1, 'a\n': 2, 'a"': { b: 3 }, 'a\\': [4], 'a\x7f': 5, a: { '': 6 }, é: 7 }), [['é', 7]]);
});

test('values of a line have limits', () => {
  const names = (line: Record<string, unknown>) => values_of(line).map(([name]) => name);
  assert.deepEqual(names({ ['k'.repeat(128)]: 1, ['é'.repeat(64)]: 2 }).map((k) => k.length), [128, 64]);
  assert.deepEqual(names({ ['k'.repeat(129)]: 1, ['é'.repeat(65)]: 2, ['k'.repeat(127)]: [3] }), []);
  assert.equal(names({ a: Array(300).fill(1), b: 1 }).length, 257);
  const rows = Object.fromEntries(Array.from({ length: 20 }, (_, i) => [`row${i}`, Array(256).fill(1)]));
  assert.equal(names({ step: 1, ...rows }).length, 4095); // `step` is one of the 4096
  const nested = (depth: number): unknown => (depth === 0 ? 1 : [nested(depth - 1)]);
  assert.deepEqual(names({ a: nested(15), b: 1 }), [`a${'.0'.repeat(15)}`, 'b']);
  assert.deepEqual(names({ a: nested(16), b: 1 }), []);
  assert.deepEqual(names({ 'a"': nested(16), b: 1 }), []);
});

test('steps that are listed twice count once', () => {
  const s = tidy({ x: [1, 2, 3, 2, 3, 4], mean: [1, 2, 3, 20, 30, 40], decimated: false });
  assert.deepEqual([s.x, s.mean], [[1, 2, 3, 4], [1, 20, 30, 40]]);
});

test('curves of several runs share one axis', () => {
  const x = [1, 2];
  assert.deepEqual(join([{ x, y: [1, 2] }, { x, y: [3, 4] }]), [x, [1, 2], [3, 4]]);
  assert.deepEqual(join([{ x: [1, 10], y: [1, 2] }, { x: [2, 10], y: [3, 4] }]), [[1, 2, 10], [1, null, 2], [null, 3, 4]]);
});

test('small helpers', () => {
  assert.equal(nearest([null, 1, null, null], 3), 1);
  assert.equal(nearest([null], 0), null);
  assert.equal(recent({ x: [1, 2, 3], mean: [null, 2, 4], decimated: false }, 20), 3);
  assert.deepEqual(histogram([1, 1, 2, 5], 4).map((b) => [b.from, b.to, b.count]), [[1, 2, 3], [3, 4, 0], [5, 5, 1]]);
  assert.deepEqual(histogram([2, 3, 3], 16).map((b) => [b.from, b.to, b.count]), [[2, 2, 1], [3, 3, 2]]);
  assert.deepEqual(histogram([3, 3], 2).map((b) => b.count), [2]);
});

test('the value axis', () => {
  assert.deepEqual(value_range(null, null), [0, 1]);
  assert.deepEqual(value_range(0, 0), [0, 1]);
  assert.deepEqual(value_range(5, 5), [0, 10]);
  assert.deepEqual(value_range(0, 10), [0, 11]);
  assert.deepEqual(value_range(-10, 10), [-12, 12]);
  assert.deepEqual(value_range(100, 110), [99, 111]);
});

test('every key has a chart, and rewards have names', () => {
  const charts = charts_for(['loss', 'z_loss', 'reward', 'reward_1', 'reward_0', 'reward_std', 'step', 'watts', 'load_10', 'load_9']);
  assert.deepEqual(charts.map((c) => c.id), ['reward', 'parts', 'loss', 'watts', 'key:load', 'key:z_loss']);
  assert.deepEqual(charts[4]!.keys, ['load_9', 'load_10']);
  assert.deepEqual(charts[1]!.keys, ['reward_0', 'reward_1']);
  assert.deepEqual(charts_for(['load.10', 'load.9', 'seconds.load']).map((c) => [c.title, c.keys]),
    [['load', ['load.9', 'load.10']], ['seconds.load', ['seconds.load']]]);
  assert.equal(key_label('reward_1', { reward: ['exact', 'length'] }), 'length');
  assert.equal(key_label('loss', {}), 'loss');
});

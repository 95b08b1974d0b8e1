import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parse_inline, parse_markdown } from '../../src/chat/markdown';

const text = (t: string) => ({ kind: 'text', text: t });

test('inline marks', () => {
  assert.deepEqual(parse_inline('a **b** *c* `d` ~~e~~'), [
    text('a '), { kind: 'strong', parts: [text('b')] }, text(' '), { kind: 'em', parts: [text('c')] },
    text(' '), { kind: 'code', text: 'd' }, text(' '), { kind: 'del', parts: [text('e')] },
  ]);
  assert.deepEqual(parse_inline('***x***'), [{ kind: 'strong', parts: [{ kind: 'em', parts: [text('x')] }] }]);
  assert.deepEqual(parse_inline('snake_case_name 2 * 3 * 4'), [text('snake_case_name 2 * 3 * 4')]);
  assert.deepEqual(parse_inline('**open'), [text('**open')]);
  assert.deepEqual(parse_inline('\\*not\\*'), [text('*not*')]);
  assert.deepEqual(parse_inline('`` a`b ``'), [{ kind: 'code', text: 'a`b' }]);
});

test('links and images become text with an address', () => {
  const link = (t: string, address: string) => ({ kind: 'link', parts: [text(t)], address });
  assert.deepEqual(parse_inline('[a](http://x/y)'), [link('a', 'http://x/y')]);
  assert.deepEqual(parse_inline('![a](http://x/y.png "t")'), [link('a', 'http://x/y.png')]);
  assert.deepEqual(parse_inline('[a](javascript:alert)'), [link('a', 'javascript:alert')]);
  assert.deepEqual(parse_inline('[a] (b) [c'), [text('[a] (b) [c')]);
});

test('HTML stays text', () => {
  const html = '<img src=x onerror=alert(1)><script>x</script>&amp;';
  assert.deepEqual(parse_markdown(html), [{ kind: 'para', parts: [text(html)] }]);
});

test('blocks', () => {
  const blocks = parse_markdown('# T\n\na\nb\n\n---\n> q\n\n```js\n<b>\n\nx\n```\nend');
  assert.deepEqual(blocks.map((b) => b.kind), ['heading', 'para', 'rule', 'quote', 'code', 'para']);
  assert.deepEqual(blocks[4], { kind: 'code', language: 'js', text: '<b>\n\nx' });
  assert.deepEqual(parse_markdown('```\nopen'), [{ kind: 'code', language: '', text: 'open' }]);
});

test('lists', () => {
  const [list] = parse_markdown('3. a\n   - b\n   - c\n4. d\n\n   e') as any;
  assert.equal(list.start, 3);
  assert.deepEqual(list.items.map((i: any) => i.map((b: any) => b.kind)), [['para', 'list'], ['para', 'para']]);
  assert.equal(list.items[0][1].items.length, 2);
  assert.equal(parse_markdown('- a\n\ntext').length, 2);
});

test('tables', () => {
  const [table] = parse_markdown('| a | b |\n|---|:-:|\n| 1 | 2 | 3 |') as any;
  assert.deepEqual(table.head, [[text('a')], [text('b')]]);
  assert.deepEqual(table.rows, [[[text('1')], [text('2')]]]);
});

// No time is asserted; quadratic work on these would not end in the time a test run has.
test('hostile text takes linear time', () => {
  const n = 200_000;
  for (const piece of ['*', '**a ', '_a ', '[', '![', '`', '``a`', '[a](', '> ', '- ', '~~', '# ', '|', '\\', '(((', '1. '])
    parse_markdown(piece.repeat(n / piece.length));
  parse_markdown('['.repeat(n) + ']');
  const nested = parse_markdown('> '.repeat(5000) + 'x');
  assert.equal(nested.length, 1);
});

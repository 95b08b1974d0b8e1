// Markdown to a tree. A model's output is not trusted: there is no HTML, links and images become
// text with their address, and the time is linear in the length apart from a bounded depth.

export type Inline =
  | { kind: 'text'; text: string }
  | { kind: 'code'; text: string }
  | { kind: 'strong'; parts: Inline[] }
  | { kind: 'em'; parts: Inline[] }
  | { kind: 'del'; parts: Inline[] }
  | { kind: 'link'; parts: Inline[]; address: string };

export type Block =
  | { kind: 'para'; parts: Inline[] }
  | { kind: 'heading'; level: number; parts: Inline[] }
  | { kind: 'code'; language: string; text: string }
  | { kind: 'list'; ordered: boolean; start: number; items: Block[][] }
  | { kind: 'quote'; blocks: Block[] }
  | { kind: 'table'; head: Inline[][]; rows: Inline[][][] }
  | { kind: 'rule' };

const deepest = 6;

const fence = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const heading = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const rule = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const quote = /^ {0,3}> ?/;
const item = /^( {0,12})([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const divider = /^[ \t]*(?:\|[ \t]*)?:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*(?:\|[ \t]*)?$/;

const starts_block = (line: string) =>
  fence.test(line) || heading.test(line) || quote.test(line) || rule.test(line) || item.test(line);

export const parse_markdown = (text: string): Block[] => parse_blocks(text.split(/\r?\n/), 0);

function parse_blocks(lines: string[], depth: number): Block[] {
  const blocks: Block[] = [];
  for (let i = 0; i < lines.length; ) {
    const line = lines[i]!;
    if (line.trim() === '') {
      ++i;
      continue;
    }
    if (depth >= deepest) return [...blocks, { kind: 'para', parts: parse_inline(lines.slice(i).join('\n')) }];
    const [block, next] =
      read_fence(lines, i) ?? read_line(line, i) ?? read_quote(lines, i, depth) ??
      read_list(lines, i, depth) ?? read_table(lines, i) ?? read_paragraph(lines, i);
    blocks.push(block);
    i = next;
  }
  return blocks;
}

type Read = [Block, number] | undefined; // a block and the line after it

function read_fence(lines: string[], i: number): Read {
  const found = fence.exec(lines[i]!);
  if (!found) return;
  const [, mark, language] = found as unknown as [string, string, string];
  const text: string[] = [];
  for (++i; i < lines.length; ++i) {
    const end = fence.exec(lines[i]!);
    if (end && end[1]![0] === mark[0] && end[1]!.length >= mark.length && end[2]!.trim() === '') {
      ++i;
      break;
    }
    text.push(lines[i]!);
  }
  return [{ kind: 'code', language: language.trim().split(/\s/)[0]!.slice(0, 30), text: text.join('\n') }, i];
}

function read_line(line: string, i: number): Read {
  if (rule.test(line)) return [{ kind: 'rule' }, i + 1];
  const found = heading.exec(line);
  if (found) return [{ kind: 'heading', level: found[1]!.length, parts: parse_inline(line.slice(found[0].length)) }, i + 1];
}

function read_quote(lines: string[], i: number, depth: number): Read {
  const inner: string[] = [];
  for (; i < lines.length && quote.test(lines[i]!); ++i) inner.push(lines[i]!.replace(quote, ''));
  if (inner.length > 0) return [{ kind: 'quote', blocks: parse_blocks(inner, depth + 1) }, i];
}

function read_list(lines: string[], i: number, depth: number): Read {
  const first = item.exec(lines[i]!);
  if (!first) return;
  const margin = first[1]!.length;
  const ordered = /\d/.test(first[2]!);
  const items: string[][] = [];
  let indent = 0; // of the content of the current item
  for (; i < lines.length; ++i) {
    const line = lines[i]!;
    const found = item.exec(line);
    const blank = line.trim() === '';
    const deep = line.length - line.trimStart().length;
    if (found && found[1]!.length < Math.max(margin + 1, indent) && found[1]!.length >= margin && /\d/.test(found[2]!) === ordered && !rule.test(line)) {
      indent = Math.min(found[0].length, found[1]!.length + found[2]!.length + 4);
      items.push([line.slice(found[0].length)]);
    } else if (blank || deep >= indent) {
      items.at(-1)!.push(line.slice(Math.min(indent, deep)));
    } else if (lines[i - 1]!.trim() !== '' && !starts_block(line)) {
      items.at(-1)!.push(line.trimStart()); // a paragraph that goes on without indentation
    } else break;
  }
  const start = ordered ? parseInt(first[2]!, 10) : 1;
  return [{ kind: 'list', ordered, start, items: items.map((lines) => parse_blocks(lines, depth + 1)) }, i];
}

function read_table(lines: string[], i: number): Read {
  const next = lines[i + 1];
  if (!lines[i]!.includes('|') || next === undefined || !next.includes('|') || !divider.test(next)) return;
  const cells = (line: string) =>
    line.trim().replace(/^\|/, '').replace(/\|$/, '').split('|').map((c) => parse_inline(c.trim()));
  const head = cells(lines[i]!);
  const rows: Inline[][][] = [];
  for (i += 2; i < lines.length && lines[i]!.includes('|'); ++i) rows.push(cells(lines[i]!).slice(0, head.length));
  return [{ kind: 'table', head, rows }, i];
}

function read_paragraph(lines: string[], i: number): [Block, number] {
  const text = [lines[i]!];
  for (++i; i < lines.length && lines[i]!.trim() !== '' && !starts_block(lines[i]!); ++i) text.push(lines[i]!);
  return [{ kind: 'para', parts: parse_inline(text.join('\n')) }, i];
}

const special = /[\\`*_~[!]/g;
const address = /\([ \t]*<?([^\s()<>]{1,2000})>?(?:[ \t]+"[^"\n]{0,500}")?[ \t]*\)/y;
const kinds = { '**': 'strong', __: 'strong', '*': 'em', _: 'em', '~~': 'del' } as const;

const is_word = (c: string | undefined) => c !== undefined && /[\p{L}\p{N}]/u.test(c);
const is_space = (c: string | undefined) => c === undefined || /\s/.test(c);

export function parse_inline(text: string, depth = 0): Inline[] {
  const parts: Inline[] = [];
  const absent = new Set<string>(); // marks that have no end beyond this point
  let plain = '';
  const put = (part: Inline) => {
    if (plain) parts.push({ kind: 'text', text: plain });
    plain = '';
    parts.push(part);
  };

  // Whether a mark may end at `at` depends on that place alone, so a failed search stays failed.
  const end_of = (mark: string, from: number): number => {
    if (absent.has(mark)) return -1;
    for (let at = text.indexOf(mark, from); at >= 0; at = text.indexOf(mark, at + 1)) {
      const c = mark[0]!;
      const alone = mark.length > 1 || (text[at - 1] !== c && text[at + 1] !== c);
      if (alone && !is_space(text[at - 1]) && text[at - 1] !== '\\' && !(c === '_' && is_word(text[at + mark.length]))) return at;
    }
    absent.add(mark);
    return -1;
  };

  const code_end = (run: string, from: number): number => {
    if (absent.has(run)) return -1;
    for (let at = text.indexOf(run, from); at >= 0; ) {
      let end = at + run.length;
      while (text[end] === '`') ++end;
      if (end === at + run.length) return at;
      at = text.indexOf(run, end);
    }
    absent.add(run);
    return -1;
  };

  let close = -1; // the bracket that was found last
  const read_link = (open: number): [Inline, number] | undefined => {
    if (close < open && !absent.has(']')) close = text.indexOf(']', open);
    if (close < open) return void absent.add(']');
    if (text[close + 1] !== '(') return;
    address.lastIndex = close + 1;
    const found = address.exec(text);
    if (!found) return;
    const label = text.slice(text.lastIndexOf('[', close) + 1, close);
    if (label.length < close - open - 1) return; // an inner bracket is the link
    return [{ kind: 'link', parts: parse_inline(label, depth + 1), address: found[1]! }, address.lastIndex];
  };

  for (let i = 0; i < text.length; ) {
    special.lastIndex = i;
    const at = depth < deepest ? (special.exec(text)?.index ?? text.length) : text.length;
    plain += text.slice(i, at);
    i = at;
    if (i >= text.length) break;
    const c = text[i]!;
    if (c === '\\') {
      const escaped = /[!-/:-@[-`{-~]/.test(text[i + 1] ?? '');
      plain += escaped ? text[i + 1] : c;
      i += escaped ? 2 : 1;
      continue;
    }
    if (c === '`') {
      let after = i;
      while (text[after] === '`') ++after;
      const run = text.slice(i, after);
      const end = code_end(run, after);
      if (end >= 0) put({ kind: 'code', text: text.slice(after, end).replace(/^ ([^]*) $/, '$1') });
      else plain += run;
      i = end >= 0 ? end + run.length : after;
      continue;
    }
    if (c === '[' || (c === '!' && text[i + 1] === '[')) {
      const found = read_link(c === '[' ? i : i + 1);
      if (found) {
        put(found[0]);
        i = found[1];
        continue;
      }
    } else if (c !== '!') {
      const mark = (text[i + 1] === c ? c + c : c) as keyof typeof kinds;
      const opens = mark in kinds && !is_space(text[i + mark.length]) && !(c === '_' && is_word(text[i - 1]));
      let end = opens ? end_of(mark, i + mark.length + 1) : -1;
      if (end >= 0 && mark.length > 1 && text[i + 2] === c && text[end + 2] === c) ++end; // ***both***
      if (end >= 0) {
        put({ kind: kinds[mark], parts: parse_inline(text.slice(i + mark.length, end), depth + 1) });
        i = end + mark.length;
      } else {
        plain += mark;
        i += mark.length;
      }
      continue;
    }
    plain += c;
    ++i;
  }
  if (plain) parts.push({ kind: 'text', text: plain });
  return parts;
}

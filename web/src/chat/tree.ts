// A conversation is a tree of messages: an edited question or a second answer is a sibling of the
// first. A pane shows one path through it with one model. Conversations are never changed in place.
import type { Token } from '../lib/Tokens.svelte';

export type Status = 'streaming' | 'done' | 'length' | 'stopped' | 'cut' | 'error';

export interface Message {
  id: string;
  parent: string | null;
  role: 'user' | 'assistant';
  text: string;
  created: number;
  model?: string;
  status?: Status;
  error?: string;
  tokens?: Token[]; // the tail of the text, where log-probabilities were asked for
  first_ms?: number; // time to the first token
  rate?: number; // tokens per second after it
  count?: number; // tokens
  tab?: string; // the tab that streams it
}

export interface Pane {
  model: string;
  leaf: string | null;
}

export interface Conversation {
  id: string;
  title: string;
  created: number;
  updated: number;
  system: string;
  mode: 'chat' | 'text'; // text: plain completion, without roles
  messages: Record<string, Message>;
  panes: Pane[];
}

export function new_id(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(9)), (b) => b.toString(36).padStart(2, '0')).join('');
}

export function new_conversation(model: string, mode: Conversation['mode'], system = ''): Conversation {
  const now = Date.now();
  return { id: new_id(), title: '', created: now, updated: now, system, mode, messages: {}, panes: [{ model, leaf: null }] };
}

// From the first message to `leaf`.
export function path_to(c: Conversation, leaf: string | null): Message[] {
  const path: Message[] = [];
  const seen = new Set<string>(); // an imported file may contain a circle
  for (let id = leaf; id !== null && c.messages[id] && !seen.has(id); id = c.messages[id]!.parent) {
    seen.add(id);
    path.push(c.messages[id]!);
  }
  return path.reverse();
}

export const children_of = (c: Conversation, parent: string | null): Message[] =>
  Object.values(c.messages)
    .filter((m) => m.parent === parent)
    .sort((a, b) => a.created - b.created || a.id.localeCompare(b.id));

// The end of the newest branch below a message.
export function newest_leaf(c: Conversation, id: string): string {
  const seen = new Set<string>();
  for (;;) {
    seen.add(id);
    const next = children_of(c, id).at(-1);
    if (!next || seen.has(next.id)) return id;
    id = next.id;
  }
}

export function add_message(c: Conversation, m: Message): Conversation {
  const title = c.title || (m.role === 'user' ? m.text.trim().slice(0, 60) : '');
  return { ...c, title, updated: m.created, messages: { ...c.messages, [m.id]: m } };
}

export function change_message(c: Conversation, id: string, change: Partial<Message>): Conversation {
  const old = c.messages[id];
  return old ? { ...c, messages: { ...c.messages, [id]: { ...old, ...change } } } : c;
}

export const set_pane = (c: Conversation, i: number, change: Partial<Pane>): Conversation => ({
  ...c,
  panes: c.panes.map((p, j) => (i === j ? { ...p, ...change } : p)),
});

// What the chat route is asked with.
export function request_messages(c: Conversation, path: Message[]): { role: string; content: string }[] {
  const messages = path.map(({ role, text }) => ({ role: role as string, content: text }));
  return c.system.trim() ? [{ role: 'system', content: c.system }, ...messages] : messages;
}

// What the plain completion is asked with: the texts as they stand.
export const request_text = (path: Message[]) => path.map((m) => m.text).join('');

// An answer that nobody streams any more was cut: its tab was reloaded or closed.
export function mark_cut(c: Conversation, tab: string, now = Date.now()): Conversation {
  for (const m of Object.values(c.messages))
    if (m.status === 'streaming' && (m.tab === tab || now - c.updated > 5000))
      c = change_message(c, m.id, { status: 'cut' });
  return c;
}

const text = (v: unknown, most = 10_000_000) => (typeof v === 'string' ? v.slice(0, most) : '');
const time = (v: unknown) => (typeof v === 'number' && Number.isFinite(v) ? v : 0);
const maybe_number = (v: unknown) => (typeof v === 'number' && Number.isFinite(v) ? v : undefined);

function read_tokens(v: unknown): Token[] | undefined {
  if (!Array.isArray(v)) return undefined;
  return v.map((t) => ({
    text: text(t?.text),
    logprob: maybe_number(t?.logprob) ?? null,
    top: Array.isArray(t?.top)
      ? t.top.filter(Array.isArray).map((p: unknown[]): [string, number] => [text(p[0]), maybe_number(p[1]) ?? 0])
      : undefined,
  }));
}

// Conversations of an exported file. Only known fields are taken, with their types checked.
export function read_export(json: string): Conversation[] {
  let file: any;
  try {
    file = JSON.parse(json);
  } catch {
    throw new Error('This file is not JSON.');
  }
  if (file?.format !== 'hearth-chat' || !Array.isArray(file.conversations))
    throw new Error('This file has no conversations of hearth.');
  return file.conversations.map((c: any): Conversation => {
    const messages: Record<string, Message> = Object.create(null);
    for (const m of Object.values<any>(c?.messages ?? {})) {
      const id = text(m?.id, 40);
      if (!id) continue;
      messages[id] = {
        id,
        parent: typeof m.parent === 'string' ? m.parent : null,
        role: m.role === 'assistant' ? 'assistant' : 'user',
        text: text(m.text),
        created: time(m.created),
        model: typeof m.model === 'string' ? m.model : undefined,
        status: m.role !== 'assistant' ? undefined : ['done', 'length', 'stopped', 'cut', 'error'].includes(m.status) ? m.status : 'cut',
        error: typeof m.error === 'string' ? m.error : undefined,
        tokens: read_tokens(m.tokens),
        first_ms: maybe_number(m.first_ms),
        rate: maybe_number(m.rate),
        count: maybe_number(m.count),
      };
    }
    for (const m of Object.values(messages)) if (m.parent !== null && !messages[m.parent]) m.parent = null;
    const panes: Pane[] = (Array.isArray(c?.panes) ? c.panes : []).slice(0, 8).map((p: any) => ({
      model: text(p?.model),
      leaf: typeof p?.leaf === 'string' && messages[p.leaf] ? p.leaf : null,
    }));
    return {
      id: new_id(), // an import never replaces a conversation
      title: text(c?.title, 200),
      created: time(c?.created),
      updated: time(c?.updated),
      system: text(c?.system),
      mode: c?.mode === 'text' ? 'text' : 'chat',
      messages: { ...messages },
      panes: panes.length > 0 ? panes : [{ model: '', leaf: null }],
    };
  });
}

export const write_export = (conversations: Conversation[]) =>
  JSON.stringify({ format: 'hearth-chat', version: 1, conversations }, null, 1);

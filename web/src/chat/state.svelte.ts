// The chat page's state: models, conversations, and the answers that are streaming.
import { error_text, get, is_abort } from '../lib/api';
import { announce, prefs } from '../lib/prefs.svelte';
import * as db from './db';
import type { Chunk } from './chunk';
import { stream } from './stream';
import {
  add_message, change_message, mark_cut, new_conversation, new_id, path_to, request_messages, request_text, set_pane,
  type Conversation, type Message,
} from './tree';

export interface Model {
  id: string;
  max_model_len?: number;
  chat_template?: boolean; // false: it was not taught to answer in turns
}

// Sampling fields; null leaves the choice to the model's defaults.
export interface Sampling {
  temperature: number | null;
  top_p: number | null;
  top_k: number | null;
  min_p: number | null;
  repetition_penalty: number | null;
  max_tokens: number | null;
  seed: number | null;
}

const no_sampling: Sampling = {
  temperature: null, top_p: null, top_k: null, min_p: null, repetition_penalty: null, max_tokens: null, seed: null,
};

function stored_sampling(): Sampling {
  try {
    const found = JSON.parse(localStorage.getItem('hearth-sampling') ?? '{}');
    const kept = Object.keys(no_sampling).map((k) => [k, typeof found[k] === 'number' ? found[k] : null]);
    return Object.fromEntries(kept) as unknown as Sampling;
  } catch {
    return { ...no_sampling };
  }
}

export const sampling = $state(stored_sampling());
export const save_sampling = () => {
  try {
    localStorage.setItem('hearth-sampling', JSON.stringify(sampling));
  } catch {
    // storage is off or full
  }
};

// Names this tab across reloads, so that an answer that it was streaming is known to be cut.
function tab_name(): string {
  try {
    const name = sessionStorage.getItem('hearth-tab') ?? new_id();
    sessionStorage.setItem('hearth-tab', name);
    return name;
  } catch {
    return new_id();
  }
}

const save_ms = 300; // how much of an answer a reload can lose
const draw_ms = 50;

class Chat {
  models = $state.raw<Model[]>([]);
  heads = $state.raw<db.Head[]>([]);
  current = $state.raw<Conversation>(new_conversation('', 'chat'));
  streaming = $state.raw<ReadonlySet<string>>(new Set()); // ids of messages
  error = $state('');

  private open = new Map<string, Conversation>(); // conversations in memory, some in the background
  private stops = new Map<string, AbortController>();
  private saving = new Map<string, ReturnType<typeof setTimeout>>();
  private removed = new Set<string>(); // ids of conversations; an answer may end after its conversation is deleted
  private tab = tab_name();
  private others = typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel('hearth-chat');

  constructor() {
    this.others?.addEventListener('message', (e) => void this.changed_elsewhere(String(e.data)));
    addEventListener('pagehide', () => {
      for (const id of this.saving.keys()) void this.save(id);
    });
  }

  async load_models() {
    try {
      this.models = (await get<{ data: Model[] }>('v1/models')).data;
      this.error = '';
    } catch (e) {
      this.error = error_text(e);
      setTimeout(() => void this.load_models(), 3000);
    }
    if (this.models.length > 0 && this.current.panes[0]?.model === '') await this.show('');
  }

  async load_list() {
    try {
      this.heads = await db.heads();
    } catch {
      this.error = 'This browser does not let the page keep conversations; they last until it is closed.';
    }
  }

  model = (id: string) => this.models.find((m) => m.id === id);

  // Opens a conversation, or starts a new one where there is none of that id.
  async show(id: string) {
    const known = this.open.get(id) ?? (id ? await db.load(id).catch(() => undefined) : undefined);
    if (known) {
      const c = this.open.has(id) ? known : mark_cut(known, this.tab);
      this.open.set(id, c);
      this.current = c;
      if (c !== known) this.save_soon(id);
    } else {
      const model = this.models[0];
      this.current = new_conversation(model?.id ?? '', model?.chat_template === false ? 'text' : 'chat');
    }
  }

  // Applies a change to a conversation, which need not be the one on the screen. A new one is not in `open` yet.
  private update(id: string, change: (c: Conversation) => Conversation) {
    const known = this.open.get(id) ?? (this.current.id === id ? this.current : undefined);
    if (!known || this.removed.has(id)) return;
    const c = change(known);
    this.open.set(id, c);
    if (this.current.id === id) this.current = c;
    this.save_soon(id);
  }

  // What a person does is saved at once: a browser may end the save that a reload begins.
  change(change: (c: Conversation) => Conversation) {
    this.update(this.current.id, change);
    void this.save(this.current.id);
  }

  private save_soon(id: string) {
    if (this.saving.has(id)) return;
    this.saving.set(id, setTimeout(() => void this.save(id), save_ms));
  }

  private async save(id: string) {
    clearTimeout(this.saving.get(id));
    this.saving.delete(id);
    const c = this.open.get(id);
    if (!c || Object.keys(c.messages).length === 0) return;
    const busy = [...this.streaming].some((m) => m in c.messages);
    try {
      await db.save(busy ? { ...c, updated: Date.now() } : c);
      if (!busy) this.others?.postMessage(id);
      if (!this.heads.some((h) => h.id === id && h.title === c.title)) await this.load_list();
    } catch (e) {
      this.error = `The conversation could not be saved: ${error_text(e)}`;
    }
  }

  private async changed_elsewhere(id: string) {
    await this.load_list();
    const mine = this.open.get(id);
    if (!mine || [...this.streaming].some((m) => m in mine.messages)) return;
    const c = await db.load(id);
    if (!c) return void this.open.delete(id);
    this.open.set(id, c);
    if (this.current.id === id) this.current = c;
  }

  async remove(id: string) {
    this.removed.add(id);
    for (const m of Object.keys(this.open.get(id)?.messages ?? {})) this.stop(m);
    clearTimeout(this.saving.get(id));
    this.saving.delete(id);
    this.open.delete(id);
    try {
      await db.remove(id);
    } catch (e) {
      this.removed.delete(id);
      throw e;
    }
    await this.load_list();
    this.others?.postMessage(id);
  }

  async add_all(list: Conversation[]) {
    for (const c of list) await db.save(c);
    await this.load_list();
  }

  all = async () => (await Promise.all(this.heads.map((h) => db.load(h.id)))).filter((c) => c !== undefined);

  // --- questions and answers ---

  // Asks all panes. Panes that show the same path share the question.
  send(text: string) {
    const asked = new Map<string | null, string>();
    this.current.panes.forEach((pane, i) => {
      let id = asked.get(pane.leaf);
      if (id === undefined) {
        const parent = pane.leaf;
        id = new_id();
        asked.set(parent, id);
        const m: Message = { id, parent, role: 'user', text, created: Date.now() };
        this.change((c) => add_message(c, m));
      }
      void this.answer(i, id);
    });
  }

  edit(pane: number, old: Message, text: string) {
    const m: Message = { id: new_id(), parent: old.parent, role: 'user', text, created: Date.now() };
    this.change((c) => add_message(c, m));
    void this.answer(pane, m.id);
  }

  regenerate = (pane: number, old: Message) => this.answer(pane, old.parent);

  async answer(pane: number, parent: string | null) {
    const { model } = this.current.panes[pane]!;
    const m: Message = {
      id: new_id(), parent, role: 'assistant', text: '', created: Date.now(), model, status: 'streaming', tab: this.tab,
    };
    this.change((c) => set_pane(add_message(c, m), pane, { leaf: m.id }));
    const c = this.current;
    const path = path_to(c, parent);
    await this.run(c.id, m, (signal) =>
      c.mode === 'chat'
        ? stream('v1/chat/completions', { model, messages: request_messages(c, path), ...this.fields(true) }, signal)
        : stream('v1/completions', { model, prompt: request_text(path), ...this.fields(false) }, signal));
  }

  // Goes on with an answer that ended early.
  async go_on(old: Message) {
    const c = this.current;
    const model = old.model;
    const path = path_to(c, old.parent);
    const m: Message = { ...old, status: 'streaming', tab: this.tab, error: undefined };
    this.update(c.id, (c) => change_message(c, m.id, m));
    const messages = request_messages(c, path);
    const more = old.text ? { messages: [...messages, { role: 'assistant', content: old.text }], continue_final_message: true } : { messages };
    await this.run(c.id, m, (signal) =>
      c.mode === 'chat'
        ? stream('v1/chat/completions', { model, ...more, ...this.fields(true) }, signal)
        : stream('v1/completions', { model, prompt: request_text([...path, old]), ...this.fields(false) }, signal));
  }

  private fields = (chat: boolean) => {
    const given = Object.fromEntries(Object.entries(sampling).filter(([, v]) => v !== null && !Number.isNaN(v)));
    const logprobs = !prefs.logprobs ? {} : chat ? { logprobs: true, top_logprobs: prefs.alternatives } : { logprobs: prefs.alternatives };
    return { ...(chat ? {} : { max_tokens: 256 }), ...given, ...logprobs };
  };

  private async run(conversation: string, m: Message, chunks: (signal: AbortSignal) => AsyncGenerator<Chunk>) {
    const abort = new AbortController();
    this.stops.set(m.id, abort);
    this.streaming = new Set([...this.streaming, m.id]);
    announce('Answering.');
    const began = performance.now();
    let first = 0;
    let last = 0;
    let drawn = 0;
    let { text } = m;
    let tokens = m.tokens ?? [];
    let pieces = 0; // chunks with text, where the server sends no log-probabilities
    let fresh = 0; // tokens of this request
    let count: number | null = null;
    let change: Partial<Message> = { status: 'cut' };
    const state = (): Partial<Message> => {
      const n = count ?? (fresh || pieces);
      const seconds = (last - first) / 1000;
      return { text, tokens, count: n, first_ms: first ? first - began : undefined, rate: n > 1 && seconds > 0 ? (n - 1) / seconds : undefined };
    };
    try {
      for await (const chunk of chunks(abort.signal)) {
        if (chunk.text || chunk.tokens.length) first ||= performance.now();
        last = chunk.text ? performance.now() : last;
        text += chunk.text;
        pieces += chunk.text ? 1 : 0;
        fresh += chunk.tokens.length;
        if (chunk.tokens.length) tokens = tokens.concat(chunk.tokens);
        count = chunk.count ?? count;
        if (chunk.finish) change = { status: chunk.finish === 'length' ? 'length' : 'done' };
        if (performance.now() - drawn < Math.max(draw_ms, text.length / 500)) continue; // long texts take longer to draw
        drawn = performance.now();
        this.update(conversation, (c) => change_message(c, m.id, state()));
      }
    } catch (e) {
      if (is_abort(e)) change = { status: 'stopped' };
      else if (e instanceof TypeError && first) change = { status: 'cut', error: 'The connection was lost.' };
      else change = { status: 'error', error: error_text(e) };
    }
    this.stops.delete(m.id);
    this.streaming = new Set([...this.streaming].filter((id) => id !== m.id));
    this.update(conversation, (c) => ({ ...change_message(c, m.id, { ...state(), ...change, tab: undefined }), updated: Date.now() }));
    void this.save(conversation);
    announce(change.status === 'error' ? `The answer failed: ${change.error}` : `The answer has ended, ${state().count} tokens.`);
  }

  stop(id: string) {
    this.stops.get(id)?.abort();
  }

  stop_all() {
    for (const id of Object.keys(this.current.messages)) this.stop(id);
  }
}

export const chat = new Chat();

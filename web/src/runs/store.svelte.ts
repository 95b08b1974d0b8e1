// The runs the dashboard shows: the list, and for each selected run its series, kept up to date by
// the server's event stream.
import { error_text, get, is_abort, request, run_path } from '../lib/api';
import { prefs } from '../lib/prefs.svelte';
import { events_of, type StreamEvent } from '../lib/sse';
import { is_charted } from './catalogue';
import { append, empty_series, recent, tidy, values_of, type Series } from './series';
import type { RunDetail, RunInfo, Sample } from './types';

// The part of the x axis that is shown; null: all of it.
export const view = $state({ range: null as [number, number] | null });

const points = 800; // buckets asked for: about one per pixel of a chart
const most_keys = 60; // of a request; the server refuses more than 64
const most_appended = 1500; // live points after which the server decimates again
const most_streams = 3; // browsers allow six connections to a host
const quiet_ms = 45_000; // the server writes a comment every 15 s
let streams = 0;

const pause = (ms: number, signal: AbortSignal) =>
  new Promise<void>((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => (clearTimeout(timer), resolve()), { once: true });
  });

interface Offset {
  log: number; // bytes
  perf: number;
}

export class RunView {
  readonly id: string;
  info = $state.raw<RunInfo | null>(null);
  detail = $state.raw<RunDetail | null>(null);
  samples = $state.raw<Sample[]>([]);
  error = $state('');
  link = $state<'none' | 'live' | 'waiting'>('none');
  version = $state(0); // increases when `series` has changed
  step_ms = $state({ all: 0, recent: 0 }); // mean time of a step, whatever part is zoomed into; 0: unknown
  series = new Map<string, Series>();

  private offset: Offset = { log: 0, perf: 0 };
  private appended = 0;
  private pending: Record<string, unknown>[] | null = null; // lines that came during a fetch
  private closing = new AbortController();
  private fetching: AbortController | null = null;
  private opening = false;
  private following = false;
  private redraw: ReturnType<typeof setTimeout> | undefined;
  private refresh: ReturnType<typeof setTimeout> | undefined;

  constructor(id: string) {
    this.id = id;
    this.open();
  }

  close() {
    this.closing.abort();
    this.fetching?.abort();
    clearTimeout(this.redraw);
    clearTimeout(this.refresh);
  }

  // What the list says about this run. A run that was resumed is followed again.
  update(info: RunInfo) {
    this.info = info;
    if (info.state === 'running' && !this.following && !this.opening) void this.open();
  }

  private async open() {
    this.opening = true;
    try {
      await this.load_detail();
      await this.load_series();
      await this.load_samples();
      this.error = '';
    } catch (e) {
      if (!is_abort(e)) this.error = error_text(e);
    }
    this.opening = false;
    void this.follow();
  }

  private async load_detail() {
    this.detail = await get<RunDetail>(run_path(this.id), this.closing.signal);
    this.info = this.detail.run;
  }

  async load_series() {
    if (!this.detail) return;
    this.fetching?.abort();
    const fetching = (this.fetching = new AbortController());
    this.pending = [];
    const batches = this.key_batches();
    const range = view.range ? `&from=${view.range[0]}&to=${view.range[1]}` : '';
    try {
      const series = new Map<string, Series>();
      let offset: Offset | undefined; // of the first answer: later ones may have more lines
      for (const keys of batches) {
        const wanted = keys.map(encodeURIComponent).join(',');
        const found = await get<{ series: Record<string, Series>; offset: Offset }>(
          `${run_path(this.id)}/series?keys=${wanted}&x=${prefs.x}&points=${points}${range}`, fetching.signal);
        for (const [k, s] of Object.entries(found.series)) if (s.x.length > 0) series.set(k, tidy(s));
        offset ??= found.offset;
        this.series = new Map([...this.series, ...series]);
        this.changed();
      }
      this.series = series;
      const ms = series.get('ms');
      if (!view.range) this.step_ms = { all: recent(ms, Infinity) ?? 0, recent: recent(ms, 20) ?? 0 };
      if (this.link !== 'live') this.offset = offset!;
      this.appended = 0;
      const pending = this.pending ?? [];
      this.pending = null;
      for (const line of pending) this.add(line);
      this.changed();
    } catch (e) {
      if (this.fetching === fetching) this.pending = null;
      if (!is_abort(e)) throw e;
    }
  }

  // The keys to ask for. Those of perf.jsonl come last: the server may have to read that file first,
  // and the loss can be shown meanwhile.
  private key_batches(): string[][] {
    const { log, perf } = this.detail!.keys;
    const wanted = (keys: Iterable<string>) => [...keys].filter((k) => is_charted(k) && !k.includes(','));
    const slow = new Set(perf);
    const quick = new Set([...log, ...this.series.keys()].filter((k) => !slow.has(k)));
    const batches: string[][] = [];
    for (const keys of [wanted(quick), wanted(slow)])
      for (let i = 0; i < keys.length; i += most_keys) batches.push(keys.slice(i, i + most_keys));
    return batches.length > 0 ? batches : [[]];
  }

  // Samples have no offset: they are read after the stream has begun, and those that came in
  // meanwhile are kept.
  private async load_samples() {
    const before = this.samples;
    const { samples } = await get<{ samples: Sample[] }>(`${run_path(this.id)}/samples?last=200`, this.closing.signal);
    const known = new Set(samples.map((s) => s.step));
    const came = this.samples.filter((s) => !before.includes(s) && !known.has(s.step));
    this.samples = [...samples, ...came].slice(-200);
  }

  private async reload() {
    if (!this.closing.signal.aborted) await this.load_series().catch((e) => (this.error = error_text(e)));
  }

  private reload_soon(ms: number) {
    this.refresh ??= setTimeout(() => ((this.refresh = undefined), void this.reload()), ms);
  }

  private changed() {
    this.redraw ??= setTimeout(() => ((this.redraw = undefined), ++this.version), 100);
  }

  // Follows the run while it is being written: by events, or by asking again if too many streams
  // are open. After a gap (sleep, lost connection) the series are fetched again.
  private async follow() {
    if (this.following) return;
    this.following = true;
    const signal = this.closing.signal;
    for (let wait = 1000; !signal.aborted && this.info?.state === 'running'; ) {
      if (document.hidden) {
        await new Promise<void>((resolve) => {
          document.addEventListener('visibilitychange', () => resolve(), { once: true, signal });
          signal.addEventListener('abort', () => resolve(), { once: true });
        });
        await this.reload();
        continue;
      }
      if (streams >= most_streams) {
        await pause(5000, signal);
        await this.reload();
        await this.load_samples().catch(() => {});
        continue;
      }
      ++streams;
      const began = Date.now();
      try {
        await this.read_events(signal);
      } catch (e) {
        if (!is_abort(e)) this.error = error_text(e);
      } finally {
        --streams;
        this.link = 'waiting';
      }
      if (Date.now() - began > 10_000) wait = 1000;
      await pause(wait * (0.75 + Math.random() / 2), signal);
      wait = Math.min(2 * wait, 30_000);
      if (!signal.aborted && !document.hidden) await this.reload();
    }
    this.link = 'none';
    this.following = false;
    if (!signal.aborted && this.detail) await this.load_detail().then(() => this.load_series()).catch(() => {});
  }

  private async read_events(outer: AbortSignal) {
    const abort = new AbortController();
    const stop = () => abort.abort();
    let heard = Date.now();
    // A timer that fires late means that the machine slept: the connection may be dead.
    let tick = Date.now();
    const watch = setInterval(() => {
      const now = Date.now();
      if (now - tick > 20_000 || now - heard > quiet_ms) stop();
      tick = now;
    }, 5000);
    const hide = () => document.hidden && stop();
    outer.addEventListener('abort', stop);
    document.addEventListener('visibilitychange', hide);
    try {
      const { log, perf } = this.offset;
      const response = await request(`${run_path(this.id)}/events?log=${log}&perf=${perf}`, { signal: abort.signal });
      this.link = 'live';
      this.error = '';
      void this.load_samples().catch(() => {});
      for await (const events of events_of(response)) {
        heard = Date.now();
        for (const e of events) this.take(e);
        if (this.info?.state !== 'running') return;
      }
    } finally {
      clearInterval(watch);
      outer.removeEventListener('abort', stop);
      document.removeEventListener('visibilitychange', hide);
      abort.abort();
    }
  }

  private take(e: StreamEvent) {
    const [log, perf] = e.id.split(',').map(Number);
    if (Number.isFinite(log) && Number.isFinite(perf)) this.offset = { log: log!, perf: perf! };
    if (e.event === 'reset') {
      this.series.clear();
      void this.reload();
      return;
    }
    const data = JSON.parse(e.data);
    if (e.event === 'state') this.info = data;
    else if (data.file === 'samples') this.samples = [...this.samples.filter((s) => s.step !== data.line.step), data.line].slice(-200);
    else if (data.line && typeof data.line === 'object') {
      this.pending?.push(data.line);
      this.add(data.line);
    }
  }

  private add(line: Record<string, unknown>) {
    if (typeof line.step !== 'number') return;
    if (this.info && line.step > (this.info.step ?? -1)) this.info = { ...this.info, step: line.step };
    for (const name of ['loss', 'val_loss', 'reward', 'tokens_per_s', 'mfu'] as const)
      if (this.info && typeof line[name] === 'number') this.info = { ...this.info, [name]: line[name] };
    if (typeof line.ms === 'number') this.step_ms.recent += (line.ms - this.step_ms.recent) * (this.step_ms.recent ? 0.05 : 1);
    if (prefs.x !== 'step') return this.reload_soon(2000); // only the server knows x of this line
    if (view.range && line.step > view.range[1]) return;
    for (const [name, v] of values_of(line)) {
      let s = this.series.get(name);
      if (!s) this.series.set(name, (s = empty_series()));
      if (append(s, line.step, v)) ++this.appended;
    }
    if (this.appended > most_appended * this.series.size) this.reload_soon(0);
    this.changed();
  }
}

class Runs {
  list = $state.raw<RunInfo[]>([]);
  selected = $state.raw<RunView[]>([]);
  loaded = $state(false);
  truncated = $state(false);
  error = $state('');
}

export const runs = new Runs();

export async function load_list() {
  try {
    const found = await get<{ runs: RunInfo[]; truncated?: boolean }>('api/runs');
    runs.list = found.runs;
    runs.truncated = found.truncated ?? false;
    runs.error = '';
    for (const v of runs.selected) {
      const info = found.runs.find((r) => r.id === v.id);
      if (info) v.update(info);
    }
  } catch (e) {
    runs.error = error_text(e);
  }
  runs.loaded = true;
}

// Keeps the views of runs that stay selected.
export function select(ids: string[]) {
  const kept = new Map(runs.selected.map((v) => [v.id, v]));
  runs.selected = ids.map((id) => kept.get(id) ?? new RunView(id));
  for (const v of kept.values()) if (!ids.includes(v.id)) v.close();
}

export function set_range(range: [number, number] | null) {
  view.range = range;
  refetch();
}

export function refetch() {
  for (const v of runs.selected) void v.load_series().catch((e) => (v.error = error_text(e)));
}

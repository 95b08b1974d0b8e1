// The arithmetic of curves: smoothing, live points, and one x axis for curves of several runs.

export type Value = number | null;

export interface Series {
  x: number[];
  mean: Value[];
  min?: Value[]; // of the bucket, where the server decimated
  max?: Value[];
  decimated: boolean;
}

export const empty_series = (): Series => ({ x: [], mean: [], decimated: false });

// Exponential moving average without a bias toward its start; missing values stay missing.
export function ema(values: Value[], weight: number): Value[] {
  let sum = 0;
  let norm = 0;
  return values.map((v) => {
    if (v === null) return null;
    sum = weight * sum + (1 - weight) * v;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

// Adds a live point. A point that is not beyond the last one has been seen before.
export function append(s: Series, x: number, v: Value): boolean {
  if (s.x.length > 0 && x <= s.x[s.x.length - 1]!) return false;
  s.x.push(x);
  s.mean.push(v);
  s.min?.push(v);
  s.max?.push(v);
  return true;
}

// The limits of src/board/line_numbers.cpp, so that live points have the names that the server gives.
const max_depth = 16; // of a line; a deeper one has no values
const max_key = 128; // bytes
const max_entries = 256; // of an array
const max_items = 4096; // of a line
const no_name = /^$|[\u0000-\u001f\u007f"\\]/; // empty, or escaped in JSON
const utf8 = new TextEncoder();

// Empty if the key cannot be the name of a series.
function join_names(prefix: string, key: string): string {
  const name = prefix ? `${prefix}.${key}` : key;
  return no_name.test(key) || utf8.encode(name).length > max_key ? '' : name;
}

// The values of one line of a log, by name: `load.0` for an entry of an array, `load.max` for one of an
// object. `step` itself is the axis.
export function values_of(line: Record<string, unknown>): [string, Value][] {
  const found: [string, Value][] = [];
  // An empty name below the first level means that the values are not wanted. False: too deep.
  const read = (v: unknown, name: string, depth: number): boolean => {
    if (typeof v === 'object' && v !== null) {
      const wanted = depth === 1 || name !== '';
      const most = Array.isArray(v) ? max_entries : Infinity;
      return depth <= max_depth &&
        Object.entries(v).every(([key, w], i) => read(w, wanted && i < most ? join_names(name, key) : '', depth + 1));
    }
    if (name && typeof v !== 'string' && found.length < max_items)
      found.push([name, v !== null && Number.isFinite(Number(v)) ? Number(v) : null]);
    return true;
  };
  return read(line, '', 1) ? found.filter(([name]) => name !== 'step') : [];
}

// A series as the charts need it: x ascending, and of points with equal x the last.
export function tidy(s: Series): Series {
  let ascends = true;
  for (let i = 1; i < s.x.length && ascends; ++i) ascends = s.x[i]! > s.x[i - 1]!;
  if (ascends) return s;
  const last = new Map(s.x.map((x, i) => [x, i]));
  const order = [...last.keys()].sort((a, b) => a - b).map((x) => last.get(x)!);
  const pick = <T>(list: T[]) => order.map((i) => list[i]!);
  return {
    x: pick(s.x),
    mean: pick(s.mean),
    min: s.min && pick(s.min),
    max: s.max && pick(s.max),
    decimated: s.decimated,
  };
}

// Columns over one axis: the union of all x, with null where a column has no point.
export function join(columns: { x: number[]; y: Value[] }[]): [number[], ...Value[][]] {
  const axes = new Set(columns.map((c) => c.x));
  if (axes.size === 1) return [columns[0]!.x, ...columns.map((c) => c.y)];
  const all = new Set<number>();
  for (const axis of axes) for (const x of axis) all.add(x);
  const axis = Float64Array.from(all).sort();
  const place = new Map<number, number>();
  axis.forEach((x, i) => place.set(x, i));
  const spread = columns.map((c) => {
    const y: Value[] = new Array(axis.length).fill(null);
    c.x.forEach((x, i) => (y[place.get(x)!] = c.y[i] ?? null));
    return y;
  });
  return [Array.from(axis), ...spread];
}

// The nearest index at or around i at which a column has a value.
export function nearest(y: ArrayLike<number | null | undefined>, i: number): number | null {
  for (let d = 0; d < y.length; ++d) {
    if (y[i - d] != null) return i - d;
    if (y[i + d] != null) return i + d;
  }
  return null;
}

// The value axis of a chart: a tenth of room around the values, zero kept as a border, and a sensible
// range for values that are all equal.
export function value_range(low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low === 0 ? [0, 1] : [Math.min(0, 2 * low), Math.max(0, 2 * low)];
  const room = (high - low) / 10;
  return [low >= 0 ? Math.max(0, low - room) : low - room, high <= 0 ? Math.min(0, high + room) : high + room];
}

// Mean of the last values, for speeds that jitter.
export function recent(s: Series | undefined, count: number): number | null {
  const last = (s?.mean ?? []).filter((v): v is number => v !== null).slice(-count);
  return last.length === 0 ? null : last.reduce((a, b) => a + b, 0) / last.length;
}

export function last_value(s: Series | undefined): number | null {
  for (let i = (s?.mean.length ?? 0) - 1; i >= 0; --i) if (s!.mean[i] !== null) return s!.mean[i]!;
  return null;
}

// Counts of whole numbers in bins of equal width, from their least to their greatest.
export function histogram(values: number[], most_bins: number) {
  const low = Math.min(...values);
  const range = Math.max(...values) - low + 1;
  const width = Math.ceil(range / most_bins);
  const counts: number[] = new Array(Math.ceil(range / width)).fill(0);
  for (const v of values) counts[Math.floor((v - low) / width)]! += 1;
  return counts.map((count, i) => ({ from: low + i * width, to: Math.min(low + (i + 1) * width, low + range) - 1, count }));
}

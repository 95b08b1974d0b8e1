// Numbers, times and sizes as short text.

const none = '–';

export function number(v: number | null | undefined, digits = 4): string {
  if (v == null || !Number.isFinite(v)) return none;
  const size = Math.abs(v);
  if (size < 1e-14) return '0'; // a sum of numbers that cancel
  if (size >= 1e5) return compact(v);
  if (size < 1e-3) return v.toExponential(2);
  return String(Number(v.toPrecision(digits)));
}

export function compact(v: number | null | undefined): string {
  if (v == null || !Number.isFinite(v)) return none;
  for (const [unit, name] of [[1e12, 'T'], [1e9, 'B'], [1e6, 'M'], [1e3, 'k']] as const)
    if (Math.abs(v) >= unit) return `${Number((v / unit).toPrecision(3))}${name}`;
  return String(Number(v.toPrecision(3)));
}

export const whole = (v: number | null | undefined) =>
  v == null ? none : Math.round(v).toLocaleString('en');

export const percent = (v: number | null | undefined) =>
  v == null || !Number.isFinite(v) ? none : `${Number((100 * v).toPrecision(3))}%`;

export function bytes(v: number | null | undefined): string {
  if (v == null || !Number.isFinite(v)) return none;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  for (; Math.abs(v) >= 1024 && i < units.length - 1; ++i) v /= 1024;
  return `${Number(v.toPrecision(3))} ${units[i]}`;
}

export function duration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return none;
  if (seconds < 10) return `${Number(seconds.toPrecision(2))} s`;
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  const hours = Math.floor(s / 3600);
  if (hours < 48) return `${hours} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function ago(time: string | null | undefined, now = Date.now()): string {
  const then = Date.parse(time ?? '');
  if (Number.isNaN(then)) return none;
  const s = (now - then) / 1000;
  if (s < 5) return 'just now';
  return `${s < 90 ? `${Math.round(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`} ago`;
}

// A value of a config, as it is written there.
export const value_text = (v: unknown) =>
  v === undefined ? none : typeof v === 'string' ? v : JSON.stringify(v);

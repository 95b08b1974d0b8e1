// Requests to the server the page came from. When the server wants a key, the request waits until
// the user has entered one.
import { ask_for_key, key } from './key.svelte';

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

async function message_of(response: Response): Promise<string> {
  const text = await response.text().catch(() => '');
  try {
    const message = JSON.parse(text)?.error?.message;
    if (typeof message === 'string') return message;
  } catch {
    // not JSON: the text itself is the message
  }
  return text.slice(0, 300) || `the server answered ${response.status}`;
}

// `path` is relative to the page, so that a proxy may put the app under a folder.
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  for (;;) {
    const used = key.value;
    const headers = new Headers(init.headers);
    if (used) headers.set('Authorization', `Bearer ${used}`);
    const response = await fetch(path, { ...init, headers });
    if (response.ok) return response;
    if (response.status !== 401) throw new ApiError(response.status, await message_of(response));
    if (used === key.value) await ask_for_key(used !== '');
  }
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await request(path, { signal })).json();
}

export function post(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  const headers = { 'Content-Type': 'application/json' };
  return request(path, { method: 'POST', headers, body: JSON.stringify(body), signal });
}

export const run_path = (id: string) => `api/runs/${encodeURIComponent(id)}`;

export function error_text(e: unknown): string {
  if (e instanceof ApiError) return e.message;
  if (e instanceof TypeError) return 'The server cannot be reached.';
  return e instanceof Error ? e.message : String(e);
}

export const is_abort = (e: unknown) => e instanceof DOMException && e.name === 'AbortError';

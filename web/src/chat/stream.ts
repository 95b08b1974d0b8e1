// Streams of /v1/chat/completions and /v1/completions, in one form.
import { ApiError, post } from '../lib/api';
import { events_of } from '../lib/sse';
import type { Token } from '../lib/Tokens.svelte';

export interface Chunk {
  text: string;
  tokens: Token[];
  finish: string | null;
  count: number | null; // tokens of the answer, in the last chunk
}

// A chunk of either route.
export function read_chunk(json: any): Chunk {
  const choice = json?.choices?.[0];
  const logprobs = choice?.logprobs;
  const tokens: Token[] = logprobs?.content
    ? logprobs.content.map((t: any) => ({
        text: t.token,
        logprob: t.logprob,
        top: (t.top_logprobs ?? []).map((a: any) => [a.token, a.logprob]),
      }))
    : (logprobs?.tokens ?? []).map((text: string, i: number) => ({
        text,
        logprob: logprobs.token_logprobs?.[i] ?? null,
        top: Object.entries(logprobs.top_logprobs?.[i] ?? {}).sort((a: any, b: any) => b[1] - a[1]),
      }));
  return {
    text: choice?.delta?.content ?? choice?.text ?? '',
    tokens,
    finish: choice?.finish_reason ?? null,
    count: json?.usage?.completion_tokens ?? null,
  };
}

// Ends normally only if the server said that the answer is complete.
export async function* stream(path: string, body: object, signal: AbortSignal): AsyncGenerator<Chunk> {
  const response = await post(path, { ...body, stream: true, stream_options: { include_usage: true } }, signal);
  for await (const events of events_of(response))
    for (const e of events) {
      if (e.data === '[DONE]') return;
      const json = JSON.parse(e.data);
      if (json.error) throw new ApiError(500, String(json.error.message ?? 'the server reported an error'));
      yield read_chunk(json);
    }
  throw new TypeError('the stream ended early');
}

export async function tokenize(body: object, signal: AbortSignal): Promise<{ tokens: number[]; max_model_len: number }> {
  return (await post('tokenize', body, signal)).json();
}

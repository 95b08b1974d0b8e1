// A piece of a streamed answer, in one form for /v1/chat/completions and /v1/completions.
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

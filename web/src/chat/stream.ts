// Requests of the chat page that stream.
import { ApiError, post } from '../lib/api';
import { events_of } from '../lib/sse';
import { read_chunk, type Chunk } from './chunk';

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

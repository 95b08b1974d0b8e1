// Reads a text/event-stream. EventSource cannot send an Authorization header, so streams are read
// with fetch and parsed here.

export interface StreamEvent {
  event: string;
  id: string;
  data: string;
}

// A push parser: feed() takes text as it arrives, in pieces of any size, and returns whole events.
export class EventParser {
  private rest = '';
  private event = '';
  private data: string[] = [];
  private id = '';
  private after_cr = false; // the last piece ended in CR: an LF that follows belongs to it

  feed(text: string): StreamEvent[] {
    if (this.after_cr && text.startsWith('\n')) text = text.slice(1);
    if (text !== '') this.after_cr = text.endsWith('\r');
    const lines = (this.rest + text).split(/\r\n|\n|\r/);
    this.rest = lines.pop() ?? '';
    const events: StreamEvent[] = [];
    for (const line of lines) {
      if (line === '') {
        if (this.data.length > 0 || this.event !== '')
          events.push({ event: this.event || 'message', id: this.id, data: this.data.join('\n') });
        this.event = '';
        this.data = [];
        continue;
      }
      const colon = line.indexOf(':');
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
      if (field === 'event') this.event = value;
      else if (field === 'data') this.data.push(value);
      else if (field === 'id') this.id = value;
    }
    return events;
  }
}

// Yields the events of a response; an empty list means that bytes came without a whole event.
export async function* events_of(response: Response): AsyncGenerator<StreamEvent[]> {
  if (!response.body) return;
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield parser.feed(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

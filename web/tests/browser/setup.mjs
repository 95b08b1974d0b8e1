// Opens the app in Chromium against the mock.
import { start } from '../mock.mjs';
import { open_page } from '../page.mjs';

export * from '../page.mjs';

export async function with_page(options, body) {
  const { phone, dark, path, allow, ...mock } = options;
  const server = await start(mock);
  try {
    await open_page(server.url, { phone, dark, path, allow }, (open) => body({ ...open, server }));
  } finally {
    server.close();
  }
}

// The lines of a run's log.jsonl.
export const log_of = (server, id) => server.runs.find((r) => r.id === id).log.lines;

// Opens the pages of the real program on a desktop and on a phone.
import { test } from 'node:test';
import { no_browser, open_page } from '../page.mjs';
import { world } from './world.mjs';

export * from '../page.mjs';
export * from './world.mjs';

export const skip = no_browser || (world ? false : 'needs tests/real/main.mjs');

// `options` as for open_page(); `chat` opens the chat page instead of the dashboard, and `server`
// starts another server, whose address it returns.
export function on_each_size(name, options, body) {
  for (const phone of [false, true]) on_page(`${name}, ${phone ? 'phone' : 'desktop'}`, { ...options, phone }, body);
}

export function on_page(name, { chat = false, server, ...options }, body) {
  test(name, { skip }, async () => {
    const url = server ? await server() : chat ? world.chat : world.board;
    return open_page(url, { path: chat ? '/#/chat' : '/#/runs', ...options }, (open) => body({ ...open, url, ...options }));
  });
}

// On a phone the list of runs is folded.
export async function unfold(page, phone) {
  if (phone) await page.getByRole('button', { name: 'Runs', exact: true }).click();
}

// Makes answers long and slow enough to be stopped and cut: they go on after their end, and the
// network is slow. They are the most likely ones, so that they begin as taught.
export async function slow_answers(page) {
  await page.route(/\/v1\/(chat\/)?completions$/, (route) => {
    const body = route.request().postDataJSON();
    return route.continue({ postData: { ...body, max_tokens: Math.min(body.max_tokens ?? 300, 300), temperature: 0, ignore_eos: true } });
  });
  const session = await page.context().newCDPSession(page);
  await session.send('Network.enable');
  await session.send('Network.emulateNetworkConditions', { offline: false, latency: 0, downloadThroughput: 60_000, uploadThroughput: -1 });
}

// The text of an answer as the model wrote it.
export async function source_of(answer) {
  const button = answer.getByRole('button', { name: 'Source' });
  if ((await button.getAttribute('aria-pressed')) !== 'true') await button.click();
  return answer.locator('.body').innerText();
}

// Opens the app in Chromium, against the mock or the server that HEARTH_URL names. Every test also
// checks that no error or warning was logged and that no request left the server's origin.
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { chromium } from 'playwright-core';
import { start } from '../mock.mjs';

export const real = process.env.HEARTH_URL;
const program = process.env.CHROMIUM ?? ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find(existsSync);

// Why a test cannot run here; false if it can.
export const no_browser = program ? false : 'needs Chromium';
export const needs_mock = no_browser || (real ? 'needs the invented data of the mock' : false);

let browser;
export async function close_browser() {
  await browser?.close();
}

export async function with_page(options, body) {
  const { phone = false, dark = false, path = '/', allow = /^$/, ...mock } = options;
  if (!browser?.isConnected()) browser = await chromium.launch({ executablePath: program, args: ['--no-sandbox'] });
  const server = real ? { url: real } : await start(mock);
  const context = await browser.newContext({
    viewport: phone ? { width: 390, height: 780 } : { width: 1280, height: 860 },
    colorScheme: dark ? 'dark' : 'light',
    reducedMotion: 'reduce',
  });
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  const errors = [];
  const foreign = [];
  page.on('console', (m) => ['error', 'warning'].includes(m.type()) && !allow.test(m.text()) && errors.push(m.text()));
  page.on('pageerror', (e) => errors.push(String(e)));
  page.on('dialog', (d) => d.accept());
  context.on('request', (r) => {
    if (!/^(data|blob):/.test(r.url()) && new URL(r.url()).origin !== new URL(server.url).origin) foreign.push(r.url());
  });
  if (real && process.env.HEARTH_API_KEY)
    await page.addInitScript((key) => sessionStorage.setItem('hearth-key', key), process.env.HEARTH_API_KEY);
  try {
    // A browser that died must not keep the tests waiting.
    const died = new Promise((_, reject) => browser.once('disconnected', () => reject(new Error('Chromium has ended'))));
    died.catch(() => {});
    await page.goto(server.url + path);
    await Promise.race([body({ page, server, context }), died]);
    assert.deepEqual(errors, [], 'errors in the console');
    assert.deepEqual(foreign, [], 'requests to other origins');
  } finally {
    server.close?.();
    if (browser.isConnected()) await context.close();
  }
}

// Polls until `get` gives a value that `is` accepts.
export async function until(get, is, what, ms = 15_000) {
  let value;
  for (const end = Date.now() + ms; Date.now() < end; await new Promise((r) => setTimeout(r, 60))) {
    value = await get();
    if (is(value)) return value;
  }
  assert.fail(`${what}: still ${JSON.stringify(value)}`);
}

export const api = async (server, path) => {
  const headers = process.env.HEARTH_API_KEY ? { Authorization: `Bearer ${process.env.HEARTH_API_KEY}` } : {};
  return (await fetch(`${server.url}/api/${path}`, { headers })).json();
};

// The first run that `is` accepts; none if the server has only the chat page.
export async function find_run(server, is) {
  return ((await api(server, 'runs')).runs ?? []).find(is);
}

// The lines of a run's log.jsonl.
export function log_of(server, id) {
  if (!real) return server.runs.find((r) => r.id === id).log.lines;
  return readFileSync(join(process.env.HEARTH_RUNS, id, 'log.jsonl'), 'utf8').split('\n').slice(0, -1).map((l) => JSON.parse(l));
}

export const run_link = (...ids) => `/#/runs?${ids.map((id) => `r=${encodeURIComponent(id)}`).join('&')}`;
export const points_of = async (page, chart) => Number(await page.locator(`[data-chart="${chart}"]`).getAttribute('data-points'));
export const last_of = async (page, chart) => Number(await page.locator(`[data-chart="${chart}"]`).getAttribute('data-last'));

// Makes the answers of a real model long and slow enough to be stopped and cut.
export async function slow_answers(page) {
  if (!real) return;
  await page.route(/\/v1\/(chat\/)?completions$/, (route) => {
    const body = route.request().postDataJSON();
    return route.continue({ postData: { ...body, max_tokens: Math.min(body.max_tokens ?? 300, 300), ignore_eos: true } });
  });
  const session = await page.context().newCDPSession(page);
  await session.send('Network.enable');
  await session.send('Network.emulateNetworkConditions', { offline: false, latency: 0, downloadThroughput: 60_000, uploadThroughput: -1 });
}

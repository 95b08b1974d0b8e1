// Opens a page of the app in Chromium. Whoever does that also checks that no error or warning was
// logged and that no request left the server's origin.
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

const program = process.env.CHROMIUM ?? ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find(existsSync);

// Why a test cannot run here; false if it can.
export const no_browser = program ? false : 'needs Chromium';

let browser;
export async function close_browser() {
  await browser?.close();
}

export async function open_page(url, { phone = false, dark = false, path = '/', allow = /^$/ }, body) {
  if (!browser?.isConnected()) browser = await chromium.launch({ executablePath: program, args: ['--no-sandbox'] });
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
    if (!/^(data|blob):/.test(r.url()) && new URL(r.url()).origin !== new URL(url).origin) foreign.push(r.url());
  });
  try {
    // A browser that died must not keep the tests waiting.
    const died = new Promise((_, reject) => browser.once('disconnected', () => reject(new Error('Chromium has ended'))));
    died.catch(() => {});
    await page.goto(url + path);
    await Promise.race([body({ page, context }), died]);
    assert.deepEqual(errors, [], 'errors in the console');
    assert.deepEqual(foreign, [], 'requests to other origins');
  } finally {
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

export const run_link = (...ids) => `/#/runs?${ids.map((id) => `r=${encodeURIComponent(id)}`).join('&')}`;
export const points_of = async (page, chart) => Number(await page.locator(`[data-chart="${chart}"]`).getAttribute('data-points'));
export const last_of = async (page, chart) => Number(await page.locator(`[data-chart="${chart}"]`).getAttribute('data-last'));

// --- conversations ---

export const answers = (page) => page.locator('[data-message="assistant"]');
export const body = (page, i = -1) => answers(page).nth(i).locator('.body');
export const status = (page, i = -1) => answers(page).nth(i).getAttribute('data-status');

export async function send(page, text) {
  await page.waitForFunction(() => document.querySelector('.pane select')?.value);
  await page.locator('#draft').fill(text);
  await page.locator('#draft').press('Enter');
}

export async function ask(page, text) {
  await send(page, text);
  await until(() => answers(page).count(), (n) => n > 0, 'an answer');
  await until(() => status(page), (v) => v !== 'streaming', 'the status', 60_000);
}

// --- accessibility ---

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

export async function examine(page, what) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document));
  const bad = violations.filter((v) => ['serious', 'critical'].includes(v.impact));
  assert.deepEqual(bad.map((v) => `${v.id}: ${v.nodes.map((n) => `${n.target} ${n.any[0]?.message ?? ''}`).join('; ')}`), [], what);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(wide <= 0, `${what}: ${wide} pixels wider than the screen`);
}

const focused = (page) => page.evaluate(() => document.activeElement?.getAttribute('aria-label') ?? document.activeElement?.textContent?.trim() ?? '');

export async function tab_to(page, text, most = 60) {
  const seen = [];
  for (let i = 0; i < most; ++i) {
    await page.keyboard.press('Tab');
    const name = await focused(page);
    seen.push(name.slice(0, 20));
    if (name.includes(text)) {
      const ring = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
      assert.notEqual(ring, 'none', `${text} shows its focus`);
      return;
    }
  }
  assert.fail(`Tab does not reach ${text}: ${seen.join(' | ')}`);
}

// --- hostile texts ---

// Nothing that a model or a folder said became an element or ran.
export async function stays_text(page) {
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  const found = await page.evaluate(() => ['img', 'iframe', 'script:not([src])', 'base', 'style', 'main svg', 'main a', '[onerror]', '[onload]'].filter((s) => document.querySelector(s)));
  assert.deepEqual(found, [], 'elements made of hostile text');
}

// Hostile texts, other origins, keys.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { close_browser, no_browser, run_link, stays_text, until, with_page } from './setup.mjs';

after(close_browser);

const hostile = [
  '<img src="http://evil.example/a.png" onerror="window.hacked=1"><script>window.hacked=1</script>',
  '![picture](http://evil.example/b.png) [click](javascript:window.hacked=1) <http://evil.example/c>',
  '```html\n<script>window.hacked=1</script>\n```',
  '<svg onload=window.hacked=1> <iframe src=//evil.example> <a href="javascript:window.hacked=1">x</a> &lt;b&gt; {@html x} {{7*7}}',
  '<style>body{display:none}</style><base href="http://evil.example/">',
].join('\n\n');

test('hostile output of a model stays text', { skip: no_browser }, async () => {
  await with_page({}, async ({ page, server }) => {
    await page.route('**/v1/models', (r) => r.fulfill({ status: 200, contentType: 'application/json', body: JSON.stringify({ data: [{ id: hostile, chat_template: true }] }) }));
    await page.goto('about:blank'); // so that the next one loads the page anew
    await page.goto(`${server.url}/#/chat`);
    await page.waitForFunction(() => document.querySelector('.pane select')?.value);
    const chunk = (delta, finish_reason = null) => `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason, logprobs: { content: [{ token: hostile, logprob: -1, top_logprobs: [{ token: hostile + '!', logprob: -2 }] }] } }] })}\n\n`;
    await page.route('**/v1/chat/completions', (r) => r.fulfill({ status: 200, contentType: 'text/event-stream', body: chunk({ content: hostile }) + chunk({}, 'stop') + 'data: [DONE]\n\n' }));
    await page.locator('#draft').fill(hostile.replaceAll('\n', ' '));
    await page.locator('#draft').press('Enter');
    const answer = page.locator('[data-message="assistant"]');
    await until(() => answer.getAttribute('data-status'), (v) => v === 'done', 'the status');
    assert.match(await answer.locator('.body').innerText(), /<img src="http:\/\/evil\.example\/a\.png" onerror="window\.hacked=1">/);
    assert.match(await answer.locator('.body').innerText(), /picture \(http:\/\/evil\.example\/b\.png\)/);
    await stays_text(page);
    await answer.getByRole('button', { name: 'Tokens' }).click();
    await answer.locator('[data-i]').first().hover({ position: { x: 3, y: 3 } });
    await page.locator('.tip').waitFor();
    await stays_text(page);
    await page.reload();
    await page.locator('[data-message="assistant"] .body').waitFor();
    await stays_text(page);
  });
});

test('hostile runs stay text', { skip: no_browser }, async () => {
  await with_page({}, async ({ page, server }) => {
    const id = 'a/../<img src=x onerror="window.hacked=1">?#%2f';
    const run = { id, name: hostile, task: hostile, state: 'stopped', step: 3, steps: 10, updated: hostile, started: null, loss: 1, val_loss: null, reward: null, tokens_per_s: null, mfu: null, params: null, model: hostile, trouble: hostile };
    const key = '<img src=x onerror="window.hacked=1">';
    const json = (body) => (r) => r.fulfill({ status: 200, contentType: 'application/json', body: JSON.stringify(body) });
    const seen = [];
    page.on('request', (r) => seen.push(r.url()));
    await page.route('**/api/info', json({ version: hostile, pages: ['runs', 'chat', hostile], root: hostile }));
    await page.route('**/api/runs', json({ runs: [run] }));
    await page.route('**/api/runs/**', json({ run, config: { [key]: hostile }, config_text: hostile, keys: { log: ['loss', key], perf: [] }, best: null, checkpoints: [], memory: { [key]: 5 }, seconds: null,
      series: { loss: { x: [1, 2], mean: [1, null], decimated: false }, [key]: { x: [1], mean: [2], decimated: false } }, offset: { log: 0, perf: 0 }, samples: [{ step: 1, text: hostile }] }));
    await page.goto(server.url + run_link(id));
    await page.reload();
    await page.locator('h1', { hasText: '<script>' }).waitFor();
    await page.locator('figure h3', { hasText: '<img' }).waitFor();
    for (const tab of ['Samples', 'Config', 'Checkpoints']) {
      await page.getByRole('tab', { name: tab }).click();
      await page.waitForTimeout(100);
      await stays_text(page);
    }
    assert.ok(seen.some((u) => u.endsWith(`/api/runs/${encodeURIComponent(id)}`)), 'the name is one segment of the path');
  });
});

test('the page is served with a strict policy and works under it', { skip: no_browser }, async () => {
  await with_page({ path: '/', allow: /inline script/ }, async ({ page, server }) => {
    const headers = (await fetch(server.url)).headers;
    const policy = headers.get('content-security-policy');
    assert.match(policy, /default-src 'none'/);
    assert.match(policy, /script-src 'self'(;|$)/);
    assert.match(policy, /connect-src 'self'(;|$)/);
    assert.equal(headers.get('x-content-type-options'), 'nosniff');
    await page.locator('nav a').first().waitFor();
    // The policy is in force: an inline script does not run.
    const blocked = await page.evaluate(() => new Promise((resolve) => {
      addEventListener('securitypolicyviolation', () => resolve(true), { once: true });
      const s = document.createElement('script');
      s.textContent = 'window.hacked = 1';
      document.head.append(s);
      setTimeout(() => resolve(false), 500);
    }));
    assert.ok(blocked);
    assert.equal(await page.evaluate(() => window.hacked), undefined);
  });
});

test('a key is asked for, refused, and kept for the tab', { skip: no_browser }, async () => {
  await with_page({ path: '/#/runs', key: 'secret', allow: /401/ }, async ({ page }) => {
    const dialog = page.getByRole('dialog', { name: 'This server needs a key' });
    await dialog.waitFor();
    await page.keyboard.press('Escape');
    await page.getByLabel('API key').fill('wrong');
    await page.keyboard.press('Enter');
    await page.getByText('did not accept this key').waitFor();
    await page.getByLabel('API key').fill('secret');
    await page.keyboard.press('Enter');
    await page.locator('[data-run]').first().waitFor();
    assert.equal(await page.evaluate(() => JSON.stringify(localStorage).includes('secret')), false);
    await page.reload();
    await page.locator('[data-run]').first().waitFor();
    assert.equal(await dialog.isVisible(), false);
  });
});

test('Escape does not end the question for the key', { skip: no_browser }, async () => {
  await with_page({ path: '/#/runs', key: 'secret', allow: /401/ }, async ({ page }) => {
    const dialog = page.getByRole('dialog', { name: 'This server needs a key' });
    await dialog.waitFor();
    for (let i = 0; i < 3; ++i) {
      await page.keyboard.press('Escape');
      await page.waitForTimeout(100);
      await dialog.waitFor();
    }
    await page.keyboard.type('secret');
    await page.keyboard.press('Enter');
    await page.locator('[data-run]').first().waitFor();
    assert.equal(await dialog.isVisible(), false);
  });
});

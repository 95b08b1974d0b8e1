// The chat page of hearth serve.
import assert from 'node:assert/strict';
import { after } from 'node:test';
import { answers, ask, body, close_browser, on_each_size, on_page, send, slow_answers, source_of, stays_text, status, tab_to, taught, until, world } from './setup.mjs';

after(close_browser);

const chat = true;
const question = (page) => page.locator('[data-message="user"]');

// Settings are kept, so that the most likely answer is given.
async function greedy(page) {
  await page.getByRole('button', { name: 'Settings', exact: true }).click();
  await page.getByLabel('Temperature').fill('0');
  await page.getByRole('button', { name: 'Settings', exact: true }).click();
}

on_each_size('an answer streams and can be stopped', { chat }, async ({ page }) => {
  await slow_answers(page);
  await send(page, 'hello');
  const first = await until(() => body(page).innerText(), (v) => v.length > 5, 'the first words');
  await until(() => body(page).innerText(), (v) => v.length > first.length, 'more words');
  assert.equal(await status(page), 'streaming');
  await page.getByRole('button', { name: 'Stop' }).click();
  await until(() => status(page), (v) => v === 'stopped', 'the status');
  const stopped = await body(page).innerText();
  await page.waitForTimeout(300);
  assert.equal(await body(page).innerText(), stopped);
  assert.match(await answers(page).locator('[data-stats]').innerText(), /tokens · [\d.]+ tokens\/s · first after/);
});

on_each_size('a question is edited and an answer regenerated, as branches', { chat }, async ({ page }) => {
  await greedy(page);
  await ask(page, 'hello');
  assert.equal(await body(page).innerText(), taught.hello);
  await question(page).getByRole('button', { name: 'Edit' }).click();
  await page.getByLabel('Edit message').fill('hostile');
  await page.getByLabel('Edit message').press('Enter');
  await until(() => question(page).locator('[data-branch]').innerText(), (v) => v === '2/2', 'versions of the question');
  await until(() => status(page), (v) => v !== 'streaming', 'the status', 60_000);
  await question(page).getByRole('button', { name: 'Previous version' }).click();
  assert.equal(await question(page).locator('.body').innerText(), 'hello');
  assert.equal(await body(page).innerText(), taught.hello);
  await answers(page).getByRole('button', { name: 'Regenerate' }).click();
  await until(() => answers(page).locator('[data-branch]').innerText(), (v) => v === '2/2', 'versions of the answer');
  await until(() => status(page), (v) => v !== 'streaming', 'the status', 60_000);
  await page.reload();
  await until(() => question(page).locator('[data-branch]').innerText(), (v) => v === '1/2', 'the branch after a reload');
  assert.equal(await body(page).innerText(), taught.hello);
});

on_each_size('a reload in mid-stream keeps the partial answer, which can be continued', { chat }, async ({ page }) => {
  await slow_answers(page);
  await send(page, 'hello');
  await until(() => body(page).innerText(), (v) => v.length > 60, 'half an answer');
  await page.waitForTimeout(400);
  assert.equal(await status(page), 'streaming');
  await page.reload();
  await page.getByText('Cut off.').waitFor();
  const kept = await source_of(answers(page));
  assert.ok(kept.length > 30 && kept.startsWith(taught.hello.slice(0, 8)), kept);
  await answers(page).getByRole('button', { name: 'Continue' }).click();
  await until(() => status(page), (v) => v === 'done' || v === 'length', 'the status', 60_000);
  const whole = await source_of(answers(page));
  assert.ok(whole.startsWith(kept) && whole.length > kept.length, whole);
});

on_each_size('two checkpoints answer side by side', { chat }, async ({ page }) => {
  const asked = [];
  page.on('request', (r) => r.url().endsWith('/v1/chat/completions') && asked.push(r.postDataJSON().model));
  await greedy(page);
  await page.getByRole('button', { name: 'Compare' }).click();
  const panes = page.locator('.pane');
  await until(() => panes.locator('select').evaluateAll((all) => all.map((s) => s.value)), (v) => v.join() === world.models.slice(0, 2).join(), 'a pane for each checkpoint');
  await send(page, 'hello');
  for (const i of [0, 1])
    await until(async () => (await answers(panes.nth(i)).count()) && status(panes.nth(i)), (v) => v && v !== 'streaming', 'an answer', 60_000);
  assert.deepEqual(asked.sort(), world.models.slice(0, 2).sort());
  assert.equal(await source_of(answers(panes.nth(0))), taught.hello);
  assert.notEqual(await source_of(answers(panes.nth(1))), taught.hello, 'the earlier checkpoint has learned less');
  for (const i of [0, 1])
    assert.equal(await answers(panes.nth(i)).locator('h2').innerText(), world.models[i]);
  await page.getByRole('button', { name: 'Close pane 2' }).click();
  await until(() => panes.count(), (n) => n === 1, 'panes');
});

on_each_size('a model without a chat template says so and continues plain text', { chat }, async ({ page }) => {
  const asked = [];
  page.on('request', (r) => r.url().endsWith('completions') && asked.push([new URL(r.url()).pathname, r.postDataJSON()]));
  await page.waitForFunction(() => document.querySelector('.pane select')?.value);
  assert.equal(await page.getByText('has no chat template').count(), 0, 'the first model has one');
  await page.getByLabel('Model').selectOption('base');
  await page.getByText('has no chat template').waitFor();
  await page.getByRole('button', { name: 'Use plain completion' }).click();
  await ask(page, '1+2=');
  const [path, request] = asked.at(-1);
  assert.equal(path, '/v1/completions');
  assert.equal(request.prompt, '1+2=');
  assert.ok(['done', 'length'].includes(await status(page)));
});

on_each_size('hostile output of a model stays text', { chat }, async ({ page }) => {
  await greedy(page);
  await ask(page, 'hostile');
  assert.equal(await body(page).innerText(), '<img src=x onerror="hacked=1"> go (javascript:hacked=1)');
  await stays_text(page);
  assert.equal(await source_of(answers(page)), taught.hostile);
  await stays_text(page);
  await answers(page).getByRole('button', { name: 'Tokens' }).click();
  const tokens = answers(page).locator('[data-i]');
  assert.ok((await tokens.allTextContents()).join('').startsWith(taught.hostile)); // and its end
  await tokens.first().hover();
  await until(() => page.locator('.tip tr').count(), (n) => n >= 2, 'alternatives');
  await stays_text(page);
  await page.reload();
  await body(page).waitFor();
  await stays_text(page);
});

on_each_size('the chat by keyboard', { chat }, async ({ page }) => {
  await slow_answers(page);
  await page.locator('#draft').waitFor();
  await page.waitForFunction(() => document.querySelector('.pane select')?.value);
  await page.keyboard.press('/');
  await page.keyboard.type('hello');
  await page.keyboard.press('Shift+Enter');
  await page.keyboard.type('again');
  await page.keyboard.press('Enter');
  await until(() => body(page).innerText(), (v) => v.length > 10, 'the first words');
  await page.keyboard.press('Escape');
  await until(() => status(page), (v) => v === 'stopped', 'the status');
  await until(() => page.getByRole('status').innerText(), (v) => /has ended/.test(v), 'the announcement');
  await page.locator('main').focus();
  await tab_to(page, 'Edit');
  await page.keyboard.press('Enter');
  await until(() => page.evaluate(() => document.activeElement.tagName), (v) => v === 'TEXTAREA', 'the field');
  await page.keyboard.press('Control+a');
  await page.keyboard.type('hello');
  await page.keyboard.press('Enter');
  await until(() => question(page).locator('[data-branch]').innerText(), (v) => v === '2/2', 'the branch');
  await page.keyboard.press('Escape');
  await until(() => status(page), (v) => v !== 'streaming', 'the status', 60_000);
  await page.locator('main').focus();
  await page.keyboard.press('n');
  await until(() => answers(page).count(), (n) => n === 0, 'a new conversation');
});

on_page('the page is served with a strict policy and works under it', { chat, allow: /inline script/ }, async ({ page }) => {
  for (const server of [world.chat, world.board]) {
    const { headers } = await fetch(server);
    const policy = headers.get('content-security-policy');
    assert.match(policy, /default-src 'none'/);
    assert.match(policy, /script-src 'self'(;|$)/);
    assert.match(policy, /connect-src 'self'(;|$)/);
    assert.equal(headers.get('x-content-type-options'), 'nosniff');
  }
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

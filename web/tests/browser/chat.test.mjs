// The chat page.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, test } from 'node:test';
import { answers, ask, body, close_browser, no_browser, send, status, until, with_page } from './setup.mjs';

after(close_browser);

const path = '/#/chat';
test('an answer streams and can be stopped', { skip: no_browser }, async () => {
  await with_page({ path }, async ({ page, server }) => {
    await send(page, 'Tell me a long story.');
    const first = await until(() => body(page).innerText(), (v) => v.length > 10, 'the first words');
    await until(() => body(page).innerText(), (v) => v.length > first.length, 'more words');
    await page.getByRole('button', { name: 'Stop' }).click();
    await until(() => status(page), (v) => v === 'stopped', 'the status');
    const stopped = await body(page).innerText();
    await page.waitForTimeout(300);
    assert.equal(await body(page).innerText(), stopped);
    assert.match(await answers(page).locator('[data-stats]').innerText(), /tokens · [\d.]+ tokens\/s · first after/);
    await until(() => server.state.cancelled, (n) => n === 1, 'requests cancelled');
  });
});

test('a question is edited and an answer regenerated, as branches', { skip: no_browser }, async () => {
  await with_page({ path }, async ({ page }) => {
    await ask(page, 'first question');
    const old = await body(page).innerText();
    const question = page.locator('[data-message="user"]');
    await question.getByRole('button', { name: 'Edit' }).click();
    await page.getByLabel('Edit message').fill('second question');
    await page.getByLabel('Edit message').press('Enter');
    await until(() => question.locator('[data-branch]').innerText(), (v) => v === '2/2', 'versions of the question');
    await until(() => status(page), (v) => v !== 'streaming', 'the status', 60_000);
    await question.getByRole('button', { name: 'Previous version' }).click();
    assert.equal(await question.locator('.body').innerText(), 'first question');
    assert.equal(await body(page).innerText(), old);
    await answers(page).getByRole('button', { name: 'Regenerate' }).click();
    await until(() => answers(page).locator('[data-branch]').innerText(), (v) => v === '2/2', 'versions of the answer');
    await until(() => status(page), (v) => v !== 'streaming', 'the status', 60_000);
    await page.reload();
    await until(() => question.locator('[data-branch]').innerText(), (v) => v === '1/2', 'the branch after a reload');
    assert.equal(await question.locator('.body').innerText(), 'first question');
  });
});

test('a reload in mid-stream keeps the partial answer, which can be continued', { skip: no_browser }, async () => {
  await with_page({ path }, async ({ page, server }) => {
    await send(page, 'Tell me a long story.');
    await until(() => body(page).innerText(), (v) => v.length > 120, 'half an answer');
    await page.waitForTimeout(400);
    await page.reload();
    await page.getByText('Cut off.').waitFor();
    const kept = await body(page).innerText();
    assert.ok(kept.length > 60, kept);
    await answers(page).getByRole('button', { name: 'Continue' }).click();
    await until(() => status(page), (v) => v === 'done' || v === 'length', 'the status', 60_000);
    const whole = await body(page).innerText();
    assert.ok(whole.startsWith(kept) && whole.length > kept.length);
    assert.equal(whole.match(/hearth/g).length, 300 / 20); // nothing is missing, nothing doubled
    const { messages, continue_final_message } = server.state.requests.at(-1);
    assert.ok(continue_final_message && messages.at(-1).role === 'assistant', 'sent as an answer to be continued');
  });
});

test('tokens show their alternatives', { skip: no_browser }, async () => {
  await with_page({ path }, async ({ page }) => {
    await ask(page, 'hello');
    await answers(page).getByRole('button', { name: 'Tokens' }).click();
    const tokens = answers(page).locator('[data-i]');
    assert.ok((await tokens.count()) > 3);
    await tokens.nth(2).hover();
    await until(() => page.locator('.tip tr').count(), (n) => n >= 2, 'alternatives');
    await page.mouse.move(0, 0);
    await page.locator('.tokens').focus();
    await page.keyboard.press('ArrowRight');
    await page.keyboard.press('ArrowRight');
    await page.locator('.tip').waitFor();
    assert.equal(await tokens.nth(1).evaluate((e) => e.classList.contains('at')), true);
    assert.match(await page.getByRole('status').innerText(), /%/);
  });
});

test('models answer side by side', { skip: no_browser }, async () => {
  await with_page({ path }, async ({ page }) => {
    await page.getByRole('button', { name: 'Compare' }).click();
    const panes = page.locator('.pane');
    await until(() => panes.count(), (n) => n === 2, 'panes');
    await send(page, 'hello');
    for (const i of [0, 1])
      await until(async () => (await answers(panes.nth(i)).count()) && status(panes.nth(i)), (v) => v && v !== 'streaming', 'an answer', 60_000);
    assert.deepEqual(await panes.locator('select').evaluateAll((all) => all.map((s) => s.value)), ['ember', 'spark']);
    await send(page, 'and again');
    for (const i of [0, 1])
      await until(() => answers(panes.nth(i)).count(), (n) => n === 2, 'a second answer');
    await page.getByRole('button', { name: 'Close pane 2' }).click();
    await until(() => panes.count(), (n) => n === 1, 'panes');
  });
});

test('a model without a chat template continues plain text', { skip: no_browser }, async () => {
  await with_page({ path }, async ({ page, server }) => {
    await page.getByLabel('Model').selectOption('base');
    await page.getByText('has no chat template').waitFor();
    await page.getByRole('button', { name: 'Use plain completion' }).click();
    await ask(page, 'Once upon a time');
    const request = server.state.requests.at(-1);
    assert.equal(request.prompt, 'Once upon a time');
    assert.equal(request.messages, undefined);
    await ask(page, ' and then');
    const text = server.state.requests.at(-1).prompt;
    assert.ok(text.startsWith('Once upon a time') && text.endsWith(' and then') && text.length > 60, text);
  });
});

test('system prompt and sampling are sent', { skip: no_browser }, async () => {
  await with_page({ path }, async ({ page, server }) => {
    await page.getByRole('button', { name: 'Settings' }).click();
    await page.getByLabel('System prompt').fill('Be brief.');
    for (const [label, value] of [['Temperature', '0.5'], ['Top p', '0.9'], ['Top k', '40'], ['Min p', '0.05'], ['Most tokens', '7'], ['Seed', '3']])
      await page.getByLabel(label, { exact: true }).fill(value);
    await ask(page, 'hello');
    const { messages, temperature, top_p, top_k, min_p, max_tokens, seed, logprobs, top_logprobs } = server.state.requests.at(-1);
    assert.deepEqual({ temperature, top_p, top_k, min_p, max_tokens, seed, logprobs, top_logprobs }, { temperature: 0.5, top_p: 0.9, top_k: 40, min_p: 0.05, max_tokens: 7, seed: 3, logprobs: true, top_logprobs: 5 });
    assert.deepEqual(messages[0], { role: 'system', content: 'Be brief.' });
    await page.getByText('Ended at the length limit.').waitFor();
    await page.getByLabel('Temperature').fill('');
    await page.getByLabel('Log-probabilities').uncheck();
    await ask(page, 'again');
    assert.equal('temperature' in server.state.requests.at(-1), false);
    assert.equal('logprobs' in server.state.requests.at(-1), false);
  });
});

test('an error of the server is shown', { skip: no_browser }, async () => {
  await with_page({ path, allow: /400/ }, async ({ page }) => {
    await page.route('**/v1/chat/completions', (r) => r.fulfill({ status: 400, body: '{"error":{"message":"[max_tokens] too <b>many</b>"}}' }));
    await send(page, 'hello');
    await page.getByText('[max_tokens] too <b>many</b>').first().waitFor();
  });
});

test('conversations are exported, deleted and imported', { skip: no_browser }, async () => {
  await with_page({ path }, async ({ page }) => {
    await ask(page, 'remember this');
    const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Export', exact: true }).click()]);
    const file = await download.path();
    assert.equal(JSON.parse(await readFile(file, 'utf8')).conversations.length, 1);
    await page.getByRole('button', { name: 'Delete remember this' }).click();
    await page.getByText('Conversations stay in this browser.').waitFor();
    await page.locator('input[type=file]').setInputFiles(file);
    await until(() => page.locator('[data-message="user"] .body').innerText(), (v) => v === 'remember this', 'the imported question');
    await page.locator('input[type=file]').setInputFiles({ name: 'x.json', mimeType: 'application/json', buffer: Buffer.from('{}') });
    await page.getByText('This file has no conversations of hearth.').waitFor();
  });
});

test('a conversation deleted while its answer streams stays deleted', { skip: no_browser }, async () => {
  await with_page({ path }, async ({ page, server }) => {
    await send(page, 'Tell me a long story.');
    await until(() => body(page).innerText(), (v) => v.length > 10, 'the first words');
    await page.getByRole('button', { name: 'Delete Tell me a long story.' }).click();
    const none = page.getByText('Conversations stay in this browser.');
    await none.waitFor();
    await until(() => server.state.cancelled, (n) => n === 1, 'requests cancelled');
    await page.waitForTimeout(600); // longer than an answer waits to be saved
    assert.ok(await none.isVisible());
    await page.reload();
    await none.waitFor();
  });
});

test('a conversation deleted in the background leaves the one on the screen as it was', { skip: no_browser }, async () => {
  await with_page({ path }, async ({ page, server }) => {
    const rows = page.locator('#conversations .row');
    const fresh = page.getByRole('button', { name: 'New conversation' });
    await ask(page, 'first');
    await fresh.click();
    await ask(page, 'second');
    await fresh.click();
    await send(page, 'Tell me a long story.');
    await until(() => body(page).innerText(), (v) => v.length > 10, 'the first words');
    const hash = await page.evaluate(() => location.hash);
    await page.getByRole('button', { name: 'first', exact: true }).click();
    await until(() => page.locator('[data-message="user"] .body').innerText(), (v) => v === 'first', 'the first question');
    await page.getByRole('button', { name: 'Delete Tell me a long story.' }).click();
    await until(() => server.state.cancelled, (n) => n === 1, 'requests cancelled');
    await until(() => rows.count(), (n) => n === 2, 'conversations');
    await page.waitForTimeout(600);
    await page.evaluate((hash) => (location.hash = hash), hash);
    await until(() => page.locator('[data-message]').count(), (n) => n === 0, 'messages of the deleted conversation');
    await page.reload();
    await until(() => rows.allInnerTexts(), (v) => v.join() === 'second,first', 'conversations, the newest first');
  });
});

for (const [name, block] of [
  ['off', () => Object.defineProperty(window, 'sessionStorage', { get() { throw new DOMException('denied', 'SecurityError'); } })],
  ['full', () => (Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); })],
])
  test(`the chat works where storage is ${name}`, { skip: no_browser }, async () => {
    await with_page({ path }, async ({ page }) => {
      await page.addInitScript(block);
      await page.reload();
      await ask(page, 'hello');
      assert.match(await body(page).innerText(), /You said "hello"/);
    });
  });

test('a second tab sees the conversation', { skip: no_browser }, async () => {
  await with_page({ path }, async ({ page, server, context }) => {
    const other = await context.newPage();
    await other.goto(server.url + path);
    await other.getByText('Conversations stay in this browser.').waitFor();
    await ask(page, 'from the first tab');
    await other.getByRole('button', { name: 'from the first tab', exact: true }).click();
    await until(() => body(other).innerText(), (v) => v.length > 0, 'the answer');
    assert.equal(await body(other).innerText(), await body(page).innerText());
    await ask(other, 'from the second tab');
    await until(() => answers(page).count(), (n) => n === 2, 'answers in the first tab');
  });
});

test('Markdown is shown, and code can be copied', { skip: no_browser }, async () => {
  await with_page({ path }, async ({ page, context }) => {
    await context.grantPermissions(['clipboard-read', 'clipboard-write']);
    await ask(page, 'markdown please');
    for (const part of ['h3', 'strong', 'em', 'ul ul li', 'table td', '.code pre']) await body(page).locator(part).first().waitFor();
    await page.getByRole('button', { name: 'Copy code' }).click();
    await until(() => page.evaluate(() => navigator.clipboard.readText()), (v) => v === 'def f(x):\n    return x + 1  # <b>not bold</b>', 'the clipboard');
    await answers(page).getByRole('button', { name: 'Source' }).click();
    assert.match(await body(page).innerText(), /^# A heading/);
  });
});

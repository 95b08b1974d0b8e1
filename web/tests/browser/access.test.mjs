// Accessibility: axe in both themes and sizes, and everything by keyboard.
import { after, test } from 'node:test';
import { close_browser, examine, no_browser, points_of, run_link, tab_to, until, with_page } from './setup.mjs';

after(close_browser);

for (const dark of [false, true])
  for (const phone of [false, true])
    test(`axe: ${dark ? 'dark' : 'light'}, ${phone ? 'phone' : 'desktop'}`, { skip: no_browser }, async () => {
      await with_page({ dark, phone, path: run_link('grpo/arithmetic') }, async ({ page }) => {
        for (const name of ['Charts', 'Samples', 'Rollouts', 'Config', 'Checkpoints']) {
          await page.getByRole('tab', { name }).click();
          await page.waitForTimeout(400);
          await examine(page, name);
        }
        await page.keyboard.press('?');
        await examine(page, 'shortcuts');
        await page.keyboard.press('Escape');
        await page.keyboard.press('2');
        const draft = page.locator('#draft');
        await draft.waitFor();
        await page.waitForFunction(() => document.querySelector('.pane select')?.value);
        await examine(page, 'empty chat');
        await draft.fill('some markdown');
        await draft.press('Enter');
        await until(() => page.locator('[data-message="assistant"]').getAttribute('data-status'), (v) => v !== 'streaming', 'the answer', 60_000);
        await examine(page, 'chat');
        await page.getByRole('button', { name: 'Tokens' }).click();
        await page.getByRole('button', { name: 'Settings' }).click();
        await examine(page, 'tokens and settings');
      });
    });

test('the dashboard by keyboard', { skip: no_browser }, async () => {
  await with_page({ path: run_link('pretrain/base') }, async ({ page, server }) => {
    await page.locator('[data-chart="loss"] .u-over').waitFor();
    await page.keyboard.press('/');
    await page.keyboard.type('wide');
    await tab_to(page, 'Overlay wide', 3);
    await page.keyboard.press('Space');
    await until(() => page.locator('h1').innerText(), (v) => v === '2 runs', 'the overlay');
    await tab_to(page, 'wide', 2);
    await page.keyboard.press('Enter');
    await until(() => page.locator('h1').innerText(), (v) => v === 'wide', 'the run');
    await tab_to(page, 'Charts', 6);
    let all = -1;  // points once all of them are drawn
    await until(async () => {
      const before = all;
      all = await points_of(page, 'lr');
      return all > 0 && all === before;
    }, (v) => v, 'the points');
    await page.keyboard.press('+');
    await until(() => server.state.series.at(-1), (v) => v.includes('from='), 'zoom');
    await page.keyboard.press('0');
    await until(() => points_of(page, 'lr'), (v) => v === all, 'everything');
    await page.keyboard.press('ArrowRight');
    await until(() => page.getByRole('tab', { selected: true }).innerText(), (v) => v === 'Samples', 'the tab');
    await page.keyboard.press('t');
    await until(() => page.evaluate(() => document.documentElement.dataset.theme), (v) => v === 'light', 'the theme');
    await page.keyboard.press('t');
    await until(() => page.evaluate(() => document.documentElement.dataset.theme), (v) => v === 'dark', 'the theme');
  });
});

test('the chat by keyboard', { skip: no_browser }, async () => {
  await with_page({ path: '/#/chat' }, async ({ page }) => {
    const answer = page.locator('[data-message="assistant"]');
    await page.locator('#draft').waitFor();
    await page.waitForFunction(() => document.querySelector('.pane select')?.value);
    await page.keyboard.press('/');
    await page.keyboard.type('a long');
    await page.keyboard.press('Shift+Enter');
    await page.keyboard.type('story');
    await page.keyboard.press('Enter');
    await until(() => answer.locator('.body').innerText(), (v) => v.length > 20, 'the first words');
    await page.keyboard.press('Escape');
    await until(() => answer.getAttribute('data-status'), (v) => v === 'stopped', 'the status');
    await until(() => page.getByRole('status').innerText(), (v) => /has ended/.test(v), 'the announcement');
    await page.locator('main').focus();
    await tab_to(page, 'Edit');
    await page.keyboard.press('Enter');
    await until(() => page.evaluate(() => document.activeElement.tagName), (v) => v === 'TEXTAREA', 'the field');
    await page.keyboard.press('Control+a');
    await page.keyboard.type('something else');
    await page.keyboard.press('Enter');
    await until(() => page.locator('[data-message="user"] [data-branch]').innerText(), (v) => v === '2/2', 'the branch');
    await until(() => answer.getAttribute('data-status'), (v) => v !== 'streaming', 'the status', 60_000);
    await page.locator('main').focus();
    await page.keyboard.press('n');
    await until(() => answer.count(), (n) => n === 0, 'a new conversation');
  });
});

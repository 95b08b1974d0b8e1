// axe finds nothing serious on any page of the real program, in both themes and sizes.
import { after } from 'node:test';
import { ask, close_browser, examine, on_each_size, run_link } from './setup.mjs';

after(close_browser);

for (const dark of [false, true]) {
  const theme = dark ? 'dark' : 'light';
  on_each_size(`axe on the dashboard, ${theme}`, { dark, path: run_link('grpo/arithmetic') }, async ({ page }) => {
    for (const name of ['Charts', 'Rollouts', 'Config', 'Checkpoints']) {
      await page.getByRole('tab', { name }).click();
      await page.waitForTimeout(200);
      await examine(page, name);
    }
    await page.keyboard.press('?');
    await examine(page, 'shortcuts');
  });
  on_each_size(`axe on the chat, ${theme}`, { dark, chat: true }, async ({ page }) => {
    await page.waitForFunction(() => document.querySelector('.pane select')?.value);
    await examine(page, 'empty chat');
    await page.getByLabel('Model').selectOption('base');
    await page.getByText('has no chat template').waitFor();
    await page.getByRole('button', { name: 'Compare' }).click();
    await examine(page, 'side by side');
    await page.getByRole('button', { name: 'Close pane 1' }).click();
    await ask(page, 'hello');
    await page.getByRole('button', { name: 'Tokens' }).click();
    await page.getByRole('button', { name: 'Settings' }).click();
    await examine(page, 'tokens and settings');
  });
}

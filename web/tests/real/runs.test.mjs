// The dashboard of hearth board.
import assert from 'node:assert/strict';
import { after } from 'node:test';
import { close_browser, end_all, hostile_name, last_of, log_of, million, on_each_size, on_page, points_of, run_link, serve_more, start_training, stays_text, tab_to, taught, unfold, until } from './setup.mjs';

after(close_browser);
after(end_all);

const charted = (lines) => lines.filter((l) => l.lr !== undefined).length;

on_each_size('a pretraining run appears, moves, and no reload misses a point', {}, async ({ page, phone }) => {
  await page.locator('[data-run="pretrain/base"]').waitFor({ state: 'attached' });
  const run = start_training(`live-${phone ? 'phone' : 'desktop'}`);
  try {
    const row = page.locator(`[data-run="${run.id}"]`);
    await row.waitFor({ state: 'attached' });
    await unfold(page, phone);
    await until(() => row.innerText(), (v) => v.includes('running'), 'the state');
    await row.locator('.row').click();
    await page.locator('[data-link="live"]').waitFor();
    const first = await last_of(page, 'lr');
    await until(() => last_of(page, 'lr'), (v) => v >= first + 3, 'the newest point');
    const step = page.locator('[data-figure="step"]');
    const text = await step.innerText();
    await until(() => step.innerText(), (v) => v !== text, 'the step');
    for (let i = 0; i < 3; ++i) {
      await page.reload();
      await page.locator('[data-link="live"]').waitFor();
      await page.waitForTimeout(200);
      const { points, last } = await page.locator('[data-chart="lr"]').evaluate((e) => e.dataset);
      const logged = run.log().filter((l) => l.step <= Number(last));
      assert.equal(Number(points), charted(logged), `points up to step ${last}, in the chart and in the log`);
    }
    assert.equal(await run.end(), 128 + 15, 'SIGTERM ended it');
    await page.locator('.head .stopped').waitFor();
    await until(() => points_of(page, 'lr'), (v) => v === charted(run.log()), `${charted(run.log())} points at the end`);
    assert.equal(await last_of(page, 'lr'), run.log().at(-1).step);
  } finally {
    end_all();
  }
});

on_each_size('a GRPO run shows rewards and rollouts', { path: run_link('grpo/arithmetic') }, async ({ page }) => {
  const steps = charted(log_of('grpo/arithmetic'));
  for (const chart of ['reward', 'equal_groups', 'entropy', 'clip', 'length', 'gap'])
    await until(() => points_of(page, chart), (v) => v >= steps, chart);
  assert.match(await page.locator('[data-chart="parts"] .legend').innerText(), /exact .*length:2@0\.2/s);
  await page.getByRole('tab', { name: 'Rollouts' }).click();
  await until(() => page.locator('[data-rollout]').count(), (n) => n > 0 && n % 4 === 0, 'groups of four rollouts');
  assert.ok((await page.locator('[data-rollout] [data-i]').count()) > 4, 'tokens');
  assert.match(await page.locator('#panel').innerText(), /\d[+]\d=/);
  const newest = await page.getByLabel('Step').inputValue();
  await page.getByRole('button', { name: 'Earlier' }).click();
  await until(() => page.getByLabel('Step').inputValue(), (v) => Number(v) < Number(newest), 'an earlier step');
});

on_each_size('two runs overlay', { path: run_link('pretrain/base') }, async ({ page, phone }) => {
  await page.locator('[data-chart="loss"] .u-over').waitFor();
  await unfold(page, phone);
  await page.getByLabel('Overlay wide', { exact: true }).check();
  const legend = page.locator('[data-chart="loss"] .legend');
  await until(() => legend.innerText(), (v) => v.includes('base loss') && v.includes('wide loss'), 'the legend');
  await until(() => points_of(page, 'lr'), (v) => v === charted(log_of('pretrain/base')) + charted(log_of('pretrain/wide')), 'points of both');
  await page.getByRole('tab', { name: 'Config and differences' }).click();
  await until(() => page.locator('#panel tbody tr', { hasText: /^lr/ }).innerText(), (v) => /0\.005\s+0\.001/.test(v), 'the settings that differ');
});

on_each_size('the dashboard by keyboard', { path: run_link('pretrain/base') }, async ({ page, phone }) => {
  const asked = [];
  page.on('request', (r) => r.url().includes('/series?') && asked.push(r.url()));
  await page.locator('[data-chart="loss"] .u-over').waitFor();
  await page.keyboard.press('/');
  await page.keyboard.type('wide');
  if (phone) await tab_to(page, 'Runs', 2), await page.keyboard.press('Enter');
  await tab_to(page, 'Overlay wide', 3);
  await page.keyboard.press('Space');
  await until(() => page.locator('h1').innerText(), (v) => v === '2 runs', 'the overlay');
  await tab_to(page, 'wide', 2);
  await page.keyboard.press('Enter');
  await until(() => page.locator('h1').innerText(), (v) => v === 'wide', 'the run');
  await tab_to(page, 'Charts', 8);
  const all = await until(() => points_of(page, 'lr'), (v) => v > 0, 'points');
  await page.keyboard.press('+');
  await until(() => asked.at(-1), (v) => v.includes('from='), 'the range that is asked for');
  await page.keyboard.press('0');
  await until(() => points_of(page, 'lr'), (v) => v === all, 'everything');
  await page.keyboard.press('ArrowRight');
  await until(() => page.getByRole('tab', { selected: true }).innerText(), (v) => v === 'Samples', 'the tab');
  await page.locator('[data-sample]').first().waitFor();
  await page.keyboard.press('t');
  await until(() => page.evaluate(() => document.documentElement.dataset.theme), (v) => v === 'light', 'the theme');
});

on_each_size('a hostile run stays text', { path: run_link(`odd/${hostile_name}`) }, async ({ page }) => {
  await page.locator('h1', { hasText: '<img src=x' }).waitFor();
  await until(() => points_of(page, 'lr'), (v) => v > 0, 'its points');
  await stays_text(page);
  await page.getByRole('tab', { name: 'Samples' }).click();
  await page.getByText(taught.hostile).first().waitFor();
  await stays_text(page);
  await page.getByRole('tab', { name: 'Config' }).click();
  await page.getByText('javascript:hacked=1').first().waitFor();
  await stays_text(page);
});

on_page('a million steps open and zoom', { path: '/#/runs' }, async ({ page, url }) => {
  await page.locator('[data-run="long"]').waitFor();
  const answers = [];
  const note = (text) => text && answers.push(text);
  page.on('response', (r) => r.url().includes('/runs/long/series?') && r.text().then(note, () => {})); // one may be cancelled
  let began = Date.now();
  await page.goto(url + run_link('long'));
  const points = await until(() => points_of(page, 'loss'), (v) => v > 100, 'points', 60_000);
  console.log(`a run of 1,000,000 steps is open after ${Date.now() - began} ms`);
  assert.ok(points < 5_000, `${points} points`);
  await until(() => answers.length, (n) => n > 0, 'the series');
  const { loss } = JSON.parse(answers[0]).series;
  assert.ok(loss.x.some((x, i) => x > 700_000 && loss.max[i] > 6), 'the spike of one step is in what was sent');
  await page.getByRole('tab', { name: 'Charts' }).focus();
  for (let i = 0; i < 3; ++i) {
    const before = answers.length;
    began = Date.now();
    await page.keyboard.press('+');
    await until(() => answers.length, (n) => n > before, 'the part that is zoomed into');
    console.log(`zoom ${i + 1}: ${Date.now() - began} ms`);
  }
  await until(() => last_of(page, 'loss'), (v) => v < million, 'the end of the chart');
  const most = Math.max(...answers.map((a) => a.length));
  assert.ok(most < 400_000, `${most} bytes for ${million} steps`);
});

on_page('the first paint', { path: '/' }, async ({ page }) => {
  await page.locator('[data-run]').first().waitFor();
  const ms = await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0].startTime);
  console.log(`first paint after ${ms.toFixed(0)} ms`);
});

const guarded = () => serve_more(['board', 'runs', '--port', '0', '--api-key', 'secret']);
on_page('a key is asked for, refused, and kept for the tab', { server: guarded, path: '/', allow: /401/ }, async ({ page }) => {
  await page.getByRole('dialog', { name: 'This server needs a key' }).waitFor();
  await page.getByLabel('API key').fill('wrong');
  await page.keyboard.press('Enter');
  await page.getByText('did not accept this key').waitFor();
  await page.getByLabel('API key').fill('secret');
  await page.keyboard.press('Enter');
  await page.locator('[data-run]').first().waitFor();
  await page.reload();
  await page.locator('[data-run]').first().waitFor();
});

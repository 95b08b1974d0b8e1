// The dashboard.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { close_browser, last_of, log_of, no_browser, points_of, run_link, until, with_page } from './setup.mjs';

after(close_browser);

const charted = (lines) => lines.filter((l) => l.lr !== undefined).length;

test('a live run appears in the list and moves', { skip: no_browser }, async () => {
  await with_page({ path: '/#/runs' }, async ({ page }) => {
    await page.locator('[data-run="live"] .row').click();
    await page.locator('[data-link="live"]').waitFor();
    const first = await last_of(page, 'lr');
    await until(() => last_of(page, 'lr'), (v) => v >= first + 3, 'the newest point');
    const step = page.locator('[data-figure="step"]');
    const text = await step.innerText();
    await until(() => step.innerText(), (v) => v !== text, 'the step');
  });
});

test('charts of arrays move too', { skip: no_browser }, async () => {
  await with_page({ path: run_link('live') }, async ({ page }) => {
    await page.locator('[data-link="live"]').waitFor();
    const chart = 'key:expert_load';
    assert.match(await page.locator(`[data-chart="${chart}"] .legend`).innerText(), /expert_load\.0 .*expert_load\.3/s);
    const first = await last_of(page, chart);
    await until(() => last_of(page, chart), (v) => v >= first + 3, 'the newest point');
  });
});

test('a reload misses no point', { skip: no_browser }, async () => {
  await with_page({ path: run_link('live'), live_ms: 30 }, async ({ page, server }) => {
    await page.locator('[data-link="live"]').waitFor();
    for (let i = 0; i < 3; ++i) {
      await page.waitForTimeout(400);
      await page.reload();
      await page.locator('[data-link="live"]').waitFor();
    }
    for (let i = 0; i < 5; ++i) {
      await page.waitForTimeout(300);
      const { points, last } = await page.locator('[data-chart="lr"]').evaluate((e) => e.dataset);
      const logged = log_of(server, 'live').filter((l) => l.step <= Number(last));
      assert.equal(Number(points), charted(logged), `points up to step ${last}, in the chart and in the log`);
    }
  });
});

test('a lost connection misses no point, and the end of a run is shown', { skip: no_browser }, async () => {
  await with_page({ path: run_link('live'), live_ms: 30, allow: /ERR_INCOMPLETE_CHUNKED_ENCODING/ }, async ({ page, server }) => {
    await page.locator('[data-link="live"]').waitFor();
    for (let i = 0; i < 2; ++i) {
      await page.waitForTimeout(300);
      for (const s of server.state.sockets) s.destroy();
      await page.locator('[data-link="waiting"]').waitFor();
      await page.locator('[data-link="live"]').waitFor();
    }
    server.live.steps = server.live.step + 5;
    await page.locator('.head .finished').waitFor();
    await until(() => points_of(page, 'lr'), (v) => v === charted(log_of(server, 'live')), 'points');
  });
});

// A laptop that sleeps and a tab in the background are the same to the app: the stream ends, and
// what was missed is fetched when it is seen again.
test('a hidden tab closes its stream and catches up', { skip: no_browser }, async () => {
  await with_page({ path: run_link('live'), live_ms: 30 }, async ({ page, server }) => {
    const show = (hidden) => page.evaluate((hidden) => {
      Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
      document.dispatchEvent(new Event('visibilitychange'));
    }, hidden);
    await page.locator('[data-link="live"]').waitFor();
    await show(true);
    await until(() => server.state.sockets.size, (n) => n === 0, 'open streams');
    await page.waitForTimeout(300); // what has arrived is drawn
    const before = await last_of(page, 'lr');
    await page.waitForTimeout(900);
    assert.equal(await last_of(page, 'lr'), before);
    await show(false);
    await page.locator('[data-link="live"]').waitFor();
    server.live.steps = server.live.step;
    await until(() => points_of(page, 'lr'), (v) => v === charted(log_of(server, 'live')), 'points');
  });
});

test('a run that goes back to a checkpoint is read again', { skip: no_browser }, async () => {
  await with_page({ path: run_link('live'), live_ms: 30 }, async ({ page, server }) => {
    await page.locator('[data-link="live"]').waitFor();
    server.live.cut(50);
    await until(() => points_of(page, 'lr'), (v) => v < 100, 'points after the cut');
    await page.locator('[data-link="live"]').waitFor();
    server.live.steps = server.live.step + 3;
    await page.locator('.head .finished').waitFor();
    await until(() => points_of(page, 'lr'), (v) => v === charted(log_of(server, 'live')), 'points');
  });
});

test('two runs overlay', { skip: no_browser }, async () => {
  await with_page({ path: '/#/runs' }, async ({ page }) => {
    await page.locator('[data-run]').first().waitFor();
    const [a, b] = await page.locator('[data-run] .name').allInnerTexts();
    for (const name of [a, b]) await page.getByLabel(`Overlay ${name}`, { exact: true }).check();
    await until(() => page.locator('[data-chart="loss"] .legend').innerText(), (v) => v.includes(`${a} `) && v.includes(`${b} `), 'the legend');
    assert.equal(await page.locator('.view table tbody tr').count(), 2);
  });
});

test('settings of two runs are compared', { skip: no_browser }, async () => {
  await with_page({ path: run_link('pretrain/base') }, async ({ page }) => {
    await page.getByLabel('Overlay wide').check();
    const legend = page.locator('[data-chart="loss"] .legend');
    await until(() => legend.innerText(), (v) => v.includes('base loss') && v.includes('wide loss'), 'the legend');
    await page.getByRole('tab', { name: 'Config and differences' }).click();
    const rows = page.locator('#panel tbody tr');
    await until(() => rows.count(), (n) => n === 3, 'settings that differ');
    assert.match(await rows.filter({ hasText: 'lr' }).innerText(), /lr\s+0\.003\s+0\.001/);
    await page.getByLabel('Overlay base').uncheck();
    await page.locator('h1', { hasText: 'wide' }).waitFor();
  });
});

test('a drag zooms, and the server sends that range in detail', { skip: no_browser }, async () => {
  await with_page({ path: run_link('long') }, async ({ page, server }) => {
    const plot = page.locator('[data-chart="loss"] .u-over');
    await plot.waitFor();
    assert.ok((await points_of(page, 'lr')) <= 801);
    const before = server.state.series.length;
    const box = await plot.boundingBox();
    await page.mouse.move(box.x + box.width * 0.5, box.y + 50);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.51, box.y + 60, { steps: 4 });
    await page.mouse.up();
    const asked = await until(() => server.state.series.slice(before), (v) => v.length > 0, 'requests');
    const query = new URLSearchParams(asked.at(-1));
    assert.ok(Number(query.get('from')) > 25_000 && Number(query.get('to')) < 35_000, asked.at(-1));
    // 600 of 60,000 steps are few enough to be sent one by one.
    await until(() => points_of(page, 'lr'), (v) => v > 400 && v < 750, 'points in the range');
    await page.getByRole('button', { name: 'Show all' }).click();
    await until(() => points_of(page, 'lr'), (v) => v > 760, 'points of all');
  });
});

test('a long run is sent decimated', { skip: no_browser }, async () => {
  await with_page({}, async ({ page, server }) => {
    const sizes = [];
    page.on('response', (r) => r.url().includes('/series') && r.body().then((b) => sizes.push(b.length), () => {}));
    await page.goto(server.url + run_link('long'));
    await until(() => sizes.length, (n) => n > 0, 'series');
    const lines = log_of(server, 'long');
    assert.ok(sizes[0] < 1_000_000 && JSON.stringify(lines).length > 5_000_000, `${sizes[0]} bytes`);
  });
});

test('axes, smoothing, marks and cost', { skip: no_browser }, async () => {
  await with_page({ path: run_link('pretrain/base') }, async ({ page, server }) => {
    const legend = page.locator('[data-chart="loss"] .legend');
    await until(() => legend.innerText(), (v) => /2 skipped/.test(v) && /3 spikes/.test(v), 'marks');
    assert.match(await page.locator('[data-chart="grad_norm"] .legend').innerText(), /clipped/);
    await page.getByRole('radio', { name: 'Tokens' }).check();
    await until(() => last_of(page, 'lr'), (v) => v > 1e8, 'tokens on the axis');
    await page.getByRole('radio', { name: 'Time' }).check();
    await until(() => last_of(page, 'lr'), (v) => v > 800 && v < 900, 'seconds on the axis');
    await page.getByLabel('Log loss axis').check();
    await page.getByLabel('Log time axis').check();
    const canvas = () => page.locator('[data-chart="loss"] canvas').evaluate((c) => c.toDataURL());
    const smooth = await canvas();
    await page.getByLabel('Smoothing').fill('0.99');
    await until(canvas, (v) => v !== smooth, 'the smoothed curve');
    await page.getByLabel('Price per hour').fill('12');
    await page.reload();
    await until(() => page.locator('.tiles').innerText(), (v) => v.includes('2.80'), 'the cost of 2,000 steps of 0.42 s');
    assert.ok(server.state.series.at(-1).includes('x=time'), 'the axis is kept');
  });
});

test('cursors move together', { skip: no_browser }, async () => {
  await with_page({ path: run_link('pretrain/base') }, async ({ page }) => {
    const plot = page.locator('[data-chart="loss"] .u-over');
    await plot.waitFor();
    const rate = page.locator('[data-chart="lr"] .legend');
    await until(() => rate.innerText(), (v) => /lr/.test(v), 'the learning rate');
    const before = await rate.innerText();
    const box = await plot.boundingBox();
    await page.mouse.move(box.x + box.width / 2, box.y + 40);
    await until(() => rate.innerText(), (v) => v !== before && /step (999|1,00\d)/.test(v), 'the value at the cursor');
  });
});

test('a GRPO run shows rewards and rollouts', { skip: no_browser }, async () => {
  await with_page({ path: run_link('grpo/arithmetic') }, async ({ page }) => {
    for (const chart of ['reward', 'equal_groups', 'entropy', 'clip', 'length', 'gap', 'kl'])
      await until(() => points_of(page, chart), (v) => v > 0, chart);
    assert.match(await page.locator('[data-chart="parts"] .legend').innerText(), /exact .*format:<answer>@0.2/s);
    await page.getByRole('tab', { name: 'Rollouts' }).click();
    await page.locator('[data-rollout]').first().waitFor();
    assert.ok((await page.locator('[data-rollout] [data-i]').count()) > 1, 'tokens');
    assert.ok((await page.locator('[data-rollout] .lp4, [data-rollout] .lp5').count()) > 0, 'unlikely tokens have a colour');
    await page.getByRole('button', { name: 'Earlier' }).click();
    await until(() => page.getByLabel('Step').inputValue(), (v) => v === '380', 'the step before');
  });
});

test('the newest rollouts are asked for again', { skip: no_browser }, async () => {
  await with_page({ path: `${run_link('grpo/arithmetic')}&tab=rollouts` }, async ({ page, server }) => {
    const { rollouts } = server.runs.find((r) => r.id === 'grpo/arithmetic');
    const step = page.getByLabel('Step');
    await until(() => step.inputValue(), (v) => v === '400', 'the newest step');
    for (const next of [420, 440]) {
      rollouts.set(next, rollouts.get(400));
      await page.getByRole('button', { name: 'Newest' }).click();
      await until(() => step.inputValue(), (v) => v === String(next), 'the newest step');
    }
  });
});

test('samples of a fourth live run, which has no stream, are loaded again', { skip: no_browser }, async () => {
  await with_page({}, async ({ page, server }) => {
    const live = server.runs.filter((r) => r.task !== 'grpo' && r.id !== 'long');
    for (const r of live) r.state = 'running';
    await page.goto(`${server.url}${run_link(...live.map((r) => r.id))}&tab=samples`);
    const samples = page.locator('[data-sample]');
    await until(() => samples.filter({ hasText: 'at step 1,' }).count(), (n) => n === 4, 'the first samples');
    await until(() => server.state.sockets.size, (n) => n === 3, 'open streams');
    for (const r of live) r.put('samples', { step: 9000, text: 'A new sample.' });
    await until(() => samples.filter({ hasText: 'A new sample.' }).count(), (n) => n === 4, 'the new samples');
  });
});

test('samples, checkpoints and resources', { skip: no_browser }, async () => {
  await with_page({ path: run_link('pretrain/base') }, async ({ page }) => {
    await page.getByRole('tab', { name: 'Samples' }).click();
    await until(() => page.locator('[data-sample]').first().innerText(), (v) => v.includes('step 2000') && v.includes('<b>quietly</b>'), 'the newest sample');
    await page.getByRole('tab', { name: 'Checkpoints' }).click();
    await until(() => page.locator('#panel').innerText(), (v) => /best/.test(v) && /optimizer state/.test(v) && /first_steps/.test(v), 'checkpoints');
  });
});

test('the filter finds runs', { skip: no_browser }, async () => {
  await with_page({ path: '/#/runs' }, async ({ page }) => {
    await page.getByLabel('Filter runs').fill('grpo finished');
    await until(() => page.locator('[data-run]').count(), (n) => n === 1, 'runs found');
    await page.getByLabel('Filter runs').fill('no such run');
    await page.getByText('No run matches.').waitFor();
  });
});

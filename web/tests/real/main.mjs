// Tests the pages with the real program, which HEARTH names: trains tiny models with it, serves
// them, and runs the tests of this folder in Chromium. Arguments go to node --test.
import { spawn } from 'node:child_process';
import { readdirSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { end_all, make_world } from './world.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const files = readdirSync(here).filter((f) => f.endsWith('.test.mjs')).sort().map((f) => join(here, f));

let world;
let code = 1;
for (const signal of ['SIGINT', 'SIGTERM'])
  process.on(signal, () => {
    end_all();
    process.exit(1);
  });
try {
  const began = Date.now();
  world = await make_world(process.env.HEARTH);
  console.log(`trained and served in ${((Date.now() - began) / 1000).toFixed(1)} s`);
  const env = { ...process.env, HEARTH_WORLD: JSON.stringify(world) };
  const tests = spawn(process.execPath, ['--test', '--test-concurrency=2', ...process.argv.slice(2), ...files], { stdio: 'inherit', env });
  code = await new Promise((resolve) => tests.on('exit', (c) => resolve(c ?? 1)));
} catch (e) {
  console.error(e.message);
} finally {
  end_all();
  if (world) rmSync(world.folder, { recursive: true, force: true, maxRetries: 5 });
}
process.exit(code);

// Builds three files with fixed names, so that the binary can embed them and the bytes can be compared.
import { readFileSync } from 'node:fs';
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig, type Plugin } from 'vite';

const server = process.env.HEARTH_URL ?? 'http://127.0.0.1:8080';

// The bundle contains parts of these packages, whose licence asks for its text. The minifier drops comments,
// so the text is added after it.
function licences(...files: string[]): Plugin {
  const text = files.map((f) => `${f.split('/')[0]}\n\n${readFileSync(new URL(`node_modules/${f}`, import.meta.url), 'utf8').trim()}`);
  return {
    name: 'licences',
    generateBundle(_, bundle) {
      const app = bundle['app.js'];
      if (app?.type === 'chunk') app.code = `/*!\nThis file contains parts of:\n\n${text.join('\n\n')}\n*/\n${app.code}`;
    },
  };
}

export default defineConfig({
  base: './',
  plugins: [svelte(), licences('svelte/LICENSE.md', 'uplot/LICENSE')],
  build: {
    target: 'es2022',
    sourcemap: false,
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      output: {
        inlineDynamicImports: true,
        entryFileNames: 'app.js',
        assetFileNames: 'app[extname]',
      },
    },
  },
  server: { proxy: { '/api': server, '/v1': server, '/tokenize': server } },
});

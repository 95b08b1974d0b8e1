// Builds three files with fixed names, so that the binary can embed them and the bytes can be compared.
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

const server = process.env.HEARTH_URL ?? 'http://127.0.0.1:8080';

export default defineConfig({
  base: './',
  plugins: [svelte()],
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

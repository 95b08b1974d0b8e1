import { vitePreprocess } from '@sveltejs/vite-plugin-svelte';

export default {
  preprocess: vitePreprocess(),
  compilerOptions: {
    runes: true,
    // Names of styles depend on their contents only, so that the bundle has the same bytes anywhere.
    cssHash: ({ hash, name, css }) => `s${hash(name + css)}`,
    // Regions that scroll must be reachable by keyboard, which needs a tabindex.
    warningFilter: (w) => w.code !== 'a11y_no_noninteractive_tabindex',
  },
};

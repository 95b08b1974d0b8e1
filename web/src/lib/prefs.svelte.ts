// Choices of the user that are kept in localStorage, and small states that several pages share.

function load<T extends object>(name: string, defaults: T): T {
  try {
    const found = JSON.parse(localStorage.getItem(name) ?? '{}');
    const kept: Record<string, unknown> = {};
    for (const [k, v] of Object.entries(defaults))
      if (k in found && typeof found[k] === typeof v) kept[k] = found[k];
    return { ...defaults, ...kept };
  } catch {
    return defaults;
  }
}

export const prefs = $state(
  load('hearth-prefs', {
    theme: 'auto', // auto, light or dark
    x: 'step', // step, tokens or time
    smoothing: 0.6,
    log_x: false,
    log_y: false,
    price: 0, // per hour, in the user's currency
    logprobs: true,
    alternatives: 5,
  }),
);

export function save_prefs() {
  try {
    localStorage.setItem('hearth-prefs', JSON.stringify(prefs));
  } catch {
    // storage is off or full: the choices last until the page closes
  }
}

const system_dark = matchMedia('(prefers-color-scheme: dark)');
const system = $state({ dark: system_dark.matches });
system_dark.addEventListener('change', (e) => (system.dark = e.matches));

export const is_dark = () => (prefs.theme === 'auto' ? system.dark : prefs.theme === 'dark');

// A short text for screen readers; set rarely, not for every token.
export const live_region = $state({ text: '' });
export const announce = (text: string) => (live_region.text = text);

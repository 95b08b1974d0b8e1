// The API key: asked for when the server answers 401, kept for this tab only.
const name = 'hearth-key';

function stored(): string {
  try {
    return sessionStorage.getItem(name) ?? '';
  } catch {
    return '';
  }
}

export const key = $state({ value: stored(), wanted: false, refused: false });

let waiting: (() => void)[] = [];

// Resolves when the user has entered a key. `refused`: the server did not accept the last one.
export function ask_for_key(refused: boolean): Promise<void> {
  key.wanted = true;
  key.refused = refused;
  return new Promise((resolve) => waiting.push(resolve));
}

export function set_key(value: string) {
  key.value = value;
  key.wanted = false;
  try {
    sessionStorage.setItem(name, value);
  } catch {
    // storage is off: the key lasts until the page closes
  }
  for (const resolve of waiting) resolve();
  waiting = [];
}

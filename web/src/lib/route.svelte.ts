// The page and what is selected on it, kept in the fragment of the address: #/runs?r=ID&r=ID.

function parse(hash: string) {
  const [page = '', query = ''] = hash.replace(/^#\/?/, '').split('?');
  return { page, query: new URLSearchParams(query) };
}

let current = $state.raw(parse(location.hash));
addEventListener('hashchange', () => (current = parse(location.hash)));

export const route = {
  get page() {
    return current.page;
  },
  all: (name: string) => current.query.getAll(name),
  one: (name: string) => current.query.get(name) ?? '',
};

export function go(page: string, query: [string, string][] = [], replace = false) {
  const hash = `#/${page}${query.length ? `?${new URLSearchParams(query)}` : ''}`;
  if (hash === location.hash) return;
  if (replace) history.replaceState(null, '', hash);
  else history.pushState(null, '', hash);
  current = parse(hash);
}
addEventListener('popstate', () => (current = parse(location.hash)));

// Which charts there are: the keys of log.jsonl and perf.jsonl by subject. A key that no chart
// names gets a chart of its own, so that new numbers appear without a change here.

export type Unit = 'number' | 'percent' | 'bytes' | 'compact' | 'milliseconds';

export interface ChartSpec {
  id: string;
  title: string;
  section: string;
  keys: string[];
  unit?: Unit;
  note?: string;
  smooth?: boolean; // raw values are shown faint behind a moving average
  log?: boolean; // follows the switch for a logarithmic value axis
  wide?: boolean;
  spread?: [key: string, deviation: string]; // a band of one deviation
  range?: [key: string, low: string, high: string]; // a band between two keys
  marks?: boolean; // clipped, skipped and spike steps
}

const charts: ChartSpec[] = [
  { id: 'reward', title: 'Reward', section: 'Rewards', keys: ['reward', 'eval_reward'], smooth: true, wide: true,
    spread: ['reward', 'reward_std'], note: 'Band: one standard deviation of the rewards of a step.' },
  { id: 'exact', title: 'Exact answers', section: 'Rewards', keys: ['eval_exact'], unit: 'percent' },
  { id: 'equal_groups', title: 'Equal groups', section: 'Rewards', keys: ['equal_groups'], unit: 'percent', smooth: true,
    note: 'Groups whose rewards are all equal teach nothing.' },
  { id: 'unrewarded', title: 'Completions without a reward', section: 'Rewards', keys: ['unrewarded'] },
  { id: 'margin', title: 'Reward margin', section: 'Rewards', keys: ['margin', 'val_margin'], smooth: true },
  { id: 'pairs', title: 'Chosen and rejected', section: 'Rewards', smooth: true,
    keys: ['reward_chosen', 'reward_rejected', 'val_reward_chosen', 'val_reward_rejected'] },
  { id: 'accuracy', title: 'Accuracy', section: 'Rewards', keys: ['accuracy', 'val_accuracy'], unit: 'percent', smooth: true },
  { id: 'kl', title: 'KL divergence', section: 'Policy', keys: ['kl', 'kl_old'], smooth: true },
  { id: 'entropy', title: 'Entropy', section: 'Policy', keys: ['entropy'], smooth: true },
  { id: 'clip', title: 'Clip ratios', section: 'Policy', keys: ['clip_low', 'clip_high'], unit: 'percent', smooth: true },
  { id: 'gap', title: 'Log-probability gap', section: 'Policy', keys: ['logprob_gap_max', 'logprob_gap_mean'],
    note: 'Sampler and trainer, at the weights that sampled.' },
  { id: 'length', title: 'Completion length', section: 'Policy', keys: ['length'], range: ['length', 'length_min', 'length_max'],
    note: 'Band: shortest to longest.' },
  { id: 'truncated', title: 'Truncated completions', section: 'Policy', keys: ['truncated'], unit: 'percent', smooth: true },
  { id: 'beta', title: 'KL weight', section: 'Policy', keys: ['beta'] },
  { id: 'loss', title: 'Loss', section: 'Training', keys: ['loss', 'val_loss'], smooth: true, log: true, wide: true, marks: true },
  { id: 'lr', title: 'Learning rate', section: 'Training', keys: ['lr'] },
  { id: 'grad_norm', title: 'Gradient norm', section: 'Training', keys: ['grad_norm'], log: true, marks: true },
  { id: 'tokens_per_s', title: 'Tokens per second', section: 'Speed', unit: 'compact', smooth: true,
    keys: ['tokens_per_s', 'rollout_tokens_per_s', 'train_tokens_per_s'] },
  { id: 'mfu', title: 'Model FLOPs utilisation', section: 'Speed', keys: ['mfu'], unit: 'percent', smooth: true },
  { id: 'ms', title: 'Time per step', section: 'Speed', unit: 'milliseconds',
    keys: ['ms', 'rollout_ms', 'reward_wait_ms', 'score_ms', 'train_ms'] },
  { id: 'memory', title: 'Memory', section: 'Machine', unit: 'bytes',
    keys: ['memory_bytes', 'peak_memory_bytes', 'device_memory_bytes'] },
  { id: 'watts', title: 'Power (W)', section: 'Machine', keys: ['watts'] },
  { id: 'celsius', title: 'Temperature (°C)', section: 'Machine', keys: ['celsius'] },
  { id: 'utilisation', title: 'Utilisation (%)', section: 'Machine', keys: ['utilisation'] },
];

// Keys that other charts use as bands or marks, and counters, which nothing shows.
const shown_elsewhere = new Set(['skipped', 'spike', 'reward_std', 'length_min', 'length_max']);
const counters = new Set(['step', 'tokens', 'version', 'updates', 'completions', 'logprob_gap_tokens', 'trained_tokens', 'examples', 'targets', 'tflops']);

export const is_charted = (key: string) => !counters.has(key);

const part = /^reward_(\d+)$/; // the mean of one reward function

// The charts for runs that have `keys`, in order.
export function charts_for(keys: Iterable<string>): ChartSpec[] {
  const have = new Set(keys);
  const named = new Set(charts.flatMap((c) => c.keys));
  const found = charts
    .map((c) => ({ ...c, keys: c.keys.filter((k) => have.has(k)) }))
    .filter((c) => c.keys.length > 0);
  const parts = [...have].filter((k) => part.test(k)).sort((a, b) => Number(a.slice(7)) - Number(b.slice(7)));
  if (parts.length > 0) {
    const at = found.findIndex((c) => c.id === 'reward') + 1;
    found.splice(at, 0, { id: 'parts', title: 'Reward by function', section: 'Rewards', keys: parts, smooth: true });
  }
  // Other keys; those that differ by a number only (the load of each expert) share a chart.
  const others = new Map<string, string[]>();
  for (const k of have)
    if (!named.has(k) && is_charted(k) && !shown_elsewhere.has(k) && !part.test(k)) {
      const title = k.replace(/[._]?\d+$/, '') || k;
      others.set(title, [...(others.get(title) ?? []), k]);
    }
  for (const [title, keys] of [...others].sort(([a], [b]) => a.localeCompare(b)))
    found.push({
      id: `key:${title}`,
      title,
      section: 'More',
      keys: keys.sort((a, b) => a.localeCompare(b, 'en', { numeric: true })),
      unit: title.endsWith('_ms') ? 'milliseconds' : title.endsWith('_bytes') ? 'bytes' : 'number',
    });
  return found;
}

// "reward_0" is shown with the reward's own name, which the config lists.
export function key_label(key: string, config: Record<string, unknown> | undefined): string {
  const index = part.exec(key)?.[1];
  const rewards = config?.reward;
  const name = index !== undefined && Array.isArray(rewards) ? rewards[Number(index)] : undefined;
  return typeof name === 'string' ? name : key;
}

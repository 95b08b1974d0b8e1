// What /api/runs answers.

export interface RunInfo {
  id: string;
  name: string;
  task: string;
  state: 'running' | 'stopped' | 'finished' | 'damaged';
  step: number | null;
  steps: number | null;
  updated: string | null;
  started: string | null;
  loss: number | null;
  val_loss: number | null;
  reward: number | null;
  tokens_per_s: number | null;
  mfu: number | null;
  params: number | null;
  model: string | null;
  trouble: string | null;
}

export interface Checkpoint {
  step: number;
  bytes: number;
  latest: boolean;
  best: boolean;
}

export interface RunDetail {
  run: RunInfo;
  config: Record<string, unknown>;
  config_text: string;
  keys: { log: string[]; perf: string[] };
  best: { step: number; value: number; key: string } | null;
  checkpoints: Checkpoint[];
  memory: Record<string, number> | null;
  seconds: Record<string, number> | null;
}

export interface Sample {
  step: number;
  text: string;
}

export interface Rollout {
  group: number;
  index: number;
  prompt?: string;
  completion: string; // long ones are cut
  tokens: number; // of the whole completion
  truncated?: boolean; // the model did not end it
  reward: number | null;
  rewards?: (number | null)[]; // by function
  advantage: number | null;
  token_texts?: string[]; // the first tokens of some completions
  logprobs?: (number | null)[];
}

// llama.cpp as the peer of `hearth bench infer` on the CPU: the same models with random weights, the same threads,
// the same depth of the cache, in turns on one machine. Prints one line per model, type and turn, then a JSON line
// per cell with the medians over the turns.
//
//   node bench/peers/llama_cpu.mjs --llama FOLDER [--hearth build-cpu/hearth] [--models gpt2,qwen3-0.6b,gpt2-xl]
//       [--types bf16,int8,int4] [--turns 3] [--threads N] [--prompt 512] [--new 64] [--work FOLDER]
//
// --llama: the folder of llama-bench, built with llama.cpp's defaults. Decoding begins with an empty cache on both
// sides (llama-bench's tg test does); "deep" decodes after a prompt (llama-bench -d). --work keeps the models in bf16
// (3.1 GB for gpt2-xl), and each GGUF file while it is measured.
import { execFileSync } from 'node:child_process';
import { closeSync, existsSync, mkdirSync, openSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { availableParallelism, cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

const flag = (value) => ({ type: 'string', default: value });
const { values: flags } = parseArgs({ options: {
  llama: { type: 'string' }, hearth: flag('build-cpu/hearth'), models: flag('gpt2,qwen3-0.6b,gpt2-xl'),
  types: flag('bf16,int8,int4'), turns: flag('3'), threads: flag(String(availableParallelism())),
  prompt: flag('512'), new: flag('64'), work: flag(join(tmpdir(), 'hearth-llama-cpu')) } });
if (!flags.llama) throw new Error('expected --llama FOLDER, the folder that has llama-bench');

const gpt2 = (layers, dim, heads) => ({
  config: { architectures: ['GPT2LMHeadModel'], model_type: 'gpt2', vocab_size: 50257, n_positions: 1024,
    n_embd: dim, n_layer: layers, n_head: heads, activation_function: 'gelu_new', layer_norm_epsilon: 1e-5,
    tie_word_embeddings: true },
  tensors: [['transformer.wte.weight', 50257, dim], ['transformer.wpe.weight', 1024, dim],
    ['transformer.ln_f.weight', dim], ['transformer.ln_f.bias', dim],
    ...Array.from({ length: layers }, (_, i) => [
      ['ln_1.weight', dim], ['ln_1.bias', dim], ['attn.c_attn.weight', dim, 3 * dim], ['attn.c_attn.bias', 3 * dim],
      ['attn.c_proj.weight', dim, dim], ['attn.c_proj.bias', dim], ['ln_2.weight', dim], ['ln_2.bias', dim],
      ['mlp.c_fc.weight', dim, 4 * dim], ['mlp.c_fc.bias', 4 * dim], ['mlp.c_proj.weight', 4 * dim, dim],
      ['mlp.c_proj.bias', dim]].map(([name, ...shape]) => [`transformer.h.${i}.${name}`, ...shape])).flat()],
});

function qwen3(layers, dim, heads, kvHeads, headDim, hidden, vocab) {
  const layer = [
    ['input_layernorm.weight', dim], ['self_attn.q_proj.weight', heads * headDim, dim],
    ['self_attn.k_proj.weight', kvHeads * headDim, dim], ['self_attn.v_proj.weight', kvHeads * headDim, dim],
    ['self_attn.o_proj.weight', dim, heads * headDim], ['self_attn.q_norm.weight', headDim],
    ['self_attn.k_norm.weight', headDim], ['post_attention_layernorm.weight', dim],
    ['mlp.gate_proj.weight', hidden, dim], ['mlp.up_proj.weight', hidden, dim], ['mlp.down_proj.weight', dim, hidden]];
  return {
    config: { architectures: ['Qwen3ForCausalLM'], model_type: 'qwen3', vocab_size: vocab, hidden_size: dim,
      num_hidden_layers: layers, num_attention_heads: heads, num_key_value_heads: kvHeads, head_dim: headDim,
      intermediate_size: hidden, hidden_act: 'silu', max_position_embeddings: 4096, rms_norm_eps: 1e-6,
      rope_theta: 1e6, tie_word_embeddings: true, attention_bias: false },
    tensors: [['model.embed_tokens.weight', vocab, dim], ['model.norm.weight', dim],
      ...Array.from({ length: layers }, (_, i) =>
        layer.map(([name, ...shape]) => [`model.layers.${i}.${name}`, ...shape])).flat()],
  };
}

const models = {
  gpt2: gpt2(12, 768, 12), 'gpt2-medium': gpt2(24, 1024, 16), 'gpt2-xl': gpt2(48, 1600, 25),
  'qwen3-0.6b': qwen3(28, 1024, 16, 8, 128, 3072, 151936),
};
const types = { bf16: { gguf: 'fp16', hearth: ['--dtype', 'bf16'] }, int8: { gguf: 'q8_0', hearth: ['--weights', 'int8'] },
  int4: { gguf: 'q4_0', hearth: ['--weights', 'int4'] } };

// Writes a Hugging Face folder with bf16 weights whose exponents are those of values between 2^-8 and 2^-5.
function writeModel(folder, { config, tensors }) {
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'config.json'), JSON.stringify({ ...config, torch_dtype: 'bfloat16' }));
  const header = {};
  let end = 0;
  for (const [name, ...shape] of tensors) {
    const begin = end;
    end += 2 * shape.reduce((a, b) => a * b);
    header[name] = { dtype: 'BF16', shape, data_offsets: [begin, end] };
  }
  const json = Buffer.from(JSON.stringify(header)), length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  const file = openSync(join(folder, 'model.safetensors'), 'w');
  writeSync(file, length);
  writeSync(file, json);
  const block = new Uint16Array(1 << 22);
  let seed = 1;
  for (let i = 0; i < block.length; ++i) {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    block[i] = (seed >>> 31 << 15) | (119 + (seed >>> 29 & 3)) << 7 | (seed >>> 20 & 127);
  }
  const bytes = Buffer.from(block.buffer);
  for (let left = end; left > 0;) left -= writeSync(file, bytes, 0, Math.min(left, bytes.length));
  closeSync(file);
}

const run = (program, args) => execFileSync(program, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });

// Tokens/s of a prompt, of decoding with an empty cache, and of decoding after the prompt.
function llama(gguf) {
  const bench = (...more) => JSON.parse(run(join(flags.llama, 'llama-bench'),
    ['-m', gguf, '-t', flags.threads, '-r', '3', '-o', 'json', ...more])).at(-1).avg_ts;
  return { prompt: bench('-p', flags.prompt, '-n', '0'), decode: bench('-p', '0', '-n', flags.new),
    deep: bench('-p', '0', '-n', flags.new, '-d', flags.prompt) };
}

function hearth(folder, more) {
  const bench = (prompt) => JSON.parse(run(flags.hearth,
    ['bench', 'infer', '--model', folder, '--prompt', prompt, '--new', flags.new, '--threads', flags.threads,
      '--device', 'cpu', '--json', ...more]));
  const deep = bench(flags.prompt);
  return { prompt: deep.prompt_tokens_per_s, decode: bench('1').decode_tokens_per_s, deep: deep.decode_tokens_per_s };
}

function median(list) {
  const sorted = list.toSorted((a, b) => a - b), half = (list.length - 1) / 2;
  return (sorted[Math.floor(half)] + sorted[Math.ceil(half)]) / 2;
}
const cells = [];
for (const name of flags.models.split(',')) {
  if (!models[name]) throw new Error(`expected models of ${Object.keys(models).join(', ')}, got ${name}`);
  const folder = join(flags.work, name);
  if (!existsSync(join(folder, 'model.safetensors'))) writeModel(folder, models[name]);
  for (const type of flags.types.split(',')) {
    if (!types[type]) throw new Error(`expected types of ${Object.keys(types).join(', ')}, got ${type}`);
    const gguf = join(flags.work, `${name}-${type}.gguf`);
    if (!existsSync(gguf)) run(flags.hearth, ['convert', '--from', folder, '--gguf', gguf, '--dtype', types[type].gguf]);
    const turns = [];
    for (let turn = 0; turn < Number(flags.turns); ++turn) {
      const [peer, own] = [llama(gguf), hearth(folder, types[type].hearth)];
      turns.push({ peer, own });
      console.log(name, type, ...['prompt', 'decode', 'deep'].map((what) =>
        `${what} ${own[what].toFixed(1)} / ${peer[what].toFixed(1)} = ${(own[what] / peer[what]).toFixed(2)}`));
    }
    for (const what of ['prompt', 'decode', 'deep']) {
      const of = (side) => Number(median(turns.map((t) => t[side][what])).toPrecision(4));
      cells.push({ model: name, type, what, threads: Number(flags.threads), cpu: cpus()[0].model, turns: turns.length,
        value: of('own'), unit: 'tokens/s', peer: `llama.cpp ${types[type].gguf}`, peer_value: of('peer'),
        ratio: Number(median(turns.map((t) => t.own[what] / t.peer[what])).toPrecision(3)) });
    }
    rmSync(gguf);
  }
}
for (const cell of cells) console.log(JSON.stringify(cell));

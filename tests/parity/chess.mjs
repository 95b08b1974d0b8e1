// Compares `hearth chess` with Stockfish (the perft table of tests/unit/test_chess_rules.cpp) and with
// the npm package chess.js: legal moves, positions after a move and endings of 100,000 positions (or POSITIONS).
//   node tests/parity/chess.mjs NODE_MODULES HEARTH STOCKFISH [POSITIONS] > tests/parity/results/chess.json
// Positions are drawn by `hearth data chess`, half of them by nearly uniform moves. En passant is
// compared by python-chess's rule: the square is written where chess.js has such a capture among its
// legal moves. Its internal generator is used, since the public one writes SAN at 20 times the cost.
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const [modulesFlag, hearth, stockfish, positionsFlag = "100000"] = process.argv.slice(2);
const modules = resolve(modulesFlag);
const require = createRequire(modules + "/");
const { Chess } = require(modules + "/chess.js");
const wanted = Number(positionsFlag);

function run(program, args, input) {
  const r = spawnSync(program, args, { input, maxBuffer: 1 << 30, encoding: "utf8" });
  if (r.status !== 0) throw new Error(`${program} ${args.join(" ")}: ${r.stderr}`);
  return r.stdout;
}

// Perft: our count, the constant of the unit test, and Stockfish's.
const here = dirname(fileURLToPath(import.meta.url));
const table = readFileSync(join(here, "../unit/test_chess_rules.cpp"), "utf8");
const perft = [...table.matchAll(/\{"([^"]+ \d+ \d+)", (\d+), (\d+)\}/g)].map(([, fen, depth, constant]) => {
  const ours = Number(run(hearth, ["chess", "perft", "--fen", fen, "--depth", depth]));
  const said = run(stockfish, [], `position fen ${fen}\ngo perft ${depth}\nquit\n`);
  const theirs = Number(said.match(/Nodes searched: (\d+)/)[1]);
  return { fen, depth: Number(depth), nodes: ours, equal: ours === theirs && ours === Number(constant) };
});

// Positions: a row of the A: task each.
const folder = mkdtempSync(join(tmpdir(), "chess-parity-"));
const rows = [], seen = new Set();
for (const [seed, temperature, share] of [[1, 3, 0.5], [2, 1000, 1]]) {
  const file = join(folder, `rows-${seed}`);
  run(hearth, ["data", "chess", "--out", file, "--games", `${wanted / 100}`, "--seed", `${seed}`, "--tasks", "A",
    "--temperature", `${temperature}`, "--illegal", "0"]);
  for (const line of readFileSync(file, "utf8").split("\n")) {
    if (!line || rows.length >= wanted * share) continue;
    const { prompt, completion } = JSON.parse(line);
    const [fen, move] = prompt.slice(3).split("+");
    if (seen.has(fen)) continue;
    seen.add(fen);
    const [after, reward, terminated] = completion.split("+");
    rows.push({ fen, move, after, reward: Number(reward), terminated: terminated === "1" });
  }
}
rmSync(folder, { recursive: true });
const legal = run(hearth, ["chess", "legal", "--fen", "-", "--json"], rows.map((r) => r.fen + "\n").join(""))
  .trim().split("\n").map((line) => JSON.parse(line));

const name = (square) => "abcdefgh"[square & 15] + (8 - (square >> 4));
const uci = (m) => name(m.from) + name(m.to) + (m.promotion ?? "");
function fenOf(game, moves) {
  const fields = game.fen().split(" ");
  const capture = moves.find((m) => m.flags & 8);
  fields[3] = capture ? name(capture.to) : "-";
  return fields.join(" ");
}

const result = { positions: rows.length, moves: 0, en_passant: 0, checkmates: 0, draws: 0,
  legal_differ: 0, fen_differ: 0, after_differ: 0, ending_differ: 0, first: null };
function differ(what, example) {
  ++result[what];
  result.first ??= { what, ...example };
}
rows.forEach((row, i) => {
  const game = new Chess(row.fen);
  const moves = game._moves({ legal: true });
  const theirs = moves.map(uci).sort();
  result.moves += theirs.length;
  result.en_passant += moves.some((m) => m.flags & 8);
  if (theirs.join() !== legal[i].moves.join()) differ("legal_differ", { row, theirs });
  if (legal[i].fen !== row.fen || fenOf(game, moves) !== row.fen) differ("fen_differ", { row, theirs: game.fen() });
  game._makeMove(moves.find((m) => uci(m) === row.move));
  const replies = game._moves({ legal: true });
  const after = fenOf(game, replies);
  if (after !== row.after) differ("after_differ", { row, theirs: after });
  const mate = replies.length === 0 && game.inCheck();
  const draw = !mate && (replies.length === 0 || game.isInsufficientMaterial() || Number(after.split(" ")[4]) >= 150);
  result.checkmates += mate;
  result.draws += draw;
  if (row.terminated !== (mate || draw) || row.reward !== (mate ? 1 : draw ? 0.5 : 0.001)) differ("ending_differ", { row });
});

const version = JSON.parse(readFileSync(modules + "/chess.js/package.json", "utf8")).version;
const engine = run(stockfish, [], "uci\nquit\n").match(/id name (.*)/)[1];
console.log(JSON.stringify({ engine, chess_js: version, perft, random: result }, null, 1));
const good = perft.length >= 12 && perft.every((p) => p.equal) && result.positions === wanted &&
  !result.first;
process.exit(good ? 0 : 1);

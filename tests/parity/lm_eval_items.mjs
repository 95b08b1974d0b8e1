// Makes items for lm_eval_requests.mjs from generated stories: texts whose last word is guessed, as in LAMBADA, and
// questions with four answers, as in ARC.
//   node tests/parity/lm_eval_items.mjs STORIES.txt LAMBADA.jsonl ARC.jsonl
import { readFileSync, writeFileSync } from "node:fs";

const [from, lambadaFile, arcFile] = process.argv.slice(2);
const stories = readFileSync(from, "utf8").split("<|endoftext|>").map((s) => s.trim()).filter((s) => s);
const sentences = stories.map((s) => s.split(/(?<=[.!?])\s+/));
const lines = (rows) => rows.map((r) => JSON.stringify(r) + "\n").join("");
writeFileSync(lambadaFile, lines(sentences.map((s) => ({ text: s.slice(0, 3).join(" ").replace(/[.!?"]+$/, "") }))));
const labels = ["A", "B", "C", "D"];
writeFileSync(arcFile, lines(sentences.map((s, i) => ({
  question: { stem: `What comes after "${s[0]}"`,
    choices: labels.map((label, k) => ({ label, text: sentences[(i + k) % sentences.length][1] })) },
  answerKey: labels[i % 4] }))));

// Compares `hearth tokenizer chat` with @huggingface/jinja: every template of a folder over the
// conversations of chat_conversations.mjs, byte for byte. Exits 1 at a difference.
//   node tests/parity/chat_templates.mjs NODE_MODULES HEARTH FOLDER [RESULT.json]
// FOLDER holds files NAME.jinja, as models publish them; none are kept here. A conversation that a template
// refuses (raise_exception, a missing field) must be refused by both. chat_templates.py does the same with
// Jinja2 itself, which settles what `oracle_errs` names.
import { spawnSync } from "node:child_process";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { cases } from "./chat_conversations.mjs";

const [modulesFlag, hearth, folder, result] = process.argv.slice(2);
const modules = resolve(modulesFlag);
const { Template } = createRequire(modules + "/")(modules + "/@huggingface/jinja");
const version = JSON.parse(readFileSync(modules + "/@huggingface/jinja/package.json")).version;

function theirs(template, input) {
  try {
    return { text: template.render(input) };
  } catch (error) {
    return { error: String(error.message) };
  }
}
function ours(file, input) {
  const r = spawnSync(hearth, ["tokenizer", "chat", "--template", file], { input: JSON.stringify(input) });
  return r.status === 0 ? { text: r.stdout.toString() } : { error: r.stderr.toString().trimEnd() };
}

// Where the package departs from Python: text.lstrip('\n') strips every kind of space.
const oracle_errs = { "HuggingFaceTB-SmolLM3-3B": ["spaces", "spaces+prompt"],
  thinking: ["injection", "injection+prompt"] };

const table = [];
for (const name of readdirSync(folder).filter((f) => f.endsWith(".jinja")).sort()) {
  const file = resolve(folder, name);
  const row = { template: name.slice(0, -6), equal: 0, refused: 0, different: 0 };
  table.push(row);
  let template;
  try {
    template = new Template(readFileSync(file, "utf8"));
  } catch (error) {
    row.unread = String(error.message);
    continue;
  }
  for (const { name: conversation, input } of cases) {
    const want = theirs(template, input), got = ours(file, input);
    if (want.error !== undefined && got.error !== undefined) row.refused++;
    else if (want.text !== undefined && want.text === got.text) row.equal++;
    else if (oracle_errs[row.template]?.includes(conversation)) row.oracle_errs = (row.oracle_errs ?? 0) + 1;
    else {
      row.different++;
      row.first ??= { conversation, theirs: want, ours: got };
    }
  }
}
for (const r of table)
  console.log(`${r.template}: ${r.unread ?? `${r.equal} equal, ${r.refused} refused by both, ${r.different} differ`}`);
const different = table.filter((r) => r.different);
for (const r of different) console.log(r.template, JSON.stringify(r.first, null, 1));
if (result)
  writeFileSync(result, JSON.stringify({ oracle: `@huggingface/jinja ${version}`, conversations: cases.length,
    templates: table.map(({ first, ...r }) => r) }, null, 1) + "\n");
if (!table.some((r) => r.equal)) console.log(`expected a template that renders in both, got none in ${folder}`);
process.exit(different.length || !table.some((r) => r.equal) ? 1 : 0);

# Compares `hearth tokenizer chat` with Jinja2, set up as transformers does it: every template of the
# folders over the conversations of chat_conversations.mjs, byte for byte. Exits 1 at a difference.
#   node tests/parity/chat_conversations.mjs > cases.json
#   python3 tests/parity/chat_templates.py HEARTH cases.json RESULT.json FOLDER...
# Needs jinja2 (Debian: python3-jinja2). FOLDERs hold files NAME.jinja, as models publish them.
import datetime
import glob
import json
import os
import subprocess
import sys

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=["jinja2.ext.loopcontrols", Generation])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env


def theirs(template, case):
    try:
        return template.render(**case), None
    except Exception as error:
        return None, repr(error)


def ours(hearth, file, case):
    r = subprocess.run([hearth, "tokenizer", "chat", "--template", file],
                       input=json.dumps(case).encode(), capture_output=True)
    return (r.stdout.decode(), None) if r.returncode == 0 else (None, r.stderr.decode().strip())


def compare(env, hearth, file, cases):
    row = {"template": os.path.basename(file)[:-6], "equal": 0, "refused": 0, "different": 0}
    template = env.from_string(open(file, newline="").read())
    for case in cases:
        want, want_error = theirs(template, case["input"])
        got, got_error = ours(hearth, file, case["input"])
        if want_error and got_error:
            row["refused"] += 1
        elif want is not None and want == got:
            row["equal"] += 1
        else:
            row["different"] += 1
            row.setdefault("first", [case["name"], want or want_error, got or got_error])
    return row


def main(hearth, cases_file, result, *folders):
    cases, env = json.load(open(cases_file)), environment()
    files = sorted(f for folder in folders for f in glob.glob(folder + "/*.jinja"))
    table = []
    for file in files:
        row = compare(env, hearth, file, cases)
        first = row.pop("first", None)
        print("{template}: {equal} equal, {refused} refused by both, {different} differ".format(**row))
        if first:
            row["got"] = first[2][:200].replace(os.path.dirname(file) + "/", "")
            print("  ", json.dumps(first, ensure_ascii=False)[:600])
        table.append(row)
    with open(result, "w") as out:
        json.dump({"oracle": "Jinja2 " + jinja2.__version__, "conversations": len(cases),
                   "templates": table}, out, indent=1, ensure_ascii=False)
        out.write("\n")
    if not any(row["equal"] for row in table):
        sys.exit("expected a template that renders in both, got none in " + " ".join(folders))
    return any(row["different"] for row in table)


sys.exit(main(*sys.argv[1:]))

"""Compares `hearth tokenizer encode` with Hugging Face tokenizers and tiktoken. One JSON line a check.

    python3 tests/parity/tokenizer_ids.py HEARTH FOLDER [CASES]

FOLDER holds text.txt, any number of NAME.tiktoken (r50k_base, cl100k_base, o200k_base, llama3, qwen) and
of folders with tokenizer.json; what is there is checked. Needs the Python packages tokenizers and
tiktoken, no network. Small tokenizers of the other kinds that hearth reads (Digits, Punctuation, Split, Metaspace,
NFKC, byte fallback, Unigram, ...) are trained with the package on text.txt and checked too. Strings of any bytes go to tiktoken's _encode_bytes. Exits 1 at a difference.
Random Unicode keeps to characters of Unicode 13, since the engine of Hugging Face may know no later ones.
"""
import base64
import json
import random
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata
from pathlib import Path

CLASSIC = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD, TAIL = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERNS = {
    "r50k_base": r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
    "cl100k_base": r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s""",
    "o200k_base": "|".join([
        LEAD + UPPER + "*" + LOWER + "+" + TAIL, LEAD + UPPER + "+" + LOWER + "*" + TAIL,
        r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]),
    "llama3": CLASSIC % "{1,3}",
    "qwen": CLASSIC % "",
}

hearth, folder = sys.argv[1], Path(sys.argv[2])
cases = int(sys.argv[3]) if len(sys.argv) > 3 else 100000
rng = random.Random(7)
failed = False
compared = 0


def say(**fields):
    print(json.dumps(fields), flush=True)


def run(args, data):
    return subprocess.run([hearth, "tokenizer", *args], input=data, capture_output=True, check=True).stdout


def ids_of(line):
    return [int(x) for x in line.split()]


def encode_all(path, strings, *more):
    data = b"".join(struct.pack("<I", len(s)) + s for s in strings)
    return [ids_of(l) for l in run(["encode", "--records", "--tokenizer", path, *more], data).split(b"\n")[:-1]]


def check(tokenizer, name, ours, theirs, strings):
    global failed, compared
    compared += 1
    wrong = [i for i, (a, b) in enumerate(zip(ours, theirs)) if list(a) != list(b)]
    example = {}
    if wrong or len(ours) != len(theirs):
        failed = True
        i = wrong[0] if wrong else 0
        example = {"first": strings[i][:200].hex(), "ours": ours[i][:40], "theirs": list(theirs[i])[:40]}
    say(tokenizer=tokenizer, check=name, strings=len(theirs), tokens=sum(map(len, theirs)), different=len(wrong), **example)


def speed(tokenizer, path, library, encode, size):
    start = time.perf_counter()
    encode()
    theirs = size * 1e-6 / (time.perf_counter() - start)
    out = json.loads(run(["bench", "--json", "--repeats", "5", "--tokenizer", path, "--input", str(folder / "text.txt")], b""))
    say(tokenizer=tokenizer, check="speed, MB/s on one core", hearth=round(out["value"], 1), library=library,
        theirs=round(theirs, 1), ratio=round(out["value"] / theirs, 2))


KINDS = ["abc XYZ", " \t\u0085\u00a0\u3000\u2028\r\n", "0123456789½²Ⅷ٣", "'sS'ſ'tT're'RE've'm'LL'll'd ",
         "éßЖжΩǅʰªاक漢字かな한글", "🦙👩\u200d👧🇩🇪", "!?.,;:-_()[]{}<|>/", "\u0301\u0323\u093f\u200d\ufeff\ufffd\0\u2581",
         "\n\n \r\n", "aA"]
WORDS = [" the", " and", " of", "The", " IBM's", " DON'T", "Hello", " world's"]


def random_char():
    while True:
        c = chr(rng.randrange(0x3000) if rng.randrange(4) else rng.randrange(0x110000))
        # unicodedata is later than 13 here and there; what an old table lacks is left out.
        if unicodedata.category(c) not in ("Cn", "Cs") and unicodedata.ucd_3_2_0.category(c) != "Cn":
            return c


def random_text():
    s = []
    for _ in range(rng.randrange(1, 40)):
        k = rng.randrange(len(KINDS) + 2)
        c = rng.choice(KINDS[k]) if k < len(KINDS) else rng.choice(WORDS) if k == len(KINDS) else random_char()
        s.append(c * (1 if rng.randrange(4) else rng.randrange(1, 6)))
    return "".join(s)


def random_bytes():
    wide = rng.randrange(3)
    b = bytes(rng.randrange(256) if wide == 0 else rng.randrange(0x20, 0x80) if wide == 1 else rng.choice(b" \n\t\xff\xc3\xa9a")
              for _ in range(rng.randrange(1, 60)))
    return (random_text().encode() if rng.randrange(2) else b"") + b + (b"" if rng.randrange(3) else random_text().encode())


text = (folder / "text.txt").read_bytes()
whole = text.decode()
documents = whole.split("<|endoftext|>")
unicode_strings = [random_text() for _ in range(cases)]
encoded_strings = [s.encode() for s in unicode_strings]
byte_strings = [random_bytes() for _ in range(cases)]

try:
    import tiktoken
except ImportError:
    tiktoken = None
for path in sorted(folder.glob("*.tiktoken")) if tiktoken else []:
    name = path.stem
    ranks = {base64.b64decode(t): int(r) for t, r in (l.split() for l in path.read_bytes().splitlines() if l)}
    encoding = tiktoken.Encoding(name, pat_str=PATTERNS[name], mergeable_ranks=ranks, special_tokens={})
    ours = ids_of(run(["encode", "--raw", "--tokenizer", str(path)], text))
    check(name, "tiktoken, whole text", [ours], [encoding.encode_ordinary(whole)], [b""])
    check(name, "tiktoken, random Unicode", encode_all(str(path), encoded_strings),
          [encoding.encode_ordinary(s) for s in unicode_strings], encoded_strings)
    check(name, "tiktoken, random bytes", encode_all(str(path), byte_strings),
          [encoding._encode_bytes(s) for s in byte_strings], byte_strings)
    speed(name, str(path), "tiktoken " + tiktoken.__version__, lambda: encoding.encode_ordinary(whole), len(text))

try:
    import tokenizers
except ImportError:
    tokenizers = None

TEKKEN = "|".join([LEAD + UPPER + "*" + LOWER + "+", LEAD + UPPER + "+" + LOWER + "*", r"\p{N}",
                   r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
             r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")


def make_kinds(out):
    """Writes one folder with a tokenizer.json for each kind, trained on the beginning of the text."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    sample = [d for d in documents if d.strip()][:300]
    pre = pre_tokenizers
    byte_level = lambda regex: pre.ByteLevel(add_prefix_space=False, use_regex=regex)
    split = lambda pattern, behavior, invert=False: pre.Split(Regex(pattern), behavior, invert)
    meta = lambda **k: pre.Metaspace(replacement="\u2581", **k)

    def save(name, tokenizer, change=lambda file: None):
        path = out / name
        path.mkdir(parents=True)
        file = json.loads(tokenizer.to_str())
        change(file)
        (path / "tokenizer.json").write_text(json.dumps(file))

    def byte_kind(name, steps, normalizer=None):
        t = Tokenizer(models.BPE())
        t.pre_tokenizer, t.decoder = pre.Sequence(steps), decoders.ByteLevel()
        if normalizer:
            t.normalizer = normalizer
        t.train_from_iterator(sample, trainers.BpeTrainer(
            vocab_size=1500, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False))
        save(name, t)

    byte_kind("smollm", [pre.Digits(individual_digits=True), byte_level(True)])
    byte_kind("falcon", [pre.Punctuation("contiguous"), byte_level(True), pre.Digits(individual_digits=False),
                         split("[0-9][0-9][0-9]", "isolated")])
    byte_kind("tekken", [split(TEKKEN, "isolated"), byte_level(False)])
    byte_kind("deepseek-v3", [split(r"\p{N}{1,3}", "isolated"),
                              split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", "isolated"),
                              split(DEEPSEEK3, "isolated"), byte_level(False)])
    byte_kind("deepseek-coder", [split(r"[\r\n]", "isolated"), split(r"\s?\p{L}+", "isolated"),
                                 split(r"\s?\p{P}+", "isolated"), split(r"\s+$", "isolated"),
                                 split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", "isolated"),
                                 pre.Digits(individual_digits=True), byte_level(False)])
    byte_kind("whitespace", [pre.Whitespace(), byte_level(False)])
    byte_kind("nfkc", [byte_level(True)], normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]))
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        byte_kind("split-" + behavior, [split(r"[ae]|\s\w", behavior), byte_level(False)])
        byte_kind("punctuation-" + behavior, [pre.Punctuation(behavior), byte_level(False)])
    byte_kind("split-inverted", [split(r"[a-z]+", "merged_with_next", True), byte_level(False)])

    def fallback(file):  # byte tokens that are tokens of the model, as SentencePiece has them
        model = file["model"]
        for b in range(256):
            model["vocab"][f"<0x{b:02X}>"] = len(model["vocab"])
        model["byte_fallback"] = True

    spaces = normalizers.Replace(" ", "\u2581")
    bytes_decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    for name, normalizer, pre_tokenizer in (
            ("gemma", spaces, pre.Split(" ", "merged_with_previous")),
            ("llama2", normalizers.Sequence([normalizers.Prepend("\u2581"), spaces]), None),
            ("mistral", None, meta(prepend_scheme="first", split=False)),
            ("words-first", None, pre.Sequence([pre.WhitespaceSplit(), meta(prepend_scheme="first")]))):
        t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
        if normalizer:
            t.normalizer = normalizer
        # Trained on words, so that the merges are of the usual kind.
        t.pre_tokenizer, t.decoder = meta(), bytes_decoder
        t.train_from_iterator(sample, trainers.BpeTrainer(vocab_size=1200, special_tokens=["<unk>"], show_progress=False))
        if pre_tokenizer:
            t.pre_tokenizer = pre_tokenizer
        save(name, t, fallback if pre_tokenizer else lambda f: (fallback(f), f.update(pre_tokenizer=None)))
    for name, normalizer, pre_tokenizer in (
            ("unigram", None, meta()), ("unigram-nfkc", normalizers.NFKC(), meta(prepend_scheme="never")),
            ("unigram-words", normalizers.NFC(), pre.Sequence([pre.WhitespaceSplit(), meta()]))):
        t = Tokenizer(models.Unigram())
        if normalizer:
            t.normalizer = normalizer
        t.pre_tokenizer, t.decoder = pre_tokenizer, decoders.Metaspace(replacement="\u2581")
        t.train_from_iterator(sample, trainers.UnigramTrainer(
            vocab_size=800, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False))
        save(name, t)


made = tempfile.TemporaryDirectory()
if tokenizers:
    make_kinds(Path(made.name))
found = [*folder.glob("*/tokenizer.json"), *Path(made.name).glob("*/tokenizer.json")]
for path in sorted(found) if tokenizers else []:
    name = path.parent.name
    hf = tokenizers.Tokenizer.from_file(str(path))

    def encode(strings):
        return [e.ids for e in hf.encode_batch(strings, add_special_tokens=False)]

    check(name, "tokenizers, documents", encode_all(str(path), [d.encode() for d in documents], "--special"),
          encode(documents), [d.encode() for d in documents])
    check(name, "tokenizers, random Unicode", encode_all(str(path), encoded_strings, "--special"), encode(unicode_strings), encoded_strings)
    with_template = [hf.encode(s).ids for s in unicode_strings[:1000]]
    check(name, "tokenizers, with template", encode_all(str(path), encoded_strings[:1000], "--special", "--template"),
          with_template, encoded_strings)
    if path.is_relative_to(made.name):
        continue
    part = documents[: len(documents) // 8]  # one core of it is slow
    speed(name, str(path), "tokenizers " + tokenizers.__version__, lambda: [hf.encode(d) for d in part],
          sum(len(d.encode()) for d in part))
if not (tiktoken or tokenizers):
    sys.exit("expected the package tiktoken or tokenizers, got neither")
if not compared:
    sys.exit(f"expected *.tiktoken or */tokenizer.json in {folder}, got none that an installed package reads")
sys.exit(failed)

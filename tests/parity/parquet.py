"""Parquet files of pyarrow against hearth.

  python3 tests/parity/parquet.py HEARTH TOKENIZER SCRATCH

Every codec and encoding hearth takes, both page versions, nulls, empty and long texts: the tokens of
`hearth data prepare` of the Parquet file must be those of a JSONL file with the same texts.
"""
import json
import os
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq

hearth, tokenizer, scratch = sys.argv[1:4]
shutil.rmtree(scratch, ignore_errors=True)
os.makedirs(scratch)
words = ["naïve", "the", "日本語", "😀", "a\nb", "ß", '"quoted"', "\\", "Z" * 50]
texts = []
for i in range(20000):
    if i % 11 == 3:
        texts.append(None)
    elif i % 13 == 5:
        texts.append("")
    elif i % 3 == 0:
        texts.append(words[i // 3 % len(words)])
    elif i % 3 == 1:
        texts.append(f"https://example.org/page/{i:08}")
    else:
        texts.append(" ".join(words[(i * j + j) % len(words)] for j in range(i % 60)))
texts[778] = "long " * 300000


def tokens(path):
    out = path + ".out"
    run = subprocess.run([hearth, "data", "prepare", "--tokenizer", tokenizer, "--input", path, "--out", out],
                         capture_output=True, text=True)
    if run.returncode != 0:
        return run.stderr.strip()
    return open(os.path.join(out, "train_000001.bin"), "rb").read()


plain = os.path.join(scratch, "plain.jsonl")
with open(plain, "w") as f:
    for t in texts:
        if t:
            f.write(json.dumps({"text": t}) + "\n")
expected = tokens(plain)
assert isinstance(expected, bytes), expected
files = bad = 0
for codec in ("none", "snappy", "gzip", "zstd"):
    for version in ("1.0", "2.0"):
        for encoding in ("dictionary", "PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"):
            for kind in ("string", "large_string"):
                path = os.path.join(scratch, f"{codec}-{version}-{encoding}-{kind}.parquet")
                table = pa.table({"id": list(range(len(texts))), "text": pa.array(texts, getattr(pa, kind)())})
                more = {} if encoding == "dictionary" else {"column_encoding": {"text": encoding}}
                pq.write_table(table, path, compression=codec, data_page_version=version, row_group_size=3000,
                               use_dictionary=["text"] if encoding == "dictionary" else False,
                               data_page_size=20000, **more)
                found = tokens(path)
                files += 1
                if found != expected:
                    bad += 1
                    print(f"{os.path.basename(path)}: {found if isinstance(found, str) else 'other tokens'}")
print(f"pyarrow {pa.__version__}: {files} files, {bad} differ")
sys.exit(bad != 0)

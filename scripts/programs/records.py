#!/usr/bin/python3
"""Makes files in the formats that training programs read, for scripts/programs.sh: DIR/records."""

import pathlib
import sqlite3
import sys
import tarfile

import numpy

tree = pathlib.Path(sys.argv[1])
out = tree / "records"
out.mkdir()
rng = numpy.random.default_rng(7)
numpy.save(out / "array.npy", rng.normal(size=(400, 1000)))
numpy.savez(out / "arrays.npz", a=rng.integers(0, 9, 5000), b=rng.normal(size=(50, 60)))
with tarfile.open(out / "shard.tar", "w") as shard:
    for path in sorted((tree / "images/val").rglob("*.jpg")):
        shard.add(path, path.relative_to(tree).as_posix())
with sqlite3.connect(out / "labels.db") as database:
    database.execute("create table labels(name text primary key, label integer)")
    rows = ((f"{n:06}.jpg", n * 7 % 1000) for n in range(20000))
    database.executemany("insert into labels values(?, ?)", rows)
(out / "labels.json").write_text('{"classes": [' + ", ".join(map(str, range(5000))) + "]}")
(out / "hello.c").write_text('#include <stdio.h>\nint main(void) { puts("hello"); }\n')
(out / "Makefile").write_text("$(OUT)/hello: hello.c\n\tcc -o $@ $<\n")
try:
    import torch
except ImportError:
    sys.exit()
torch.manual_seed(1)
torch.save(torch.nn.Linear(300, 400).state_dict(), out / "checkpoint.pt")

"""Reads all files below a directory and writes one, where there is no PyTorch to train with."""

import pathlib
import sys

for path in pathlib.Path(sys.argv[1]).rglob("*.jpg"):
    path.read_bytes()
if len(sys.argv) > 2:
    pathlib.Path(sys.argv[2]).write_text("read")

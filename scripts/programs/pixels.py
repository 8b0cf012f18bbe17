#!/usr/bin/python3
"""Reads images with Pillow, and arrays with NumPy, and prints what is in them."""

import os
import pathlib

import numpy
from PIL import Image

root = pathlib.Path(os.environ["ROOT"])
for path in sorted(root.glob("images/**/*.jpg")):
    with Image.open(path) as image:
        pixels = numpy.asarray(image.convert("RGB"))
    print(path.relative_to(root), pixels.shape, pixels.sum(), pixels[::9, ::9].tobytes().hex()[:40])
array = numpy.load(root / "records/array.npy")
mapped = numpy.load(root / "records/array.npy", mmap_mode="r")
print(array.sum(), (mapped == array).all(), mapped[123, ::100].tolist())
print(numpy.fromfile(root / "records/array.npy", numpy.uint8)[-5:].tolist())
with numpy.load(root / "records/arrays.npz") as arrays:
    print(sorted(arrays), arrays["a"].sum(), arrays["b"].mean())

#!/usr/bin/env python3
"""Makes a folder of images to try things on: DIR/train/CLASS/N.jpg and DIR/val/CLASS/N.jpg.

Each class is a hue with noise, which a small model learns in one epoch. The same arguments give the
same pixels. Needs NumPy and Pillow (Debian: python3-numpy, python3-pil).
"""

import argparse
import colorsys
import pathlib

import numpy
from PIL import Image


def image(rng, hue, size):
    """An image of one hue, with noise."""
    colour = numpy.array(colorsys.hsv_to_rgb(hue, 0.8, 0.8)) * 255
    noise = rng.normal(0, 40, (size, size, 3))
    return Image.fromarray((colour + noise).clip(0, 255).astype(numpy.uint8))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dir", type=pathlib.Path, help="is made, and must not be there")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--images", type=int, default=50, help="in each class; a tenth more in val")
    parser.add_argument("--size", type=int, default=64, help="pixels, width and height")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = numpy.random.default_rng(args.seed)
    args.dir.mkdir(parents=True)
    for part, count in [("train", args.images), ("val", max(1, args.images // 10))]:
        for label in range(args.classes):
            folder = args.dir / part / f"class{label:02}"
            folder.mkdir(parents=True)
            for n in range(count):
                image(rng, label / args.classes, args.size).save(folder / f"{n:04}.jpg", quality=90)


if __name__ == "__main__":
    main()

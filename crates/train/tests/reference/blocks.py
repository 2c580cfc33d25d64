"""Writes blocks.json: values that the reader of `gguf` finds in random blocks of K-quants.

    pip install gguf numpy && python blocks.py
"""

import json
import pathlib

import gguf
import numpy

random = numpy.random.default_rng(7)
cases = {}
for kind, size in (("Q4_K", 144), ("Q6_K", 210)):
    bytes = random.integers(0, 256, size=(2, size), dtype=numpy.uint8)
    # Scales in f16, which random bytes would make enormous or no numbers.
    halves = numpy.array([0.25, 0.0375], dtype=numpy.float16).view(numpy.uint8)
    if kind == "Q4_K":
        bytes[:, :4] = halves
    else:
        bytes[:, 208:] = halves[:2]
    values = gguf.quants.dequantize(bytes, gguf.GGMLQuantizationType[kind])
    cases[kind.lower()] = {"bytes": bytes.flatten().tolist(), "values": values.flatten().tolist()}
path = pathlib.Path(__file__).parent / "blocks.json"
path.write_text(json.dumps(cases, separators=(",", ":")) + "\n")

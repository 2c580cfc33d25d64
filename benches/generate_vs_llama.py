"""Tokens a second that het-train and llama.cpp generate, in turns on the same cores.

llama.cpp is in the source package of llama-cpp-python; `llama-bench` and `llama-quantize` are built
from it:

    pip download --no-deps --no-binary :all: llama-cpp-python
    tar xzf llama_cpp_python-*.tar.gz
    cd llama_cpp_python-*/vendor/llama.cpp
    cmake -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \\
        -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF
    ninja -C build llama-bench llama-quantize

Then, from the repository's root, with a GGUF of the weights:

    python3 benches/generate_vs_llama.py target/release/het-train BUILD/bin MODEL.gguf [threads] [rounds]

Every round generates 128 tokens by each: het-train with matrices of 4 bits after a prompt of 16
tokens, and llama.cpp with the same weights in each of its 4-bit formats after an empty one.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

FORMATS = ("Q4_0", "Q4_1", "Q4_K_M")
TEXT = "The scheduler places a job where it ends first. " * 40


def ours(trainer: str, model: str, text: str, threads: int) -> tuple[str, float]:
    """The instructions that het-train takes here for 4 bits, and their rate."""
    command = [trainer, "bench-inference", "--weights", model, "--input", text]
    command += ["--tokens", "64", "--seq", "64", "--repeats", "1", "--new-max", "128"]
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads))
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    # The last are the best that the processor has.
    own = [row for row in rows if row["precision"] == "int4"][-1]
    return own["detail"], own["generate_tokens_per_s"]


def theirs(bench: str, model: str, threads: int) -> float:
    command = [bench, "-m", model, "-t", str(threads), "-p", "0", "-n", "128", "-r", "1", "-o", "json"]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(found.stdout)[0]["avg_ts"]


def main() -> None:
    trainer, binaries, model = sys.argv[1:4]
    threads = int(sys.argv[4]) if len(sys.argv) > 4 else 2
    rounds = int(sys.argv[5]) if len(sys.argv) > 5 else 5
    with tempfile.TemporaryDirectory() as directory:
        text = os.path.join(directory, "text")
        with open(text, "w") as file:
            file.write(TEXT)
        models = {}
        for name in FORMATS:
            models[name] = os.path.join(directory, name + ".gguf")
            quantize = os.path.join(binaries, "llama-quantize")
            command = [quantize, "--allow-requantize", model, models[name], name]
            subprocess.run(command, check=True, capture_output=True)
        rates = {name: [] for name in ("het-train", *FORMATS)}
        detail = ""
        for _ in range(rounds):
            detail, rate = ours(trainer, model, text, threads)
            rates["het-train"].append(rate)
            for name in FORMATS:
                bench = os.path.join(binaries, "llama-bench")
                rates[name].append(theirs(bench, models[name], threads))
    print(f"het-train: {detail}\n")
    print("| program | tokens/s | het-train's over it, by round | ratio |\n| --- | ---: | --- | ---: |")
    for name, all_of_it in rates.items():
        ratios = [own / other for own, other in zip(rates["het-train"], all_of_it)]
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        median = statistics.median
        label = name if name == "het-train" else f"llama.cpp {name}"
        print(f"| {label} | {median(all_of_it):.0f} | {shown} | {median(ratios):.2f} |")


if __name__ == "__main__":
    main()

"""Checks what `het-train export` wrote, with the programs that people read it with.

    pip install torch==2.6.0 transformers==5.24.0 peft gguf numpy
    python exports.py HET_TRAIN DIRECTORY

For every model of families/*.json that stands for a family, `het-train` exports an adapter of it
to DIRECTORY in all formats. Then `transformers` loads the merged files and `peft` the adapter,
whose logits are compared with each other; and the reader of `gguf` takes the GGUFs apart: every
matrix of F32 must be that of the merged files, up to the order of rows and the offset of norms
that llama.cpp wants, and of the others as near as the format allows. Where `llama_cpp` is
installed, its logits of the F32 file are compared, too.
"""

import json
import pathlib
import subprocess
import sys

import gguf
import numpy
import torch
import transformers
from safetensors.torch import save_file

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import families  # noqa: E402

HERE = pathlib.Path(__file__).parent
# Of each family what a GGUF can say.
CASES = {
    "llama": families.llama(num_hidden_layers=3),
    "llama_biases": families.llama(attention_bias=True, mlp_bias=True),
    "llama_llama3": families.llama(**families.rope("llama3", **families.LLAMA3)),
    "llama_linear": families.llama(**families.rope("linear")),
    "smollm2": families.llama(tie_word_embeddings=True),
    "mistral": families.mistral(sliding_window=None),
    "qwen2": families.qwen2(use_sliding_window=False),
    "qwen3": families.qwen3(head_dim=16),
    "gemma2": families.gemma2(head_dim=32, query_pre_attn_scalar=32),
    "gemma3": families.gemma3(num_hidden_layers=7, head_dim=32, query_pre_attn_scalar=32,
                              rope_local_base_freq=10000.0, rope_theta=1000000.0),
    "gpt2": families.gpt2(),
    "smollm3": families.smollm3(),
}
VOCABULARY = 512
TIED = ("gemma2", "gemma3_text", "gpt2", "smollm3")
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8,
        "num_key_value_heads": 4}
WIDE_GPT2 = {"n_embd": 256, "n_head": 8, "n_positions": 64, "n_ctx": 64}
TOLERANCE = {"f32": 0.0, "f16": 1e-3, "q8_0": 0.01, "q4_k": 0.12}


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{words}: {done.stderr}")


def made(directory, config):
    wide = WIDE_GPT2 if config["model_type"] == "gpt2" else WIDE
    config = config | wide | {"vocab_size": VOCABULARY}
    model = families.model_of(config)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text((HERE / "bpe.json").read_text())
    template = json.loads((HERE / "data.json").read_text())["templates"]["chatml"]
    (directory / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
        "chat_template": template}))
    state = {name: value.detach().clone() for name, value in model.named_parameters()}
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
    return config


def tokens():
    return torch.tensor([[(7 * i * i + 13 * i + 3) % VOCABULARY for i in range(24)]])


def logits(model):
    with torch.no_grad():
        return model.eval()(tokens(), use_cache=False).logits[0].float().numpy()


def interleaved(values, heads):
    rows = values.shape[0]
    shape = (heads, 2, rows // heads // 2) + values.shape[1:]
    return values.reshape(shape).swapaxes(1, 2).reshape(values.shape)


def expected(name, state, config, names):
    """The merged tensor under llama.cpp's name, as the file holds it."""
    hub = names[name]
    values = state[hub]
    kind = config["model_type"]
    if kind == "gpt2" and values.ndim == 2 and "wte" not in hub and "wpe" not in hub:
        values = values.T
    if kind in ("llama", "mistral", "smollm3"):
        if ".attn_q." in name:
            values = interleaved(values, config["num_attention_heads"])
        if ".attn_k." in name:
            values = interleaved(values, config["num_key_value_heads"])
    if kind.startswith("gemma") and "norm" in hub:
        values = values + 1.0
    return values


def check_gguf(path, state, config, bound):
    reader = gguf.GGUFReader(path)
    arch = bytes(reader.fields["general.architecture"].parts[-1]).decode()
    kinds = {arch: kind for kind, arch in gguf.MODEL_ARCH_NAMES.items()}
    layers = config.get("num_hidden_layers") or config["n_layer"]
    table = gguf.get_tensor_name_map(kinds[arch], layers)
    names = {}
    for hub in state:
        base, ending = hub.rsplit(".", 1)
        tied = config.get("tie_word_embeddings", config["model_type"] in TIED)
        if base != "lm_head" or not tied:
            names[f"{table.get_name(base)}.{ending}"] = hub
    found = {tensor.name: tensor for tensor in reader.tensors}
    extra = set(found) - set(names) - {"rope_freqs.weight"}
    lacking = {n for n in set(names) - set(found) if n != "output.weight"}
    assert not extra and not lacking, (path, extra, lacking)
    worst = 0.0
    for name, tensor in found.items():
        if name == "rope_freqs.weight":
            continue
        want = expected(name, state, config, names)
        have = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(want.shape)
        error = numpy.linalg.norm(have - want) / max(numpy.linalg.norm(want), 1e-9)
        worst = max(worst, error)
        assert error <= bound, (path, name, tensor.tensor_type, error)
    return arch, worst


def check_llama_cpp(path, want):
    try:
        import llama_cpp
    except ImportError:
        return "no llama_cpp"
    model = llama_cpp.Llama(str(path), n_ctx=64, logits_all=True, verbose=False, n_threads=2)
    model.eval(tokens()[0].tolist())
    have = numpy.array(model.scores[: want.shape[0]])
    error = float(numpy.abs(have - want).max())
    assert error < 1e-2 * max(1.0, float(numpy.abs(want).max())), (path, error)
    return f"{error:.1e}"


def main():
    train, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    data = directory / "data.jsonl"
    directory.mkdir(parents=True, exist_ok=True)
    data.write_text("".join(json.dumps({"messages": [
        {"role": "user", "content": f"How many legs {i}?"},
        {"role": "assistant", "content": f"{i} legs"}]}) + "\n" for i in range(20)))
    for name, config in CASES.items():
        base, out = directory / name, directory / f"{name}-out"
        config = made(base, config)
        run(train, "tokenize", "--weights", base, "--input", data, "--output", out / "tokens")
        run(train, "finetune", "--weights", base, "--data", out / "tokens", "--output",
            out / "adapter", "--steps", 2, "--seq", 64, "--rank", 2, "--lr", 0.01)
        export = [train, "export", "--weights", base, "--adapter", out / "adapter", "--output"]
        run(*export, out / "merged", "--merged")
        run(*export, out / "peft", "--peft")
        merged = transformers.AutoModelForCausalLM.from_pretrained(
            out / "merged", attn_implementation="eager")
        want = logits(merged)
        import peft
        adapted = peft.AutoPeftModelForCausalLM.from_pretrained(
            out / "peft", attn_implementation="eager")
        apart = float(numpy.abs(logits(adapted) - want).max())
        assert apart < 1e-3, (name, apart)
        tokenizer = transformers.AutoTokenizer.from_pretrained(out / "merged")
        assert tokenizer.chat_template and tokenizer.eos_token == "</s>"
        state = {key: value.numpy() for key, value in merged.state_dict().items()}
        report = []
        for kind, bound in TOLERANCE.items():
            target = out / kind
            run(*export, target, "--gguf", kind)
            arch, worst = check_gguf(target / "model.gguf", state, config, bound)
            report.append(f"{kind} {worst:.1e}")
        ours = check_llama_cpp(out / "f32" / "model.gguf", want)
        print(f"{name:13} {arch:8} peft {apart:.1e}  {'  '.join(report)}  llama.cpp {ours}")


if __name__ == "__main__":
    main()

"""Writes families/*.json: what `transformers` computes with tiny models of every family.

    pip install torch==2.6.0 transformers==5.24.0 numpy && python families.py

A model's values follow from the names of its tensors (`fill`), so that a file needs to hold no
more than its `config.json`, the shapes, and the expected numbers: logits of some positions, the
mean next-token loss, and of the gradient of that loss, for every tensor, the norm and some
entries; of some models also the losses of 50 steps of AdamW, of all values and of an adapter.
Everything is computed in float32 on the CPU, with dropout off.
"""

import json
import pathlib
import tempfile

import numpy
import torch
import transformers

OUTPUT = pathlib.Path(__file__).parent / "families"
VOCABULARY = 61
SEQUENCES = [[(7 * i * i + 13 * i + 3) % VOCABULARY for i in range(n)] for n in (21, 9)]
LOGIT_STEP, ENTRIES = 5, 6

DECODER = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
}


def llama(**more):
    own = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
           "rope_theta": 100.0, "tie_word_embeddings": False}
    return DECODER | own | more


def qwen2(**more):
    own = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
           "rope_theta": 1000.0, "tie_word_embeddings": True}
    return DECODER | own | more


def qwen3(**more):
    own = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
           "rope_theta": 1000.0, "tie_word_embeddings": True, "head_dim": 12}
    return DECODER | own | more


def mistral(**more):
    own = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_act": "silu",
           "rope_theta": 10000.0, "tie_word_embeddings": False}
    return DECODER | own | more


def gemma2(**more):
    own = {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "head_dim": 12,
           "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
           "rope_theta": 10000.0, "query_pre_attn_scalar": 16, "sliding_window": 6,
           "num_hidden_layers": 3, "pad_token_id": 0, "attn_logit_softcapping": 2.0,
           "final_logit_softcapping": 3.0}
    return DECODER | own | more


def gemma3(**more):
    own = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": 12,
           "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 16,
           "sliding_window": 6, "num_hidden_layers": 4, "pad_token_id": 0}
    return DECODER | own | more


def gpt2(**more):
    own = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": VOCABULARY,
           "n_positions": 24, "n_ctx": 24, "n_embd": 32, "n_layer": 2, "n_head": 4,
           "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.1,
           "embd_pdrop": 0.1, "resid_pdrop": 0.1, "bos_token_id": 1, "eos_token_id": 2}
    return own | more


def smollm3(**more):
    own = {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "hidden_act": "silu",
           "rope_theta": 5000.0, "num_hidden_layers": 4, "pad_token_id": 2,
           "max_window_layers": 28, "pretraining_tp": 2, "rope_scaling": None,
           "sliding_window": None, "use_sliding_window": False}
    return DECODER | own | more


def rope(kind, **more):
    return {"rope_scaling": {"rope_type": kind, "factor": 4.0} | more}


LLAMA3 = dict(low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = dict(original_max_position_embeddings=16, beta_fast=2.0, beta_slow=0.2)
CASES = {
    "llama": llama(),
    "llama_tied": llama(tie_word_embeddings=True, num_key_value_heads=4, pad_token_id=16),
    "llama_biases": llama(attention_bias=True, mlp_bias=True),
    "llama_head_size": llama(head_dim=6),
    "llama_gelu": llama(hidden_act="gelu"),
    "llama_gelu_tanh": llama(hidden_act="gelu_pytorch_tanh"),
    "llama_relu": llama(hidden_act="relu"),
    "llama_linear": llama(**{"rope_scaling": {"type": "linear", "factor": 2.5}}),
    "llama_dynamic": llama(**rope("dynamic")),
    "llama_llama3": llama(**rope("llama3", **LLAMA3)),
    "llama_yarn": llama(**rope("yarn", **YARN)),
    "llama_yarn_defaults": llama(**rope("yarn", original_max_position_embeddings=16)),
    "llama_yarn_exact": llama(**rope("yarn", truncate=False, attention_factor=0.8, **YARN)),
    "llama_yarn_mscale": llama(**rope("yarn", mscale=0.7, mscale_all_dim=1.3, **YARN)),
    "smollm2": llama(
        tie_word_embeddings=True, is_llama_config=True, rope_interleaved=False, pad_token_id=2,
        rope_scaling=None, pretraining_tp=1, use_cache=True, initializer_range=0.04,
        transformers_version="4.42.3", **{"transformers.js_config": {"dtype": "q4"}},
    ),
    "mistral": mistral(sliding_window=5),
    "mistral_full": mistral(sliding_window=None, head_dim=12),
    "qwen2": qwen2(use_sliding_window=False, sliding_window=5, max_window_layers=1),
    "qwen2_sliding": qwen2(use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "qwen3": qwen3(),
    "qwen3_biases": qwen3(
        attention_bias=True, tie_word_embeddings=False, use_sliding_window=True, sliding_window=4,
        layer_types=["sliding_attention", "full_attention"], **rope("yarn", **YARN),
    ),
    "gemma2": gemma2(),
    "gemma2_uncapped": gemma2(
        attn_logit_softcapping=None, final_logit_softcapping=None, attention_bias=True),
    "gemma3": gemma3(
        rope_theta=1000.0, rope_local_base_freq=50.0, sliding_window_pattern=2),
    "gemma3_linear": gemma3(
        rope_theta=1000.0, rope_local_base_freq=50.0, sliding_window_pattern=3,
        final_logit_softcapping=4.0, **rope("linear")),
    "gpt2": gpt2(),
    "gpt2_options": gpt2(
        scale_attn_by_inverse_layer_idx=True, n_inner=24, activation_function="gelu",
        tie_word_embeddings=False, pad_token_id=3),
    "gpt2_unscaled": gpt2(scale_attn_weights=False, activation_function="relu"),
    "smollm3": smollm3(),
    "smollm3_sliding": smollm3(
        use_sliding_window=True, sliding_window=5, no_rope_layers=[1, 0, 0, 1],
        tie_word_embeddings=False, attention_bias=True),
}
# As this version of `transformers` writes a model's configuration itself.
REWRITTEN = ["llama_llama3", "mistral", "qwen3_biases", "gemma2", "gemma3_linear", "gpt2",
             "smollm3_sliding"]
# One of each family, with the losses of its training.
TRAINED = ["llama_biases", "mistral", "qwen2_sliding", "qwen3", "gemma2", "gemma3", "gpt2",
           "smollm3"]
STEPS, RATE, RANK, ALPHA = 50, 2e-3, 4, 8.0
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
           "c_attn", "c_proj", "c_fc")


def fill(name, shape, config):
    """Uniform values from the FNV-1a hash of a name and splitmix64 of that plus the index."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) % 2**64
    with numpy.errstate(over="ignore"):
        z = numpy.uint64(seed) + numpy.arange(1, numpy.prod(shape) + 1, dtype=numpy.uint64) \
            * numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        z = z ^ (z >> numpy.uint64(31))
    unit = (z >> numpy.uint64(40)).astype(numpy.float64) / 2**23 - 1.0
    if len(shape) > 1:
        values = unit * (3.0 / 32) ** 0.5
    else:
        is_norm = name.endswith("weight")
        base = 1.0 if is_norm and not config["model_type"].startswith("gemma") else 0.0
        values = base + 0.25 * unit
    return torch.tensor(values.astype(numpy.float32)).reshape(shape)


def rounded(value):
    return float(f"{value:.7g}")


def model_of(config):
    with tempfile.TemporaryDirectory() as directory:
        pathlib.Path(directory, "config.json").write_text(json.dumps(config))
        read = transformers.AutoConfig.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_config(read, attn_implementation="eager")
    model = model.float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(fill(name, parameter.shape, config))
    return model


def mean_loss(model):
    loss, count, logits = 0.0, 0, []
    for sequence in SEQUENCES:
        tokens = torch.tensor([sequence])
        found = model(tokens, use_cache=False).logits[0]
        targets = tokens[0, 1:]
        loss = loss + torch.nn.functional.cross_entropy(found[:-1], targets, reduction="sum")
        count += len(targets)
        rows = sorted(set(range(0, len(sequence), LOGIT_STEP)) | {len(sequence) - 1})
        logits.append({str(row): [rounded(v) for v in found[row].tolist()] for row in rows})
    return loss / count, logits


class LowRank(torch.nn.Module):
    """`W + B A × alpha / rank`, as PEFT adapts a matrix; GPT-2's lie the other way."""

    def __init__(self, name, weight, config):
        super().__init__()
        self.turned = config["model_type"] == "gpt2"
        outputs, inputs = reversed(weight.shape) if self.turned else weight.shape
        name = f"base_model.model.{name}.lora_A.weight"
        self.a = torch.nn.Parameter(fill(name, (RANK, inputs), config))
        self.b = torch.nn.Parameter(torch.zeros(outputs, RANK))

    def forward(self, weight):
        update = ALPHA / RANK * self.b @ self.a
        return weight + (update.T if self.turned else update)


def adapted(model, config):
    """Parameters of an adapter of every matrix; the model's own are frozen."""
    model.requires_grad_(False)
    modules = [(n, m) for n, m in model.named_modules() if n.split(".")[-1] in ADAPTED]
    adapters = [LowRank(name, module.weight, config) for name, module in modules]
    for (_, module), adapter in zip(modules, adapters):
        torch.nn.utils.parametrize.register_parametrization(module, "weight", adapter)
    return [parameter for adapter in adapters for parameter in (adapter.a, adapter.b)]


def curve(model, parameters):
    parameters = list(parameters)
    optimiser = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.01)
    losses = []
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = mean_loss(model)[0]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        losses.append(rounded(loss.item()))
    return losses


def curves(config):
    full, low_rank = model_of(config), model_of(config)
    return {"full": curve(full, full.parameters()),
            "low_rank": curve(low_rank, adapted(low_rank, config))}


def expected(config):
    model = model_of(config)
    loss, logits = mean_loss(model)
    loss.backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        flat = parameter.grad.flatten()
        places = sorted({(i * len(flat)) // ENTRIES + (5 * i) % 7 for i in range(ENTRIES)})
        entries = {str(p): rounded(flat[p].item()) for p in places if p < len(flat)}
        gradients[name] = {"norm": rounded(flat.norm().item()), "entries": entries}
    shapes = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    return model.config, {
        "tokens": SEQUENCES, "loss": rounded(loss.item()), "logits": logits,
        "tensors": shapes, "gradients": gradients,
    }


def main():
    OUTPUT.mkdir(exist_ok=True)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    for name, config in CASES.items():
        read, numbers = expected(config)
        case = {"versions": versions, "config": config} | numbers
        if name in REWRITTEN:
            read.architectures = config["architectures"]
            case["rewritten"] = json.loads(read.to_json_string(use_diff=True))
        if name in TRAINED:
            case["curves"] = curves(config)
        text = json.dumps(case, separators=(",", ":"))
        (OUTPUT / f"{name}.json").write_text(text + "\n")
        print(f"{name:20} loss {numbers['loss']:.4f}  {len(text)} bytes")


if __name__ == "__main__":
    main()

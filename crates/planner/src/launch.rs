//! Programs that can be told how a job is cut, and the words that tell them.

use het_parallel::{Candidate, Collectives, KnownModel, Request};
use het_perf::training::{
    Embeddings, FeedForwardKind, Offload, Optimizer, ParallelConfig, Precision, Recompute,
    SequenceParallel, Transformer, Tuning, Zero,
};

/// A program that runs a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// Megatron-LM's `pretrain_gpt.py`: every dimension, all weights.
    Megatron,
    /// MindSpeed-LLM's `pretrain_gpt.py`: the same words, for Ascend.
    MindSpeed,
    /// TRL's `trl sft`, over Hugging Face's trainer: adapters, and models whole or sharded.
    Trl,
}

impl Launcher {
    /// The first that can run it, or what each of them cannot be told.
    pub fn of(request: &Request, candidate: &Candidate) -> Result<Self, String> {
        let mut lacks = Vec::new();
        let library = request.pools[candidate.layout.pools()[0]].collectives;
        let megatron = match library {
            Collectives::Hccl => Self::MindSpeed,
            Collectives::Nccl | Collectives::Rccl | Collectives::Host => Self::Megatron,
        };
        for launcher in [megatron, Self::Trl] {
            let lacks_of = || launcher.lacks(request, candidate, library);
            match mixed(request, candidate).or_else(lacks_of) {
                None => return Ok(launcher),
                Some(text) => lacks.push(format!("{} cannot be told {text}", launcher.word())),
            }
        }
        Err(lacks.join("; "))
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Megatron => "megatron-lm",
            Self::MindSpeed => "mindspeed-llm",
            Self::Trl => "trl",
        }
    }

    /// What it cannot be told of a cut over devices of one class.
    fn lacks(
        self,
        request: &Request,
        candidate: &Candidate,
        library: Collectives,
    ) -> Option<String> {
        match self {
            Self::Megatron | Self::MindSpeed => megatron_lacks(request, candidate),
            Self::Trl => trl_lacks(candidate, library),
        }
    }

    /// What the words do not say and the user has to add.
    pub fn left_out(self) -> &'static str {
        match self {
            Self::Megatron | Self::MindSpeed => {
                "data and tokenizer, learning rate, where to save and load"
            }
            Self::Trl => "the dataset, learning rate, where to save",
        }
    }

    /// Variables that it wants.
    pub fn variables(self, candidate: &Candidate) -> Vec<(&'static str, &'static str)> {
        let config = candidate.layout.config();
        let ordered = config.tensor > 1 || config.context > 1;
        match self {
            // Its exchange overlaps only where kernels are started in order (Megatron-Core,
            // `validate_args`).
            Self::Megatron | Self::MindSpeed if ordered => {
                vec![("CUDA_DEVICE_MAX_CONNECTIONS", "1")]
            }
            Self::Megatron | Self::MindSpeed | Self::Trl => Vec::new(),
        }
    }

    /// Its words; see [`left_out`](Self::left_out).
    pub fn words(
        self,
        request: &Request,
        candidate: &Candidate,
        known: Option<&KnownModel>,
    ) -> Vec<String> {
        match self {
            Self::Megatron | Self::MindSpeed => megatron(request, candidate, known),
            Self::Trl => trl(request, candidate, known),
        }
    }
}

/// Gangs of several classes or of replicas that differ, which no launcher takes as one command.
fn mixed(request: &Request, candidate: &Candidate) -> Option<String> {
    let layout = &candidate.layout;
    let pools = layout.pools();
    if pools.len() > 1 {
        let classes: Vec<&str> =
            pools.iter().map(|pool| request.pools[*pool].class.as_str()).collect();
        return Some(format!("which rank stands on which of {}", classes.join(" and ")));
    }
    let uneven = layout.replicas.len() > 1 || layout.replicas.iter().any(|kind| kind.more > 0);
    uneven.then(|| "replicas that take unlike shares of a batch".to_owned())
}

fn megatron_lacks(request: &Request, candidate: &Candidate) -> Option<String> {
    let config = candidate.layout.config();
    let uneven = uneven_stages(candidate) && config.virtual_stages > 1;
    let shared = !request.model.key_value_heads.is_multiple_of(config.tensor);
    let lacks = [
        (shared, "tensor groups that share a key-value head"),
        (config.tuning != Tuning::Full, "adapters"),
        (config.zero > Zero::One, "shared gradients or weights"),
        (config.offload == Offload::Nvme, "states on NVMe"),
        (config.optimizer == Optimizer::AdamW8bit, "an optimizer of 8 bits"),
        (config.optimizer == Optimizer::Momentum, "momentum without Adam"),
        (uneven, "interleaved stages of unlike size"),
    ];
    lacks.iter().find(|(lack, _)| *lack).map(|(_, text)| (*text).to_owned())
}

fn trl_lacks(candidate: &Candidate, library: Collectives) -> Option<String> {
    let config = candidate.layout.config();
    let cut = [config.tensor, config.pipeline, config.context, config.expert];
    let quantised =
        matches!(config.tuning, Tuning::Qlora { .. }) || config.optimizer == Optimizer::AdamW8bit;
    let lacks = [
        (quantised && library != Collectives::Nccl, "4 and 8 bits without bitsandbytes"),
        (cut.iter().any(|ways| *ways > 1), "layers cut over devices"),
        (config.zero == Zero::One, "shared optimizer states alone"),
        (config.offload == Offload::Nvme, "states on NVMe"),
        (config.offload == Offload::Cpu && config.zero < Zero::Two, "offload without sharding"),
        (config.recompute == Recompute::Selective, "recomputation of attention alone"),
        (config.precision == Precision::Fp8, "fp8"),
    ];
    lacks.iter().find(|(lack, _)| *lack).map(|(_, text)| (*text).to_owned())
}

fn uneven_stages(candidate: &Candidate) -> bool {
    let stages = &candidate.layout.replicas[0].stages;
    stages.windows(2).any(|pair| pair[0].layers != pair[1].layers)
}

/// `pretrain_gpt.py` of Megatron-LM (Megatron-Core 0.13 and later for stages of unlike size).
fn megatron(request: &Request, candidate: &Candidate, known: Option<&KnownModel>) -> Vec<String> {
    let model = &request.model;
    let config = candidate.layout.config();
    let mut words = vec!["torchrun".to_owned(), "pretrain_gpt.py".to_owned()];
    let numbers = [
        ("num-layers", model.layers),
        ("hidden-size", model.hidden),
        ("ffn-hidden-size", model.feed_forward.hidden),
        ("num-attention-heads", model.heads),
        ("kv-channels", model.head_width),
        ("seq-length", model.sequence),
        ("max-position-embeddings", model.sequence),
        ("micro-batch-size", config.microbatch),
        ("global-batch-size", candidate.layout.batch),
        ("tensor-model-parallel-size", config.tensor),
        ("pipeline-model-parallel-size", config.pipeline),
        ("context-parallel-size", config.context),
    ];
    words.extend(numbers.iter().flat_map(|(name, n)| option(name, n)));
    if model.key_value_heads < model.heads {
        words.push("--group-query-attention".to_owned());
        words.extend(option("num-query-groups", &model.key_value_heads));
    }
    if let Some(experts) = model.feed_forward.experts {
        words.extend(option("num-experts", &experts.count));
        words.extend(option("moe-router-topk", &experts.active));
        words.extend(option("expert-model-parallel-size", &config.expert));
    }
    if config.virtual_stages > 1 {
        let each = model.layers / (config.pipeline * config.virtual_stages).max(1);
        words.extend(option("num-layers-per-virtual-pipeline-stage", &each));
    } else if uneven_stages(candidate) {
        words.extend(option("pipeline-model-parallel-layout", &stage_layout(candidate)));
    }
    if let Some(tokens) = request.tokens {
        words.extend(option("train-samples", &tokens.div_ceil(u64::from(model.sequence))));
    }
    words.extend(flags(&shape_flags(&request.model, known)));
    words.extend(flags(&megatron_flags(config)));
    words
}

/// Flags of the model's shape: what GPT-2 has is Megatron's default, what Llama and its kin have
/// goes with gated layers.
fn shape_flags(model: &Transformer, known: Option<&KnownModel>) -> [(bool, &'static str); 8] {
    let gated = model.feed_forward.kind == FeedForwardKind::Gated;
    let named = |prefix: &str| known.is_some_and(|model| model.name.starts_with(prefix));
    [
        (gated, "--swiglu"),
        (gated, "--normalization=RMSNorm"),
        (gated, "--position-embedding-type=rope"),
        (gated, "--disable-bias-linear"),
        (named("qwen2"), "--add-qkv-bias"),
        (model.embeddings == Embeddings::Untied, "--untie-embeddings-and-output-weights"),
        // Masks of dropout are not in the plan's memory.
        (true, "--attention-dropout=0"),
        (true, "--hidden-dropout=0"),
    ]
}

/// `Ettt|tttt|tttL`: the embedding, a letter a layer, the loss.
fn stage_layout(candidate: &Candidate) -> String {
    let stages = candidate.layout.replicas[0].stages.iter();
    let layers: Vec<String> = stages.map(|stage| "t".repeat(stage.layers as usize)).collect();
    format!("E{}L", layers.join("|"))
}

/// Flags and whether they are used.
fn megatron_flags(config: &ParallelConfig) -> [(bool, &'static str); 12] {
    let full = config.recompute == Recompute::Full;
    let offload = config.offload == Offload::Cpu;
    [
        (matches!(config.precision, Precision::Bf16 | Precision::Fp8), "--bf16"),
        (config.precision == Precision::Fp16, "--fp16"),
        (config.precision == Precision::Fp8, "--fp8-format=hybrid"),
        (config.sequence_parallel == SequenceParallel::On, "--sequence-parallel"),
        (config.optimizer == Optimizer::Sgd, "--optimizer=sgd"),
        (config.zero == Zero::One || offload, "--use-distributed-optimizer"),
        (config.recompute == Recompute::Selective, "--recompute-activations"),
        (full, "--recompute-granularity=full"),
        (full, "--recompute-method=uniform"),
        (full, "--recompute-num-layers=1"),
        (offload, "--optimizer-cpu-offload"),
        (offload, "--use-precision-aware-optimizer"),
    ]
}

/// `trl sft` of TRL 0.25 and later: samples are packed to the length that was asked for, and the
/// loss is fused with the logits, which would need more memory than the plan has otherwise.
fn trl(request: &Request, candidate: &Candidate, known: Option<&KnownModel>) -> Vec<String> {
    let config = candidate.layout.config();
    let mut words: Vec<String> =
        ["accelerate", "launch", "-m", "trl.scripts.sft"].map(str::to_owned).to_vec();
    if let Some(repository) = known.and_then(KnownModel::repository) {
        words.extend(option("model_name_or_path", &repository));
    }
    words.extend(option("max_length", &request.model.sequence));
    words.extend(option("per_device_train_batch_size", &config.microbatch));
    let times = candidate.layout.batch / (config.data * config.microbatch).max(1);
    words.extend(option("gradient_accumulation_steps", &times.max(1)));
    if let Tuning::Lora { rank } | Tuning::Qlora { rank } = config.tuning {
        words.push("--use_peft".to_owned());
        words.extend(option("lora_r", &rank));
        words.extend(option("lora_target_modules", &"all-linear"));
    }
    let sharded = match (config.zero, config.offload) {
        (Zero::Three, Offload::Cpu) => Some("full_shard offload auto_wrap"),
        (Zero::Three, _) => Some("full_shard auto_wrap"),
        (Zero::Two, Offload::Cpu) => Some("shard_grad_op offload auto_wrap"),
        (Zero::Two, _) => Some("shard_grad_op auto_wrap"),
        (Zero::None | Zero::One, _) => None,
    };
    words.extend(sharded.iter().flat_map(|how| option("fsdp", how)));
    let optimizer = match config.optimizer {
        Optimizer::AdamW8bit => "adamw_bnb_8bit",
        Optimizer::Adam => "adamw_torch",
        Optimizer::Sgd | Optimizer::Momentum => "sgd",
    };
    words.extend(option("optim", &optimizer));
    let kept = match config.precision {
        Precision::Fp16 => "float16",
        Precision::Bf16 | Precision::Fp8 => "bfloat16",
        Precision::Fp32 => "float32",
    };
    words.extend(option("dtype", &kept));
    // On unless told.
    words.extend(option("gradient_checkpointing", &(config.recompute == Recompute::Full)));
    words.extend(flags(&[
        (matches!(config.tuning, Tuning::Qlora { .. }), "--load_in_4bit"),
        (true, "--use_liger_kernel"),
        (config.precision == Precision::Bf16, "--bf16"),
        (config.precision == Precision::Fp16, "--fp16"),
        (true, "--packing"),
    ]));
    words
}

fn option(name: &str, value: &impl ToString) -> [String; 2] {
    [format!("--{name}"), value.to_string()]
}

fn flags(flags: &[(bool, &str)]) -> Vec<String> {
    flags.iter().filter(|(used, _)| *used).map(|(_, word)| (*word).to_owned()).collect()
}

//! The words of the generated requests: sentence patterns, clause wordings, devices and numbers.
//!
//! Training and held-out requests share nouns and numbers, but no sentence pattern and no clause
//! wording.

/// How one half of the data speaks.
#[derive(Debug)]
pub struct Style {
    /// Sentence patterns around `{name}`, `{run}`, `{devices}` and `{rest}`.
    pub patterns: &'static [&'static str],
    /// A list of alternatives, around `{first}` and `{second}`.
    pub either: &'static [&'static str],
    pub checkpoint: &'static [&'static str],
    pub time_limit: &'static [&'static str],
    pub priority: &'static [&'static str],
    pub tenant: &'static [&'static str],
}

pub const TRAINING: Style = Style {
    patterns: &[
        "run `{run}` as {name} on {devices}{rest}",
        "start {name} with `{run}` on {devices}{rest}",
        "I need {devices} for {name}, the command is `{run}`{rest}",
        "job {name}: `{run}`, {devices}{rest}",
        "please train {name} on {devices} using `{run}`{rest}",
        "Launch `{run}` on {devices} and call it {name}{rest}",
        "use {devices} to run `{run}`, name it {name}{rest}",
        "submit {name}{rest}, running `{run}` on {devices}",
        "on {devices}, run `{run}`; the job is called {name}{rest}",
        "fine-tune on {devices}{rest}; name {name}, command `{run}`",
        "queue a job named {name} that runs `{run}` and takes {devices}{rest}",
        "can you run `{run}` for me on {devices}? name {name}{rest}",
        "{devices} please: `{run}`, job name {name}{rest}",
        "train {name} with {devices}{rest}. Command: `{run}`",
        "new job {name}, needs {devices}{rest}, script `{run}`",
        "Name: {name}. Run: `{run}`. Devices: {devices}{rest}",
    ],
    either: &[
        "{first} or {second}",
        "{first}, or {second} if those are busy",
        "{first}, otherwise {second}",
        "either {first} or {second}",
        "{first} (or {second})",
        "{first}, else {second}",
    ],
    checkpoint: &[
        "checkpoint every {time}",
        "save every {time}",
        "with a checkpoint every {time}",
        "checkpoints each {time}",
        "save a checkpoint every {time}",
        "checkpoint interval {time}",
    ],
    time_limit: &[
        "stop after {time}",
        "at most {time}",
        "time limit {time}",
        "limit it to {time}",
        "for no more than {time}",
        "maximum run time {time}",
    ],
    priority: &[
        "{priority} priority",
        "priority {priority}",
        "with {priority} priority",
        "at {priority} priority",
        "make it {priority} priority",
    ],
    tenant: &[
        "for tenant {tenant}",
        "for team {tenant}",
        "tenant {tenant}",
        "charge it to {tenant}",
        "on behalf of {tenant}",
        "billed to team {tenant}",
    ],
};

pub const HELD_OUT: Style = Style {
    patterns: &[
        "We want to execute `{run}` under the name {name} with {devices}{rest}",
        "{name} should get {devices} and run `{run}`{rest}",
        "schedule `{run}` (job {name}) on {devices}{rest}",
        "Put {name} on {devices}{rest}. It runs `{run}`",
        "give me {devices} to train {name} by running `{run}`{rest}",
        "kick off {name} on {devices}, command line `{run}`{rest}",
    ],
    either: &["{first}, alternatively {second}", "{first}, or else {second}"],
    checkpoint: &["a checkpoint each {time}", "take checkpoints every {time}"],
    time_limit: &["it must end within {time}", "no longer than {time}"],
    priority: &["the priority is {priority}", "treat it as {priority} priority"],
    tenant: &["the tenant is {tenant}", "it belongs to tenant {tenant}"],
};

/// Device words of the job form, each with how people write one and several of them.
pub const DEVICES: [(&str, &str, &str); 20] = [
    ("h100", "H100", "H100s"),
    ("h100", "H100 GPU", "H100"),
    ("a100", "A100", "A100s"),
    ("a100", "NVIDIA A100", "A100 cards"),
    ("v100", "V100", "V100s"),
    ("v100", "V100 card", "V100 GPUs"),
    ("t4", "T4", "T4s"),
    ("t4", "T4 card", "T4 GPUs"),
    ("l40s", "L40S", "L40S cards"),
    ("l40s", "L40S GPU", "L40S"),
    ("rtx-4090", "RTX 4090", "RTX 4090s"),
    ("rtx-4090", "RTX 4090 card", "RTX 4090"),
    ("ascend-910b", "Ascend 910B", "Ascend 910B"),
    ("ascend-910b", "Ascend 910B NPU", "Ascend 910B NPUs"),
    ("gaudi3", "Gaudi3", "Gaudi3 cards"),
    ("mi300x", "MI300X", "MI300X"),
    ("mi300x", "AMD MI300X", "MI300X GPUs"),
    ("gpu", "GPU", "GPUs"),
    ("npu", "NPU", "NPUs"),
    ("cpu", "CPU core", "CPU cores"),
];

/// Counts with their words, where people use one.
pub const COUNTS: [(u32, &str); 10] = [
    (1, "one"),
    (2, "two"),
    (3, "three"),
    (4, "four"),
    (6, "six"),
    (8, "eight"),
    (12, "12"),
    (16, "16"),
    (32, "32"),
    (64, "64"),
];

pub const FLOORS_GIB: [u32; 6] = [16, 24, 32, 40, 48, 80];

pub const SUBJECTS: [&str; 20] = [
    "llama", "qwen", "mistral", "bert", "gpt2", "vit", "whisper", "t5", "gemma", "phi", "resnet",
    "smollm", "falcon", "clip", "unet", "deepseek", "yolo", "rwkv", "mamba", "roberta",
];

pub const TASKS: [&str; 16] = [
    "lora", "sft", "pretrain", "dpo", "eval", "chat", "base", "small", "large", "distill", "code",
    "math", "v2", "7b", "ablation", "night",
];

pub const LAUNCHERS: [&str; 6] =
    ["torchrun", "python", "accelerate launch", "deepspeed", "python3", "bash"];

pub const SCRIPTS: [&str; 12] = [
    "train",
    "finetune",
    "main",
    "run",
    "sft",
    "lora",
    "pretrain",
    "dpo",
    "train_lora",
    "job",
    "start",
    "fit",
];

pub const FLAGS: [&str; 8] = [
    "--config base.yaml",
    "--epochs 3",
    "--bf16",
    "--lr 1e-4",
    "--batch 32",
    "--seed 7",
    "--data corpus",
    "--steps 500",
];

pub const TENANTS: [&str; 14] = [
    "research", "vision", "speech", "search", "ads", "robotics", "nlp", "platform", "physics",
    "biology", "finance", "maps", "safety", "infra",
];

pub const PRIORITIES: [&str; 4] = ["urgent", "high", "normal", "low"];

/// Durations in words beside the job form; each list fits its use.
pub const INTERVALS: [(&str, &str); 18] = [
    ("30 seconds", "30s"),
    ("90 seconds", "90s"),
    ("45 seconds", "45s"),
    ("2 minutes", "2m"),
    ("5 minutes", "5m"),
    ("five minutes", "5m"),
    ("10 minutes", "10m"),
    ("ten minutes", "10m"),
    ("15 minutes", "15m"),
    ("15 min", "15m"),
    ("20 min", "20m"),
    ("20 minutes", "20m"),
    ("30 minutes", "30m"),
    ("30 min", "30m"),
    ("45 minutes", "45m"),
    ("1 hour", "1h"),
    ("2 hours", "2h"),
    ("1 hour 30 minutes", "1h30m"),
];

pub const LIMITS: [(&str, &str); 16] = [
    ("90 minutes", "90m"),
    ("1 hour", "1h"),
    ("2 hours", "2h"),
    ("two hours", "2h"),
    ("3 hours", "3h"),
    ("4 hours", "4h"),
    ("5 hours", "5h"),
    ("6 hours", "6h"),
    ("six hours", "6h"),
    ("8 hours", "8h"),
    ("8 h", "8h"),
    ("12 hours", "12h"),
    ("12 h", "12h"),
    ("24 hours", "24h"),
    ("2 hours 30 minutes", "2h30m"),
    ("48 hours", "48h"),
];

//! `het-train`, the built-in trainer: small language models fine-tuned, with LoRA or whole, and
//! trained from nothing, on this machine.
//!
//! Data flows one way: [`fetch`] and [`dataset`] bring weights and text; [`tokenizer`], with its
//! [`special`] tokens and chat [`template`], and [`tokens`] turn text into numbers, which lie in
//! [`split`]s on disk; [`configuration`] reads every key of a model's description into an
//! [`architecture`]; [`weights`] holds values under their [`names`], or [`initial`] draws them;
//! what learns of them is all, or a [`lora`] adapter; [`steps`] computes losses, gradients and
//! updates as tasks on the execution tier, whose kernels compose [`het_blocks`] as the architecture
//! says ([`cpu`], the one of [`drivers`] so far) and end in the [`optimiser`], with matrices of
//! bf16 or integers where a [`precision`] asks for them; [`workers`] are processes that take a part
//! of each batch; [`memory`] says what a run will take, and [`heap`] keeps it to that; [`training`]
//! takes steps over the batches of a [`sampler`] and writes [`checkpoint`]s of what is
//! [`trainable`] ([`stored`] is their files);
//! [`evaluate`] and [`score`] judge and [`export`] hands over; a [`report`] is a page on a run,
//! with its losses as a [`curve`] and [`samples`] of what it changed. [`progress`], [`notice`] and
//! [`warm`] are all it knows of the scheduler.
//!
//! It never knows other jobs, tenants or why it is asked to stop.

pub mod architecture;
pub mod batch;
pub mod checkpoint;
pub mod cli;
pub mod configuration;
pub mod cpu;
pub mod curve;
pub mod dataset;
pub mod digest;
pub mod drivers;
pub mod error;
pub mod evaluate;
pub mod export;
pub mod fetch;
pub mod formats;
pub mod gguf;
pub mod heap;
pub mod hub;
pub mod initial;
pub mod layout;
pub mod lora;
pub mod memory;
pub mod names;
pub mod notice;
pub mod optimiser;
pub mod precision;
pub mod progress;
pub mod report;
pub mod sampler;
pub mod samples;
pub mod saves;
pub mod score;
pub mod special;
pub mod split;
pub mod steps;
pub mod stored;
pub mod template;
pub mod tiny;
pub mod tokenizer;
pub mod tokens;
pub mod trainable;
pub mod training;
pub mod warm;
pub mod weights;
pub mod whole;
pub mod workers;

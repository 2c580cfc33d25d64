//! `het-train`, the built-in trainer: LoRA fine-tuning of small language models on this machine.
//!
//! Data flows one way: [`fetch`] and [`dataset`] bring weights and text; [`tokenizer`], with its
//! [`special`] tokens and chat [`template`], and [`tokens`] turn text into numbers, which lie in
//! [`split`]s on disk; [`configuration`] reads every key of a model's description
//! into an [`architecture`]; [`weights`] holds the frozen values under their [`names`], and
//! [`lora`] what is trained on them; a [`driver`], one of [`drivers`], computes losses and
//! gradients ([`cpu`], which composes [`blocks`] as the architecture says), with matrices of
//! integers where a [`precision`] asks for them; [`finetune`] drives the [`optimiser`] and writes
//! [`checkpoint`]s; [`evaluate`] and [`score`] judge and [`export`] hands over. [`progress`],
//! [`notice`] and [`warm`] are all it knows of the scheduler.
//!
//! It never knows other jobs, tenants or why it is asked to stop.

pub mod architecture;
pub mod batch;
pub mod blocks;
pub mod checkpoint;
pub mod cli;
pub mod configuration;
pub mod cpu;
pub mod dataset;
pub mod digest;
pub mod driver;
pub mod drivers;
pub mod error;
pub mod evaluate;
pub mod export;
pub mod fetch;
pub mod finetune;
pub mod formats;
pub mod gguf;
pub mod hub;
pub mod lora;
pub mod names;
pub mod notice;
pub mod optimiser;
pub mod precision;
pub mod progress;
pub mod saves;
pub mod score;
pub mod special;
pub mod split;
pub mod template;
pub mod tiny;
pub mod tokenizer;
pub mod tokens;
pub mod warm;
pub mod weights;
pub mod whole;

//! `het-train`, the built-in trainer: LoRA fine-tuning of small Llamas on this machine's devices.
//!
//! Data flows one way: [`fetch`] and [`dataset`] bring weights and text; [`tokenizer`] and
//! [`tokens`] turn text into numbers; [`weights`] holds the frozen model and [`lora`] what is
//! trained on it; a [`driver`], one of [`drivers`], computes losses and gradients ([`cpu`] by hand,
//! others through Burn); [`finetune`] drives the [`optimiser`] and writes [`checkpoint`]s;
//! [`evaluate`] judges and [`export`] hands over. [`progress`], [`notice`] and [`warm`] are all it
//! knows of the scheduler.
//!
//! It never knows other jobs, tenants or why it is asked to stop.

pub mod batch;
#[cfg(any(feature = "flex", feature = "vulkan", feature = "cuda"))]
pub mod burn_driver;
pub mod checkpoint;
pub mod cli;
pub mod config;
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
pub mod gguf;
pub mod hub;
pub mod int8;
pub mod lora;
pub mod notice;
pub mod optimiser;
pub mod progress;
pub mod saves;
pub mod tiny;
pub mod tokenizer;
pub mod tokens;
pub mod warm;
pub mod weights;

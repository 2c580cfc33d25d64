//! What people and programs write and read: job files, device words, the log's records, schemas.
//!
//! Knows: versioned YAML and JSON shapes, how they become the vocabulary of `core`, and the device
//! catalogue.
//! Must never know: request handlers, storage.

pub mod api;
pub mod calibration;
pub mod catalogue;
pub mod declared;
pub mod device_table;
pub mod file;
pub mod job;
pub mod progress;
pub mod quantity;
pub mod quotas;
pub mod ranks;
pub mod record;
pub mod report;
pub mod resource;
pub mod sonic;
pub mod text;
pub mod topology;
pub mod words;
pub mod yaml;

/// Version of every file and every JSON document.
pub const API_VERSION: &str = "heterosis.dev/v1alpha1";

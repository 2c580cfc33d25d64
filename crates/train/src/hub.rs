//! Weights in Hugging Face's layout: `config.json`, safetensors in one file or several, and
//! `tokenizer.json`.

use crate::architecture::Architecture;
use crate::configuration;
use crate::error::{Error, IoContext, Result, bad_weights};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value as Json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

#[derive(Debug)]
pub struct Hub {
    directory: PathBuf,
    files: Vec<PathBuf>,
}

impl Hub {
    pub fn open(directory: &Path) -> Result<Self> {
        if !directory.join("config.json").is_file() {
            return Err(bad_weights(directory, "it has no `config.json`"));
        }
        let files = if directory.join(SINGLE).is_file() {
            vec![directory.join(SINGLE)]
        } else if directory.join(INDEX).is_file() {
            shards(directory)?
        } else {
            return Err(bad_weights(directory, format!("it has no `{SINGLE}`, nor a `{INDEX}`")));
        };
        Ok(Self { directory: directory.to_owned(), files })
    }

    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// The files that hold the matrices.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    pub fn tokenizer_path(&self) -> PathBuf {
        self.directory.join("tokenizer.json")
    }

    /// What `config.json` describes, and all that it says.
    pub fn architecture(&self) -> Result<(Architecture, Map<String, Json>)> {
        let path = self.directory.join("config.json");
        let map: Map<String, Json> = json_file(&path)?;
        let read = configuration::hub::read(&map);
        let architecture = read.map_err(|refusal| Error::Configuration { path, refusal })?;
        Ok((architecture, map))
    }

    pub fn tensors(&self) -> Result<TensorFiles> {
        let files: Result<Vec<_>> = self.files.iter().map(|path| TensorFile::open(path)).collect();
        Ok(TensorFiles { files: files? })
    }
}

fn json_file<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).at("read", path)?;
    serde_json::from_str(&text).map_err(|error| bad_weights(path, error))
}

/// The files that an index names, each beside it.
fn shards(directory: &Path) -> Result<Vec<PathBuf>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let path = directory.join(INDEX);
    let index: Index = json_file(&path)?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    let beside = |name: &String| Path::new(name).file_name() == Some(name.as_ref());
    if let Some(name) = names.iter().find(|name| !beside(name)) {
        return Err(bad_weights(&path, format!("`{name}` is not the name of a file beside it")));
    }
    if names.is_empty() {
        return Err(bad_weights(&path, "it names no files"));
    }
    Ok(names.into_iter().map(|name| directory.join(name)).collect())
}

/// The files of one model.
#[derive(Debug)]
pub struct TensorFiles {
    files: Vec<TensorFile>,
}

impl TensorFiles {
    /// The file of every tensor, by its name.
    pub fn names(&self) -> BTreeMap<String, usize> {
        let names = |file: &TensorFile| -> Vec<String> {
            let parsed = file.parse().ok();
            parsed.iter().flat_map(|parsed| parsed.names()).map(str::to_owned).collect()
        };
        let files = self.files.iter().enumerate();
        files.flat_map(|(index, file)| names(file).into_iter().map(move |n| (n, index))).collect()
    }

    /// A tensor as f32, after checking its shape.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let has = |file: &&TensorFile| file.parse().is_ok_and(|file| file.tensor(name).is_ok());
        // The first one says what is missing.
        self.files.iter().find(has).unwrap_or(&self.files[0]).get(name, shape)
    }

    /// Element types of all tensors, in lower case.
    pub fn formats(&self) -> Result<BTreeSet<String>> {
        let mut formats = BTreeSet::new();
        for file in &self.files {
            let parsed = file.parse()?;
            let types = parsed.iter().map(|(_, view)| format!("{:?}", view.dtype()));
            formats.extend(types.map(|name| name.to_lowercase()));
        }
        Ok(formats)
    }
}

/// A safetensors file held in memory.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl TensorFile {
    pub fn open(path: &Path) -> Result<Self> {
        let file = Self { path: path.to_owned(), bytes: std::fs::read(path).at("read", path)? };
        file.check_length()?;
        file.parse()?;
        Ok(file)
    }

    /// Says how much is missing, which the safetensors crate does not.
    fn check_length(&self) -> Result<()> {
        let found = self.bytes.len() as u64;
        let truncated = |expected| Error::Truncated { path: self.path.clone(), expected, found };
        let Some(head) = self.bytes.first_chunk::<8>() else {
            return Err(truncated(8));
        };
        let header_end = u64::from_le_bytes(*head).saturating_add(8);
        let Some(header) = self.bytes.get(8..header_end as usize) else {
            // A length beyond any real header is a different file, not a short one.
            return Err(if header_end > 100_000_000 {
                bad_weights(&self.path, "it is not a safetensors file")
            } else {
                truncated(header_end)
            });
        };
        let header: serde_json::Value = serde_json::from_slice(header)
            .map_err(|error| bad_weights(&self.path, format!("its header is broken: {error}")))?;
        let ends = header.as_object().into_iter().flatten();
        let ends = ends.filter_map(|(_, tensor)| tensor.get("data_offsets")?.get(1)?.as_u64());
        let expected = ends.max().unwrap_or(0).saturating_add(header_end);
        if found < expected { Err(truncated(expected)) } else { Ok(()) }
    }

    pub fn parse(&self) -> Result<SafeTensors<'_>> {
        SafeTensors::deserialize(&self.bytes).map_err(|error| bad_weights(&self.path, error))
    }

    /// A tensor as f32, after checking its shape.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let parsed = self.parse()?;
        let view = parsed
            .tensor(name)
            .map_err(|_| bad_weights(&self.path, format!("it has no `{name}`")))?;
        if view.shape() != shape {
            let what = format!("`{name}` has shape {:?}, expected {shape:?}", view.shape());
            return Err(bad_weights(&self.path, what));
        }
        let pairs = || view.data().chunks_exact(2).map(|b| [b[0], b[1]]);
        match view.dtype() {
            Dtype::F32 => Ok(f32s(view.data())),
            Dtype::BF16 => Ok(pairs().map(|b| half::bf16::from_le_bytes(b).to_f32()).collect()),
            Dtype::F16 => Ok(pairs().map(|b| half::f16::from_le_bytes(b).to_f32()).collect()),
            other => {
                Err(bad_weights(&self.path, format!("`{name}` has type {other:?}, not a float")))
            }
        }
    }
}

pub fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

//! Weights in Hugging Face's layout: `config.json`, safetensors in one file or several, and
//! `tokenizer.json`.

use crate::architecture::Architecture;
use crate::configuration;
use crate::error::{Error, IoContext, Result, bad_weights};
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value as Json};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

#[derive(Debug)]
pub struct Hub {
    directory: PathBuf,
    files: Vec<PathBuf>,
    /// The file of every tensor, where an index says it.
    index: Option<WeightMap>,
}

type WeightMap = BTreeMap<String, String>;

impl Hub {
    pub fn open(directory: &Path) -> Result<Self> {
        if !directory.join("config.json").is_file() {
            return Err(bad_weights(directory, "it has no `config.json`"));
        }
        let (files, index) = if directory.join(SINGLE).is_file() {
            (vec![directory.join(SINGLE)], None)
        } else if directory.join(INDEX).is_file() {
            let index = weight_map(directory)?;
            let names: BTreeSet<&String> = index.values().collect();
            (names.into_iter().map(|name| directory.join(name)).collect(), Some(index))
        } else {
            // A model that is yet to be trained.
            (Vec::new(), None)
        };
        Ok(Self { directory: directory.to_owned(), files, index })
    }

    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// The files that hold the matrices; none where the model is only described.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    pub fn tokenizer_path(&self) -> PathBuf {
        self.directory.join("tokenizer.json")
    }

    pub fn configuration_path(&self) -> PathBuf {
        self.directory.join("config.json")
    }

    /// What `config.json` describes, and all that it says.
    pub fn architecture(&self) -> Result<(Architecture, Map<String, Json>)> {
        let path = self.configuration_path();
        let map: Map<String, Json> = json_file(&path)?;
        let read = configuration::hub::read(&map);
        let architecture = read.map_err(|refusal| Error::Configuration { path, refusal })?;
        Ok((architecture, map))
    }

    pub fn tensors(&self) -> Result<TensorFiles> {
        if self.files.is_empty() {
            let what = format!("it has no `{SINGLE}`, nor a `{INDEX}`");
            return Err(bad_weights(&self.directory, what));
        }
        let files = self.files.iter().map(|path| TensorFile::open(path));
        let files = files.collect::<Result<Vec<_>>>()?;
        let mut places = BTreeMap::new();
        for (place, file) in files.iter().enumerate() {
            for name in file.names() {
                self.check_place(&name, &file.path)?;
                places.insert(name, place);
            }
        }
        let all = self.index.iter().flatten();
        if let Some((name, file)) = all.into_iter().find(|(name, _)| !places.contains_key(*name)) {
            let what = format!("it says that `{name}` is in `{file}`, which does not have it");
            return Err(bad_weights(&self.directory.join(INDEX), what));
        }
        Ok(TensorFiles { files, places })
    }

    /// Refuses a tensor in another file than the index says: it might be another tensor.
    fn check_place(&self, name: &str, path: &Path) -> Result<()> {
        let Some(index) = &self.index else { return Ok(()) };
        let says = match index.get(name) {
            Some(file) if path.file_name() == Some(OsStr::new(file)) => return Ok(()),
            Some(file) => format!("says that it is in `{file}`"),
            None => "does not name it".to_owned(),
        };
        Err(bad_weights(path, format!("it has `{name}`, but `{INDEX}` {says}")))
    }
}

fn json_file<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).at("read", path)?;
    serde_json::from_str(&text).map_err(|error| bad_weights(path, error))
}

/// What an index says: the file of every tensor, each beside it.
fn weight_map(directory: &Path) -> Result<WeightMap> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: WeightMap,
    }
    let path = directory.join(INDEX);
    let Index { weight_map } = json_file(&path)?;
    let beside = |name: &String| Path::new(name).file_name() == Some(name.as_ref());
    if let Some(name) = weight_map.values().find(|name| !beside(name)) {
        return Err(bad_weights(&path, format!("`{name}` is not the name of a file beside it")));
    }
    if weight_map.is_empty() {
        return Err(bad_weights(&path, "it names no files"));
    }
    Ok(weight_map)
}

/// The files of one model.
#[derive(Debug)]
pub struct TensorFiles {
    files: Vec<TensorFile>,
    /// The file of every tensor, by its name.
    places: BTreeMap<String, usize>,
}

impl TensorFiles {
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.places.keys()
    }

    pub fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// A tensor as f32, after checking its shape.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        // Where none has it, the first one says what is missing.
        let place = self.places.get(name).copied().unwrap_or(0);
        self.files[place].get(name, shape)
    }

    /// Element types of all tensors, in lower case.
    pub fn formats(&self) -> BTreeSet<String> {
        let places = self.places.iter();
        let infos = places.filter_map(|(name, &place)| self.files[place].header.info(name));
        infos.map(|info| format!("{:?}", info.dtype).to_lowercase()).collect()
    }
}

/// A safetensors file held in memory.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    bytes: Vec<u8>,
    header: Metadata,
    /// Where the values begin.
    values_at: usize,
}

impl TensorFile {
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).at("read", path)?;
        check_length(path, &bytes)?;
        let read = SafeTensors::read_metadata(&bytes);
        let (length, header) = read.map_err(|error| bad_weights(path, error))?;
        Ok(Self { path: path.to_owned(), values_at: length + size_of::<u64>(), bytes, header })
    }

    /// All tensors, in the order of their values.
    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.header.info(name).map(|info| info.shape.as_slice())
    }

    fn values(&self, info: &TensorInfo) -> &[u8] {
        let (start, end) = info.data_offsets;
        &self.bytes[self.values_at + start..self.values_at + end]
    }

    /// A tensor as f32, after checking its shape.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let lacks = || bad_weights(&self.path, format!("it has no `{name}`"));
        let info = self.header.info(name).ok_or_else(lacks)?;
        if info.shape != shape {
            let what = format!("`{name}` has shape {:?}, expected {shape:?}", info.shape);
            return Err(bad_weights(&self.path, what));
        }
        let values = self.values(info);
        let pairs = || values.chunks_exact(2).map(|b| [b[0], b[1]]);
        match info.dtype {
            Dtype::F32 => Ok(f32s(values)),
            Dtype::BF16 => Ok(pairs().map(|b| half::bf16::from_le_bytes(b).to_f32()).collect()),
            Dtype::F16 => Ok(pairs().map(|b| half::f16::from_le_bytes(b).to_f32()).collect()),
            other => {
                Err(bad_weights(&self.path, format!("`{name}` has type {other:?}, not a float")))
            }
        }
    }
}

/// Says how much is missing, which the safetensors crate does not.
fn check_length(path: &Path, bytes: &[u8]) -> Result<()> {
    let found = bytes.len() as u64;
    let truncated = |expected| Error::Truncated { path: path.to_owned(), expected, found };
    let Some(head) = bytes.first_chunk::<8>() else {
        return Err(truncated(8));
    };
    let header_end = u64::from_le_bytes(*head).saturating_add(8);
    let Some(header) = bytes.get(8..header_end as usize) else {
        // A length beyond any real header is a different file, not a short one.
        return Err(if header_end > 100_000_000 {
            bad_weights(path, "it is not a safetensors file")
        } else {
            truncated(header_end)
        });
    };
    let header: Json = serde_json::from_slice(header)
        .map_err(|error| bad_weights(path, format!("its header is broken: {error}")))?;
    let ends = header.as_object().into_iter().flatten();
    let ends = ends.filter_map(|(_, tensor)| tensor.get("data_offsets")?.get(1)?.as_u64());
    let expected = ends.max().unwrap_or(0).saturating_add(header_end);
    if found < expected { Err(truncated(expected)) } else { Ok(()) }
}

pub fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

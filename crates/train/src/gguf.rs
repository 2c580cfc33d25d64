//! The GGUF container: metadata and tensors, read from a byte slice and written back.
//!
//! Knows the container and the block formats F32, F16, BF16, `Q4_0`, `Q4_1` and `Q8_0` (layouts as
//! in ggml's `ggml-quants.h`). Never knows what a tensor is for.

use crate::error::{Error, IoContext, Result, bad_weights};
use crate::whole;
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 4] = b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
const BLOCK: usize = 32;

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(String),
    Array(u32, Vec<Value>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Value::Array(_, items) => Some(items),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q8_0,
}

impl Format {
    fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => Format::F32,
            1 => Format::F16,
            2 => Format::Q4_0,
            3 => Format::Q4_1,
            8 => Format::Q8_0,
            30 => Format::Bf16,
            _ => return None,
        })
    }

    fn code(self) -> u32 {
        match self {
            Format::F32 => 0,
            Format::F16 => 1,
            Format::Q4_0 => 2,
            Format::Q4_1 => 3,
            Format::Q8_0 => 8,
            Format::Bf16 => 30,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Format::F32 => "f32",
            Format::F16 => "f16",
            Format::Bf16 => "bf16",
            Format::Q4_0 => "q4_0",
            Format::Q4_1 => "q4_1",
            Format::Q8_0 => "q8_0",
        }
    }

    /// Values per block and bytes per block.
    fn block(self) -> (usize, usize) {
        match self {
            Format::F32 => (1, 4),
            Format::F16 | Format::Bf16 => (1, 2),
            Format::Q4_0 => (BLOCK, 18),
            Format::Q4_1 => (BLOCK, 20),
            Format::Q8_0 => (BLOCK, 34),
        }
    }

    fn bytes(self, values: usize) -> usize {
        let (per_block, block_bytes) = self.block();
        values.div_ceil(per_block) * block_bytes
    }
}

/// Where one tensor lies in the file; `shape` is fastest-varying first, as GGUF stores it.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    pub shape: Vec<usize>,
    pub format: Format,
    start: usize,
}

#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    bytes: Vec<u8>,
    pub metadata: Vec<(String, Value)>,
    pub tensors: BTreeMap<String, TensorInfo>,
}

impl Gguf {
    pub fn open(path: &Path) -> Result<Self> {
        Self::parse(path, std::fs::read(path).at("read", path)?)
    }

    /// Bytes of the whole file, which this keeps.
    pub fn held_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn parse(path: &Path, bytes: Vec<u8>) -> Result<Self> {
        let mut cursor = Cursor { path, bytes: &bytes, position: 0 };
        if cursor.take(4)? != MAGIC {
            return Err(bad_weights(path, "it does not start with `GGUF`"));
        }
        let version = cursor.u32()?;
        if !(2..=3).contains(&version) {
            return Err(bad_weights(path, format!("GGUF version {version} is not 2 or 3")));
        }
        let (tensor_count, metadata_count) = (cursor.u64()?, cursor.u64()?);
        let mut metadata = Vec::new();
        for _ in 0..metadata_count {
            let key = cursor.text()?;
            let kind = cursor.u32()?;
            metadata.push((key, cursor.value(kind, 0)?));
        }
        let mut tensors = BTreeMap::new();
        for _ in 0..tensor_count {
            let (name, info) = cursor.tensor_info()?;
            tensors.insert(name, info);
        }
        let alignment = metadata
            .iter()
            .find(|(key, _)| key == "general.alignment")
            .and_then(|(_, value)| value.as_u64())
            .unwrap_or(DEFAULT_ALIGNMENT);
        let data = (cursor.position as u64).next_multiple_of(alignment.max(1)) as usize;
        let mut end = data;
        for info in tensors.values_mut() {
            info.start = info.start.saturating_add(data);
            let values = info.shape.iter().product();
            end = end.max(info.start.saturating_add(info.format.bytes(values)));
        }
        if bytes.len() < end {
            let (expected, found) = (end as u64, bytes.len() as u64);
            return Err(Error::Truncated { path: path.to_owned(), expected, found });
        }
        Ok(Self { path: path.to_owned(), bytes, metadata, tensors })
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    pub fn require_u64(&self, key: &str) -> Result<u64> {
        self.get(key).and_then(Value::as_u64).ok_or_else(|| self.lacks(key))
    }

    pub fn require_array(&self, key: &str) -> Result<&[Value]> {
        self.get(key).and_then(Value::as_array).ok_or_else(|| self.lacks(key))
    }

    /// A tensor as f32, after checking that it has `values` of them.
    pub fn tensor(&self, name: &str, values: usize) -> Result<Vec<f32>> {
        let info = self.tensors.get(name).ok_or_else(|| self.lacks(name))?;
        let found: usize = info.shape.iter().product();
        if found != values {
            let what = format!("`{name}` holds {found} values, expected {values}");
            return Err(bad_weights(&self.path, what));
        }
        let length = info.format.bytes(values);
        Ok(decode(info.format, &self.bytes[info.start..info.start + length]))
    }

    fn lacks(&self, key: &str) -> Error {
        bad_weights(&self.path, format!("it has no `{key}`"))
    }
}

struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self.position.saturating_add(count);
        let taken = self.bytes.get(self.position..end).ok_or_else(|| Error::Truncated {
            path: self.path.to_owned(),
            expected: end as u64,
            found: self.bytes.len() as u64,
        })?;
        self.position = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String> {
        let length = self.u64()? as usize;
        let bytes = self.take(length)?.to_vec();
        String::from_utf8(bytes).map_err(|_| bad_weights(self.path, "a name is not UTF-8"))
    }

    fn value(&mut self, kind: u32, depth: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::U8(self.array::<1>()?[0]),
            1 => Value::I8(i8::from_le_bytes(self.array()?)),
            2 => Value::U16(u16::from_le_bytes(self.array()?)),
            3 => Value::I16(i16::from_le_bytes(self.array()?)),
            4 => Value::U32(self.u32()?),
            5 => Value::I32(i32::from_le_bytes(self.array()?)),
            6 => Value::F32(f32::from_le_bytes(self.array()?)),
            7 => Value::Bool(self.array::<1>()?[0] != 0),
            8 => Value::Text(self.text()?),
            9 if depth == 0 => {
                let item = self.u32()?;
                let count = self.u64()?;
                let items = (0..count).map(|_| self.value(item, 1)).collect::<Result<_>>()?;
                Value::Array(item, items)
            }
            10 => Value::U64(self.u64()?),
            11 => Value::I64(i64::from_le_bytes(self.array()?)),
            12 => Value::F64(f64::from_le_bytes(self.array()?)),
            _ => return Err(bad_weights(self.path, format!("metadata type {kind} is unknown"))),
        })
    }

    fn tensor_info(&mut self) -> Result<(String, TensorInfo)> {
        let name = self.text()?;
        let dimensions = self.u32()?;
        if dimensions > 4 {
            return Err(bad_weights(self.path, format!("`{name}` has {dimensions} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.push(self.u64()? as usize);
        }
        if shape.iter().try_fold(1usize, |all, &size| all.checked_mul(size)).is_none() {
            return Err(bad_weights(self.path, format!("`{name}` has an impossible shape")));
        }
        let code = self.u32()?;
        let format = Format::from_code(code).ok_or_else(|| {
            let what = format!("`{name}` has tensor type {code}, which this reader does not know");
            bad_weights(self.path, what)
        })?;
        let start = self.u64()? as usize;
        Ok((name, TensorInfo { shape, format, start }))
    }
}

fn decode(format: Format, bytes: &[u8]) -> Vec<f32> {
    let half = |pair: &[u8]| half::f16::from_le_bytes([pair[0], pair[1]]).to_f32();
    let (per_block, block_bytes) = format.block();
    let blocks = bytes.chunks_exact(block_bytes);
    let mut out = Vec::with_capacity(blocks.len() * per_block);
    for block in blocks {
        match format {
            Format::F32 => out.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
            Format::F16 => out.push(half(block)),
            Format::Bf16 => out.push(half::bf16::from_le_bytes([block[0], block[1]]).to_f32()),
            Format::Q4_0 => {
                let scale = half(block);
                nibbles(&block[2..], |nibble| scale * (f32::from(nibble) - 8.0), &mut out);
            }
            Format::Q4_1 => {
                let (scale, minimum) = (half(block), half(&block[2..]));
                nibbles(&block[4..], |nibble| scale * f32::from(nibble) + minimum, &mut out);
            }
            Format::Q8_0 => {
                let scale = half(block);
                out.extend(block[2..].iter().map(|&q| scale * f32::from(q as i8)));
            }
        }
    }
    out
}

/// ggml keeps the first half of a block in the low nibbles and the second half in the high ones.
fn nibbles(packed: &[u8], value: impl Fn(u8) -> f32, out: &mut Vec<f32>) {
    out.extend(packed.iter().map(|byte| value(byte & 0x0f)));
    out.extend(packed.iter().map(|byte| value(byte >> 4)));
}

fn encode(format: Format, values: &[f32]) -> Vec<u8> {
    let mut out = Vec::with_capacity(format.bytes(values.len()));
    match format {
        Format::Q8_0 => {
            for block in values.chunks(BLOCK) {
                let (scale, quantised) = quantise_block(block);
                out.extend(scale.to_le_bytes());
                out.extend(quantised.map(|q| q as u8));
            }
        }
        _ => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
    }
    out
}

/// Symmetric int8 with one f16 scale per block of 32, as ggml's `quantize_row_q8_0_ref`.
fn quantise_block(block: &[f32]) -> (half::f16, [i8; BLOCK]) {
    let largest = block.iter().fold(0f32, |m, v| m.max(v.abs()));
    let scale = largest / 127.0;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let mut quantised = [0; BLOCK];
    for (q, v) in quantised.iter_mut().zip(block) {
        *q = (v * inverse).round() as i8;
    }
    (half::f16::from_f32(scale), quantised)
}

/// One tensor to write: name, shape fastest-varying first, format (F32 or `Q8_0`), values.
#[derive(Debug)]
pub struct Output<'a> {
    pub name: String,
    pub shape: Vec<usize>,
    pub format: Format,
    pub values: std::borrow::Cow<'a, [f32]>,
}

/// Writes a complete GGUF version 3 file.
pub fn write(path: &Path, metadata: &[(String, Value)], tensors: &[Output<'_>]) -> Result<()> {
    let mut head = Vec::new();
    head.extend(MAGIC);
    head.extend(3u32.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_text(&mut head, key);
        head.extend(kind_of(value).to_le_bytes());
        put_value(&mut head, value);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        put_text(&mut head, &tensor.name);
        head.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().for_each(|&size| head.extend((size as u64).to_le_bytes()));
        head.extend(tensor.format.code().to_le_bytes());
        head.extend(offset.to_le_bytes());
        offset += padded(tensor.format.bytes(tensor.values.len())) as u64;
    }
    head.resize(padded(head.len()), 0);
    whole::write_with(path, |file| {
        let mut out = BufWriter::new(file);
        out.write_all(&head)?;
        for tensor in tensors {
            let mut bytes = encode(tensor.format, &tensor.values);
            bytes.resize(padded(bytes.len()), 0);
            out.write_all(&bytes)?;
        }
        out.flush()
    })
}

fn padded(length: usize) -> usize {
    length.next_multiple_of(DEFAULT_ALIGNMENT as usize)
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn kind_of(value: &Value) -> u32 {
    match value {
        Value::U8(_) => 0,
        Value::I8(_) => 1,
        Value::U16(_) => 2,
        Value::I16(_) => 3,
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::Text(_) => 8,
        Value::Array(..) => 9,
        Value::U64(_) => 10,
        Value::I64(_) => 11,
        Value::F64(_) => 12,
    }
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.extend(v.to_le_bytes()),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::Text(text) => put_text(out, text),
        Value::Array(kind, items) => {
            out.extend(kind.to_le_bytes());
            out.extend((items.len() as u64).to_le_bytes());
            items.iter().for_each(|item| put_value(out, item));
        }
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
    }
}

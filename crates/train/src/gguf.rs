//! The GGUF container: metadata and tensors, read from a byte slice and written back.
//!
//! Knows the container alone (ggml's `docs/gguf.md`); [`formats`] knows what values look like.
//! Never knows what a tensor is for.

use crate::error::{Error, IoContext, Result, bad_weights};
use crate::formats::{self, Format};
use crate::whole;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 4] = b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
const ALIGNMENT: &str = "general.alignment";

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

/// Where one tensor lies in the file; `shape` is fastest-varying first, as GGUF stores it.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    pub shape: Vec<usize>,
    pub format: Format,
    start: u64,
    length: u64,
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
        if version.swap_bytes() <= 3 {
            return Err(bad_weights(
                path,
                "it is a big-endian GGUF, and only little-endian is read",
            ));
        }
        if !(2..=3).contains(&version) {
            return Err(bad_weights(path, format!("GGUF version {version} is not 2 or 3")));
        }
        let (tensor_count, metadata_count) = (cursor.u64()?, cursor.u64()?);
        let metadata = cursor.metadata(metadata_count)?;
        let mut tensors = BTreeMap::new();
        for _ in 0..tensor_count {
            let (name, info) = cursor.tensor_info()?;
            if tensors.contains_key(&name) {
                return Err(bad_weights(path, format!("it has the tensor `{name}` twice")));
            }
            tensors.insert(name, info);
        }
        let alignment = alignment(path, &metadata)?;
        let data = (cursor.position as u64).next_multiple_of(alignment);
        for (name, info) in &mut tensors {
            if !info.start.is_multiple_of(alignment) {
                let what = format!(
                    "`{name}` begins at byte {} of the values, which is no multiple of \
                     `{ALIGNMENT}` {alignment}",
                    info.start
                );
                return Err(bad_weights(path, what));
            }
            info.start = info.start.saturating_add(data);
        }
        check_places(path, &tensors, bytes.len() as u64)?;
        Ok(Self { path: path.to_owned(), bytes, metadata, tensors })
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    pub fn require_array(&self, key: &str) -> Result<&[Value]> {
        match self.get(key) {
            Some(Value::Array(_, items)) => Ok(items),
            Some(_) => Err(bad_weights(&self.path, format!("its `{key}` is not a list"))),
            None => Err(self.lacks(key)),
        }
    }

    /// A list of texts.
    pub fn require_texts(&self, key: &str) -> Result<Vec<&str>> {
        let items = self.require_array(key)?.iter().enumerate();
        let texts = items.map(|(place, item)| {
            let what = || format!("its `{key}[{place}]` is not a text");
            item.as_text().ok_or_else(|| bad_weights(&self.path, what()))
        });
        texts.collect()
    }

    /// A tensor as f32, after checking its shape, slowest-varying first.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let info = self.tensors.get(name).ok_or_else(|| self.lacks(name))?;
        if !info.shape.iter().rev().eq(shape) {
            let found: Vec<_> = info.shape.iter().rev().collect();
            let what = format!("`{name}` has shape {found:?}, expected {shape:?}");
            return Err(bad_weights(&self.path, what));
        }
        let place = info.start as usize..(info.start + info.length) as usize;
        Ok(formats::decode(info.format, &self.bytes[place]))
    }

    fn lacks(&self, key: &str) -> Error {
        bad_weights(&self.path, format!("it has no `{key}`"))
    }
}

/// What values begin at multiples of.
fn alignment(path: &Path, metadata: &[(String, Value)]) -> Result<u64> {
    match metadata.iter().find(|(key, _)| key == ALIGNMENT) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some((_, Value::U32(value))) if value.is_power_of_two() => Ok((*value).into()),
        Some((_, value)) => {
            let what = format!("its `{ALIGNMENT}` is {value:?}, not a power of two of type U32");
            Err(bad_weights(path, what))
        }
    }
}

/// Refuses tensors that lie over one another or beyond the end.
fn check_places(path: &Path, tensors: &BTreeMap<String, TensorInfo>, length: u64) -> Result<()> {
    let mut places: Vec<_> = tensors.iter().collect();
    places.sort_by_key(|(_, info)| info.start);
    for pair in places.windows(2) {
        let [(before, info), (name, next)] = pair else { continue };
        if info.start.saturating_add(info.length) > next.start {
            let what = format!("its tensors `{before}` and `{name}` lie over one another");
            return Err(bad_weights(path, what));
        }
    }
    let ends = places.iter().map(|(_, info)| info.start.saturating_add(info.length));
    match ends.max().filter(|&end| end > length) {
        None => Ok(()),
        Some(expected) => Err(Error::Truncated { path: path.to_owned(), expected, found: length }),
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
        String::from_utf8(bytes).map_err(|_| bad_weights(self.path, "a text in it is not UTF-8"))
    }

    /// Keys and values; a broken one is named by its key.
    fn metadata(&mut self, count: u64) -> Result<Vec<(String, Value)>> {
        let (mut all, mut keys) = (Vec::new(), BTreeSet::new());
        for _ in 0..count {
            let key = self.text()?;
            let kind = self.u32()?;
            let value = self.value(kind, 0).map_err(|error| match error {
                Error::Weights { path, what } => {
                    Error::Weights { path, what: format!("the value of `{key}`: {what}") }
                }
                other => other,
            })?;
            if !keys.insert(key.clone()) {
                return Err(bad_weights(self.path, format!("it has the key `{key}` twice")));
            }
            all.push((key, value));
        }
        Ok(all)
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
            7 => match self.array::<1>()?[0] {
                byte @ 0..=1 => Value::Bool(byte == 1),
                byte => return Err(bad_weights(self.path, format!("{byte} is not true or false"))),
            },
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
            _ => return Err(bad_weights(self.path, format!("its type, {kind}, is unknown"))),
        })
    }

    fn tensor_info(&mut self) -> Result<(String, TensorInfo)> {
        let name = self.text()?;
        let dimensions = self.u32()?;
        if !(1..=4).contains(&dimensions) {
            return Err(bad_weights(self.path, format!("`{name}` has {dimensions} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.push(self.u64()? as usize);
        }
        let code = self.u32()?;
        let format = Format::from_code(code).ok_or_else(|| {
            let what = format!("`{name}` has tensor type {code}, which this reader does not know");
            bad_weights(self.path, what)
        })?;
        let values = shape.iter().try_fold(1usize, |all, &size| all.checked_mul(size));
        let Some(length) = values.filter(|&values| values > 0).and_then(|v| format.bytes(v)) else {
            return Err(bad_weights(self.path, format!("`{name}` has an impossible shape")));
        };
        if !shape[0].is_multiple_of(format.block()) {
            let (row, block) = (shape[0], format.block());
            let what = format!("rows of `{name}` have {row} values, not whole blocks of {block}");
            return Err(bad_weights(self.path, what));
        }
        let start = self.u64()?;
        Ok((name, TensorInfo { shape, format, start, length: length as u64 }))
    }
}

/// One tensor to write: name, shape fastest-varying first, format (one that is written), values.
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
        offset += padded(tensor.format.bytes(tensor.values.len()).unwrap_or(usize::MAX)) as u64;
    }
    head.resize(padded(head.len()), 0);
    let mut broken = None;
    let written = whole::write_with(path, |file| {
        let mut out = BufWriter::new(file);
        out.write_all(&head)?;
        for tensor in tensors {
            let encoded = formats::encode(tensor.format, &tensor.values);
            let mut bytes = encoded.map_err(|what| {
                broken = Some(format!("`{}` cannot be written: {what}", tensor.name));
                std::io::ErrorKind::InvalidData
            })?;
            bytes.resize(padded(bytes.len()), 0);
            out.write_all(&bytes)?;
        }
        out.flush()
    });
    match broken {
        Some(what) => {
            Err(Error::Usage { what, hint: "train with a lower `--lr`, or use `--gguf f32`" })
        }
        None => written,
    }
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

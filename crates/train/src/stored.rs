//! Values in safetensors files, written and read without a second copy in memory.

use crate::error::{Error, IoContext, Result, bad_weights};
use crate::hub::f32_bytes;
use crate::weights::transposed;
use crate::whole;
use serde_json::{Map, Value as Json, json};
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// The longest header that the format allows.
const HEADER_MAX: u64 = 100_000_000;

/// A tensor to be written.
#[derive(Debug)]
pub struct Stored<'a> {
    pub shape: Vec<usize>,
    pub values: Values<'a>,
}

#[derive(Debug)]
pub enum Values<'a> {
    /// Parts that are written one behind the other.
    Parts(Vec<&'a [f32]>),
    /// Those of the transpose: the file has columns where the values have rows.
    OfTranspose(&'a [f32]),
}

impl Values<'_> {
    fn bytes(&self) -> usize {
        match self {
            Self::Parts(parts) => parts.iter().map(|part| size_of_val(*part)).sum(),
            Self::OfTranspose(values) => size_of_val(*values),
        }
    }
}

impl Stored<'_> {
    fn write(&self, file: &mut impl Write) -> std::io::Result<()> {
        match &self.values {
            Values::Parts(parts) => {
                parts.iter().try_for_each(|part| match cfg!(target_endian = "little") {
                    true => file.write_all(bytemuck::cast_slice::<f32, u8>(part)),
                    false => file.write_all(&f32_bytes(part)),
                })
            }
            Values::OfTranspose(values) => {
                file.write_all(&f32_bytes(&transposed(values, self.shape[0])))
            }
        }
    }
}

/// Writes a file that appears whole, and is on the disk when this returns.
pub fn write(path: &Path, tensors: &[(String, Stored<'_>)]) -> Result<()> {
    let (mut header, mut end) = (Map::new(), 0);
    for (name, Stored { shape, values, .. }) in tensors {
        let start = end;
        end += values.bytes();
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]});
        header.insert(name.clone(), entry);
    }
    let mut header = Json::Object(header).to_string().into_bytes();
    // Values begin at a multiple of eight bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    whole::write_with(path, |file| {
        let mut file = BufWriter::new(file);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for (_, tensor) in tensors {
            tensor.write(&mut file)?;
        }
        file.flush()
    })
}

/// A file whose tensors are read one by one.
#[derive(Debug)]
pub struct StoredFile<'a> {
    path: &'a Path,
    file: File,
    header: Json,
    values_at: u64,
}

impl<'a> StoredFile<'a> {
    pub fn open(path: &'a Path) -> Result<Self> {
        let mut file = File::open(path).at("open", path)?;
        let found = file.metadata().at("read", path)?.len();
        let truncated = |expected| Error::Truncated { path: path.to_owned(), expected, found };
        let mut length = [0; 8];
        if found < length.len() as u64 {
            return Err(truncated(length.len() as u64));
        }
        file.read_exact(&mut length).at("read", path)?;
        let length = u64::from_le_bytes(length);
        if length > HEADER_MAX {
            return Err(bad_weights(path, "it is not a safetensors file"));
        }
        let values_at = 8 + length;
        if found < values_at {
            return Err(truncated(values_at));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).at("read", path)?;
        let header: Json = serde_json::from_slice(&header)
            .map_err(|error| bad_weights(path, format!("its header is broken: {error}")))?;
        let ends = header.as_object().into_iter().flatten();
        let ends = ends.filter_map(|(_, tensor)| tensor["data_offsets"][1].as_u64());
        let expected = values_at.saturating_add(ends.max().unwrap_or(0));
        if found < expected {
            return Err(truncated(expected));
        }
        Ok(Self { path, file, header, values_at })
    }

    /// Fills `values` with a tensor of as many f32.
    pub fn read(&mut self, name: &str, values: &mut [f32]) -> Result<()> {
        self.read_parts(name, &mut [values])
    }

    /// Fills parts, one behind the other, with a tensor of as many f32 as they have together.
    pub fn read_parts(&mut self, name: &str, parts: &mut [&mut [f32]]) -> Result<()> {
        let wrong = |what: String| bad_weights(self.path, what);
        let Some(tensor) = self.header.get(name) else {
            return Err(wrong(format!("it has no `{name}`")));
        };
        let place = |end: usize| tensor["data_offsets"][end].as_u64();
        let count: usize = parts.iter().map(|part| part.len()).sum();
        let (start, wanted) = (place(0), (count * size_of::<f32>()) as u64);
        let length = start.zip(place(1)).and_then(|(start, end)| end.checked_sub(start));
        if tensor["dtype"] != "F32" || length != Some(wanted) {
            return Err(wrong(format!("`{name}` is not {count} numbers of type F32")));
        }
        let at = self.values_at.saturating_add(start.unwrap_or_default());
        self.file.seek(SeekFrom::Start(at)).at("read", self.path)?;
        for part in parts {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut::<f32, u8>(part);
            self.file.read_exact(bytes).at("read", self.path)?;
            if cfg!(target_endian = "big") {
                bytes.chunks_exact_mut(4).for_each(<[u8]>::reverse);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<'a>(parts: &[&'a [f32]]) -> Values<'a> {
        Values::Parts(parts.to_vec())
    }

    #[test]
    fn what_was_written_is_read() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file.safetensors");
        let values = [1.0, -2.5, 3.0, f32::MIN_POSITIVE, 5.0, 6.0];
        let tensors = vec![
            ("a", Stored { shape: vec![2, 3], values: parts(&[&values[..1], &values[1..]]) }),
            ("b", Stored { shape: vec![2, 3], values: Values::OfTranspose(&values) }),
        ];
        let tensors = tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
        let tensors: Vec<_> = tensors.collect();
        write(&path, &tensors).expect("written");
        let mut file = StoredFile::open(&path).expect("it opens");
        let mut found = [0.0; 6];
        file.read("a", &mut found).expect("it is there");
        assert_eq!(found, values);
        let (first, rest) = found.split_at_mut(4);
        first.fill(0.0);
        file.read_parts("a", &mut [first, rest]).expect("it is there");
        assert_eq!(found, values);
        // The values have three rows of two; the file has two of three.
        file.read("b", &mut found).expect("it is there");
        assert_eq!(found, [1.0, 3.0, 5.0, -2.5, f32::MIN_POSITIVE, 6.0]);
        let error = file.read("a", &mut [0.0; 5]).expect_err("it is longer");
        assert!(error.to_string().contains("`a` is not 5 numbers"), "{error}");
        assert!(file.read("c", &mut found).is_err());
    }

    #[test]
    fn a_file_that_was_cut_is_refused_with_its_length() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file.safetensors");
        let tensor = Stored { shape: vec![1, 4], values: parts(&[&[1.0; 4]]) };
        write(&path, &[("a".to_owned(), tensor)]).expect("written");
        let whole = std::fs::read(&path).expect("it is there");
        for length in [0, 5, 12, whole.len() - 1] {
            std::fs::write(&path, &whole[..length]).expect("written");
            let error = StoredFile::open(&path).expect_err("it is short");
            assert!(matches!(error, Error::Truncated { .. }), "{length}: {error}");
        }
    }
}

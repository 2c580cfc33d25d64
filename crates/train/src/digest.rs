//! Digests of files.

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{IoContext, Result};

/// Lower-case hexadecimal SHA-256 of a file.
pub fn sha256_file(path: &Path) -> Result<String> {
    let mut file = std::fs::File::open(path).at("open", path)?;
    let mut hasher = Sha256::new();
    std::io::copy(&mut file, &mut DigestWriter(&mut hasher)).at("read", path)?;
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

struct DigestWriter<'a>(&'a mut Sha256);

impl std::io::Write for DigestWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

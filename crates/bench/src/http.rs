//! The least client that keeps its connection: what is measured is the server.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

use crate::{BenchError, io_at};

pub(crate) struct Http {
    reader: BufReader<UnixStream>,
}

impl Http {
    pub(crate) fn connect(socket: &Path) -> Result<Self, BenchError> {
        let stream = UnixStream::connect(socket).map_err(io_at(socket))?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    /// The body of the answer, if it is none that refuses.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<Vec<u8>, BenchError> {
        let failed = io_at(Path::new(path));
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: het\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        self.reader.get_mut().write_all(request.as_bytes()).map_err(&failed)?;
        let mut status = String::new();
        self.reader.read_line(&mut status).map_err(&failed)?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).map_err(&failed)?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).map_err(&failed)?;
        if !status.contains(" 20") {
            let what = format!("{} {}", status.trim(), String::from_utf8_lossy(&body));
            return Err(BenchError::Server { what });
        }
        Ok(body)
    }

    pub(crate) fn json(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<Value, BenchError> {
        let bytes = self.ask(method, path, body)?;
        serde_json::from_slice(&bytes)
            .map_err(|error| BenchError::Server { what: error.to_string() })
    }
}

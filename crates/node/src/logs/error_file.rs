//! What PyTorch writes about the exception that ended a program, as `TORCHELASTIC_ERROR_FILE` says.

use std::path::Path;

use het_files::Links;
use serde_json::Value;

/// More than any exception with its stack.
const BYTES_MAX: u64 = 256 * 1024;

/// The exception; nothing where the program left none that can be read.
pub(crate) fn exception(path: &Path) -> Option<String> {
    let file: Value = {
        let bytes = het_files::read(path, Links::Refused, BYTES_MAX).ok()?;
        serde_json::from_slice(&bytes).ok()?
    };
    let message = &file["message"];
    let text = message.as_str().or_else(|| message["message"].as_str())?;
    Some(text.lines().next()?.trim().to_owned()).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<&str>) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("error.json");
        std::fs::write(&path, text).expect("a file can be written");
        assert_eq!(exception(&path).as_deref(), expected, "{text}");
    }

    #[test]
    fn the_exception_is_read_in_both_forms() {
        let of_worker = r#"{"message": {"message": "RuntimeError: loss is not finite\n  at x",
            "extraInfo": {"py_callstack": "…", "timestamp": "1"}}}"#;
        check(of_worker, Some("RuntimeError: loss is not finite"));
        check(r#"{"message": "ValueError: no"}"#, Some("ValueError: no"));
        check(r#"{"message": {"extraInfo": {}}}"#, None);
        check("cut off", None);
    }

    #[test]
    fn nothing_else_than_a_file_is_read() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe can be made");
        assert_eq!(exception(&pipe), None);
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, r#"{"message": "secret"}"#).expect("a file can be written");
        std::os::unix::fs::symlink(&file, &link).expect("a link can be made");
        assert_eq!((exception(&link), exception(dir.path())), (None, None));
    }
}

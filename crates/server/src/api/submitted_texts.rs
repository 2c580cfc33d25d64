//! What stands in a submission beside its job file: texts that a process can be given, paths that
//! can be meant.

use std::fs;
use std::path::Path;

use het_host::{ENVIRONMENT_BYTES_MAX, environment_bytes, is_variable};
use het_wire::api::{ScriptText, Submission};

use super::refuse::ApiError;
use super::{Code, FILE_BYTES_MAX};

/// Longest text of the fields that name something.
const NAME_BYTES_MAX: usize = 4_096;

/// # Errors
/// The first field that is wrong, by its name.
pub(super) fn check_texts(submission: &Submission) -> Result<(), ApiError> {
    let Submission { cwd, workdir, stdin, path, source, commit, script, environment, env, .. } =
        submission;
    let script_name = script.as_ref().map(|script| &script.name);
    let paths = [("cwd", Some(cwd)), ("workdir", workdir.as_ref()), ("stdin", stdin.as_ref())];
    let texts = [
        ("path", path.as_ref()),
        ("source", Some(source)),
        ("commit", commit.as_ref()),
        ("script.name", script_name),
    ];
    for (field, text) in paths.into_iter().chain(texts) {
        text.map_or(Ok(()), |text| check_text(field, text))?;
    }
    for (field, path) in paths {
        if path.is_some_and(|path| !Path::new(path).is_absolute()) {
            return Err(wrong(field, "is no absolute path", "begin it with `/`"));
        }
    }
    if let Some(ScriptText { name, text }) = script {
        if Path::new(name).file_name().is_none_or(|file| file != name.as_str()) {
            return Err(wrong("script.name", "is no name of a file", "leave its directory out"));
        }
        if text.len() > FILE_BYTES_MAX {
            let text = format!("the script is longer than {FILE_BYTES_MAX} bytes");
            return Err(ApiError::new(Code::TooLarge, text).hint("let it read a file"));
        }
        if text.contains('\0') {
            return Err(wrong("script.text", "has a zero byte in it", "leave it out"));
        }
    }
    check_variables("environment", environment.iter())?;
    check_variables("env", env.iter())?;
    if environment_bytes(environment.iter().chain(env)) > ENVIRONMENT_BYTES_MAX {
        let text = format!("the variables have more than {ENVIRONMENT_BYTES_MAX} bytes");
        return Err(ApiError::new(Code::TooLarge, text).hint("`--clean-env` leaves them out"));
    }
    Ok(())
}

/// # Errors
/// When programs cannot start there.
pub(super) fn check_directory(cwd: &str) -> Result<(), ApiError> {
    if fs::metadata(cwd).is_ok_and(|metadata| metadata.is_dir()) {
        return Ok(());
    }
    let hint = "programs start there: name a directory of the server's machine";
    Err(wrong("cwd", "is no directory that the server can look at", hint))
}

fn check_text(field: &str, text: &str) -> Result<(), ApiError> {
    if text.len() > NAME_BYTES_MAX {
        return Err(wrong(field, "is longer than 4,096 bytes", "shorten it"));
    }
    match text.chars().any(char::is_control) {
        true => Err(wrong(field, "has a control character in it", "leave it out")),
        false => Ok(()),
    }
}

/// Variables are those of a process: a name and no `=` in it, no zero bytes.
fn check_variables<'a>(
    field: &str,
    mut variables: impl Iterator<Item = (&'a String, &'a String)>,
) -> Result<(), ApiError> {
    let found = variables.find(|(name, value)| !is_variable(name, value));
    found.map_or(Ok(()), |(name, _)| {
        let text = format!("names `{}`, which no process can have", name.escape_debug());
        Err(wrong(
            field,
            &text,
            "a name is not empty, and nothing has `=` in its name or zero bytes",
        ))
    })
}

fn wrong(field: &str, text: &str, hint: &str) -> ApiError {
    ApiError::new(Code::BadRequest, format!("`{field}` {text}")).hint(hint)
}

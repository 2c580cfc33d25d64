//! Runs a health check of the devices before a program.

use std::fs;
use std::path::Path;

use super::lookup::PATH_DEFAULT;
use super::spec::GangSpec;

const SHELL: &str = "/bin/sh";

/// How long a health check may take.
const HEALTH_LIMIT_S: u32 = 60;

/// A shell script that runs a health check and then becomes the program. A check that cannot be run
/// says nothing about the devices. The environment that a job sets for its program does not affect
/// the check.
const SCRIPT: &str = r#"
check=$0; limit=$1; mark=$2; path=$3; shift 3
env -u LD_PRELOAD -u LD_LIBRARY_PATH PATH="$path" timeout -k 5 "$limit" "$check"
case $? in
  0) ;;
  125|126|127) echo "$check cannot be run: the devices are used unchecked" >&2 ;;
  *) echo "$check failed: the devices are not used" >&2; : > "$mark"; exit 1 ;;
esac
exec "$@"
"#;

/// Program and arguments of a shell that runs that script.
pub(super) fn with_health_check(
    check: &Path,
    spec: &GangSpec,
    rank: u32,
    program: String,
    argv: &[String],
) -> (String, Vec<String>) {
    // The file may be of an earlier lease with the same number, whose supervisor died.
    let _ = fs::remove_file(spec.unhealthy_file(rank));
    let path = std::env::var("PATH").unwrap_or_else(|_| PATH_DEFAULT.to_owned());
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let (check, mark, limit) =
        (text(check), text(&spec.unhealthy_file(rank)), HEALTH_LIMIT_S.to_string());
    let head = [SHELL, "-c", SCRIPT].map(str::to_owned).into_iter();
    let arguments = [check, limit, mark, path, program];
    (SHELL.to_owned(), head.chain(arguments).chain(argv.iter().skip(1).cloned()).collect())
}

//! Rules of the design about what source files may name: `unsafe`, hash maps, clocks, sleeping, and
//! ways to open files.
//! Comments do not count, nor do tests for hash maps and sleeping.

use anyhow::{Result, bail};

/// One rule: words that no source file of some crates may have, and the files that are excepted.
struct Rule {
    words: &'static [&'static str],
    /// Folders below `crates/`; empty for all of them.
    crates: &'static [&'static str],
    /// Paths, or what they begin with.
    except: &'static [&'static str],
    why: &'static str,
}

/// What decides, and what plays decisions in virtual time: equal arguments give equal results.
const PURE: &[&str] = &[
    "control",
    "core",
    "engine",
    "forecast",
    "parallel",
    "perf",
    "planner",
    "policy",
    "scheduler",
    "sim",
];

/// Ways to open, read or list a file that wait for whoever made it, or follow it anywhere.
const TRUSTING: &[&str] = &[
    "File::create(",
    "File::open(",
    "File::options(",
    "OpenOptions::new(",
    "fs::read(",
    "fs::read_dir(",
    "fs::read_to_string(",
    "fs::write(",
    "remove_dir_all(",
];

const RULES: &[Rule] = &[
    Rule {
        words: TRUSTING,
        crates: &["node", "host", "service", "server"],
        except: &[
            // Files of the kernel.
            "crates/host/src/external.rs",
            "crates/node/src/cgroup/",
            "crates/node/src/launch/device_numbers.rs",
            "crates/node/src/process/containers.rs",
            "crates/node/src/process/procfs.rs",
            "crates/node/src/process/launcher",
            // Directories of ours that no job is told of.
            "crates/host/src/calibrations.rs",
            "crates/host/src/clock.rs",
            "crates/host/src/home.rs",
            "crates/host/src/lock.rs",
            "crates/host/src/lock/devices.rs",
            "crates/host/src/instance.rs",
            "crates/host/src/unsupervised.rs",
            "crates/node/src/node.rs",
            "crates/node/src/node/adoption.rs",
            "crates/node/src/recovery/",
            "crates/server/src/api/tokens.rs",
            "crates/server/src/store/copy.rs",
            // They open as `files` does, and for other purposes.
            "crates/host/src/kept.rs",
            "crates/node/src/launch/container.rs",
            "crates/node/src/launch/files.rs",
            "crates/node/src/process/variables.rs",
        ],
        why: "a job may have replaced the file: open, read, list and remove it by `het_files`",
    },
    Rule {
        words: &["Json(", "Json<", "axum::Json"],
        crates: &["server"],
        except: &[
            "crates/server/src/api/openapi.rs",
            "crates/server/src/api/refuse.rs",
            "crates/server/src/api/routes.rs",
            "crates/server/src/api/route.rs",
            "crates/server/src/api/seen.rs",
            "crates/server/src/store.rs",
        ],
        why: "an answer may name the jobs of others: send it as `Seen`",
    },
    Rule {
        words: &["unsafe"],
        crates: &[],
        except: &[
            "crates/devices/src/drivers/vulkan.rs",
            "crates/node/src/cgroup/device_filter.rs",
            "crates/node/src/process/sys",
            "crates/vulkan/src/device.rs",
        ],
        why: "`unsafe` belongs to the system calls of `node` and to the drivers",
    },
    Rule {
        words: &["HashMap", "HashSet"],
        crates: PURE,
        except: &[],
        why: "a pure crate iterates in one order: take a BTreeMap, or a Vec by row",
    },
    Rule {
        words: &["Instant::now", "SystemTime::now", "thread::spawn", "Command::new"],
        crates: PURE,
        // `play` measures how long the parts of a decision take, which nothing depends on; the
        // contract is a suite of tests.
        except: &["crates/forecast/src/play.rs", "crates/engine/src/contract"],
        why: "a pure crate takes time as an argument and starts nothing",
    },
    Rule {
        words: &["sleep("],
        crates: &[],
        except: &[
            "crates/bench/",
            "crates/cli/src/client.rs",
            "crates/cli/src/client/connection.rs",
            "crates/cli/src/commands/logs/following.rs",
            "crates/cli/src/commands/rank.rs",
            "crates/cli/src/commands/server/serve",
            "crates/devices/src/device_monitor.rs",
            "crates/engine/src/contract",
            "crates/host/src/monitor.rs",
            "crates/kubernetes/src/conditions.rs",
            "crates/kubernetes/src/informers.rs",
            "crates/kubernetes/src/leader.rs",
            "crates/kubernetes/src/logs/pod.rs",
            "crates/kubernetes/src/statuses.rs",
            "crates/kubernetes/src/writer.rs",
            "crates/node/src/node/adoption.rs",
            "crates/node/src/process/launcher.rs",
            "crates/node/src/process/launcher/lock.rs",
            "crates/node/src/recovery/restarter.rs",
            "crates/runtime/src/drivers/process/worker/channels.rs",
            "crates/server/src/api/auth.rs",
            "crates/server/src/api/bounded.rs",
            "crates/server/src/api/listen.rs",
            "crates/server/src/api/own_socket.rs",
            "crates/server/src/api/tls.rs",
            "crates/server/src/assembly.rs",
            "crates/server/src/cluster/intake.rs",
            "crates/train/src/warm.rs",
            "crates/train/src/workers.rs",
            "xtask/src/cluster/control_plane.rs",
        ],
        why: "wait for what happens, not for a time; list the file where nothing can be waited for",
    },
];

pub fn check() -> Result<()> {
    let root = crate::root();
    let files = crate::tidy::tracked(&root)?;
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| is_source(file)) {
        let Ok(text) = std::fs::read_to_string(root.join(file)) else { continue };
        wrong.extend(problems(file, &text));
    }
    wrong.extend(unused_exceptions(&files));
    if !wrong.is_empty() {
        bail!("against the rules of xtask/src/rules.rs:\n  {}", wrong.join("\n  "));
    }
    println!("rules: {} hold", RULES.len());
    Ok(())
}

/// What is built into a product: no tests, examples or benchmarks.
fn is_source(file: &str) -> bool {
    file.starts_with("crates/") && file.split('/').nth(2) == Some("src")
}

fn problems(file: &str, text: &str) -> Vec<String> {
    let of_crate = file.split('/').nth(1).unwrap_or_default();
    let applies = |rule: &&Rule| {
        (rule.crates.is_empty() || rule.crates.contains(&of_crate))
            && !rule.except.iter().any(|path| file.starts_with(path))
    };
    let rules: Vec<&Rule> = RULES.iter().filter(applies).collect();
    let mut found = Vec::new();
    for (index, line) in product_lines(text).enumerate() {
        for rule in &rules {
            let named = rule.words.iter().find(|word| has_word(line, word));
            found.extend(named.map(|word| format!("{file}:{}: `{word}`: {}", index + 1, rule.why)));
        }
    }
    found
}

/// Lines before the tests at a file's end, without comments and text literals.
fn product_lines(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().take_while(|line| *line != "#[cfg(test)]");
    lines.map(|line| match line.trim_start().starts_with("//") {
        true => "",
        false => line.split(" // ").next().unwrap_or_default(),
    })
}

/// Whether the word stands there by itself, outside of text literals.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], line.as_bytes().get(at + word.len()));
        let is_quoted = before.matches('"').count() % 2 == 1;
        let begins = !before.bytes().next_back().is_some_and(is_part);
        begins && !is_quoted && (word.ends_with('(') || !after.copied().is_some_and(is_part))
    })
}

/// Exceptions for files that are not there any more.
fn unused_exceptions(files: &[String]) -> Vec<String> {
    let excepted = RULES.iter().flat_map(|rule| rule.except);
    let unused = excepted.filter(|path| !files.iter().any(|file| file.starts_with(*path)));
    unused.map(|path| format!("`{path}` is excepted and does not exist")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_hold() {
        check().expect("no source file breaks a rule");
    }

    #[test]
    fn each_rule_fires() {
        for rule in RULES {
            let of_crate = rule.crates.first().unwrap_or(&"wire");
            for word in rule.words {
                let text = format!("fn f() {{\n    x({word} y);\n}}\n");
                let found = problems(&format!("crates/{of_crate}/src/new.rs"), &text);
                assert_eq!(found.len(), 1, "{word}: {found:?}");
                assert!(found[0].contains("new.rs:2"), "{found:?}");
            }
        }
    }

    #[test]
    fn exceptions_comments_literals_and_tests_are_let_pass() {
        let passes = |file: &str, text: &str| {
            assert_eq!(problems(file, text), Vec::<String>::new());
        };
        passes("crates/node/src/process/sys/child.rs", "unsafe { f() }");
        passes(
            "crates/wire/src/new.rs",
            "// unsafe\nlet a = \"unsafe\"; // unsafe\nlet unsafe_a = 1;",
        );
        passes("crates/core/src/new.rs", "#[cfg(test)]\nmod tests { use HashMap; }");
        passes("crates/server/src/new.rs", "use std::collections::HashMap;");
    }

    #[test]
    fn an_exception_for_a_file_that_is_gone_is_found() {
        let count: usize = RULES.iter().map(|rule| rule.except.len()).sum();
        assert_eq!(unused_exceptions(&[]).len(), count);
    }
}

//! `het logs` of a job whose programs run in pods of a cluster.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write};

use anstream::{eprintln, println};
use het_wire::api::{JobLogs, LogPiece};
use het_wire::report::RunReport;

use super::{LogsArgs, Titles, print, shown};
use crate::client::{Next, Stream, client_if_any, escaped};
use crate::fail::{Fail, code};
use crate::live::{Display, Followed, Item, Output};

/// Shows what the pods of a job wrote, or write; `None` of one that runs on machines of its server.
pub(super) fn of_cluster(
    args: &LogsArgs,
    selector: &str,
    titles: Titles,
) -> Result<Option<u8>, Fail> {
    let Some(mut client) = client_if_any()? else { return Ok(None) };
    let path = path(args, selector);
    let answer = match args.follow {
        true => {
            let report = client.get(&format!("/api/v1/jobs/{}/report", escaped(selector)));
            report.and_then(|report| follow(&report, client.open(&path)?))
        }
        false => client.get(&path).map(|logs| show(args, &logs, titles)),
    };
    match answer {
        Ok(code) => Ok(Some(code)),
        // They are files, or it is a job that ran without the server.
        Err(fail) if matches!(fail.code(), code::CONFLICT | code::NOT_FOUND) => Ok(None),
        Err(fail) => Err(fail),
    }
}

fn path(args: &LogsArgs, selector: &str) -> String {
    let stage = args.stage.as_ref().map(|stage| format!("stage={}", escaped(stage)));
    let number = |name: &str, value: Option<u64>| value.map(|value| format!("{name}={value}"));
    let query = [
        stage,
        number("rank", args.rank.map(u64::from)),
        number("attempt", args.attempt.map(u64::from)),
        number("tail", args.tail.map(|lines| lines as u64)),
        args.follow.then(|| "follow=true".to_owned()),
    ];
    let query: Vec<String> = query.into_iter().flatten().collect();
    format!("/api/v1/jobs/{}/logs?{}", escaped(selector), query.join("&"))
}

fn show(args: &LogsArgs, logs: &JobLogs, titles: Titles) -> u8 {
    if logs.items.is_empty() {
        eprintln!("it has no pods, or not any more: what they wrote goes with them");
    }
    let titled = logs.items.len() > 1 || titles == Titles::Always;
    for log in &logs.items {
        if titled {
            println!("==> {} <==", log.pod);
        }
        if let Some(why) = &log.missing {
            eprintln!("what {} wrote cannot be read: {why}", log.pod);
        }
        print(log.text.as_bytes(), shown(args));
    }
    code::OK
}

/// Until the job has ended, or whoever reads has read enough.
fn follow(report: &RunReport, mut events: Stream) -> Result<u8, Fail> {
    let mut output = Output::new(Display::new().target());
    let mut attempts = BTreeMap::new();
    loop {
        let told = match events.next(None) {
            Next::Told(told) if told.event == "end" => return Ok(code::OK),
            Next::Told(told) => told,
            Next::Ended => {
                let text = "the server has broken off: it went away, or too little was taken of it";
                let hint = format!("`het logs --follow {}` begins again", report.id);
                return Err(Fail::new(code::FAILED, text).hint(hint));
            }
            Next::Deadline => continue,
        };
        let Ok(piece) = serde_json::from_str::<LogPiece>(&told.data) else { continue };
        for followed in followed(piece, report.stages.len(), &mut attempts) {
            match tell(&mut output, followed) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(code::OK),
                Err(error) => {
                    let text = format!("standard output cannot be written: {error}");
                    return Err(Fail::new(code::FAILED, text));
                }
            }
        }
    }
}

/// What a piece is to whoever looks at it, who knows attempts of stages by their number.
fn followed(piece: LogPiece, stages: usize, attempts: &mut BTreeMap<String, u32>) -> Vec<Followed> {
    let LogPiece { pod, stage, attempt, rank, ranks, text, ended, missing } = piece;
    let mut told = Vec::new();
    let before = attempts.insert(stage.clone(), attempt);
    if before.is_some_and(|before| before < attempt) {
        told.push(Followed::Restarted { stage: stage.clone(), attempt });
    }
    let title = match (stages, ranks) {
        (0 | 1, 0 | 1) => None,
        (_, 0 | 1) => Some(stage.clone()),
        _ => Some(format!("{stage}/{rank}")),
    };
    let source = (stage, rank);
    if !text.is_empty() {
        let (source, bytes) = (source.clone(), text.into_bytes());
        told.push(Followed::Written { source, title, bytes });
    }
    if let Some(why) = missing {
        told.push(Followed::Unreadable { what: pod, why });
    }
    if ended {
        told.push(Followed::Ended { source });
    }
    told
}

fn tell(output: &mut Output, followed: Followed) -> io::Result<()> {
    let mut items = Vec::new();
    output.take(followed, &mut |item| items.push(item));
    let mut out = io::stdout().lock();
    for item in items {
        match item {
            Item::Output(bytes) => out.write_all(&bytes)?,
            Item::Message(text) => eprintln!("{text}"),
        }
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(attempt: u32, ranks: u32, text: &str) -> LogPiece {
        LogPiece {
            pod: "n/p".to_owned(),
            stage: "train".to_owned(),
            attempt,
            rank: 1,
            ranks,
            text: text.to_owned(),
            ended: text.is_empty(),
            missing: None,
        }
    }

    #[test]
    fn a_rank_among_several_has_a_title_and_another_attempt_is_told() {
        let mut attempts = BTreeMap::new();
        let source = || ("train".to_owned(), 1);
        let written = |title: Option<&str>| Followed::Written {
            source: source(),
            title: title.map(str::to_owned),
            bytes: b"x\n".to_vec(),
        };
        assert_eq!(followed(piece(1, 1, "x\n"), 1, &mut attempts), [written(None)]);
        let titled = written(Some("train/1"));
        assert_eq!(followed(piece(1, 2, "x\n"), 1, &mut attempts), std::slice::from_ref(&titled));
        let ended = Followed::Ended { source: source() };
        assert_eq!(followed(piece(1, 2, ""), 1, &mut attempts), [ended]);
        let restarted = Followed::Restarted { stage: "train".to_owned(), attempt: 2 };
        assert_eq!(followed(piece(2, 2, "x\n"), 1, &mut attempts), [restarted, titled]);
    }
}

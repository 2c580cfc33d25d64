//! Who asked for what, as it is stored.

use std::sync::Arc;

use het_core::{Event, JobId, Name, Request, Requested, Requester, Time};
use serde::{Deserialize, Serialize};

use super::error::RecordError;
use super::words::by_word;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RequesterRecord {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    address: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RequestRecord {
    at_ms: u64,
    what: String,
    by: RequesterRecord,
}

/// A request for a change, of which job where it is of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChangeRequestRecord {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    job: Option<u64>,
    what: String,
    by: RequesterRecord,
}

pub(super) fn write_change_request(
    job: Option<JobId>,
    what: Requested,
    by: &Requester,
) -> ChangeRequestRecord {
    let (job, what) = (job.map(|job| job.0), what.word().to_owned());
    ChangeRequestRecord { job, what, by: write_requester(by) }
}

pub(super) fn read_change_request(record: &ChangeRequestRecord) -> Result<Event, RecordError> {
    let ChangeRequestRecord { job, what, by } = record;
    let (what, by) = (read_requested(what)?, read_requester(by));
    Ok(Event::ChangeRequested { job: job.map(JobId), what, by })
}

fn write_requester(by: &Requester) -> RequesterRecord {
    let text = |name: &Option<Name>| name.as_ref().map(ToString::to_string);
    RequesterRecord { token: text(&by.token), user: text(&by.user), address: text(&by.address) }
}

fn read_requester(record: &RequesterRecord) -> Arc<Requester> {
    let name = |text: &Option<String>| text.as_deref().map(Name::from);
    let RequesterRecord { token, user, address } = record;
    Arc::new(Requester { token: name(token), user: name(user), address: name(address) })
}

fn read_requested(word: &str) -> Result<Requested, RecordError> {
    by_word(&Requested::ALL, Requested::word, word)
}

pub(super) fn write_request(request: &Request) -> RequestRecord {
    let Request { at, what, by } = request;
    RequestRecord { at_ms: at.0, what: what.word().to_owned(), by: write_requester(by) }
}

pub(super) fn read_request(record: &RequestRecord) -> Result<Request, RecordError> {
    let (what, by) = (read_requested(&record.what)?, read_requester(&record.by));
    Ok(Request { at: Time(record.at_ms), what, by })
}

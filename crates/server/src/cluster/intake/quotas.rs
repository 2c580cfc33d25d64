//! The object that says what tenants may have.

use het_core::{Quotas, Topology};
use het_files::{Links, replace_private};
use het_host::Home;
use het_kubernetes::{QuotasNews, QuotasObject};
use het_service::report::stamp;
use het_service::{Unavailable, calls};
use het_wire::resource::{Condition, QuotasStatus, read_quotas};

use super::Intake;

/// Longest note of where quotas came from.
const NOTE_BYTES_MAX: u64 = 16;

impl Intake {
    /// Takes over what the object says; with its end nobody is limited by it any more.
    ///
    /// # Errors
    /// When the loop cannot be reached: it is to be tried again.
    pub(super) async fn take_quotas(&mut self, news: &QuotasNews) -> Result<(), Unavailable> {
        self.jobs.keep_quotas(matches!(news, QuotasNews::Is(_)));
        self.quotas_object = None;
        let QuotasNews::Is(object) = news else {
            // Those that somebody set otherwise stay.
            if are_of_object(&self.home) {
                self.set(Quotas::default()).await?;
                remember(&self.home, false);
            }
            return Ok(());
        };
        let Read { quotas, status } = read(object, &self.handle.topology());
        if let Some(quotas) = quotas {
            remember(&self.home, true);
            self.set(quotas).await?;
        }
        if !says_the_same(&status, &object.status) {
            self.quotas.write_status(object, &status);
        }
        // Nodes with what it names may join.
        self.quotas_object = (!status.reason.is_empty()).then(|| object.clone());
        Ok(())
    }

    /// Once, however often an object says the same.
    async fn set(&self, quotas: Quotas) -> Result<(), Unavailable> {
        let known = self.handle.query(|replica| replica.state().quotas().clone()).await?;
        if *known == quotas {
            return Ok(());
        }
        calls::set_quotas(&self.handle, quotas).await.map_err(|_| Unavailable::Busy)
    }
}

/// What a leader begins with, which has to hold before it decides anything: `None` where the quotas
/// of its log still do.
pub(in crate::cluster) fn at_start(
    home: &Home,
    object: Option<&QuotasObject>,
    topology: &Topology,
) -> Option<Quotas> {
    match object {
        Some(object) => {
            let quotas = read(object, topology).quotas?;
            remember(home, true);
            Some(quotas)
        }
        // It was deleted while nobody watched.
        None if are_of_object(home) => {
            remember(home, false);
            Some(Quotas::default())
        }
        None => None,
    }
}

/// Notes whether quotas are those of the object. Where that cannot be written an object that is
/// deleted while no server runs is found out by nobody.
fn remember(home: &Home, are_of_object: bool) {
    let text: &[u8] = if are_of_object { b"yes" } else { b"" };
    let _ = replace_private(&home.quotas_of_object(), text);
}

fn are_of_object(home: &Home) -> bool {
    let read = het_files::read(&home.quotas_of_object(), Links::Refused, NOTE_BYTES_MAX);
    read.is_ok_and(|text| !text.is_empty())
}

/// What an object says.
struct Read {
    /// `None` where it is wrong.
    quotas: Option<Quotas>,
    status: QuotasStatus,
}

fn read(object: &QuotasObject, topology: &Topology) -> Read {
    let (quotas, state, status, reason, problems) = match read_quotas(&object.object, topology) {
        Ok((quotas, None)) => (Some(quotas), "accepted", "True", "Valid", None),
        Ok((quotas, warnings)) => (Some(quotas), "accepted", "True", "Incomplete", warnings),
        Err(problems) => (None, "refused", "False", "Invalid", Some(problems)),
    };
    let message = problems.map_or_else(String::new, |problems| problems.to_string());
    let first = message.lines().next().unwrap_or_default().to_owned();
    let condition = Condition {
        r#type: "Accepted".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: if message.is_empty() { "they hold".to_owned() } else { message },
        last_transition_time: stamp(het_node::wall_time()),
    };
    let status = QuotasStatus {
        state: state.to_owned(),
        reason: first,
        observed_generation: object.generation,
        conditions: vec![condition],
    };
    Read { quotas, status }
}

/// Whatever the time.
fn says_the_same(one: &QuotasStatus, other: &QuotasStatus) -> bool {
    let about = |it: &QuotasStatus| (it.state.clone(), it.reason.clone(), it.observed_generation);
    about(one) == about(other)
}

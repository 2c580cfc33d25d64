//! The object that says what tenants may have.

use het_core::Quotas;
use het_kubernetes::{QuotasNews, QuotasObject};
use het_service::report::stamp;
use het_service::{Unavailable, calls};
use het_wire::resource::{Condition, QuotasStatus, read_quotas};

use super::Intake;

impl Intake {
    /// Takes over what the object says; with its end nobody is limited any more.
    ///
    /// # Errors
    /// When the loop cannot be reached: it is to be tried again.
    pub(super) async fn take_quotas(&mut self, news: &QuotasNews) -> Result<(), Unavailable> {
        self.jobs.keep_quotas(matches!(news, QuotasNews::Is(_)));
        self.refused_quotas = None;
        let QuotasNews::Is(object) = news else { return self.set(Quotas::default()).await };
        let read = read_quotas(&object.object, &self.handle.topology());
        let read = read.map_err(|problems| problems.to_string());
        if let Ok(quotas) = &read {
            self.set(quotas.clone()).await?;
        } else {
            // Classes that nobody knows may join.
            self.refused_quotas = Some(object.clone());
        }
        let status = status_of(object, read.err());
        if !says_the_same(&status, &object.status) {
            self.quotas.tell(object, &status);
        }
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

fn status_of(object: &QuotasObject, refused: Option<String>) -> QuotasStatus {
    let (state, status, word) = match refused {
        None => ("accepted", "True", "Valid"),
        Some(_) => ("refused", "False", "Invalid"),
    };
    let message = refused.unwrap_or_else(|| "they hold".to_owned());
    let condition = Condition {
        r#type: "Accepted".to_owned(),
        status: status.to_owned(),
        reason: word.to_owned(),
        message: message.clone(),
        last_transition_time: stamp(het_node::wall_time()),
    };
    let first = message.lines().next().unwrap_or_default().to_owned();
    QuotasStatus {
        state: state.to_owned(),
        reason: if status == "True" { String::new() } else { first },
        observed_generation: object.generation,
        conditions: vec![condition],
    }
}

/// Whatever the time.
fn says_the_same(one: &QuotasStatus, other: &QuotasStatus) -> bool {
    let about = |it: &QuotasStatus| (it.state.clone(), it.reason.clone(), it.observed_generation);
    about(one) == about(other)
}

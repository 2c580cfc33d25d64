//! Watches over all objects of a resource, and which of them fail at present, for people.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use het_wire::api::WatchError;
use kube::api::ApiResource;
use kube::core::Status;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Error, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::client::NOT_FOUND;

/// A watch that fails is tried again within half a minute, and its connection may take as long. One
/// that was begun anew says nothing until something changes.
const SILENCE_MAX: Duration = Duration::from_secs(90);

/// The watches that failed last, by resource; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Watches(Arc<Mutex<Failing>>);

/// With the time of each failure.
type Failing = BTreeMap<String, (WatchError, Instant)>;

impl Watches {
    /// Those that fail: what became of such objects since is not known.
    pub fn errors(&self) -> Vec<WatchError> {
        let locked = self.locked();
        let failing = locked.values().filter(|(_, at)| at.elapsed() < SILENCE_MAX);
        failing.map(|(error, _)| error.clone()).collect()
    }

    /// What becomes of all objects of a resource. A watch that breaks is begun anew after a pause,
    /// for ever.
    pub(crate) fn follow<K>(
        &self,
        api: Api<K>,
        resource: &ApiResource,
        config: Config,
    ) -> impl Stream<Item = Result<Event<K>, Error>> + use<K>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let this = self.clone();
        let name = match resource.group.as_str() {
            "" => resource.plural.clone(),
            group => format!("{}.{group}", resource.plural),
        };
        watcher(api, config).default_backoff().inspect(move |event| match event {
            // It is about to be listed: nothing was read yet.
            Ok(Event::Init) => {}
            Ok(_) => drop(this.locked().remove(&name)),
            Err(error) => this.failed(&name, error),
        })
    }

    fn failed(&self, resource: &str, error: &Error) {
        let status = status_of(error);
        // Of a kind that nobody has defined there are no objects.
        if status.is_some_and(|status| status.code == NOT_FOUND) {
            return drop(self.locked().remove(resource));
        }
        let reason = status.map(|status| status.reason.clone()).filter(|it| !it.is_empty());
        let error = WatchError {
            resource: resource.to_owned(),
            reason: reason.unwrap_or_else(|| "Unreachable".to_owned()),
            message: status.map_or_else(|| error.to_string(), |status| status.message.clone()),
        };
        self.locked().insert(resource.to_owned(), (error, Instant::now()));
    }

    fn locked(&self) -> MutexGuard<'_, Failing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the API server answered; `None` where it did not.
pub(crate) fn status_of(error: &Error) -> Option<&Status> {
    match error {
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchFailed(kube::Error::Api(status))
        | Error::WatchError(status) => Some(status),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, reason: &str) -> Error {
        let status = Status { code, reason: reason.to_owned(), ..Status::default() };
        Error::InitialListFailed(kube::Error::Api(status.boxed()))
    }

    #[test]
    fn a_watch_that_fails_is_named_and_a_kind_that_nobody_defined_is_not() {
        let watches = Watches::default();
        watches.failed("pods", &refused(403, "Forbidden"));
        watches.failed("jobsets.jobset.x-k8s.io", &refused(404, "NotFound"));
        let errors = watches.errors().into_iter();
        let named: Vec<_> = errors.map(|error| (error.resource, error.reason)).collect();
        assert_eq!(named, [("pods".to_owned(), "Forbidden".to_owned())]);
        watches.failed("pods", &refused(404, "NotFound"));
        assert_eq!(watches.errors(), []);
    }
}

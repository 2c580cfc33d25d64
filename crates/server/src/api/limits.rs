//! How much each token and each origin may ask for at a time and within a second, and how the few
//! places of those who read job files are shared.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::origins::Origin;
use super::peer::Peer;
use super::refuse::ApiError;
use super::{Api, Code};

/// Of a token.
const OF_A_TOKEN: Allowance = Allowance { at_a_time: 64, a_second: 1_000 };
/// Of an address of the network, behind which there may be several people, or of a user.
const OF_AN_ORIGIN: Allowance = Allowance { at_a_time: 256, a_second: 2_000 };
/// Keys from which on those are forgotten of whom nothing has come lately.
const KEYS_MAX: usize = 10_000;
/// Job files that are read at a time, and jobs that are planned.
const WORKERS: Share = Share { of_all: 2, of_a_token: 1 };
/// Requests that are at the files of jobs at a time.
const AT_FILES: Share = Share { of_all: 12, of_a_token: 3 };
/// Callers that follow what a job's pods write, each of whom has connections to many of them.
const FOLLOWERS: Share = Share { of_all: 16, of_a_token: 4 };
/// How long a submission waits for a place before it is told to come again.
const PLACE_WAIT: Duration = Duration::from_secs(10);

/// What one key may ask for.
#[derive(Debug, Clone, Copy)]
struct Allowance {
    at_a_time: usize,
    /// On average; twice as many may come at once.
    a_second: u32,
}

/// How many places there are, and how many of them one token has.
#[derive(Debug, Clone, Copy)]
struct Share {
    of_all: usize,
    of_a_token: usize,
}

/// What the interface counts.
#[derive(Debug)]
pub(super) struct Limits {
    tokens: Arc<Counts<String>>,
    origins: Arc<Counts<Origin>>,
    readers: Places,
    planners: Places,
    at_files: Places,
    followers: Places,
}

impl Limits {
    pub(super) fn new() -> Self {
        let tokens = Arc::new(Counts::new(OF_A_TOKEN));
        let origins = Arc::new(Counts::new(OF_AN_ORIGIN));
        let (readers, planners) = (Places::new(WORKERS), Places::new(WORKERS));
        let (at_files, followers) = (Places::new(AT_FILES), Places::new(FOLLOWERS));
        Self { tokens, origins, readers, planners, at_files, followers }
    }

    /// A place for a request of a token until it is answered.
    ///
    /// # Errors
    /// When the token has all that it may have.
    pub(super) fn token(&self, token: &str) -> Result<Running<String>, ApiError> {
        self.tokens.begin(token.to_owned(), Instant::now()).map_err(|why| why.told("caller"))
    }

    /// A place among those who read job files.
    ///
    /// # Errors
    /// When none comes free for long.
    pub(super) async fn reader(&self, token: &str) -> Result<Working, ApiError> {
        self.readers.place(token, "too many job files wait to be read").await
    }

    /// The same among those who plan.
    ///
    /// # Errors
    /// When none comes free for long.
    pub(super) async fn planner(&self, token: &str) -> Result<Working, ApiError> {
        self.planners.place(token, "too many jobs wait to be planned").await
    }

    /// The same among those who read and write files of jobs.
    ///
    /// # Errors
    /// When none comes free for long.
    pub(super) async fn disk(&self, token: &str) -> Result<Working, ApiError> {
        self.at_files.place(token, "too many requests wait for a file system").await
    }

    /// The same among those who follow what programs write, for as long as they do.
    ///
    /// # Errors
    /// When none comes free for long.
    pub(super) async fn follower(&self, token: &str) -> Result<Working, ApiError> {
        self.followers.place(token, "too many callers follow what jobs write").await
    }
}

/// Lets a request pass that its origin may send, whatever it asks for.
pub(super) async fn limited(
    State(api): State<Api>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let origin = request.extensions().get::<Peer>().copied().and_then(Origin::of);
    let place = origin.map(|origin| api.0.limits.origins.begin(origin, Instant::now()));
    let _place = place.transpose().map_err(|why| why.told("address or user"))?;
    Ok(next.run(request).await)
}

/// Why a request has to come again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TooMany {
    AtATime(usize),
    ASecond(u32),
}

impl TooMany {
    fn told(self, whose: &str) -> ApiError {
        let text = match self {
            Self::AtATime(count) => format!("{count} requests of this {whose} are under way"),
            Self::ASecond(count) => {
                format!("this {whose} sends more than {count} requests a second")
            }
        };
        ApiError::new(Code::TooMany, text).hint("come again when `Retry-After` says")
    }
}

/// Requests by key.
#[derive(Debug)]
struct Counts<K> {
    allowance: Allowance,
    counts: Mutex<HashMap<K, Count>>,
}

#[derive(Debug)]
struct Count {
    running: usize,
    /// Requests that may come at once, as of `at`.
    left: f64,
    at: Instant,
}

/// A request under way, until it is dropped.
#[derive(Debug)]
pub(super) struct Running<K: Hash + Eq> {
    counts: Arc<Counts<K>>,
    key: K,
}

impl<K: Hash + Eq + Clone> Counts<K> {
    fn new(allowance: Allowance) -> Self {
        Self { allowance, counts: Mutex::default() }
    }

    fn begin(self: &Arc<Self>, key: K, now: Instant) -> Result<Running<K>, TooMany> {
        let Allowance { at_a_time, a_second } = self.allowance;
        let burst = f64::from(2 * a_second);
        let refilled = |count: &Count| {
            let since = now.saturating_duration_since(count.at).as_secs_f64();
            (count.left + since * f64::from(a_second)).min(burst)
        };
        let mut counts = self.lock();
        if counts.len() >= KEYS_MAX {
            counts.retain(|_, count| count.running > 0 || refilled(count) < burst);
        }
        let new = Count { running: 0, left: burst, at: now };
        let count = counts.entry(key.clone()).or_insert(new);
        (count.left, count.at) = (refilled(count), now);
        if count.left < 1.0 {
            return Err(TooMany::ASecond(a_second));
        }
        if count.running >= at_a_time {
            return Err(TooMany::AtATime(at_a_time));
        }
        count.left -= 1.0;
        count.running += 1;
        drop(counts);
        Ok(Running { counts: Arc::clone(self), key })
    }
}

impl<K> Counts<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Count>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq> Drop for Running<K> {
    fn drop(&mut self) {
        if let Some(count) = self.counts.lock().get_mut(&self.key) {
            count.running -= 1;
        }
    }
}

/// Places of those who work beside the thread that answers. A token has its share of them: whoever
/// sends many files waits for its own, and others for that share of each token at most.
#[derive(Debug)]
struct Places {
    share: Share,
    all: Arc<Semaphore>,
    of_token: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// A place that is taken, until it is dropped.
#[derive(Debug)]
pub(super) struct Working {
    _of_token: OwnedSemaphorePermit,
    _place: OwnedSemaphorePermit,
}

impl Places {
    fn new(share: Share) -> Self {
        let all = Arc::new(Semaphore::new(share.of_all));
        Self { share, all, of_token: Mutex::default() }
    }

    /// The places of a token, which those who wait for it share.
    fn of_token(&self, token: &str) -> Arc<Semaphore> {
        let mut all = self.of_token.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody else holds what nobody waits for.
        all.retain(|_, place| Arc::strong_count(place) > 1);
        let place = all
            .entry(token.to_owned())
            .or_insert_with(|| Arc::new(Semaphore::new(self.share.of_a_token)));
        Arc::clone(place)
    }

    async fn place(&self, token: &str, full: &str) -> Result<Working, ApiError> {
        let own = self.of_token(token);
        let places = async {
            let own = own.acquire_owned().await;
            let place = Arc::clone(&self.all).acquire_owned().await;
            (own, place)
        };
        let (own, place) = timeout(PLACE_WAIT, places)
            .await
            .map_err(|_| ApiError::new(Code::Busy, full).hint("try again in a moment"))?;
        let never = "the semaphore is never closed";
        Ok(Working { _of_token: own.expect(never), _place: place.expect(never) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: Allowance = Allowance { at_a_time: 2, a_second: 2 };

    #[test]
    fn a_key_has_so_many_at_a_time_and_others_theirs() {
        let (counts, now) = (Arc::new(Counts::new(FEW)), Instant::now());
        let first = counts.begin("a", now).expect("there are two");
        let _second = counts.begin("a", now).expect("there are two");
        assert_eq!(counts.begin("a", now).err(), Some(TooMany::AtATime(2)));
        assert!(counts.begin("b", now).is_ok());
        drop(first);
        assert!(counts.begin("a", now).is_ok());
    }

    #[test]
    fn who_sends_more_a_second_waits_for_the_next() {
        let (counts, now) = (Arc::new(Counts::new(FEW)), Instant::now());
        for _ in 0..4 {
            counts.begin("a", now).expect("twice as many may come at once");
        }
        assert_eq!(counts.begin("a", now).err(), Some(TooMany::ASecond(2)));
        let later = now + Duration::from_millis(500);
        assert!(counts.begin("a", later).is_ok());
        assert_eq!(counts.begin("a", later).err(), Some(TooMany::ASecond(2)));
    }

    #[test]
    fn a_token_waits_for_its_own_files_and_others_do_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be made").block_on(async {
            let readers = Places::new(WORKERS);
            let _greedy = readers.place("a", "full").await.expect("nobody reads");
            let second = timeout(Duration::from_millis(5), readers.place("a", "full")).await;
            assert!(second.is_err(), "it waits for the first");
            assert!(readers.place("b", "full").await.is_ok());
        });
    }
}

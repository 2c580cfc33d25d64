//! Work on files that jobs and callers name, beside the thread that answers: a file system that
//! does not answer takes some places of whoever asked, and nobody else's.

use std::time::Duration;

use het_service::Unavailable;
use tokio::time::timeout;

use super::refuse::ApiError;
use super::{Code, Parts};

/// How long an answer waits for a file system.
const DISK_LIMIT: Duration = Duration::from_secs(10);

/// What the work gives.
///
/// # Errors
/// When its caller has no place for it, or it takes too long; it goes on then, and keeps its place.
pub(super) async fn on_disk<T: Send + 'static>(
    parts: &Parts,
    counted_by: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let place = parts.limits.disk(counted_by).await?;
    let working = tokio::task::spawn_blocking(move || {
        let _place = place;
        work()
    });
    match timeout(DISK_LIMIT, working).await {
        Ok(done) => Ok(done.map_err(|_| Unavailable::Gone)?),
        Err(_) => Err(ApiError::new(Code::Busy, "a file system of the job does not answer")
            .hint("look at what is mounted below its directories")),
    }
}

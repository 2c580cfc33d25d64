//! Many send to one at the same time.

/// Equal senders to one receiver.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Incast {
    pub senders: u32,
    /// Of each, with headers.
    pub bytes: f64,
    /// At which each begins.
    pub sender_bytes_per_s: f64,
    /// Of the link to the receiver.
    pub link_bytes_per_s: f64,
    /// What the switch holds for that link before it pauses the senders.
    pub buffer_bytes: f64,
}

/// What comes of it if nobody slows down by himself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IncastOutcome {
    /// Until all are served: the link is never idle, fair or not.
    pub completion_s: f64,
    /// Of each sender's fair part.
    pub fair_bytes_per_s: f64,
    /// By which the queue grows at first.
    pub growth_bytes_per_s: f64,
    /// The longest queue with room for all of it.
    pub queue_bytes_max: f64,
    /// Until the buffer is full and senders are paused; never if all fits.
    pub paused_after_s: Option<f64>,
}

impl Incast {
    pub fn outcome(&self) -> IncastOutcome {
        let senders = f64::from(self.senders);
        let arriving = senders * self.sender_bytes_per_s;
        let growth_bytes_per_s = (arriving - self.link_bytes_per_s).max(0.0);
        let sending_s = self.bytes / self.sender_bytes_per_s;
        let queue_bytes_max = growth_bytes_per_s * sending_s;
        let full = queue_bytes_max > self.buffer_bytes;
        IncastOutcome {
            completion_s: (senders * self.bytes / self.link_bytes_per_s).max(sending_s),
            fair_bytes_per_s: (self.link_bytes_per_s / senders).min(self.sender_bytes_per_s),
            growth_bytes_per_s,
            queue_bytes_max,
            paused_after_s: full.then(|| self.buffer_bytes / growth_bytes_per_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_grows_by_all_but_one_of_the_senders() {
        let incast = Incast {
            senders: 8,
            bytes: 1e6,
            sender_bytes_per_s: 12.5e9,
            link_bytes_per_s: 12.5e9,
            buffer_bytes: 1e6,
        };
        let outcome = incast.outcome();
        assert!((outcome.completion_s - 8.0 * 1e6 / 12.5e9).abs() < 1e-12);
        assert!((outcome.growth_bytes_per_s - 7.0 * 12.5e9).abs() < 1.0);
        assert!((outcome.queue_bytes_max - 7e6).abs() < 1e-3);
        let paused = outcome.paused_after_s.expect("7 MB do not fit");
        assert!((paused - 1e6 / 87.5e9).abs() < 1e-12);
        let roomy = Incast { buffer_bytes: 8e6, ..incast };
        assert_eq!(roomy.outcome().paused_after_s, None);
    }
}

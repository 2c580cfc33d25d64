//! When to save although nobody asks.

use std::time::{Duration, Instant};

use het_core::Millis;
use het_perf::checkpoint_interval;

/// Steps between two saves where nobody says anything.
const STEPS_DEFAULT: u64 = 20;

/// How often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Saves {
    /// Only when somebody asks.
    OnRequest,
    EverySteps(u64),
    Every {
        span: Duration,
        /// Where nobody said how often: how long the devices mostly live, from which the span
        /// follows once it is known what a save takes.
        mean_time_between_failures: Option<Millis>,
    },
}

impl Saves {
    /// What the user said in steps; else what the scheduler says in seconds
    /// (`HET_CHECKPOINT_EVERY`, and what that was reckoned from).
    pub fn told(steps: Option<u64>) -> Self {
        match steps {
            Some(0) => return Self::OnRequest,
            Some(steps) => return Self::EverySteps(steps),
            None => {}
        }
        let seconds = |name| {
            let text = std::env::var(name).ok()?;
            let seconds: f64 = text.parse().ok()?;
            (seconds.is_finite() && seconds > 0.0).then_some(Millis((seconds * 1e3) as u64))
        };
        match seconds("HET_CHECKPOINT_EVERY") {
            None => Self::EverySteps(STEPS_DEFAULT),
            Some(every) => Self::Every {
                span: Duration::from_millis(every.0),
                mean_time_between_failures: seconds("HET_MEAN_TIME_BETWEEN_FAILURES"),
            },
        }
    }
}

/// Keeps account of saves while a run goes on.
#[derive(Debug)]
pub(crate) struct SaveClock {
    saves: Saves,
    last: Instant,
}

impl SaveClock {
    pub(crate) fn start(saves: Saves) -> Self {
        Self { saves, last: Instant::now() }
    }

    /// Whether to save after this step.
    pub(crate) fn is_due(&self, step: u64) -> bool {
        match self.saves {
            Saves::OnRequest => false,
            Saves::EverySteps(steps) => step.is_multiple_of(steps),
            Saves::Every { span, .. } => self.last.elapsed() >= span,
        }
    }

    /// A save that began at `began` is over.
    pub(crate) fn saved(&mut self, began: Instant) {
        let took = Millis(began.elapsed().as_millis() as u64);
        self.last = Instant::now();
        if let Saves::Every { span, mean_time_between_failures: Some(mean) } = &mut self.saves {
            *span = Duration::from_millis(checkpoint_interval(took, *mean).0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_follows_what_a_save_takes() {
        let every = |span, mean| Saves::Every { span, mean_time_between_failures: mean };
        let mut clock = SaveClock::start(every(Duration::ZERO, Some(Millis::seconds(20_000))));
        assert!(clock.is_due(7));
        clock.saved(Instant::now() - Duration::from_secs(10));
        let Saves::Every { span, .. } = clock.saves else { panic!("it stays what it is") };
        assert_eq!(span.as_secs(), 625, "Daly's, about sqrt(2 · 10 s · 20,000 s)");
        assert!(!clock.is_due(8));
        let mut told = SaveClock::start(every(Duration::from_secs(60), None));
        told.saved(Instant::now());
        assert_eq!(told.saves, every(Duration::from_secs(60), None), "what was told stays");
    }
}

//! Adds up what a gang reports. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use het_core::{Checkpoint, Micro, Millis, Name, Progress};

use super::line::{Line, SavedCheckpoint, measured, parse, whole};

/// Most different `result` names of one gang; further ones are ignored.
const RESULTS_MAX: usize = 256;
/// Longest text of a program in an event, in characters.
const TEXT_CHARS_MAX: usize = 1_000;
/// How much of a malformed line is quoted, in characters.
const QUOTE_CHARS_MAX: usize = 80;

/// Everything a gang reported that was not passed on yet.
#[derive(Debug, Default)]
pub struct Tally {
    fresh: Progress,
    checkpoints: Vec<Checkpoint>,
    names: BTreeSet<Name>,
    done: bool,
    silent: Option<Millis>,
    has_step: bool,
    malformed: Malformed,
    /// Lines so far, empty ones too.
    lines: u64,
}

/// Lines that could not be parsed, which are reported in one message.
#[derive(Debug, Default)]
struct Malformed {
    lines: u64,
    /// The first of them: its number, from 1, and its beginning.
    first: (u64, String),
    reported: bool,
}

impl Tally {
    /// Adds one line, without its end.
    pub fn line(&mut self, line: &[u8]) {
        self.lines += 1;
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        match parse(line) {
            Some(line) => self.add(line),
            None => self.malformed(line),
        }
    }

    /// As [`Self::line`], for one that is too long, or many that were not read: they count as one.
    pub fn skipped(&mut self, beginning: &[u8]) {
        self.lines += 1;
        self.malformed(beginning);
    }

    fn malformed(&mut self, line: &[u8]) {
        self.malformed.lines += 1;
        if self.malformed.lines == 1 {
            let text = clip(&String::from_utf8_lossy(line), QUOTE_CHARS_MAX);
            self.malformed.first = (self.lines, text);
        }
    }

    /// Adds progress from another source, such as a checkpoint, unless the program reports steps
    /// itself.
    pub fn suggest(&mut self, progress: &Progress) {
        if !self.has_step {
            self.fresh.merge(progress);
        }
    }

    /// The program reported that its work is complete.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// For how long a program that hangs has been silent, by the newest line that was not asked for
    /// yet.
    pub fn take_silent(&mut self) -> Option<Millis> {
        self.silent.take()
    }

    /// What is new since the last call: progress, then completed checkpoints in order.
    pub fn take(&mut self) -> (Option<Progress>, Vec<Checkpoint>) {
        if self.malformed.lines > 0 && !self.malformed.reported {
            self.malformed.reported = true;
            let Malformed { lines, first: (number, first), .. } = &self.malformed;
            let text =
                format!("{lines} progress line(s) not understood, first line {number}: `{first}`");
            self.fresh.message.get_or_insert(text);
        }
        let fresh = std::mem::take(&mut self.fresh);
        ((fresh != Progress::default()).then_some(fresh), std::mem::take(&mut self.checkpoints))
    }

    fn add(&mut self, line: Line) {
        let mut results = BTreeMap::new();
        for (name, value) in line.result.unwrap_or_default() {
            let Some(value) = value.as_f64().and_then(Micro::from_f64) else { continue };
            let name = Name::from(clip(&name, TEXT_CHARS_MAX));
            if self.names.contains(&name) || self.names.len() < RESULTS_MAX {
                self.names.insert(name.clone());
                results.insert(name, value);
            }
        }
        self.has_step |= line.step.is_some();
        let ran_on = match (line.driver, line.detail) {
            (Some(driver), Some(detail)) => Some(format!("{driver} ({detail})")),
            (driver, detail) => driver.or(detail),
        };
        self.fresh.merge(&Progress {
            step: line.step.map(whole),
            total: line.total.map(whole),
            loss: line.loss.and_then(Micro::from_f64),
            samples: line.samples.map(whole),
            tokens: line.tokens.map(whole),
            useful: line.useful_ms.map(|ms| Millis(whole(ms))),
            busy: None,
            needs: None,
            measured: line.measured.as_ref().and_then(measured).map(Box::new),
            results,
            ran_on: ran_on.map(|text| clip(&text, TEXT_CHARS_MAX).into()),
            message: line.message.map(|text| clip(&text, TEXT_CHARS_MAX)),
        });
        if let Some(SavedCheckpoint { step, path }) = line.checkpoint {
            self.checkpoints.push(Checkpoint { step, path });
        }
        self.done |= line.done.unwrap_or(false);
        self.silent = line.silent_ms.map(|ms| Millis(whole(ms)));
    }
}

fn clip(text: &str, chars: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(chars).collect()
}

#[cfg(test)]
mod tests {
    use het_core::Measured;

    use super::*;

    fn tally(text: &str) -> Tally {
        let mut tally = Tally::default();
        text.split('\n').for_each(|line| tally.line(line.as_bytes()));
        tally
    }

    fn progress(text: &str) -> Progress {
        tally(text).take().0.expect("something is reported")
    }

    #[test]
    fn later_lines_add_to_earlier_ones() {
        let text = "{\"step\":1,\"total\":9,\"loss\":2.5}\n{\"step\":2.0,\"useful_ms\":40}\n";
        let expected = Progress {
            step: Some(2),
            total: Some(9),
            loss: Some(Micro(2_500_000)),
            useful: Some(Millis(40)),
            ..Progress::default()
        };
        assert_eq!(progress(text), expected);
    }

    #[test]
    fn driver_and_detail_say_what_it_ran_on() {
        let ran_on = |text| progress(text).ran_on.expect("a driver is reported");
        assert_eq!(ran_on(r#"{"driver":"cuda","detail":"H200"}"#), "cuda (H200)");
        assert_eq!(ran_on(r#"{"driver":"cpu"}"#), "cpu");
    }

    #[test]
    fn a_measured_step_that_cannot_be_is_not_told() {
        let told = |text: &str| tally(text).take().0.and_then(|progress| progress.measured);
        let text = r#"{"measured":{"batch":8,"accumulation":1,"step_s":0.5,"exchange_s":0.1,
            "gradient_noise":4}}"#
            .replace('\n', "");
        let expected = Measured {
            batch: 8,
            accumulation: 1,
            step: Micro(500_000),
            exchange: Micro(100_000),
            gradient_noise: Micro(4_000_000),
        };
        assert_eq!(told(&text), Some(Box::new(expected)));
        for (right, wrong) in [
            ("\"batch\":8", "\"batch\":0"),
            ("\"step_s\":0.5", "\"step_s\":0"),
            ("\"exchange_s\":0.1", "\"exchange_s\":0.6"),
            ("\"gradient_noise\":4", "\"gradient_noise\":-4"),
            ("\"gradient_noise\":4", "\"gradient_noise\":1e300"),
        ] {
            assert_eq!(told(&text.replace(right, wrong)), None, "{wrong}");
        }
        assert_eq!(progress(r#"{"step":5,"measured":"yes"}"#).step, Some(5));
    }

    #[test]
    fn results_and_unknown_keys() {
        let text = r#"{"result":{"loss_after":1.25,"note":"x"},"colour":"blue","step":null}"#;
        let progress = progress(text);
        assert_eq!(progress.results, BTreeMap::from([("loss_after".into(), Micro(1_250_000))]));
        assert_eq!(progress.step, None);
    }

    #[test]
    fn results_are_limited_but_known_names_go_on() {
        let mut text = String::new();
        for index in 0..RESULTS_MAX + 5 {
            text.push_str(&format!("{{\"result\":{{\"r{index}\":1}}}}\n"));
        }
        text.push_str("{\"result\":{\"r0\":2}}\n");
        let results = progress(&text).results;
        assert_eq!(results.len(), RESULTS_MAX);
        assert_eq!(results["r0"], Micro(2_000_000));
    }

    #[test]
    fn a_loss_that_is_no_number_does_not_spoil_its_line() {
        let expected = Progress { step: Some(2), ..Progress::default() };
        assert_eq!(progress(r#"{"step": 2, "loss": NaN}"#), expected);
        assert_eq!(progress(r#"{"step": 2, "loss": -Infinity}"#), expected);
    }

    #[test]
    fn every_checkpoint_is_kept_and_done_is_remembered() {
        let line = |step| format!(r#"{{"checkpoint":{{"step":{step},"path":"/c/{step}"}}}}"#);
        let mut tally = tally(&format!("{}\n{}\n{{\"done\":true}}\n", line(1), line(2)));
        let steps: Vec<u64> = tally.take().1.iter().map(|checkpoint| checkpoint.step).collect();
        assert_eq!(steps, [1, 2]);
        assert!(tally.is_done());
        assert_eq!(tally.take(), (None, Vec::new()));
    }

    #[test]
    fn malformed_lines_are_reported_once_and_harm_no_other() {
        let mut tally = tally("{\"step\":1}\nstep 2\n{\"step\":\"x\"}\n\n{\"step\":3}");
        let progress = tally.take().0.expect("steps are reported");
        assert_eq!(progress.step, Some(3));
        let message = progress.message.expect("the malformed lines are reported");
        assert_eq!(message, "2 progress line(s) not understood, first line 2: `step 2`");
        tally.line(b"again");
        assert_eq!(tally.take(), (None, Vec::new()));
    }
}

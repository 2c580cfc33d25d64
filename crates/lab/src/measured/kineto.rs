//! Steps of a PyTorch profile (Kineto's Chrome trace, `*.pt.trace.json`, packed or not), and of the
//! progress that `het-train` reports.
//!
//! Traces are large: events are looked at one by one and not kept.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::workload::{Spot, TraceError, WorkloadError, read_text};

/// What a profile tells of its steps.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProfiledSteps {
    /// Of the device, as its driver names it.
    pub device: Option<String>,
    pub world: Option<u32>,
    /// From one step's beginning to the next one's, the first left out where there are others: it
    /// warms up.
    pub seconds: Vec<f64>,
    /// Time of collective kernels over time of all kernels.
    pub exchange: Option<f64>,
}

impl ProfiledSteps {
    pub fn median_s(&self) -> Option<f64> {
        het_planner::validation::median(&self.seconds)
    }
}

/// First letters of the names of collective kernels.
const COLLECTIVES: [&str; 4] = ["nccl", "rccl", "hccl", "hcom"];

/// What the profiler calls a step, with its number behind.
const STEP: &str = "ProfilerStep#";

/// Reads a trace.
///
/// # Errors
/// When it cannot be read, is no trace, or shows no steps.
pub fn read_kineto(path: &Path) -> Result<ProfiledSteps, WorkloadError> {
    let unreadable = |source| WorkloadError::Unreadable { path: path.to_owned(), source };
    let file = BufReader::new(File::open(path).map_err(unreadable)?);
    let packed = path.extension().is_some_and(|extension| extension == "gz");
    let reader: Box<dyn Read> =
        if packed { Box::new(flate2::read::GzDecoder::new(file)) } else { Box::new(file) };
    kineto(BufReader::new(reader), path)
}

fn kineto(reader: impl Read, path: &Path) -> Result<ProfiledSteps, WorkloadError> {
    let mut seen = Seen::default();
    let mut json = serde_json::Deserializer::from_reader(reader);
    json.deserialize_map(Trace(&mut seen)).map_err(|error| {
        wrong(path, (error.line(), error.column()), format!("this is no trace: {error}"))
    })?;
    let steps = seen.finish();
    if steps.seconds.is_empty() {
        let reason = format!("the trace shows no `{STEP}N`: call `profiler.step()` after each");
        return Err(wrong(path, (1, 1), reason));
    }
    Ok(steps)
}

/// Reads lines of progress: `step` and `useful_ms` count up.
///
/// # Errors
/// When the file cannot be read, or shows fewer than two steps.
pub fn read_progress(path: &Path) -> Result<ProfiledSteps, WorkloadError> {
    progress(&read_text(path)?, path)
}

fn progress(text: &str, path: &Path) -> Result<ProfiledSteps, WorkloadError> {
    #[derive(Deserialize)]
    struct Line {
        step: Option<u64>,
        useful_ms: Option<u64>,
    }
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    let counts: Vec<(u64, u64)> =
        lines.filter_map(|line| Some((line.step?, line.useful_ms?))).collect();
    let step = |pair: &[(u64, u64)]| {
        let steps = pair[1].0.checked_sub(pair[0].0).filter(|steps| *steps > 0)?;
        let ms = pair[1].1.checked_sub(pair[0].1).filter(|ms| *ms > 0)?;
        Some(ms as f64 / 1e3 / steps as f64)
    };
    let seconds: Vec<f64> = counts.windows(2).filter_map(step).collect();
    if seconds.is_empty() {
        let reason = "two lines with `step` and `useful_ms` are needed at least".to_owned();
        return Err(wrong(path, (1, 1), reason));
    }
    Ok(ProfiledSteps { seconds, ..ProfiledSteps::default() })
}

fn wrong(path: &Path, (line, column): (usize, usize), reason: String) -> WorkloadError {
    TraceError { spot: Spot { path: path.to_owned(), line, column }, reason }.into()
}

/// What has been seen of a trace.
#[derive(Debug, Default)]
struct Seen {
    device: Option<String>,
    world: Option<u32>,
    /// Beginning and length of every step, µs.
    steps: BTreeMap<u64, (f64, f64)>,
    kernels_us: f64,
    collectives_us: f64,
}

#[derive(Deserialize)]
struct Device {
    name: Option<String>,
}

#[derive(Deserialize)]
struct Group {
    world_size: Option<u32>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    name: String,
    #[serde(default)]
    cat: String,
    ts: Option<f64>,
    dur: Option<f64>,
}

impl Seen {
    fn event(&mut self, event: &Event) {
        let (Some(begin), Some(length)) = (event.ts, event.dur) else { return };
        if event.cat == "kernel" {
            self.kernels_us += length;
            let name = event.name.to_lowercase();
            if COLLECTIVES.iter().any(|prefix| name.starts_with(prefix)) {
                self.collectives_us += length;
            }
        }
        let number = event.name.strip_prefix(STEP).and_then(|number| number.parse().ok());
        if let (Some(number), "user_annotation") = (number, event.cat.as_str()) {
            self.steps.insert(number, (begin, length));
        }
    }

    fn finish(self) -> ProfiledSteps {
        let steps: Vec<(f64, f64)> = self.steps.into_values().collect();
        let mut us: Vec<f64> = steps.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        if us.len() > 1 {
            us.remove(0);
        }
        if us.is_empty() {
            us.extend(steps.first().map(|(_, length)| *length));
        }
        let told = self.kernels_us > 0.0;
        ProfiledSteps {
            device: self.device,
            world: self.world,
            seconds: us.into_iter().map(|us| us / 1e6).filter(|seconds| *seconds > 0.0).collect(),
            exchange: told.then(|| self.collectives_us / self.kernels_us),
        }
    }
}

/// The object that a trace is.
struct Trace<'a>(&'a mut Seen);

impl<'de> Visitor<'de> for Trace<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `traceEvents`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" => map.next_value_seed(Events(&mut *self.0))?,
                "deviceProperties" => {
                    let devices: Vec<Device> = map.next_value()?;
                    self.0.device = devices.into_iter().find_map(|device| device.name);
                }
                "distributedInfo" => self.0.world = map.next_value::<Group>()?.world_size,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// The list of its events.
struct Events<'a>(&'a mut Seen);

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<(), A::Error> {
        while let Some(event) = events.next_element::<Event>()? {
            self.0.event(&event);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(text: &str) -> Result<ProfiledSteps, WorkloadError> {
        kineto(text.as_bytes(), Path::new("x.json"))
    }

    #[test]
    fn a_trace_tells_steps_device_and_exchange() {
        let step = |number: u32, begin: u32| {
            format!(
                r#"{{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{number}","ts":{begin},
                "dur":400000}}"#
            )
        };
        let text = format!(
            r#"{{"schemaVersion":1,"deviceProperties":[{{"id":0,"name":"NVIDIA A100-SXM4-80GB"}}],
            "distributedInfo":{{"backend":"nccl","rank":0,"world_size":8}},
            "traceEvents":[{},{},{},{},
            {{"ph":"X","cat":"kernel","name":"ampere_gemm","ts":1,"dur":300}},
            {{"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce","ts":1,"dur":100}},
            {{"ph":"M","name":"process_name","args":{{"name":"python"}}}}]}}"#,
            step(3, 100),
            step(4, 900_100),
            step(5, 1_400_100),
            step(6, 1_900_100)
        );
        let steps = trace(&text).expect("a trace");
        assert_eq!(steps.median_s(), Some(0.5));
        assert_eq!((steps.world, steps.exchange), (Some(8), Some(0.25)));
        assert_eq!(steps.device.as_deref(), Some("NVIDIA A100-SXM4-80GB"));
    }

    #[test]
    fn what_is_no_trace_is_told_with_its_place() {
        let told = trace("{\"traceEvents\": [{\"ts\": \"x\"").expect_err("no trace").to_string();
        assert!(told.contains("x.json:1:") && told.contains("no trace"), "{told}");
        let told = trace("{\"traceEvents\": []}").expect_err("no steps").to_string();
        assert!(told.contains("profiler.step()"), "{told}");
    }

    #[test]
    fn progress_tells_steps() {
        let text = "{\"driver\":\"cpu\"}\n{\"step\":1,\"useful_ms\":900}\n\
                    {\"step\":3,\"useful_ms\":1900}\nrubbish\n{\"step\":4,\"useful_ms\":2400}\n";
        let read = progress(text, Path::new("progress.jsonl"));
        assert_eq!(read.expect("steps").seconds, [0.5, 0.5]);
    }
}

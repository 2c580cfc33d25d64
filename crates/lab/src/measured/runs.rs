//! Published training runs, from two shapes of table: one row a run with its source and what was
//! printed about it, or vTrain's single-node measurements.
//!
//! What a row does not print is taken from its source's software, in the tables below. A row that
//! lacks what a prediction needs has no `Setup`; a field that is no number is an error.

use std::path::Path;

use het_perf::training::{
    Attention, Embeddings, FeedForward, FeedForwardKind, Island, Overlap, ParallelConfig,
    Precision, Recompute, SequenceParallel, Transformer, Tuning, Zero,
};

use het_planner::validation::{Setup, TrainingRun};
use het_wire::catalogue;

use crate::workload::{CsvTable, Fields, TraceError, WorkloadError};

/// Reads the runs of a file.
///
/// # Errors
/// When the file cannot be read, or with line, column and reason of the first field that is no
/// number or the first name that the header lacks.
pub fn read_training_runs(path: &Path) -> Result<Vec<TrainingRun>, WorkloadError> {
    let table = CsvTable::read(path)?.quoted();
    let file = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
    match table.columns(["GPUs"]) {
        Ok(_) => single_node(&table, &file),
        Err(_) => published(&table, &file),
    }
}

/// Longer steps than ten days are typing errors.
const SECONDS_MAX: f64 = 864_000.0;

fn is_measured(seconds: f64) -> bool {
    seconds > 0.0 && seconds < SECONDS_MAX
}

/// Columns without which nothing can be predicted.
const NEEDED: [&str; 9] =
    ["layers", "hidden", "heads", "seq", "gpu", "tp", "pp", "dp", "global_batch"];

/// Names of the columns that are read, in the order of `Row`.
const COLUMNS: [&str; 21] = [
    "source",
    "model",
    "params_B",
    "layers",
    "hidden",
    "heads",
    "seq",
    "vocab",
    "gpu",
    "n_gpus",
    "tp",
    "pp",
    "dp",
    "microbatch",
    "global_batch",
    "precision",
    "recompute",
    "measured_tflops_per_gpu",
    "measured_iter_time_s",
    "measured_tokens_per_s_per_gpu",
    "note",
];

fn published(table: &CsvTable, file: &str) -> Result<Vec<TrainingRun>, WorkloadError> {
    table.columns(NEEDED)?;
    let places = COLUMNS.map(|name| table.columns([name]).ok().map(|[place]| place));
    table.rows(|fields| {
        let row = Row { fields: &fields, places };
        let source = row.text("source")?;
        Ok(TrainingRun {
            source: if source.is_empty() { file } else { source }.to_owned(),
            model: row.text("model")?.to_owned(),
            setup: row.setup()?,
        })
    })
}

/// A row with the places of its columns.
struct Row<'a> {
    fields: &'a Fields<'a>,
    places: [Option<usize>; COLUMNS.len()],
}

impl<'a> Row<'a> {
    fn place(&self, name: &str) -> Option<usize> {
        let index = COLUMNS.iter().position(|column| *column == name);
        self.places[index.expect("only columns of the table are asked for")]
    }

    /// Empty where the file has no such column.
    fn text(&self, name: &str) -> Result<&'a str, TraceError> {
        self.place(name).map_or(Ok(""), |place| Ok(self.fields.text(place, name)?.trim()))
    }

    /// `None` where nothing is printed.
    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, TraceError> {
        match (self.text(name)?, self.place(name)) {
            ("", _) | (_, None) => Ok(None),
            (_, Some(place)) => self.fields.number(place, name).map(Some),
        }
    }

    fn setup(&self) -> Result<Option<Setup>, TraceError> {
        let note = self.text("note")?;
        let (Some(class), Some(precision)) =
            (class(self.text("gpu")?), precision(self.text("precision")?))
        else {
            return Ok(None);
        };
        let (Some(model), Some(config)) = (self.model(note)?, self.config(note, precision)?) else {
            return Ok(None);
        };
        let seconds = match self.number::<f64>("measured_iter_time_s")? {
            Some(seconds) => Some(seconds),
            None => {
                let tokens = f64::from(config.global_batch) * f64::from(model.sequence);
                let rate: Option<f64> = self.number("measured_tokens_per_s_per_gpu")?;
                rate.map(|rate| tokens / (rate * f64::from(config.devices())))
            }
        };
        let island = island(class, self.text("gpu")?, note);
        let setup = |seconds| Setup { model, config, class, island, seconds };
        Ok(seconds.filter(|seconds| is_measured(*seconds)).map(setup))
    }

    fn model(&self, note: &str) -> Result<Option<Transformer>, TraceError> {
        let shape = (
            self.number("layers")?,
            self.number("hidden")?,
            self.number("heads")?,
            self.number("seq")?,
            self.number("vocab")?,
        );
        let (Some(layers), Some(hidden), Some(heads), Some(sequence), Some(vocabulary)) = shape
        else {
            return Ok(None);
        };
        let mut model = Transformer::gpt(layers, hidden, heads, sequence, vocabulary);
        let name = self.text("model")?.to_lowercase();
        if name.contains("llama") {
            // Llama 2 70B and all of Llama 3 (Touvron et al. 2023, Llama team 2024).
            if ["llama3", "70b"].iter().any(|word| name.contains(word)) {
                model.key_value_heads = heads.min(8);
            }
            model.embeddings = Embeddings::Untied;
            model.feed_forward.kind = FeedForwardKind::Gated;
            model.feed_forward.hidden = 8 * hidden / 3;
        }
        if note.contains("packed") {
            model.attention_span = sequence.min(PACKED_SAMPLE_TOKENS);
        }
        let billions: Option<f64> = self.number("params_B")?;
        Ok(Some(billions.map_or(model, |billions| widened(model, billions * 1e9))))
    }

    fn config(
        &self,
        note: &str,
        precision: Precision,
    ) -> Result<Option<ParallelConfig>, TraceError> {
        let cut = (
            self.number("tp")?,
            self.number("pp")?,
            self.number("dp")?,
            self.number("microbatch")?,
            self.number("global_batch")?,
        );
        let (Some(tensor), Some(pipeline), Some(data), Some(microbatch), Some(global_batch)) = cut
        else {
            return Ok(None);
        };
        let recompute = self.text("recompute")?;
        let recomputed = match recompute {
            "full" => Recompute::Full,
            "selective" | "selective+seqpar" => Recompute::Selective,
            "none" | "see recipe" | "" => Recompute::None,
            _ => return Ok(None),
        };
        let software = Software::of(self.text("source")?);
        let sequence = recompute == "selective+seqpar" || software.overlap == Overlap::Split;
        let config = ParallelConfig {
            data,
            tensor,
            pipeline,
            context: noted(note, "CP=").unwrap_or(1).max(1),
            virtual_stages: noted(note, "VP=").or(noted(note, "interleave=")).unwrap_or(1).max(1),
            precision,
            recompute: recomputed,
            sequence_parallel: match sequence {
                true => SequenceParallel::On,
                false => SequenceParallel::Off,
            },
            zero: zero(note).unwrap_or(software.zero),
            tuning: match self.text("model")?.ends_with("LoRA") {
                true => Tuning::Lora { rank: ADAPTER_RANK },
                false => Tuning::Full,
            },
            attention: software.attention,
            overlap: software.overlap,
            ..ParallelConfig::single(microbatch, global_batch)
        };
        let devices: Option<u32> = self.number("n_gpus")?;
        let whole = devices.is_none_or(|devices| devices == config.devices());
        Ok(whole.then_some(config))
    }
}

/// What a source's software does unless a row says otherwise.
struct Software {
    attention: Attention,
    overlap: Overlap,
    zero: Zero,
}

impl Software {
    fn of(source: &str) -> Self {
        let (attention, overlap, zero) = if source.contains("Megatron-Bridge") {
            (Attention::Flash3, Overlap::Split, Zero::One)
        } else if source.contains("NeMo") || source.contains("Megatron-Core") {
            (Attention::Flash2, Overlap::Split, Zero::One)
        } else if source.contains("MosaicML") {
            (Attention::Flash1, Overlap::None, Zero::Three)
        } else {
            (Attention::Plain, Overlap::None, Zero::None)
        };
        Self { attention, overlap, zero }
    }
}

/// Rank of adapters where a row does not print it: NeMo's default.
const ADAPTER_RANK: u32 = 32;

/// Tokens of a sample of SQuAD in a packed sequence, about: attention stays within a sample.
const PACKED_SAMPLE_TOKENS: u32 = 512;

/// Standard layers explain a parameter count this well, or the feed-forward part is made to.
const STANDARD_WITHIN: f64 = 0.03;

/// The model with an inner width that gives it as many weights as are printed.
fn widened(model: Transformer, parameters: f64) -> Transformer {
    let embeddings = model.parameters() - u64::from(model.layers) * model.layer_parameters();
    let layer = (parameters - embeddings as f64) / f64::from(model.layers);
    let ratio = layer / model.layer_parameters() as f64;
    if !(0.7..1.8).contains(&ratio) || (ratio - 1.0).abs() < STANDARD_WITHIN {
        return model;
    }
    let rest = layer - model.attention_parameters() as f64;
    let inner = f64::from(model.feed_forward.hidden) * rest / model.expert_parameters() as f64;
    let feed_forward = FeedForward { hidden: inner.round() as u32, ..model.feed_forward };
    Transformer { feed_forward, ..model }
}

/// The catalogue's id of a device as tables name it, or as the catalogue does.
fn class(gpu: &str) -> Option<&'static str> {
    let gpu = gpu.to_lowercase();
    let small = gpu.contains("40gb");
    let words = [
        ("a100", if small { "a100-sxm4-40" } else { "a100-sxm4-80" }),
        ("h100", "h100-sxm5-80"),
        ("gb200", "gb200-per-gpu"),
        ("b200", "b200-sxm"),
    ];
    let known = words.into_iter().find(|(word, _)| gpu.contains(word)).map(|(_, class)| class);
    catalogue::sheet(&gpu).map(|sheet| sheet.id.as_str()).or(known)
}

fn precision(word: &str) -> Option<Precision> {
    let word = word.to_lowercase();
    if word.contains("fp8") {
        return Some(Precision::Fp8);
    }
    let half = word.contains("bf16") || word.contains("fp16");
    half.then_some(Precision::Bf16)
}

/// The node of a class, with the network that a row prints.
fn island(class: &str, gpu: &str, note: &str) -> Island {
    let printed = [gpu, note].into_iter().find_map(gigabits_per_node);
    let network = printed.map(|gigabits| gigabits / 8.0 / 8.0);
    match class {
        "h100-sxm5-80" => Island::hgx_h100(),
        // NVLink 5 has twice NVLink 4's bandwidth, and a rack of GB200 is one island.
        "gb200-per-gpu" => Island { link_gbps: 735.0, devices_per_node: 72, ..Island::hgx_h100() },
        "b200-sxm" => Island { link_gbps: 735.0, ..Island::hgx_h100() },
        _ => Island::hgx_a100(network.unwrap_or(25.0)),
    }
}

/// `800 Gbps/node`, `1600 Gbps node-node` or `4xOmni-Path 100G/node`.
fn gigabits_per_node(text: &str) -> Option<f64> {
    if let Some((before, _)) = text.split_once(" Gbps") {
        return before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    }
    let (before, _) = text.split_once("G/node")?;
    let each: f64 = before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    let (count, _) = before.rsplit_once('x')?;
    let count: f64 = count.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    Some(count * each)
}

/// The number behind a word of the note, if it is one.
fn noted(note: &str, word: &str) -> Option<u32> {
    let (_, after) = note.split_once(word)?;
    let digits = after.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

fn zero(note: &str) -> Option<Zero> {
    if note.contains("FULL_SHARD") || noted(note, "FSDP=").is_some_and(|ranks| ranks > 0) {
        return Some(Zero::Three);
    }
    note.contains("SHARD_GRAD_OP").then_some(Zero::Two)
}

/// Columns of vTrain's measurements, in the order of `single_node`.
const COUNTS: [&str; 10] = [
    "GPUs",
    "global batch",
    "micro batch",
    "hidden size",
    "attention heads",
    "# layers",
    "sequence length",
    "tensor parallelism",
    "data parallelism",
    "pipeline parallelism",
];

/// vTrain's measurements on one node (MIT): Megatron-DeepSpeed, fp16, layers computed again in the
/// backward pass as in all its configurations, GPT-2's vocabulary padded.
fn single_node(table: &CsvTable, file: &str) -> Result<Vec<TrainingRun>, WorkloadError> {
    let places = table.columns(COUNTS)?;
    let [time] = table.columns(["iteration time (ms)"])?;
    table.rows(|row| {
        let mut numbers = [0_u32; 10];
        for ((number, place), name) in numbers.iter_mut().zip(places).zip(COUNTS) {
            *number = row.number(place, name)?;
        }
        let [gpus, global, micro, hidden, heads, layers, sequence, tensor, data, pipeline] =
            numbers;
        let milliseconds: f64 = row.number(time, "iteration time (ms)")?;
        let config = ParallelConfig {
            tensor,
            data,
            pipeline,
            recompute: Recompute::Full,
            attention: Attention::Plain,
            ..ParallelConfig::single(micro, global)
        };
        let setup = Setup {
            model: Transformer::gpt(layers, hidden, heads, sequence, VOCABULARY),
            config,
            class: "a100-sxm4-80",
            island: Island::hgx_a100(25.0),
            seconds: milliseconds / 1e3,
        };
        let whole = gpus == config.devices() && is_measured(milliseconds / 1e3);
        Ok(TrainingRun {
            source: file.to_owned(),
            model: format!("{layers} layers of {hidden}"),
            setup: whole.then_some(setup),
        })
    })
}

/// GPT-2's vocabulary of 50,257, padded as Megatron does for eight ranks.
const VOCABULARY: u32 = 51_200;

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "source,model,params_B,layers,hidden,heads,seq,vocab,gpu,n_gpus,tp,pp,dp,\
        microbatch,global_batch,precision,recompute,measured_tflops_per_gpu,\
        measured_iter_time_s,measured_tokens_per_s_per_gpu,note\n";

    fn read(rows: &str) -> Result<Vec<TrainingRun>, String> {
        let table = CsvTable::of(Path::new("runs.csv"), &format!("{HEADER}{rows}")).quoted();
        published(&table, "runs.csv").map_err(|error| error.to_string())
    }

    #[test]
    fn a_row_is_a_run_and_a_poor_one_is_skipped() {
        let full = "NeMo 24,\"LLAMA3-70B, big\",70.6,80,8192,64,8192,128256,DGX-H100,64,4,4,2,1,\
            128,FP8,see recipe,746,10.577,1549.0,\"SURE(\"\"read\"\"); CP=2 VP=5; model flops\"\n";
        let poor = "NeMo,GPT 5B,5,24,4096,32,2048,51200,A100,8,,,,,,bf16,selective?,,,5043.1,\n";
        let runs = read(&format!("{full}{poor}")).expect("reads");
        assert_eq!(runs[0].model, "LLAMA3-70B, big");
        let setup = runs[0].setup.as_ref().expect("all is printed");
        let config = setup.config;
        assert_eq!((config.context, config.virtual_stages, config.devices()), (2, 5, 64));
        assert_eq!((config.zero, config.attention), (Zero::One, Attention::Flash2));
        assert!((setup.model.parameters() as f64 / 70.6e9 - 1.0).abs() < 0.01);
        assert_eq!(runs[1].setup, None);
    }

    #[test]
    fn a_file_is_a_source_where_its_rows_name_none() {
        let text = "layers,hidden,heads,seq,vocab,gpu,tp,pp,dp,microbatch,global_batch,precision,\
            measured_iter_time_s\n24,2048,16,1024,51200,A100,1,1,8,4,64,bf16,1.5\n\
            24,2048,16,1024,51200,A100,1,1,8,4,64,bf16,NaN\n";
        let table = CsvTable::of(Path::new("own.csv"), text).quoted();
        let runs = published(&table, "own.csv").expect("reads");
        assert_eq!(runs.iter().map(|run| run.source.as_str()).collect::<Vec<_>>(), ["own.csv"; 2]);
        assert_eq!(runs[0].setup.as_ref().map(|setup| setup.seconds), Some(1.5));
        assert_eq!(runs[1].setup, None, "what is no time was not measured");
    }

    #[test]
    fn a_malformed_field_is_named_with_its_place() {
        let row = "x,y,1,two,1,1,1,1,A100,1,1,1,1,1,1,bf16,none,,1,,\"a, b\"\n";
        let expected = "runs.csv:2:7: `layers` is `two`, not such a number";
        assert_eq!(read(row).expect_err("no number"), expected);
    }

    #[test]
    fn a_network_is_read_from_the_words() {
        assert_eq!(gigabits_per_node("A100 (8/node, 800 Gbps/node IB)"), Some(800.0));
        assert_eq!(gigabits_per_node("A100-80GB SXM (4xOmni-Path 100G/node)"), Some(400.0));
        assert_eq!(gigabits_per_node("A100-80GB SXM (DGX A100)"), None);
    }
}

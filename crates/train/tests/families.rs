//! Tiny models of every family against `transformers`: logits, loss, gradients of all tensors.
//!
//! `reference/families.py` made the expected numbers. Each model goes the way of a real one: its
//! `config.json` and safetensors are written to a directory and read from there.

use het_blocks::linear::Numbers;
use het_blocks::quantized::{Format, Instructions};
use het_train::architecture::Architecture;
use het_train::batch::{Batch, Sequence};
use het_train::cpu::generate::generate;
use het_train::cpu::model::Model;
use het_train::hub::f32_bytes;
use het_train::lora::Adapter;
use het_train::names::{Tensor, buffers};
use het_train::optimiser::{AdamW, Request, Settings, Slice, norm};
use het_train::steps::{Executor, Recompute};
use het_train::weights::{Parameters, Source, Weights, transposed};
use het_train::workers::Workers;
use het_train::{export, precision, tiny};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Of logits and losses, absolutely.
const TOLERANCE: f64 = 1e-4;
/// Of gradients, relative to the size of the gradient.
const GRADIENT_TOLERANCE: f64 = 2e-4;

/// Of a model's gradients, relative to the norm of all of them.
const ROUNDING: f64 = 1e-6;

#[derive(Deserialize)]
struct Case {
    config: Map<String, Json>,
    /// The same as this version of `transformers` writes it.
    rewritten: Option<Map<String, Json>>,
    tokens: Vec<Vec<u32>>,
    loss: f64,
    /// Of each sequence, of some rows
    logits: Vec<BTreeMap<usize, Vec<f64>>>,
    /// Shapes
    tensors: BTreeMap<String, Vec<usize>>,
    gradients: BTreeMap<String, Gradient>,
    curves: Option<Curves>,
}

/// Losses of 50 steps of AdamW on the same batch.
#[derive(Deserialize)]
struct Curves {
    full: Vec<f64>,
    low_rank: Vec<f64>,
}

#[derive(Deserialize)]
struct Gradient {
    norm: f64,
    entries: BTreeMap<usize, f64>,
}

fn cases() -> Vec<(String, Case)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/families");
    let mut paths: Vec<PathBuf> = fs::read_dir(directory)
        .expect("the folder is there")
        .map(|entry| entry.expect("it is readable").path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 30);
    let read = |path: PathBuf| {
        let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("it is readable");
        (name, serde_json::from_str(&text).expect("it is a case"))
    };
    paths.into_iter().map(read).collect()
}

/// The values that `fill` in `families.py` gives a tensor.
fn fill(name: &str, shape: &[usize], is_gemma: bool) -> Vec<f32> {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |seed, byte| {
        (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let value = |index: u64| {
        let mut z = seed.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let unit = (z >> 40) as f64 / f64::from(1 << 23) - 1.0;
        if shape.len() > 1 {
            return (unit * (3.0f64 / 32.0).sqrt()) as f32;
        }
        let base = if name.ends_with("weight") && !is_gemma { 1.0 } else { 0.0 };
        (base + 0.25 * unit) as f32
    };
    (0..shape.iter().product::<usize>() as u64).map(value).collect()
}

/// Writes a model's files; `shards` of them hold the tensors.
fn write(case: &Case, config: &Map<String, Json>, shards: usize, directory: &Path) {
    let is_gemma = config["model_type"].as_str().is_some_and(|kind| kind.starts_with("gemma"));
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = case
        .tensors
        .iter()
        .map(|(name, shape)| (name.clone(), shape.clone(), f32_bytes(&fill(name, shape, is_gemma))))
        .collect();
    let mut map = BTreeMap::new();
    for shard in 0..shards {
        let file = match shards {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{:05}-of-{shards:05}.safetensors", shard + 1),
        };
        let views = tensors.iter().skip(shard).step_by(shards).map(|(name, shape, bytes)| {
            map.insert(name.clone(), file.clone());
            (name, TensorView::new(Dtype::F32, shape.clone(), bytes).expect("it fits"))
        });
        let bytes = safetensors::serialize(views.collect::<Vec<_>>(), None).expect("they fit");
        fs::write(directory.join(&file), bytes).expect("written");
    }
    if shards > 1 {
        let index = json!({"metadata": {}, "weight_map": map}).to_string();
        fs::write(directory.join("model.safetensors.index.json"), index).expect("written");
    }
    let config = serde_json::to_string(config).expect("JSON");
    fs::write(directory.join("config.json"), config).expect("written");
}

fn load(name: &str, case: &Case, config: &Map<String, Json>, shards: usize) -> Weights {
    let directory = tempfile::tempdir().expect("a temporary directory");
    write(case, config, shards, directory.path());
    let source = Source::open(&directory.path().display().to_string());
    let weights = source.and_then(|source| source.weights());
    weights.unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn batch(case: &Case) -> Batch {
    let sequences = case.tokens.iter().map(|tokens| scored(tokens));
    Batch::pack(&sequences.collect::<Vec<_>>(), 64)
}

fn scored(tokens: &[u32]) -> Sequence {
    Sequence { tokens: tokens.to_vec(), scored: vec![true; tokens.len()] }
}

fn learning(weights: &Weights) -> Executor {
    Executor::learning(weights.clone(), Numbers::F32, Workers::default()).expect("it starts")
}

fn adapting(weights: Weights, adapter: &Adapter) -> Executor {
    Executor::adapting(&Arc::new(weights), adapter, Workers::default()).expect("it starts")
}

/// Loss and gradient of batches in one step.
fn full<'a>(
    executor: &mut Executor,
    batches: impl IntoIterator<Item = &'a Batch>,
) -> (f64, Parameters) {
    executor.begin_step().expect("it begins");
    for batch in batches {
        executor.add_gradients(batch).expect("a valid batch");
    }
    let loss = executor.step_loss().expect("it is computed");
    (loss, executor.full_gradient().expect("it is computed"))
}

fn low_rank(executor: &mut Executor, batch: &Batch) -> (f64, Vec<f32>) {
    executor.begin_step().expect("it begins");
    executor.add_gradients(batch).expect("a valid batch");
    let loss = executor.step_loss().expect("it is computed");
    (loss, executor.adapter_gradient().expect("it is computed"))
}

/// A gradient in the shape that the file has.
fn as_stored(tensor: &Tensor, values: &[f32], weights: &Weights) -> Vec<f32> {
    match tensor.name.is_transposed(weights.architecture.family) {
        true => transposed(values, tensor.shape[1]),
        false => values.to_vec(),
    }
}

#[test]
fn logits_and_losses_are_those_of_transformers() {
    for (name, case) in cases() {
        let weights = Arc::new(load(&name, &case, &case.config, 1));
        let batch = batch(&case);
        let mut executor = Executor::frozen(&weights).expect("it starts");
        let logits = executor.logits(&batch).expect("a valid batch");
        let width = weights.architecture.vocabulary;
        for (sequence, rows) in case.logits.iter().enumerate() {
            for (row, expected) in rows {
                let row = (batch.bounds[sequence] + row) * width;
                let found = &logits[row..row + width];
                let pairs = found.iter().zip(expected);
                let worst = pairs.map(|(&a, b)| (f64::from(a) - b).abs()).fold(0.0, f64::max);
                assert!(worst < TOLERANCE, "{name}, sequence {sequence}, row {row}: {worst}");
            }
        }
        let loss = executor.loss(&batch).expect("a valid batch") / batch.rows.len() as f64;
        assert!((loss - case.loss).abs() < TOLERANCE, "{name}: {loss}, not {}", case.loss);
    }
}

/// The distance of logits in integers from those in f32, of the size of these.
#[test]
fn integers_come_near_in_every_family() {
    for (name, case) in cases() {
        let exact = load(&name, &case, &case.config, 1);
        let batch = batch(&case);
        let logits = |weights: &Weights| {
            let mut executor = Executor::frozen(&Arc::new(weights.clone())).expect("it starts");
            executor.logits(&batch).expect("a valid batch")
        };
        let size = |values: &mut dyn Iterator<Item = f32>| {
            values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt()
        };
        let expected = logits(&exact);
        for (format, most) in [(Format::Int8, 0.1), (Format::Int4, 0.5)] {
            let mut rounded = exact.clone();
            let Weights { parameters, architecture, .. } = &mut rounded;
            precision::quantize(parameters, architecture, format, Instructions::best());
            let found = logits(&rounded);
            let off = size(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
            let off = off / size(&mut expected.iter().copied());
            assert!(off > 0.0 && off < most, "{name}, {format:?}: {off}");
        }
    }
}

#[test]
fn gradients_of_all_tensors_are_those_of_transformers() {
    for (name, case) in cases() {
        let weights = load(&name, &case, &case.config, 1);
        let batch = batch(&case);
        let (_, gradient) = full(&mut learning(&weights), [&batch]);
        // Some have no gradient but rounding: shifting all keys alike changes no probability.
        let total = case.gradients.values().map(|g| g.norm.powi(2)).sum::<f64>().sqrt();
        let floor = ROUNDING * total;
        let mut left = case.gradients.keys().collect::<Vec<_>>();
        for (tensor, values) in gradient.tensors(&weights.architecture) {
            let stored = tensor.name.hub_name(weights.architecture.family);
            let expected = &case.gradients[&stored];
            left.retain(|&name| *name != stored);
            let values = as_stored(&tensor, values, &weights);
            let found = |value: f32| f64::from(value) / batch.rows.len() as f64;
            let norm = values.iter().map(|&v| found(v).powi(2)).sum::<f64>().sqrt();
            let error = (norm - expected.norm).abs();
            let bound = GRADIENT_TOLERANCE * expected.norm + floor;
            assert!(error < bound, "{name}, {stored}: {norm}, not {}", expected.norm);
            let typical = expected.norm / (values.len() as f64).sqrt();
            for (&place, &entry) in &expected.entries {
                let error = (found(values[place]) - entry).abs();
                let bound = GRADIENT_TOLERANCE * (entry.abs() + typical) + floor;
                assert!(error < bound, "{name}, {stored}[{place}]: off by {error}, of {entry}");
            }
        }
        assert!(left.is_empty(), "{name}: {left:?} have no gradient");
    }
}

#[test]
fn gradients_of_an_adapter_follow_from_those_of_the_matrices() {
    for (name, case) in cases() {
        let base = load(&name, &case, &case.config, 1);
        let architecture = base.architecture.clone();
        let mut adapter = Adapter::random(&architecture, RANK, 3.0, 7);
        let values = adapter.values.iter_mut().enumerate();
        values.for_each(|(index, value)| *value += 0.02 * (index as f32 * 1.3).sin());
        let batch = batch(&case);
        let mut executor = adapting(base.clone(), &adapter);
        let (loss, found) = low_rank(&mut executor, &batch);
        let parameters = adapter.merged(&base.parameters);
        let merged = Weights { parameters, ..base };
        let (same, full) = full(&mut learning(&merged), [&batch]);
        assert!((loss - same).abs() < 1e-4 * loss, "{name}: {loss}, not {same}");
        for layer in 0..architecture.layers.len() {
            for group in adapter.groups(layer) {
                let matrix = &full.layers[layer].part(group.part).weight;
                for slot in &group.slots {
                    let rows = &matrix[slot.first_row * group.inputs..];
                    let a = &adapter.values[slot.a.clone()];
                    let b = &adapter.values[slot.b.clone()];
                    let at =
                        |row: usize, column: usize| f64::from(rows[row * group.inputs + column]);
                    let into_b = |index: usize| -> f64 {
                        let (row, k) = (index / RANK, index % RANK);
                        let columns = 0..group.inputs;
                        columns.map(|c| at(row, c) * f64::from(a[k * group.inputs + c])).sum()
                    };
                    let into_a = |index: usize| -> f64 {
                        let (k, column) = (index / group.inputs, index % group.inputs);
                        (0..slot.outputs).map(|r| at(r, column) * f64::from(b[r * RANK + k])).sum()
                    };
                    compare(&name, &found[slot.b.clone()], adapter.scale(), into_b);
                    compare(&name, &found[slot.a.clone()], adapter.scale(), into_a);
                }
            }
        }
    }
}

fn compare(name: &str, found: &[f32], scale: f32, expected: impl Fn(usize) -> f64) {
    let largest = found.iter().fold(0f32, |m, v| m.max(v.abs()));
    for (index, &found) in found.iter().enumerate() {
        let expected = f64::from(scale) * expected(index);
        let error = (f64::from(found) - expected).abs();
        assert!(error < 1e-3 * f64::from(largest), "{name}[{index}]: {found}, not {expected}");
    }
}

/// As `RATE`, `RANK` and `ALPHA` in `families.py`.
const RATE: f32 = 2e-3;
const RANK: usize = 4;
const ALPHA: f32 = 8.0;
/// Of a loss, relatively.
const CURVE_TOLERANCE: f64 = 1e-2;

fn compare_curve(name: &str, expected: &[f64], mut step: impl FnMut(u64) -> f64) {
    assert_eq!(expected.len(), 50);
    for (index, expected) in expected.iter().enumerate() {
        let loss = step(index as u64 + 1);
        let error = (loss - expected).abs() / expected;
        assert!(error < CURVE_TOLERANCE, "{name}, step {}: {loss}, not {expected}", index + 1);
    }
}

/// One step as `families.py` makes it.
fn request(scored: f32, step: u64) -> Request {
    Request { settings: Settings::default(), scale: 1.0 / scored, rate: RATE, step }
}

/// One where everything decays.
fn update(moments: &mut AdamW, values: &mut [f32], gradient: &[f32], scored: f32, step: u64) {
    let rule = request(scored, step).rule(norm(&[vec![gradient]])).expect("it is finite");
    assert!(moments.update(&rule, vec![Slice { values, gradient, decays: true }]));
}

#[test]
fn layers_that_are_computed_again_give_the_same_bits() {
    for (name, case) in cases() {
        let weights = load(&name, &case, &case.config, 1);
        let batch = batch(&case);
        let adapter = Adapter::random(&weights.architecture, RANK, ALPHA, 3);
        let computed = |recompute| {
            let mut all = learning(&weights);
            let mut beside = adapting(weights.clone(), &adapter);
            all.set_recompute(recompute);
            beside.set_recompute(recompute);
            (full(&mut all, [&batch]), low_rank(&mut beside, &batch))
        };
        assert_eq!(computed(Recompute::Nothing), computed(Recompute::Layers), "{name}");
    }
}

/// What a sequence has of a gradient does not depend on what it is packed with.
#[test]
fn packed_sequences_learn_as_they_do_alone() {
    for (name, case) in cases() {
        let weights = load(&name, &case, &case.config, 1);
        let sequences = case.tokens.iter();
        let sequences: Vec<Sequence> = sequences.map(|tokens| scored(tokens)).collect();
        let mut executor = learning(&weights);
        let (together, packed) = full(&mut executor, [&Batch::pack(&sequences, usize::MAX)]);
        let alone = sequences.iter().map(|sequence| Batch::pack([sequence], usize::MAX));
        let (alone, one_by_one) = full(&mut executor, &alone.collect::<Vec<_>>());
        assert!((together - alone).abs() < 1e-5 * alone, "{name}: {together}, not {alone}");
        let (found, wanted) = (
            packed.tensors(&weights.architecture).into_iter(),
            one_by_one.tensors(&weights.architecture),
        );
        for ((tensor, found), (_, wanted)) in found.zip(wanted) {
            let largest = wanted.iter().fold(1e-2f32, |most, value| most.max(value.abs()));
            let pairs = found.iter().zip(wanted);
            let error = pairs.fold(0f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(error < 1e-4 * largest, "{name}, {:?}: off by {error}", tensor.name);
        }
    }
}

#[test]
fn full_training_goes_as_with_transformers() {
    for (name, case) in cases() {
        let Some(curves) = &case.curves else { continue };
        let mut weights = load(&name, &case, &case.config, 1);
        let (architecture, batch) = (weights.architecture.clone(), batch(&case));
        let flat = |parameters: &Parameters| -> Vec<f32> {
            parameters.tensors(&architecture).into_iter().flat_map(|(_, v)| v.to_vec()).collect()
        };
        let mut values = flat(&weights.parameters);
        let mut moments = AdamW::new(values.len());
        compare_curve(&name, &curves.full, |step| {
            let (loss, gradient) = full(&mut learning(&weights), [&batch]);
            let scored = batch.rows.len() as f32;
            update(&mut moments, &mut values, &flat(&gradient), scored, step);
            weights.parameters = unflat(&architecture, &values);
            loss / f64::from(scored)
        });
    }
}

/// Parameters from all values in the order of the tensors.
fn unflat(architecture: &Architecture, values: &[f32]) -> Parameters {
    let mut places = Vec::new();
    let mut next = 0;
    for tensor in buffers(architecture).into_iter().flat_map(|buffer| buffer.tensors) {
        places.push((tensor.name, next));
        next += tensor.values();
    }
    let read = |tensor: &Tensor| {
        let place = places.iter().find(|(name, _)| *name == tensor.name).expect("it is there").1;
        Ok(values[place..place + tensor.values()].to_vec())
    };
    Parameters::read(architecture, Numbers::F32, read).expect("all are there")
}

#[test]
fn training_an_adapter_goes_as_with_transformers() {
    for (name, case) in cases() {
        let Some(curves) = &case.curves else { continue };
        let weights = load(&name, &case, &case.config, 1);
        let is_gemma = name.starts_with("gemma");
        let mut adapter = Adapter::zeros(&weights.architecture, RANK, ALPHA);
        for (name, shape, place) in adapter.tensors().collect::<Vec<_>>() {
            if name.contains("lora_A") {
                adapter.values[place].copy_from_slice(&fill(&name, &shape, is_gemma));
            }
        }
        let (mut executor, batch) = (adapting(weights, &adapter), batch(&case));
        compare_curve(&name, &curves.low_rank, |step| {
            let scored = batch.rows.len() as f32;
            let (loss, _) = low_rank(&mut executor, &batch);
            let step = executor.update(request(scored, step)).expect("it is computed");
            assert!(step.is_finite);
            loss / f64::from(scored)
        });
    }
}

#[test]
fn a_configuration_means_the_same_however_it_is_written() {
    let mut rewritten = 0;
    for (name, case) in cases() {
        let Some(config) = &case.rewritten else { continue };
        let (old, new) = (load(&name, &case, &case.config, 1), load(&name, &case, config, 1));
        assert_eq!(old.architecture, new.architecture, "{name}");
        rewritten += 1;
    }
    assert!(rewritten >= 7);
}

#[test]
fn shards_hold_what_one_file_holds() {
    for (name, case) in cases() {
        let (one, three) =
            (load(&name, &case, &case.config, 1), load(&name, &case, &case.config, 3));
        assert_eq!(one.parameters, three.parameters, "{name}");
    }
}

#[test]
fn an_exported_model_is_the_model() {
    let tokenizer = tiny::tokenizer().expect("built in");
    for (name, case) in cases() {
        let weights = load(&name, &case, &case.config, 1);
        let directory = tempfile::tempdir().expect("a temporary directory");
        export::hub(&weights, &tokenizer, directory.path()).expect("written");
        let source = Source::open(&directory.path().display().to_string()).expect("it opens");
        let read = source.weights().expect("it is whole");
        assert_eq!(read.architecture, weights.architecture, "{name}");
        assert_eq!(read.parameters, weights.parameters, "{name}");
    }
}

#[test]
fn a_tensor_that_nothing_uses_is_refused_by_its_name() {
    let (_, mut case) = cases().into_iter().find(|(name, _)| name == "llama").expect("there");
    case.tensors.insert("model.layers.0.self_attn.q_norm.weight".into(), vec![8]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    write(&case, &case.config, 1, directory.path());
    let source = Source::open(&directory.path().display().to_string()).expect("it opens");
    let error = source.weights().expect_err("it has a norm that a Llama has not");
    assert!(error.to_string().contains("self_attn.q_norm.weight"), "{error}");
}

#[test]
fn generation_with_kept_keys_is_that_without() {
    for (name, case) in cases() {
        let weights = load(&name, &case, &case.config, 1);
        let (mut model, prompts) = (Model::new(&weights), vec![case.tokens[1].clone()]);
        let together = generate(&mut model, &prompts, None, 8).expect("short prompts");
        let mut tokens = prompts[0].clone();
        for &expected in &together[0] {
            let next = generate(&mut model, &[tokens.clone()], None, 1).expect("a short prompt");
            assert_eq!(next[0], [expected], "{name}");
            tokens.push(expected);
        }
    }
}

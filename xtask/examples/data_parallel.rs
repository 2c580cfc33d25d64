//! The program of `cargo xtask cluster real`: fits a linear model by gradient descent on any number
//! of ranks, which find each other as `torch.distributed` has it.
//!
//! The data are cut into the same shards whatever the number of ranks, and the first rank adds
//! their gradients up in order of the shards: the weights after a step are the same to the last
//! bit.

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

const SHARDS: usize = 8;
/// Samples of a shard.
const SAMPLES: u64 = 128;
const WEIGHTS: usize = 32;
const RATE: f64 = 0.05;
const SAVE_EVERY: u64 = 20;
/// Until all ranks have met.
const MEETING_MAX: Duration = Duration::from_secs(120);
/// What ended before its work was done, because it was asked to.
const ASKED: u8 = 75;

type Weights = [f64; WEIGHTS];

/// What the first rank tells the others after a step.
const GO_ON: u8 = 0;
const END: u8 = 1;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().collect();
    let [_, steps, pause, output] = words.as_slice() else {
        eprintln!("usage: data_parallel STEPS PAUSE_MS OUTPUT");
        return ExitCode::from(2);
    };
    let [Ok(steps), Ok(pause)] = [steps, pause].map(|word| word.parse()) else {
        eprintln!("data_parallel: STEPS and PAUSE_MS are numbers");
        return ExitCode::from(2);
    };
    match train(steps, Duration::from_millis(pause), Path::new(output)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(ASKED),
        Err(error) => {
            eprintln!("data_parallel: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all steps were done.
fn train(steps: u64, pause: Duration, output: &Path) -> io::Result<bool> {
    let is_asked = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&is_asked))?;
    let (rank, world) = (number("RANK").unwrap_or(0), number("WORLD_SIZE").unwrap_or(1));
    let mut ranks = meet(rank, world)?;
    let (mut step, mut weights) = resume()?;
    while step < steps {
        sleep(pause);
        let mut gradients = [[0.0; WEIGHTS]; SHARDS];
        for shard in (rank..SHARDS).step_by(world) {
            gradients[shard] = gradient(shard, &weights);
        }
        if rank > 0 {
            let first = &mut ranks[0];
            for shard in (rank..SHARDS).step_by(world) {
                first.write_all(&bytes(&gradients[shard]))?;
            }
            weights = read_weights(first)?;
            let mut word = [GO_ON];
            first.read_exact(&mut word)?;
            step += 1;
            if word[0] == END {
                return Ok(step == steps);
            }
            continue;
        }
        for (other, stream) in (1..world).zip(&mut ranks) {
            for shard in (other..SHARDS).step_by(world) {
                gradients[shard] = read_weights(stream)?;
            }
        }
        for gradient in &gradients {
            for (weight, slope) in weights.iter_mut().zip(gradient) {
                *weight -= RATE * slope / (SHARDS as u64 * SAMPLES) as f64;
            }
        }
        step += 1;
        let ends = step == steps || is_asked.load(Ordering::SeqCst);
        for stream in &mut ranks {
            stream.write_all(&bytes(&weights))?;
            stream.write_all(&[if ends { END } else { GO_ON }])?;
        }
        let checkpoint = if ends || step % SAVE_EVERY == 0 { save(step, &weights)? } else { None };
        report(step, steps, checkpoint)?;
        if ends && step < steps {
            return Ok(false);
        }
    }
    if rank == 0 {
        fs::create_dir_all(output)?;
        write_whole(&output.join("weights"), &lines(&weights))?;
    }
    Ok(true)
}

fn number(variable: &str) -> Option<usize> {
    env::var(variable).ok()?.parse().ok()
}

/// The first rank's ways to the others in order, or another's to the first.
fn meet(rank: usize, world: usize) -> io::Result<Vec<TcpStream>> {
    if world == 1 {
        return Ok(Vec::new());
    }
    let port = number("MASTER_PORT").unwrap_or_default() as u16;
    if rank == 0 {
        let listener = TcpListener::bind(("0.0.0.0", port))?;
        let mut ranks: Vec<Option<TcpStream>> = (1..world).map(|_| None).collect();
        while ranks.iter().any(Option::is_none) {
            let (mut stream, _) = listener.accept()?;
            let mut name = [0];
            stream.read_exact(&mut name)?;
            ranks[usize::from(name[0]) - 1] = Some(stream);
        }
        return Ok(ranks.into_iter().flatten().collect());
    }
    let first = env::var("MASTER_ADDR").unwrap_or_default();
    let deadline = Instant::now() + MEETING_MAX;
    loop {
        match TcpStream::connect((first.as_str(), port)) {
            Ok(mut stream) => {
                stream.write_all(&[rank as u8])?;
                return Ok(vec![stream]);
            }
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => sleep(Duration::from_millis(200)),
        }
    }
}

/// Of the squared error on a shard, whose samples follow from its number.
fn gradient(shard: usize, weights: &Weights) -> Weights {
    let mut sum = [0.0; WEIGHTS];
    for sample in 0..SAMPLES {
        let mut state = shard as u64 * SAMPLES + sample + 1;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / f64::from(1 << 23) - 1.0
        };
        let inputs: [f64; WEIGHTS] = std::array::from_fn(|_| draw());
        let wanted: f64 = inputs.iter().enumerate().map(|(at, input)| input * at as f64).sum();
        let told: f64 = inputs.iter().zip(weights).map(|(input, weight)| input * weight).sum();
        for (slope, input) in sum.iter_mut().zip(&inputs) {
            *slope += 2.0 * (told - wanted) * input;
        }
    }
    sum
}

fn bytes(values: &Weights) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn read_weights(stream: &mut TcpStream) -> io::Result<Weights> {
    let mut values = [0.0; WEIGHTS];
    for value in &mut values {
        let mut word = [0; 8];
        stream.read_exact(&mut word)?;
        *value = f64::from_le_bytes(word);
    }
    Ok(values)
}

/// Every bit of each.
fn lines(weights: &Weights) -> String {
    weights.iter().map(|weight| format!("{:016x}\n", weight.to_bits())).collect()
}

/// The step of the checkpoint that is resumed from, and its weights.
fn resume() -> io::Result<(u64, Weights)> {
    let Ok(dir) = env::var("HET_RESUME_FROM") else { return Ok((0, [0.0; WEIGHTS])) };
    let text = fs::read_to_string(Path::new(&dir).join("state"))?;
    let bad = || io::Error::other(format!("`{dir}` is no checkpoint"));
    let mut rows = text.lines();
    let step = rows.next().and_then(|row| row.parse().ok()).ok_or_else(bad)?;
    let values: Option<Vec<f64>> =
        rows.map(|row| u64::from_str_radix(row, 16).ok().map(f64::from_bits)).collect();
    let weights = values.and_then(|values| values.try_into().ok()).ok_or_else(bad)?;
    Ok((step, weights))
}

/// Where it was saved; nowhere where nobody said where to.
fn save(step: u64, weights: &Weights) -> io::Result<Option<String>> {
    let Ok(root) = env::var("HET_CHECKPOINT_DIR") else { return Ok(None) };
    let dir = Path::new(&root).join(format!("checkpoint-{step}"));
    fs::create_dir_all(&dir)?;
    write_whole(&dir.join("state"), &format!("{step}\n{}", lines(weights)))?;
    Ok(Some(dir.display().to_string()))
}

fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension("draft");
    fs::write(&draft, text)?;
    fs::rename(draft, path)
}

/// One line for whoever supervises this.
fn report(step: u64, total: u64, checkpoint: Option<String>) -> io::Result<()> {
    let Ok(path) = env::var("HET_PROGRESS") else { return Ok(()) };
    let checkpoint = checkpoint.map_or(String::new(), |path| {
        format!(",\"checkpoint\":{{\"step\":{step},\"path\":\"{path}\"}}")
    });
    let mut file = fs::File::options().create(true).append(true).open(path)?;
    writeln!(file, "{{\"step\":{step},\"total\":{total}{checkpoint}}}")
}

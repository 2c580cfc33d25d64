//! Speeds of fine-tuning stages from the device catalogue, by a roofline rule: where nobody has
//! measured, a step takes the longer of computing at a part of the peak and of reading the weights.

use het_wire::catalogue;

use super::Speeds;

/// Models that are fine-tuned: name and parameters.
pub const MODELS: [(&str, f64); 4] = [("1b", 1e9), ("3b", 3e9), ("8b", 8e9), ("14b", 14e9)];

/// Tokens of a step of any stage.
pub const TOKENS_PER_STEP: f64 = 16_384.0;

/// Operations a parameter and token: LoRA needs the forward pass and the gradients of activations,
/// but none of frozen weights; validation only the forward pass.
const TRAIN_OPERATIONS: f64 = 4.0;
const VALIDATE_OPERATIONS: f64 = 2.0;

/// Part of its peak that a device reaches, as in published runs (0.35 to 0.45 for H100).
const OF_PEAK: f64 = 0.4;

/// What is left for each when their number doubles.
const DOUBLING: f64 = 0.93;

/// Tokens a core prepares in a second (a byte-pair tokeniser).
const TOKENS_PER_CORE_S: f64 = 20_000.0;

/// Cores of a socket whose peaks are in the catalogue.
const SOCKET: (&str, u32) = ("epyc-9654", 96);

const ACCELERATORS: [(&str, &[u32]); 2] = [("h100-sxm5-80", &[1, 2, 4, 8]), ("ascend-910b", &[1])];

/// Cores that preparing data may have.
const PREPARING_CORES: [u32; 3] = [8, 16, 32];

/// Speeds of `tune-SIZE` and `validate-SIZE` for every model, of `prepare`, and of `load` in
/// seconds. Everything but the H100 is `scale` times as fast as the catalogue says, which is how
/// uncertain those figures are.
pub fn roofline(scale: f64) -> Speeds {
    let mut speeds = Speeds::default();
    for (model, parameters) in MODELS {
        for (class, sizes) in ACCELERATORS {
            let trust = if class.starts_with("h100") { 1.0 } else { scale };
            let Some(figures) = catalogue::figures(class) else { continue };
            let peak = |tera: Option<f64>| tera.unwrap_or(0.0) * 1e12 * OF_PEAK;
            let read_s = 2.0 * parameters / (figures.memory_gbps.unwrap_or(1.0) * 1e9);
            let rate = |operations: f64, peak: f64| {
                let compute_s = operations * parameters * TOKENS_PER_STEP / peak;
                trust / compute_s.max(read_s)
            };
            let train = rate(TRAIN_OPERATIONS, peak(figures.bf16_tflops));
            for &units in sizes {
                let gain = f64::from(units) * DOUBLING.powf(f64::from(units).log2());
                speeds.declare(&format!("tune-{model}"), class, units, train * gain);
            }
            let validate = rate(VALIDATE_OPERATIONS, peak(figures.int8_tops));
            speeds.declare(&format!("validate-{model}"), class, 1, validate);
        }
        if let Some(figures) = catalogue::figures(SOCKET.0) {
            let peak = figures.int8_tops.unwrap_or(0.0) * 1e12 * OF_PEAK;
            let seconds = VALIDATE_OPERATIONS * parameters * TOKENS_PER_STEP / peak;
            speeds.declare(&format!("validate-{model}"), SOCKET.0, SOCKET.1, scale / seconds);
        }
    }
    for cores in PREPARING_CORES {
        let rate = f64::from(cores) * TOKENS_PER_CORE_S / TOKENS_PER_STEP;
        speeds.declare("prepare", SOCKET.0, cores, rate);
    }
    speeds.declare("load", SOCKET.0, 4, 1.0);
    speeds
}

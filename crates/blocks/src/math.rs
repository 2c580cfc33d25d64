//! Row kernels: normalisation, rotation, gating, softmax and cross-entropy.
//!
//! Each is compiled for several instruction sets and picked at run time. Sums run in eight fixed
//! lanes, so that a result does not depend on how rows are shared among threads.

use multiversion::multiversion;

const LANES: usize = 8;

/// `e^x` within 2 ulp over the range of f32 (Cephes `expf`), in a form compilers vectorise.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Adding 1.5 x 2^23 leaves the rounded integer in the low bits of the sum.
    const SHIFT: f32 = 12_582_912.0;
    const SHIFT_BITS: u32 = 0x4b40_0000;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = x - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_2e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    let power = shifted.to_bits().wrapping_sub(SHIFT_BITS).wrapping_add(127) << 23;
    p * f32::from_bits(power)
}

/// Folds `value(i)` for `i` in `0..length` in eight lanes.
#[inline(always)]
fn sum_lanes(length: usize, value: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let whole = length / LANES * LANES;
    let mut start = 0;
    while start < whole {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += value(start + lane);
        }
        start += LANES;
    }
    let mut total: f32 = lanes.iter().sum();
    for index in whole..length {
        total += value(index);
    }
    total
}

/// `out = x / rms(x) * (offset + weight)`; returns `1 / rms(x)`.
#[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn rms_norm(x: &[f32], weight: &[f32], offset: f32, epsilon: f32, out: &mut [f32]) -> f32 {
    let (weight, out) = (&weight[..x.len()], &mut out[..x.len()]);
    let mean_square = sum_lanes(x.len(), |i| x[i] * x[i]) / x.len() as f32;
    let inverse = 1.0 / (mean_square + epsilon).sqrt();
    for i in 0..x.len() {
        out[i] = x[i] * inverse * (offset + weight[i]);
    }
    inverse
}

/// Adds the gradient of [`rms_norm`] with respect to `x` to `gradient`.
#[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn rms_norm_backward(
    upstream: &[f32],
    x: &[f32],
    weight: &[f32],
    offset: f32,
    inverse: f32,
    gradient: &mut [f32],
) {
    let length = x.len();
    let (upstream, weight) = (&upstream[..length], &weight[..length]);
    let gradient = &mut gradient[..length];
    let along = sum_lanes(length, |i| upstream[i] * (offset + weight[i]) * x[i]);
    let pull = along * inverse * inverse * inverse / length as f32;
    for i in 0..length {
        gradient[i] += upstream[i] * (offset + weight[i]) * inverse - x[i] * pull;
    }
}

/// Rotates the two halves of one head by the angles of its position; `turn` is 1 or -1.
#[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn rotate(head: &mut [f32], cosine: &[f32], sine: &[f32], turn: f32) {
    let half = head.len() / 2;
    let (first, second) = head.split_at_mut(half);
    let (second, cosine, sine) = (&mut second[..half], &cosine[..half], &sine[..half]);
    for i in 0..half {
        let (a, b, s) = (first[i], second[i], sine[i] * turn);
        first[i] = a * cosine[i] - b * s;
        second[i] = b * cosine[i] + a * s;
    }
}

/// `out = (x - mean) / deviation * weight + bias`; returns the mean and `1 / deviation`.
#[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn layer_norm(
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    epsilon: f32,
    out: &mut [f32],
) -> [f32; 2] {
    let length = x.len();
    let (weight, bias, out) = (&weight[..length], &bias[..length], &mut out[..length]);
    let mean = sum_lanes(length, |i| x[i]) / length as f32;
    let variance = sum_lanes(length, |i| (x[i] - mean) * (x[i] - mean)) / length as f32;
    let inverse = 1.0 / (variance + epsilon).sqrt();
    for i in 0..length {
        out[i] = (x[i] - mean) * inverse * weight[i] + bias[i];
    }
    [mean, inverse]
}

/// Adds the gradient of [`layer_norm`] with respect to `x` to `gradient`.
#[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn layer_norm_backward(
    upstream: &[f32],
    x: &[f32],
    weight: &[f32],
    mean: f32,
    inverse: f32,
    gradient: &mut [f32],
) {
    let length = x.len();
    let (upstream, weight) = (&upstream[..length], &weight[..length]);
    let gradient = &mut gradient[..length];
    let shift = sum_lanes(length, |i| upstream[i] * weight[i]) / length as f32;
    let along = sum_lanes(length, |i| upstream[i] * weight[i] * (x[i] - mean)) / length as f32;
    let pull = along * inverse * inverse;
    for i in 0..length {
        gradient[i] += (upstream[i] * weight[i] - shift - (x[i] - mean) * pull) * inverse;
    }
}

#[inline(always)]
fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// Value and slope of `x sigmoid(x)`.
#[inline(always)]
fn silu(x: f32) -> [f32; 2] {
    let sigmoid = 1.0 / (1.0 + exp(-x));
    let value = x * sigmoid;
    [value, sigmoid * (1.0 + x - value)]
}

/// Value and slope of `x Φ(x)`; the error function as in Abramowitz & Stegun 7.1.26, whose error is
/// at most 1.5e-7.
#[inline(always)]
fn gelu(x: f32) -> [f32; 2] {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let series = t * (-1.453_152 + t * 1.061_405_4);
    let series = 0.254_829_6 + t * (-0.284_496_74 + t * (1.421_413_8 + series));
    let bell = exp(-z * z);
    let upper = 1.0 - 0.5 * t * series * bell;
    let below = if x < 0.0 { 1.0 - upper } else { upper };
    // 1/√(2π)
    [x * below, below + x * bell * 0.398_942_3]
}

/// Value and slope of `x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2`.
#[inline(always)]
fn gelu_tanh(x: f32) -> [f32; 2] {
    // √(2/π)
    const ROOT: f32 = 0.797_884_6;
    let t = tanh(ROOT * (x + 0.044_715 * x * x * x));
    let slope = ROOT * (1.0 + 3.0 * 0.044_715 * x * x);
    [0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope]
}

#[inline(always)]
fn relu(x: f32) -> [f32; 2] {
    if x > 0.0 { [x, 1.0] } else { [0.0, 0.0] }
}

/// The row kernels of one activation: gated and plain, forward and backward. A row of `gate_up` is
/// the gates and then the ups. A backward also writes what its forward wrote.
macro_rules! activation {
    (
        $value:ident,
        $function:ident,
        $gated:ident,
        $gated_backward:ident,
        $plain:ident,
        $plain_backward:ident
    ) => {
        #[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma", "aarch64+neon"))]
        pub fn $gated(gate_up: &[f32], out: &mut [f32]) {
            let wide = out.len();
            let (gate, up) = gate_up.split_at(wide);
            let up = &up[..wide];
            for i in 0..wide {
                out[i] = $value(gate[i]) * up[i];
            }
        }

        #[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma", "aarch64+neon"))]
        pub fn $gated_backward(
            gate_up: &[f32],
            upstream: &[f32],
            gradient: &mut [f32],
            out: &mut [f32],
        ) {
            let wide = upstream.len();
            let (gate, up) = gate_up.split_at(wide);
            let (into_gate, into_up) = gradient.split_at_mut(wide);
            let (up, into_up, out) = (&up[..wide], &mut into_up[..wide], &mut out[..wide]);
            for i in 0..wide {
                let [value, slope] = $function(gate[i]);
                into_gate[i] = upstream[i] * up[i] * slope;
                into_up[i] = upstream[i] * value;
                out[i] = value * up[i];
            }
        }

        #[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma", "aarch64+neon"))]
        pub fn $plain(x: &[f32], out: &mut [f32]) {
            let out = &mut out[..x.len()];
            for i in 0..x.len() {
                out[i] = $value(x[i]);
            }
        }

        #[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma", "aarch64+neon"))]
        pub fn $plain_backward(x: &[f32], upstream: &[f32], gradient: &mut [f32], out: &mut [f32]) {
            let length = x.len();
            let (upstream, gradient) = (&upstream[..length], &mut gradient[..length]);
            let out = &mut out[..length];
            for i in 0..length {
                let [value, slope] = $function(x[i]);
                gradient[i] = upstream[i] * slope;
                out[i] = value;
            }
        }
    };
}

#[inline(always)]
fn silu_value(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

#[inline(always)]
fn gelu_value(x: f32) -> f32 {
    gelu(x)[0]
}

#[inline(always)]
fn gelu_tanh_value(x: f32) -> f32 {
    gelu_tanh(x)[0]
}

#[inline(always)]
fn relu_value(x: f32) -> f32 {
    relu(x)[0]
}

activation!(silu_value, silu, silu_gated, silu_gated_backward, silu_plain, silu_plain_backward);
activation!(gelu_value, gelu, gelu_gated, gelu_gated_backward, gelu_plain, gelu_plain_backward);
activation!(
    gelu_tanh_value,
    gelu_tanh,
    gelu_tanh_gated,
    gelu_tanh_gated_backward,
    gelu_tanh_plain,
    gelu_tanh_plain_backward
);
activation!(relu_value, relu, relu_gated, relu_gated_backward, relu_plain, relu_plain_backward);

/// `out = base + Σ factors[r] rows[r]`, four rows at a time; `rows` lie one behind the other.
#[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn add_scaled_rows(base: &[f32], rows: &[f32], factors: &[f32], out: &mut [f32]) {
    let length = base.len();
    let out = &mut out[..length];
    out.copy_from_slice(base);
    let (fours, rest) = factors.as_chunks::<4>();
    let (rows, rows_left) = rows.split_at(fours.len() * 4 * length);
    for (rows, factors) in rows.chunks_exact(4 * length).zip(fours) {
        let (a, b) = rows.split_at(2 * length);
        let ((a, b), (c, d)) = (a.split_at(length), b.split_at(length));
        for i in 0..length {
            let first = factors[0] * a[i] + factors[1] * b[i];
            out[i] += first + (factors[2] * c[i] + factors[3] * d[i]);
        }
    }
    for (row, factor) in rows_left.chunks_exact(length).zip(rest) {
        for i in 0..length {
            out[i] += factor * row[i];
        }
    }
}

/// `x = cap tanh(x / cap)` in place (Gemma Team 2024, Gemma 2, section 2).
#[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn soft_cap(row: &mut [f32], cap: f32) {
    let inverse = 1.0 / cap;
    for value in row.iter_mut() {
        *value = cap * tanh(*value * inverse);
    }
}

/// Turns the gradient of capped values into that of the uncapped ones.
#[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn soft_cap_backward(capped: &[f32], cap: f32, gradient: &mut [f32]) {
    let (inverse, gradient) = (1.0 / cap, &mut gradient[..capped.len()]);
    for i in 0..capped.len() {
        let share = capped[i] * inverse;
        gradient[i] *= 1.0 - share * share;
    }
}

#[inline(always)]
fn largest(row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = row.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = if chunk[lane] > lanes[lane] { chunk[lane] } else { lanes[lane] };
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Softmax in place.
#[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn softmax(row: &mut [f32]) {
    let top = largest(row);
    for value in row.iter_mut() {
        *value = exp(*value - top);
    }
    let inverse = 1.0 / sum_lanes(row.len(), |i| row[i]);
    for value in row.iter_mut() {
        *value *= inverse;
    }
}

/// Turns the gradient of a softmax's result into that of its input, times `scale`.
#[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn softmax_backward(probabilities: &[f32], gradient: &mut [f32], scale: f32) {
    let gradient = &mut gradient[..probabilities.len()];
    let mean = sum_lanes(probabilities.len(), |i| probabilities[i] * gradient[i]);
    for i in 0..probabilities.len() {
        gradient[i] = probabilities[i] * (gradient[i] - mean) * scale;
    }
}

/// `-log softmax(logits)[target]`; the logits become the gradient.
#[multiversion(targets("x86_64+avx512f+avx512vl+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn cross_entropy(logits: &mut [f32], target: usize) -> f32 {
    let top = largest(logits);
    let wanted = logits[target] - top;
    for value in logits.iter_mut() {
        *value = exp(*value - top);
    }
    let sum = sum_lanes(logits.len(), |i| logits[i]);
    let inverse = 1.0 / sum;
    for value in logits.iter_mut() {
        *value *= inverse;
    }
    logits[target] -= 1.0;
    sum.ln() - wanted
}

/// Index of the largest value, the first of equals.
pub fn argmax(row: &[f32]) -> usize {
    let top = largest(row);
    row.iter().position(|&value| value == top).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_the_standard_one() {
        for step in -8600..8700 {
            let x = step as f32 * 0.01;
            let (ours, exact) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((ours - exact).abs() <= 3e-7 * exact, "exp({x}) = {ours}, not {exact}");
        }
    }

    #[test]
    fn cross_entropy_of_equal_logits_is_the_logarithm_of_their_number() {
        let mut logits = vec![2.5; 13];
        let loss = cross_entropy(&mut logits, 4);
        assert!((loss - 13f32.ln()).abs() < 1e-6);
        assert!((logits[4] - (1.0 / 13.0 - 1.0)).abs() < 1e-6);
    }
}

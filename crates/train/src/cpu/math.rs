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

/// `out = x / rms(x) * weight`; returns `1 / rms(x)`.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) -> f32 {
    let (weight, out) = (&weight[..x.len()], &mut out[..x.len()]);
    let mean_square = sum_lanes(x.len(), |i| x[i] * x[i]) / x.len() as f32;
    let inverse = 1.0 / (mean_square + epsilon).sqrt();
    for i in 0..x.len() {
        out[i] = x[i] * inverse * weight[i];
    }
    inverse
}

/// Adds the gradient of [`rms_norm`] with respect to `x` to `gradient`.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub fn rms_norm_backward(
    upstream: &[f32],
    x: &[f32],
    weight: &[f32],
    inverse: f32,
    gradient: &mut [f32],
) {
    let length = x.len();
    let (upstream, weight) = (&upstream[..length], &weight[..length]);
    let gradient = &mut gradient[..length];
    let along = sum_lanes(length, |i| upstream[i] * weight[i] * x[i]);
    let pull = along * inverse * inverse * inverse / length as f32;
    for i in 0..length {
        gradient[i] += upstream[i] * weight[i] * inverse - x[i] * pull;
    }
}

/// Rotates the two halves of one head by the angles of its position; `turn` is 1 or -1.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
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

/// `out = silu(gate) * up`, where a row of `gate_up` is the gates and then the ups.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub fn gated(gate_up: &[f32], out: &mut [f32]) {
    let wide = out.len();
    let (gate, up) = gate_up.split_at(wide);
    let up = &up[..wide];
    for i in 0..wide {
        out[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i];
    }
}

/// Turns `gate_up` into its own gradient, given that of [`gated`]'s result.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub fn gated_backward(gate_up: &mut [f32], upstream: &[f32]) {
    let wide = upstream.len();
    let (gate, up) = gate_up.split_at_mut(wide);
    let up = &mut up[..wide];
    for i in 0..wide {
        let sigmoid = 1.0 / (1.0 + exp(-gate[i]));
        let silu = gate[i] * sigmoid;
        let slope = sigmoid * (1.0 + gate[i] - silu);
        gate[i] = upstream[i] * up[i] * slope;
        up[i] = upstream[i] * silu;
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
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
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
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub fn softmax_backward(probabilities: &[f32], gradient: &mut [f32], scale: f32) {
    let gradient = &mut gradient[..probabilities.len()];
    let mean = sum_lanes(probabilities.len(), |i| probabilities[i] * gradient[i]);
    for i in 0..probabilities.len() {
        gradient[i] = probabilities[i] * (gradient[i] - mean) * scale;
    }
}

/// `-log softmax(logits)[target]`; the logits become the gradient.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
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

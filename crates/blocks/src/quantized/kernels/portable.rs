//! What the kernels compute, in plain code.

use super::super::{LANES, QUAD, QUADS_IN_GROUP};
use super::{Group, Out, Panel, Quad, Rows};
use std::array;

pub fn product(panels: &[Panel<'_>], rows: Rows<'_>, out: &mut Out<'_, '_>) {
    for (index, scale) in rows.scales.iter().enumerate() {
        let sums = &rows.sums[index * rows.groups..][..rows.groups];
        for (panel, weights) in panels.iter().enumerate() {
            let values = match weights {
                Panel::Int8 { quads, scales, .. } => int8(quads, scales, rows.row(index)),
                Panel::Int4(groups) => int4(groups, rows.row(index), sums),
            };
            out.write(index, panel, [values], &[*scale]);
        }
    }
}

fn int8(quads: &[Quad], scales: &[f32; LANES], row: &[i32]) -> [f32; LANES] {
    let mut sums = [0i32; LANES];
    for (weights, values) in quads.iter().zip(row) {
        add_quad(weights, *values, &mut sums);
    }
    array::from_fn(|lane| sums[lane] as f32 * scales[lane])
}

fn int4(groups: &[Group], row: &[i32], sums: &[f32]) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for ((group, row), sum) in groups.iter().zip(row.chunks_exact(QUADS_IN_GROUP)).zip(sums) {
        let mut dots = [0i32; LANES];
        for (pair, values) in group.pairs.iter().zip(row.chunks_exact(2)) {
            add_quad(&pair.0.map(|byte| (byte & 0xf) as i8), values[0], &mut dots);
            add_quad(&pair.0.map(|byte| (byte >> 4) as i8), values[1], &mut dots);
        }
        for (lane, (out, dot)) in out.iter_mut().zip(dots).enumerate() {
            let (scale, least) = group.scale(lane);
            *out += dot as f32 * scale + sum * least;
        }
    }
    out
}

fn add_quad(weights: &Quad, values: i32, sums: &mut [i32; LANES]) {
    let values = values.to_le_bytes().map(|byte| i32::from(byte as i8));
    for (lane, sum) in sums.iter_mut().enumerate() {
        for (place, value) in values.iter().enumerate() {
            *sum += i32::from(weights[lane * QUAD + place]) * value;
        }
    }
}

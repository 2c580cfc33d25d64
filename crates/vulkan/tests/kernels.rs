//! Kernels beside the blocks of the processor, and what they refuse.
//!
//! Skipped loudly where no loader or no device is found; Mesa's lavapipe, a device in software, is
//! enough. Whole steps are held against those of the processor by the trainer's tests.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use het_blocks::linear::{Linear, Weight};
use het_blocks::norm::{Kind, Norm, Parameters, STATISTICS};
use het_vulkan::kernels::{ADD, Bounds, Heads, Matrix, REPLACE};
use het_vulkan::{Buffer, Device, Error};

/// The output of a test that passes is not shown, but for what goes past the macros for printing.
fn say(text: &str) {
    writeln!(std::io::stderr(), "{text}").expect("standard error is open");
}

fn device() -> Option<Device> {
    match Device::open(0) {
        Ok(device) => Some(device),
        Err(why) => {
            say(&format!("SKIPPED: {why}"));
            None
        }
    }
}

fn buffer(device: &Device, values: &[f32]) -> Buffer {
    let buffer = device.buffer(values.len()).expect("memory");
    buffer.write(0, values);
    buffer
}

/// Values in ±1.
fn drawn(seed: usize, length: usize) -> Vec<f32> {
    let value = |index: usize| ((index * 37 + seed * 101 + index * index % 89) % 257) as f32;
    (0..length).map(|index| value(index) / 128.0 - 1.0).collect()
}

/// The result of the `cpu` driver's blocks.
fn by_blocks(x: &[f32], norm_weight: &[f32], weight: &[f32], inputs: usize) -> Vec<f32> {
    let norm = Norm { kind: Kind::Rms { offset: 0.5 }, epsilon: 1e-5 };
    let parameters = Parameters { weight: norm_weight, bias: &[] };
    let (mut normed, rows) = (vec![0.0; x.len()], x.len() / inputs);
    norm.forward(x, parameters, &mut normed, &mut vec![0.0; rows * STATISTICS]);
    let mut out = vec![1.0; rows * weight.len() / inputs];
    Linear { inputs, weight: Weight::F32(weight), bias: &[] }.add_forward(&normed, &mut out);
    out
}

#[test]
fn a_norm_and_a_linear_layer_are_those_of_the_processor() {
    let Some(device) = device() else { return };
    say(&format!("a norm and a linear layer are computed on {}", device.name()));
    for (rows, inputs, outputs) in [(1, 1, 1), (33, 70, 21), (64, 576, 960)] {
        let x = drawn(1, rows * inputs);
        let (norm_weight, weight) = (drawn(2, inputs), drawn(3, outputs * inputs));
        let expected = by_blocks(&x, &norm_weight, &weight, inputs);
        let [x, norm_weight, weight] = [&x, &norm_weight, &weight].map(|own| buffer(&device, own));
        let out = buffer(&device, &vec![1.0; rows * outputs]);
        let [normed, inverses] =
            [rows * inputs, rows].map(|length| device.buffer(length).expect("memory"));
        let into = (normed.view(), inverses.view());
        let ran = device.run(|record| {
            record.norm(x.view(), norm_weight.view(), into, (1e-5, 0.5));
            let weight = Matrix::rows(weight.view(), inputs).transpose();
            let normed = Matrix::rows(normed.view(), inputs);
            record.product(Matrix::rows(out.view(), outputs), normed, weight, ADD);
        });
        ran.expect("it runs");
        let largest = expected.iter().fold(0f32, |most, value| most.max(value.abs()));
        for (found, expected) in out.view().to_vec().into_iter().zip(expected) {
            let error = (found - expected).abs() / largest;
            assert!(error < 1e-5, "{rows} × {inputs}: {found}, not {expected}");
        }
    }
}

#[test]
fn what_lies_out_of_a_buffer_is_refused_before_anything_runs() {
    let Some(device) = device() else { return };
    let small = buffer(&device, &[1.0; 12]);
    let refused = |what: &str, run: &dyn Fn()| {
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "{what}");
    };
    refused("a part beyond the end", &|| assert!(!small.view().part(8, 5).is_empty()));
    refused("a part that overflows", &|| assert!(!small.view().part(usize::MAX, 2).is_empty()));
    refused("a product of unlike sizes", &|| {
        let of = |columns| Matrix::rows(small.view(), columns);
        let _ = device.run(|record| record.product(of(3), of(4), of(4), REPLACE));
    });
    refused("a result that is too small", &|| {
        let rows = Matrix::rows(small.view(), 3);
        let into = Matrix::rows(small.view().part(0, 12), 4);
        let _ = device.run(|record| record.product(into, rows, rows.transpose(), REPLACE));
        let short = small.view().part(0, 11);
        let _ = device.run(|record| record.mix(small.view(), short, REPLACE));
    });
    refused("a row of no table", &|| {
        let out = buffer(&device, &[0.0; 4]);
        let _ = device.run(|record| record.gather(small.view(), &[3], (out.view(), 4), 1.0));
    });
    refused("sequences over one another", &|| drop(Bounds::new(&[0, 5, 3])));
    refused("sequences that do not begin at the first row", &|| drop(Bounds::new(&[1, 5])));
    refused("a sequence that is longer than there is room for", &|| {
        let heads = Heads { heads: 1, kv_heads: 1, size: 2, scale: 1.0, longest: 1 };
        let (bounds, out) = (Bounds::new(&[0, 2]), (small.view(), small.view()));
        let _ = device.run(|record| record.attention(small.view(), heads, &bounds, out));
    });
    refused("a buffer of another device", &|| {
        let other = Device::open(0).expect("it was opened before");
        let _ = other.run(|record| record.clear(small.view()));
    });
    assert_eq!(small.view().to_vec(), [1.0; 12]);
    device.run(|_| ()).expect("nothing at all may be run");
}

#[test]
fn a_device_that_is_not_there_is_told_with_how_many_there_are() {
    match Device::open(99) {
        Err(Error::Absent(99, count)) => say(&format!("{count} Vulkan devices")),
        Err(error) => say(&format!("SKIPPED: {error}")),
        Ok(device) => panic!("{device:?}"),
    }
}

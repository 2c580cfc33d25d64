//! The drivers that reach their device through Burn: one plain Llama, differentiated by Burn
//! itself.
//!
//! Nothing here is shared with the hand-written `cpu` driver but the trait, so each checks the
//! other. Frozen weights are plain tensors, for which Burn keeps no gradients.

use crate::batch::Batch;
use crate::config::Config;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::lora::{Adapter, Slot};
use crate::weights::{Layer, Weights};
use burn::backend::Autodiff;
use burn::tensor::activation::{log_softmax, silu, softmax};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Int, Tensor, TensorData};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Starts a driver of this build by name.
pub fn start(name: &str, weights: &Arc<Weights>) -> Result<Box<dyn Driver>> {
    match name {
        #[cfg(feature = "flex")]
        "flex" => guarded::<Autodiff<burn::backend::Flex>>(name, weights),
        #[cfg(feature = "vulkan")]
        "vulkan" => guarded::<Autodiff<burn::backend::Vulkan>>(name, weights),
        #[cfg(feature = "cuda")]
        "cuda" => {
            // Burn 0.21 asks the CUDA library for devices without checking that it is there.
            if !std::path::Path::new("/dev/nvidiactl").exists() {
                let what = "there is no NVIDIA device".to_owned();
                return Err(Error::DriverFailed { driver: name.to_owned(), what });
            }
            guarded::<Autodiff<burn::backend::Cuda>>(name, weights)
        }
        other => Err(Error::DriverMissing { driver: other.to_owned() }),
    }
}

/// Burn panics where a device cannot be opened; that is an ordinary error here.
fn guarded<B: AutodiffBackend + 'static>(
    name: &str,
    weights: &Arc<Weights>,
) -> Result<Box<dyn Driver>> {
    catch(name, || Burn::<B>::new(name, weights)).map(|driver| Box::new(driver) as Box<dyn Driver>)
}

fn catch<T>(driver: &str, work: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let what = text.unwrap_or("it panicked").lines().next().unwrap_or_default().to_owned();
        Error::DriverFailed { driver: driver.to_owned(), what }
    })
}

struct Burn<B: AutodiffBackend> {
    name: String,
    device: B::Device,
    config: Config,
    /// `[vocabulary, hidden]`
    embedding: Tensor<B, 2>,
    norm: Tensor<B, 1>,
    layers: Vec<Frozen<B>>,
    /// `A` and `B` of every slot in the adapter's order; empty without an adapter.
    adapter: Vec<[Tensor<B, 2>; 2]>,
    scale: f32,
}

/// One layer's weights, each matrix transposed to `[in, out]`.
struct Frozen<B: AutodiffBackend> {
    attention_norm: Tensor<B, 1>,
    qkv: Tensor<B, 2>,
    output: Tensor<B, 2>,
    mlp_norm: Tensor<B, 1>,
    gate_up: Tensor<B, 2>,
    down: Tensor<B, 2>,
}

/// What depends on the batch's shape alone.
struct Frame<B: AutodiffBackend> {
    batch: usize,
    length: usize,
    /// `[1, 1, length, head_size / 2]`
    cosine: Tensor<B, 4>,
    sine: Tensor<B, 4>,
    /// `[1, 1, length, length]`, a large negative number where a row may not look.
    mask: Tensor<B, 4>,
}

impl<B: AutodiffBackend> Burn<B> {
    fn new(name: &str, weights: &Weights) -> Self {
        let device = B::Device::default();
        let config = weights.config.clone();
        let table = [config.vocabulary, config.hidden];
        Self {
            name: name.to_owned(),
            embedding: tensor(&weights.embedding, table, &device),
            norm: tensor(&weights.norm, [config.hidden], &device),
            layers: weights.layers.iter().map(|l| Frozen::new(&config, l, &device)).collect(),
            adapter: Vec::new(),
            scale: 0.0,
            device,
            config,
        }
    }

    /// Loss summed over the scored rows.
    fn forward(&self, batch: &Batch) -> Tensor<B, 1> {
        let (tokens, rows) = padded(batch);
        let frame = self.frame(batch.sequences(), tokens.len() / batch.sequences());
        let mut x = self.embedding.clone().select(0, self.indices(&tokens));
        for (index, layer) in self.layers.iter().enumerate() {
            x = self.block(index, layer, x, &frame);
        }
        let x = x.select(0, self.indices(&rows));
        let x = self.normalise(x, &self.norm);
        let logits = x.matmul(self.embedding.clone().transpose());
        let targets = self.indices(&batch.targets).reshape([batch.targets.len(), 1]);
        log_softmax(logits, 1).gather(1, targets).sum().neg()
    }

    fn block(
        &self,
        index: usize,
        layer: &Frozen<B>,
        x: Tensor<B, 2>,
        frame: &Frame<B>,
    ) -> Tensor<B, 2> {
        let normed = self.normalise(x.clone(), &layer.attention_norm);
        let qkv = self.adapted(normed.clone(), &layer.qkv, index, 0..3);
        let mixed = self.attention(qkv, frame);
        let x = x + self.adapted(mixed, &layer.output, index, 3..4);
        let normed = self.normalise(x.clone(), &layer.mlp_norm);
        let gate_up = self.adapted(normed, &layer.gate_up, index, 4..6);
        let wide = self.config.feed_forward;
        let gated = silu(gate_up.clone().narrow(1, 0, wide)) * gate_up.narrow(1, wide, wide);
        x + self.adapted(gated, &layer.down, index, 6..7)
    }

    /// `x W + s (x Aᵀ) Bᵀ`, with the results of a joined matrix's slots side by side.
    fn adapted(
        &self,
        x: Tensor<B, 2>,
        matrix: &Tensor<B, 2>,
        layer: usize,
        slots: std::ops::Range<usize>,
    ) -> Tensor<B, 2> {
        let plain = x.clone().matmul(matrix.clone());
        if self.adapter.is_empty() {
            return plain;
        }
        let parts = slots.map(|slot| {
            let [a, b] = &self.adapter[layer * SLOTS + slot];
            x.clone().matmul(a.clone().transpose()).matmul(b.clone().transpose())
        });
        plain + Tensor::cat(parts.collect(), 1).mul_scalar(self.scale)
    }

    fn attention(&self, qkv: Tensor<B, 2>, frame: &Frame<B>) -> Tensor<B, 2> {
        let Config { heads, kv_heads, head_size: size, .. } = self.config;
        let Frame { batch, length, .. } = *frame;
        let split = |start, heads: usize| {
            let part = qkv.clone().narrow(1, start, heads * size);
            part.reshape([batch, length, heads, size]).swap_dims(1, 2)
        };
        let shared = |kv: Tensor<B, 4>| {
            let kv = kv.reshape([batch, kv_heads, 1, length, size]);
            kv.repeat_dim(2, heads / kv_heads).reshape([batch, heads, length, size])
        };
        let (q_width, kv_width) = (self.config.q_width(), self.config.kv_width());
        let q = rotated(split(0, heads), frame);
        let k = shared(rotated(split(q_width, kv_heads), frame));
        let v = shared(split(q_width + kv_width, kv_heads));
        let scores = q.matmul(k.transpose()).div_scalar((size as f32).sqrt());
        let mixed = softmax(scores + frame.mask.clone(), 3).matmul(v);
        mixed.swap_dims(1, 2).reshape([batch * length, q_width])
    }

    fn normalise(&self, x: Tensor<B, 2>, weight: &Tensor<B, 1>) -> Tensor<B, 2> {
        let mean_square = x.clone().powi_scalar(2).mean_dim(1);
        let root = mean_square.add_scalar(self.config.norm_epsilon).sqrt();
        x / root * weight.clone().unsqueeze()
    }

    fn indices(&self, values: &[u32]) -> Tensor<B, 1, Int> {
        let values: Vec<i32> = values.iter().map(|&value| value as i32).collect();
        let length = values.len();
        Tensor::from_data(TensorData::new(values, [length]), &self.device)
    }

    fn frame(&self, batch: usize, length: usize) -> Frame<B> {
        let half = self.config.head_size / 2;
        let angle = |position: usize, index: usize| {
            let theta = f64::from(self.config.rope_theta);
            position as f64 * theta.powf(-(index as f64) / half as f64)
        };
        let all = |f: fn(f64) -> f64| -> Vec<f32> {
            let places = (0..length).flat_map(|p| (0..half).map(move |i| (p, i)));
            places.map(|(position, index)| f(angle(position, index)) as f32).collect()
        };
        let hidden = |row: usize, column: usize| if column > row { -1e9 } else { 0.0 };
        let places = (0..length).flat_map(|r| (0..length).map(move |c| (r, c)));
        let mask: Vec<f32> = places.map(|(row, column)| hidden(row, column)).collect();
        Frame {
            batch,
            length,
            cosine: tensor(&all(f64::cos), [1, 1, length, half], &self.device),
            sine: tensor(&all(f64::sin), [1, 1, length, half], &self.device),
            mask: tensor(&mask, [1, 1, length, length], &self.device),
        }
    }
}

/// Adapted matrices of a layer: q, k, v, o, gate, up, down.
const SLOTS: usize = 7;

impl<B: AutodiffBackend> Frozen<B> {
    fn new(config: &Config, layer: &Layer, device: &B::Device) -> Self {
        let hidden = config.hidden;
        let matrix = |values: &[f32], inputs: usize| {
            tensor::<B, 2>(values, [values.len() / inputs, inputs], device).transpose()
        };
        Self {
            attention_norm: tensor(&layer.attention_norm, [hidden], device),
            qkv: matrix(&layer.qkv, hidden),
            output: matrix(&layer.output, config.q_width()),
            mlp_norm: tensor(&layer.mlp_norm, [hidden], device),
            gate_up: matrix(&layer.gate_up, hidden),
            down: matrix(&layer.down, config.feed_forward),
        }
    }
}

impl<B: AutodiffBackend> Driver for Burn<B> {
    fn detail(&self) -> String {
        format!("f32 arithmetic through Burn's `{}` backend", B::name(&self.device))
    }

    fn use_adapter(&mut self, adapter: &Adapter) -> Result<()> {
        let name = self.name.clone();
        catch(&name, || {
            self.scale = adapter.scale();
            self.adapter = slots(adapter)
                .map(|(inputs, slot)| {
                    let matrix = |place: &std::ops::Range<usize>, shape| {
                        tensor::<B, 2>(&adapter.values[place.clone()], shape, &self.device)
                            .require_grad()
                    };
                    let rank = adapter.rank;
                    [matrix(&slot.a, [rank, inputs]), matrix(&slot.b, [slot.outputs, rank])]
                })
                .collect();
        })
    }

    fn loss(&mut self, batch: &Batch) -> Result<f64> {
        batch.check_vocabulary(self.config.vocabulary)?;
        if batch.rows.is_empty() {
            return Ok(0.0);
        }
        catch(&self.name, || f64::from(first(self.forward(batch).into_data())))
    }

    fn gradients(&mut self, adapter: &Adapter, batch: &Batch, gradient: &mut [f32]) -> Result<f64> {
        batch.check_vocabulary(self.config.vocabulary)?;
        if batch.rows.is_empty() {
            return Ok(0.0);
        }
        catch(&self.name, || {
            let loss = self.forward(batch);
            let mut gradients = loss.backward();
            for ((_, slot), tensors) in slots(adapter).zip(&self.adapter) {
                for (place, tensor) in [&slot.a, &slot.b].into_iter().zip(tensors) {
                    let found = tensor.grad_remove(&mut gradients);
                    let found = found.expect("every adapter tensor takes part in the loss");
                    let found = found.into_data().convert::<f32>();
                    let found = found.as_slice::<f32>().expect("it was just converted to f32");
                    gradient[place.clone()].iter_mut().zip(found).for_each(|(sum, g)| *sum += g);
                }
            }
            f64::from(first(loss.into_data()))
        })
    }
}

/// Every slot with the width of its input, in the order of `Burn::adapter`.
fn slots(adapter: &Adapter) -> impl Iterator<Item = (usize, &Slot)> {
    let groups = (0..adapter.layers()).flat_map(|layer| adapter.groups(layer));
    groups.flat_map(|group| group.slots.iter().map(|slot| (group.inputs, slot)))
}

fn first(data: TensorData) -> f32 {
    data.convert::<f32>()
        .as_slice::<f32>()
        .ok()
        .and_then(|s| s.first().copied())
        .unwrap_or(f32::NAN)
}

fn tensor<B: AutodiffBackend, const D: usize>(
    values: &[f32],
    shape: [usize; D],
    device: &B::Device,
) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
}

fn rotated<B: AutodiffBackend>(x: Tensor<B, 4>, frame: &Frame<B>) -> Tensor<B, 4> {
    let half = x.dims()[3] / 2;
    let (a, b) = (x.clone().narrow(3, 0, half), x.narrow(3, half, half));
    let (cosine, sine) = (frame.cosine.clone(), frame.sine.clone());
    let first = a.clone() * cosine.clone() - b.clone() * sine.clone();
    Tensor::cat(vec![first, b * cosine + a * sine], 3)
}

/// The batch's tokens as equal rows, padded on the right, and where its scored rows went.
fn padded(batch: &Batch) -> (Vec<u32>, Vec<u32>) {
    let bounds = batch.bounds.windows(2);
    let length = bounds.clone().map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    let mut tokens = Vec::with_capacity(length * batch.sequences());
    for pair in bounds {
        tokens.extend(&batch.tokens[pair[0]..pair[1]]);
        tokens.resize(tokens.len().next_multiple_of(length), 0);
    }
    let rows = batch.rows.iter().map(|&row| {
        let sequence = batch.bounds.partition_point(|&bound| bound <= row) - 1;
        (sequence * length + row - batch.bounds[sequence]) as u32
    });
    (tokens, rows.collect())
}

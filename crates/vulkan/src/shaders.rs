//! The shaders as `shaders/compile` wrote them.

/// In the order of [`SHADERS`].
#[derive(Debug, Clone, Copy)]
pub enum Kernel {
    Attention,
    AttentionKeys,
    AttentionQueries,
    Gate,
    GateBackward,
    Gather,
    Loss,
    Mix,
    Norm,
    NormBackward,
    NormWeight,
    Product,
    Rotate,
    Scatter,
}

pub const SHADERS: [&[u8]; 14] = [
    include_bytes!("shaders/attention.spv"),
    include_bytes!("shaders/attention_keys.spv"),
    include_bytes!("shaders/attention_queries.spv"),
    include_bytes!("shaders/gate.spv"),
    include_bytes!("shaders/gate_backward.spv"),
    include_bytes!("shaders/gather.spv"),
    include_bytes!("shaders/loss.spv"),
    include_bytes!("shaders/mix.spv"),
    include_bytes!("shaders/norm.spv"),
    include_bytes!("shaders/norm_backward.spv"),
    include_bytes!("shaders/norm_weight.spv"),
    include_bytes!("shaders/product.spv"),
    include_bytes!("shaders/rotate.spv"),
    include_bytes!("shaders/scatter.spv"),
];

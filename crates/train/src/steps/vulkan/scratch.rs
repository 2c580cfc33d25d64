//! Buffers that kernels use while they run.

use het_vulkan::kernels::View;
use het_vulkan::{Buffer, Device};
use std::collections::BTreeMap;

/// What a buffer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Normed,
    IntoNormed,
    Inverses,
    Activated,
    IntoActivated,
    IntoUp,
    IntoMixed,
    IntoQkv,
    Scores,
    ThroughA,
    ThroughB,
    Gathered,
    IntoGathered,
    Logits,
    Losses,
}

/// One of each, as long as it ever had to be.
#[derive(Debug, Default)]
pub struct Scratch(BTreeMap<Role, Buffer>);

impl Scratch {
    /// Makes buffers of such lengths, where those that there are are shorter.
    pub fn fit(&mut self, device: &Device, wanted: &[(Role, usize)]) -> Result<&Self, String> {
        for (role, length) in wanted {
            if self.0.get(role).is_none_or(|own| own.len() < *length) {
                // The shorter one makes room first.
                self.0.remove(role);
                let buffer = device.buffer(*length).map_err(|error| error.to_string())?;
                self.0.insert(*role, buffer);
            }
        }
        Ok(self)
    }

    /// The first values of a buffer that was fitted.
    pub fn view(&self, role: Role, length: usize) -> View<'_> {
        self.0[&role].view().part(0, length)
    }
}

//! Names of vertices, taken apart.

use het_core::Vertex;

/// What stands before the last part of a switch's name, and that part.
pub(super) fn parts(vertex: &Vertex) -> (&str, &str) {
    match vertex {
        Vertex::Switch(name) => name.as_str().rsplit_once('/').unwrap_or(("", name.as_str())),
        Vertex::Node(_) | Vertex::Device(_) => ("", ""),
    }
}

/// Of a card, whether training sends over it: not one of the storage or the business network.
pub(super) fn carries_training(card: &Vertex) -> bool {
    parts(card).1.starts_with("nic")
}

//! What the ranks of a job are to know of the fabric, as collective libraries take it: variables
//! for NCCL and HCCL, and HCCL's rank table.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::topology::{Card, Distance};

/// Differentiated services of a lossless queue, with the bits that say "marking understood": 8
/// codepoints a queue, the third of them, as RoCE guides set queue 3 to 26.
fn traffic_class(queue: u8) -> u8 {
    (queue * 8 + 2) << 2
}

/// For a rank of a node with these cards, the card of each of its devices.
///
/// `NCCL_IB_HCA` names cards exactly, so that storage and business cards are left alone;
/// `NCCL_NET_GDR_LEVEL` allows direct access as far as the farthest card is; `NCCL_CROSS_NIC=0`
/// keeps rings on their rail where each card has a leaf of its own.
pub fn nccl(cards: &[Card], queue: u8) -> BTreeMap<&'static str, String> {
    let names = unique(cards.iter().map(|card| card.name.as_str()));
    let leaves = unique(cards.iter().filter_map(|card| card.leaf.as_deref()));
    let farthest = cards.iter().map(|card| card.distance).max().unwrap_or(Distance::Switch);
    let by_rails = names.len() > 1 && leaves.len() == names.len();
    BTreeMap::from([
        ("NCCL_IB_HCA", format!("={}", names.join(","))),
        ("NCCL_NET_GDR_LEVEL", farthest.word().to_owned()),
        ("NCCL_CROSS_NIC", if by_rails { "0" } else { "2" }.to_owned()),
        ("NCCL_IB_GID_INDEX", "3".to_owned()),
        // With the bit of ECN.
        ("NCCL_IB_TC", (traffic_class(queue) | 2).to_string()),
    ])
}

/// For a rank of NPUs, whose cards are their own.
pub fn hccl(rank: u32, queue: u8) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("RANK_ID", rank.to_string()),
        ("HCCL_RDMA_TC", traffic_class(queue).to_string()),
        ("HCCL_RDMA_SL", queue.to_string()),
    ])
}

fn unique<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut unique: Vec<&str> = Vec::new();
    for name in names {
        if !unique.contains(&name) {
            unique.push(name);
        }
    }
    unique
}

/// A node of a rank table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    pub address: String,
    /// Number on its node, address of its card, rank.
    pub devices: Vec<(u32, String, u32)>,
}

/// HCCL's rank table, version 1.0 (CANN, "ranktable resource configuration file").
pub fn rank_table(servers: &[Server]) -> Value {
    let list = servers.iter().map(|server| {
        let devices = server.devices.iter().map(|(device, address, rank)| {
            json!({
                "device_id": device.to_string(),
                "device_ip": address,
                "rank_id": rank.to_string(),
            })
        });
        json!({ "server_id": server.address, "device": devices.collect::<Vec<_>>() })
    });
    json!({
        "status": "completed",
        "version": "1.0",
        "server_count": servers.len().to_string(),
        "server_list": list.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_named_and_rings_stay_on_rails() {
        let card = |name: &str, leaf: &str, distance| Card {
            name: name.to_owned(),
            distance,
            leaf: Some(leaf.to_owned()),
        };
        let cards = [
            card("mlx5_0", "pod0/leaf0", Distance::Switch),
            card("mlx5_1", "pod0/leaf1", Distance::Switches),
        ];
        let rail = nccl(&cards, 3);
        assert_eq!(rail["NCCL_IB_HCA"], "=mlx5_0,mlx5_1");
        assert_eq!(rail["NCCL_NET_GDR_LEVEL"], "PXB");
        assert_eq!((rail["NCCL_CROSS_NIC"].as_str(), rail["NCCL_IB_TC"].as_str()), ("0", "106"));
        let shared = nccl(&[cards[0].clone(), card("mlx5_1", "pod0/leaf0", Distance::Switch)], 3);
        assert_eq!(shared["NCCL_CROSS_NIC"], "2");
    }

    #[test]
    fn a_rank_table_has_every_device() {
        let devices = vec![(0, "192.168.1.8".to_owned(), 0), (1, "192.168.1.9".to_owned(), 1)];
        let table = rank_table(&[Server { address: "10.0.0.1".to_owned(), devices }]);
        assert_eq!(table["server_count"], "1");
        assert_eq!(table["server_list"][0]["device"][1]["rank_id"], "1");
    }
}

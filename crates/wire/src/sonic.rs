//! Thresholds of marking and pausing as SONiC's `config_db.json` has them: tables `WRED_PROFILE`,
//! `QUEUE`, `BUFFER_PROFILE` and `PORT_QOS_MAP` of its configuration schema.

use serde_json::{Value, json};

/// Name of our profile in every table.
const PROFILE: &str = "HETEROSIS_ROCE";

/// What a port is to be set to. Bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PortThresholds {
    pub mark_min: u64,
    pub mark_max: u64,
    /// Greatest probability of marking, in percent: SONiC takes whole ones.
    pub mark_percent: u32,
    pub pause: u64,
    pub resume: u64,
    pub headroom: u64,
}

/// The tables for these ports, lossless traffic in `queue` (and the priority of that number).
pub fn config_db(thresholds: &PortThresholds, ports: &[String], queue: u8) -> Value {
    let text = |number: u64| number.to_string();
    let keyed = |value: &dyn Fn(&str) -> (String, Value)| -> Value {
        Value::Object(ports.iter().map(|port| value(port)).collect())
    };
    json!({
        "WRED_PROFILE": { PROFILE: {
            "ecn": "ecn_all",
            "wred_green_enable": "true",
            "green_min_threshold": text(thresholds.mark_min),
            "green_max_threshold": text(thresholds.mark_max),
            "green_drop_probability": thresholds.mark_percent.to_string(),
        } },
        "BUFFER_PROFILE": { PROFILE: {
            "pool": "ingress_lossless_pool",
            "size": "0",
            "static_th": text(thresholds.pause),
            "xoff": text(thresholds.headroom),
            "xon": text(thresholds.resume),
        } },
        "BUFFER_PG": keyed(&|port| (format!("{port}|{queue}"), json!({ "profile": PROFILE }))),
        "QUEUE": keyed(&|port| (format!("{port}|{queue}"), json!({ "wred_profile": PROFILE }))),
        "PORT_QOS_MAP": keyed(&|port| {
            (port.to_owned(), json!({ "pfc_enable": queue.to_string() }))
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_has_its_rows() {
        let thresholds = PortThresholds {
            mark_min: 100_000,
            mark_max: 400_000,
            mark_percent: 20,
            pause: 2_000_000,
            resume: 1_990_000,
            headroom: 60_000,
        };
        let tables = config_db(&thresholds, &["Ethernet0".to_owned(), "Ethernet8".to_owned()], 3);
        assert_eq!(tables["WRED_PROFILE"][PROFILE]["green_min_threshold"], "100000");
        assert_eq!(tables["QUEUE"]["Ethernet8|3"]["wred_profile"], PROFILE);
        assert_eq!(tables["PORT_QOS_MAP"]["Ethernet0"]["pfc_enable"], "3");
    }
}

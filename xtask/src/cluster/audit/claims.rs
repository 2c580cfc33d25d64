//! What an audit log says of claims: no device allocated for two at a time.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{NOT_FOUND, Write};

/// A device that a claim had.
struct Allocation<'a> {
    claim: &'a str,
    device: String,
    /// When it certainly had it, and when it may have given it back.
    since: &'a str,
    until: Option<&'a str>,
}

/// Devices that certainly were allocated for two claims at a time; also how many allocations there
/// are.
pub(super) fn twice(writes: &[Write<'_>]) -> (Vec<String>, usize) {
    let allocations = allocations(writes);
    let mut by_device: BTreeMap<&str, Vec<&Allocation<'_>>> = BTreeMap::new();
    for allocation in &allocations {
        by_device.entry(&allocation.device).or_default().push(allocation);
    }
    let overlap = |one: &Allocation<'_>, other: &Allocation<'_>| {
        other.until.is_none_or(|until| one.since < until)
            && one.until.is_none_or(|until| other.since < until)
    };
    let mut broken = Vec::new();
    for (device, of_device) in by_device {
        for (at, one) in of_device.iter().enumerate() {
            let other = of_device[..at].iter().find(|other| overlap(one, other));
            broken.extend(other.map(|other| {
                format!("device {device} was of `{}` and of `{}`", other.claim, one.claim)
            }));
        }
    }
    (broken, allocations.len())
}

fn allocations<'a>(writes: &'a [Write<'a>]) -> Vec<Allocation<'a>> {
    let mut allocations: Vec<Allocation<'a>> = Vec::new();
    let claims = writes.iter().filter(|write| write.resource == "resourceclaims");
    for write in claims {
        let has_none = write.code == NOT_FOUND || write.verb == "delete" || gives_back(write);
        let results = &write.body["status"]["allocation"]["devices"]["results"];
        let results = results.as_array().filter(|_| write.subresource == "status");
        let of_claim = allocations.iter_mut().filter(|it| it.claim == write.name);
        if has_none {
            of_claim.for_each(|it| it.until = it.until.or(Some(write.received)));
            continue;
        }
        // Whoever writes the whole object writes again what was there.
        if write.verb == "patch" {
            allocations.extend(results.into_iter().flatten().map(|result| Allocation {
                claim: &write.name,
                device: name_of(result),
                since: write.answered,
                until: None,
            }));
        }
    }
    allocations
}

fn gives_back(write: &Write<'_>) -> bool {
    let status = &write.body["status"];
    write.subresource == "status"
        && status["allocation"].is_null()
        && (write.verb == "update" || status.get("allocation").is_some())
}

fn name_of(result: &Value) -> String {
    let word = |field: &str| result[field].as_str().unwrap_or_default();
    format!("{}/{}/{}", word("driver"), word("pool"), word("device"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::check;
    use super::super::tests::line;

    fn allocated(at: u32, claim: &str) -> String {
        let result = json!({ "request": "a", "driver": "d", "pool": "p", "device": "gpu-0" });
        let status = json!({ "allocation": { "devices": { "results": [result] } } });
        line(at, "patch", ("resourceclaims/status", claim), &json!({ "status": status }))
    }

    fn given_back(at: u32, claim: &str) -> String {
        line(at, "update", ("resourceclaims/status", claim), &json!({ "status": {} }))
    }

    #[test]
    fn a_device_is_of_one_claim_at_a_time() {
        let log = allocated(1, "a") + &given_back(3, "a") + &allocated(4, "b");
        let found = check(&log, 8);
        assert_eq!((found.broken, found.allocations), (Vec::new(), 2));
        let log = allocated(1, "a") + &allocated(3, "b") + &given_back(4, "a");
        let broken = check(&log, 8).broken;
        assert_eq!(broken, ["device d/p/gpu-0 was of `n/a` and of `n/b`"]);
    }
}

use serde_json::json;

use super::objects::Attribute;
use super::*;

/// A device of the pool of `node-1`.
pub(super) fn gpu(name: &str) -> DeviceRow {
    DeviceRow {
        id: DeviceId {
            driver: "gpu.nvidia.com".into(),
            pool: "node-1".into(),
            device: name.into(),
        },
        attributes: [(
            "productName".to_owned(),
            Attribute::Text("NVIDIA A100-SXM4-80GB".to_owned()),
        )]
        .into(),
        capacity: BTreeMap::new(),
    }
}

pub(super) fn claimable(row: DeviceRow, resource: &str) -> Claimable {
    let known =
        super::known(&DeviceTable::default(), &row).expect("it is of a driver that is known");
    Claimable { resource: resource.into(), ..Claimable::of(row, &"node-1".into(), known) }
}

fn slice(name: &str, (generation, slices): (i64, i64), devices: &[&str]) -> SliceRow {
    SliceRow {
        name: name.into(),
        driver: "gpu.nvidia.com".into(),
        pool: "node-1".into(),
        generation,
        slices,
        node: Some("node-1".into()),
        devices: devices.iter().map(|name| gpu(name)).collect(),
    }
}

fn offered(dra: &Dra) -> Vec<String> {
    dra.of_node(&"node-1".into())
        .map(|it| format!("{} {}", it.resource, it.row.id.device))
        .collect()
}

#[test]
fn a_pool_is_offered_as_a_whole_and_as_it_is_by_now() {
    let mut dra = Dra::default();
    assert_eq!(dra.see_slice(slice("a", (1, 2), &["gpu-0"])), PoolChange::default());
    assert_eq!(offered(&dra), Vec::<String>::new(), "a part is missing");
    dra.see_slice(slice("b", (1, 2), &["gpu-1"]));
    let resource = "gpu.nvidia.com:a100-sxm4-80";
    assert_eq!(offered(&dra), [format!("{resource} gpu-0"), format!("{resource} gpu-1")]);
    dra.see_slice(slice("c", (2, 1), &["gpu-1"]));
    assert_eq!(
        offered(&dra),
        [format!("{resource} gpu-1")],
        "the others are of a generation before"
    );
    let changed = dra.see_slice_gone(&"c".into());
    assert_eq!(changed.nodes.into_iter().collect::<Vec<_>>(), ["node-1"]);
    assert_eq!(offered(&dra).len(), 2);
    let rule: TaintRuleObject = serde_json::from_value(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule",
        "metadata": { "name": "broken" },
        "spec": {
            "deviceSelector": { "driver": "gpu.nvidia.com", "device": "gpu-1" },
            "taint": { "key": "broken", "effect": "NoExecute" },
        },
    }))
    .expect("it is one");
    dra.see_taint_rule("broken".to_owned(), TaintRule::of(rule));
    assert_eq!(offered(&dra), [format!("{resource} gpu-0")]);
    dra.see_taint_rule("broken".to_owned(), None);
    assert_eq!(offered(&dra).len(), 2);
}

#[test]
fn a_device_that_is_not_one_claims_alone_is_not_offered() {
    let device = |name: &str, more: serde_json::Value| {
        let mut device = json!({
            "name": name, "attributes": { "productName": { "string": "NVIDIA A100-SXM4-80GB" } },
        });
        device.as_object_mut().expect("it is one").extend(more.as_object().cloned().unwrap());
        device
    };
    let slice: SliceObject = serde_json::from_value(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": { "name": "a" },
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": "node-1",
            "pool": { "name": "node-1", "generation": 1, "resourceSliceCount": 1 },
            "devices": [
                device("whole", json!({ "capacity": { "memory": { "value": "80Gi" } } })),
                device("tainted", json!({ "taints": [{ "key": "a", "effect": "NoSchedule" }] })),
                device("part", json!({ "consumesCounters": [{ "counterSet": "a" }] })),
                device("shared", json!({ "allowMultipleAllocations": true })),
                device("late", json!({ "bindingConditions": ["ready"] })),
            ],
        },
    }))
    .expect("it is one");
    let row = SliceRow::of(slice).expect("it has a name");
    let names: Vec<&str> = row.devices.iter().map(|device| device.id.device.as_str()).collect();
    assert_eq!(names, ["whole"]);
    assert_eq!(row.devices[0].capacity["memory"], 80 * 1_024u64.pow(3) * 1_000);
}

fn asks(devices: serde_json::Value) -> Result<ClaimAsk, String> {
    let claim: ClaimObject = serde_json::from_value(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": { "name": "a", "namespace": "b", "uid": "c" },
        "spec": { "devices": devices },
    }))
    .expect("it is one");
    ClaimRow::of(claim, "heterosis").expect("it has a name").asks
}

fn exactly(name: &str, request: serde_json::Value) -> serde_json::Value {
    json!({ "name": name, "exactly": request })
}

#[test]
fn what_a_claim_asks_for_is_read() {
    let one = json!({ "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2 });
    let ask = asks(json!({ "requests": [exactly("a", one.clone()), exactly("b", one.clone())] }));
    let ask = ask.expect("it is considered");
    assert_eq!(ask.requests, [("a".to_owned(), 2), ("b".to_owned(), 2)]);
    assert_eq!(ask.options.iter().map(|option| option.count).collect::<Vec<_>>(), [4]);
    let first = json!([
        { "name": "large", "deviceClassName": "a100" },
        { "name": "small", "deviceClassName": "v100", "count": 2 },
    ]);
    let ask = asks(json!({ "requests": [{ "name": "a", "firstAvailable": first }] }));
    let options = ask.expect("it is considered").options;
    let options = options.iter().map(|it| (it.name.as_deref(), it.class.as_str(), it.count));
    assert_eq!(
        options.collect::<Vec<_>>(),
        [(Some("large"), "a100", 1), (Some("small"), "v100", 2)]
    );
}

#[test]
fn what_of_a_claim_is_not_considered_is_said() {
    let one = json!({ "deviceClassName": "gpu" });
    for (devices, what) in [
        (json!({}), "without requests"),
        (
            json!({
                "requests": [exactly("a", one.clone())],
                "constraints": [{ "matchAttribute": "a/b" }],
            }),
            "constraints",
        ),
        (
            json!({ "requests": [exactly("a", one), exactly("b", json!({
                "deviceClassName": "nic",
            }))] }),
            "different devices",
        ),
        (
            json!({ "requests": [exactly("a", json!({
                "deviceClassName": "gpu", "allocationMode": "All",
            }))] }),
            "all devices",
        ),
        (
            json!({ "requests": [exactly("a", json!({
                "deviceClassName": "gpu", "adminAccess": true,
            }))] }),
            "adminAccess",
        ),
        (
            json!({ "requests": [exactly("a", json!({
                "deviceClassName": "gpu", "capacity": { "requests": { "memory": "1Gi" } },
            }))] }),
            "part of a device",
        ),
        (json!({ "requests": [{ "name": "a" }] }), "not known"),
        (
            json!({ "requests": [exactly("a", json!({
                "deviceClassName": "gpu", "count": 33,
            }))] }),
            "more than 32",
        ),
    ] {
        let told = asks(devices).expect_err(what);
        assert!(told.contains(what), "{told}: {what}");
    }
}

#[test]
fn the_first_option_that_the_devices_do_for_is_taken() {
    let mut dra = Dra::default();
    dra.see_slice(slice("a", (1, 1), &["gpu-0", "gpu-1"]));
    let class = |selector: &str| ClassRow { selectors: vec![selector.to_owned()], config: vec![] };
    let of = "device.attributes['gpu.nvidia.com'].productName";
    dra.see_class("any".to_owned(), class("device.driver == 'gpu.nvidia.com'"));
    dra.see_class("h100".to_owned(), class(&format!("{of}.contains('H100')")));
    let option = |class: &str, count| AskOption {
        name: Some(class.to_owned()),
        class: class.to_owned(),
        selectors: Vec::new(),
        count,
    };
    let ask = ClaimAsk {
        requests: vec![("a".to_owned(), 1)],
        options: vec![option("h100", 2), option("any", 1), option("any", 2)],
    };
    let resource = "gpu.nvidia.com:a100-sxm4-80";
    let chosen = |count| dra.option_for(&ask, (&"node-1".into(), resource, count));
    assert_eq!(chosen(2), Some(&ask.options[2]));
    assert_eq!(chosen(1), Some(&ask.options[1]));
    assert_eq!(chosen(3), None);
    assert_eq!(dra.class_for(&"node-1".into(), resource), Some("any"));
    assert_eq!(dra.class_for(&"node-2".into(), resource), None);
    let missing = dra.rule(&option("none", 1)).map(drop);
    assert!(matches!(missing, Err(NoRule::NoClass(told)) if told.contains("`none`")));
}

//! Quota files: what they mean, and everything that is wrong with one at once.

use het_core::{Bytes, Priority, Quotas, Share};
use het_testkit::build;
use het_wire::quotas::parse;

const HEAD: &str = "apiVersion: heterosis.dev/v1alpha1\nkind: Quotas\ntenants:\n";

fn read(tenants: &str) -> Result<Quotas, String> {
    let topology = build::topology(&[(&[("v100", 8), ("p100", 16), ("k80", 24)], 8)]);
    parse(&format!("{HEAD}{tenants}"), "quotas.yaml", &topology)
        .map_err(|problems| problems.to_string())
}

fn check(tenants: &str, expected: &[&str]) {
    let told = read(tenants).expect_err("the file is wrong");
    for part in expected {
        assert!(told.contains(part), "`{part}` is not in\n{told}");
    }
}

#[test]
fn the_shipped_example_is_valid() {
    let text = include_str!("../../../examples/quotas.yaml");
    let topology = build::topology(&[(&[("v100", 8), ("p100", 16), ("k80", 24)], 8)]);
    let quotas = parse(text, "quotas.yaml", &topology).expect("the example is valid");
    assert_eq!(quotas.weight("research"), 2);
    assert_eq!(quotas.of("research/nlp", "v100").entitled, Some(Share::units(2)));
    assert_eq!(quotas.of("product", "k80").limit, Some(Share::units(12)));
}

#[test]
fn the_nearest_tenant_says_how_urgent_a_job_may_be() {
    let tenants =
        "  lab: { priority_max: high }\n  lab/ops: { priority_max: urgent }\n  shop: {}\n";
    let quotas = read(&format!("{tenants}priority_max: normal")).expect("it is right");
    let max = |tenant: &str| quotas.priority_max(tenant);
    assert_eq!([max("lab"), max("lab/nlp")], [Priority::High; 2]);
    assert_eq!(max("lab/ops/night"), Priority::Urgent);
    assert_eq!([max("shop"), max("nobody")], [Priority::Normal; 2]);
    let unlimited = read("  shop: {}").expect("it is right");
    assert_eq!(unlimited.priority_max("shop"), Priority::Urgent);
    check("  lab: { priority_max: low }", &["less than jobs have", "`normal`"]);
}

#[test]
fn the_nearest_tenant_says_what_a_job_may_take_up_of_a_disk() {
    let quotas = read("  lab: { scratch_max: 2TiB }\n  shop: {}\nscratch_max: 200GiB");
    let quotas = quotas.expect("it is right");
    assert_eq!(quotas.scratch_max("lab/nlp"), Some(Bytes::gib(2048)));
    assert_eq!(quotas.scratch_max("shop"), Some(Bytes::gib(200)));
    assert_eq!(read("  shop: {}").expect("it is right").scratch_max("shop"), None);
    check("  lab: { scratch_max: much }", &["`much` is no disk space", "`200GiB`"]);
}

#[test]
fn every_mistake_is_told_with_its_place_and_a_hint() {
    check("  lab: { wieght: 2 }", &["unknown field `wieght`", ":4:10", "did you mean `weight`?"]);
    check("  lab: { weight: 0 }", &["weight"]);
    check("  lab: { quota: { a100: 2 } }", &["no device class of this cluster", "`v100`"]);
    check("  lab//nlp: {}", &["no name of a tenant", "write `lab`"]);
    check("  lab: { quota: { v100: 4 }, limit: { v100: 2 } }", &["above its limit"]);
    check(
        "  lab: { quota: { v100: 6 } }\n  shop: { quota: { v100: 6 } }",
        &["quotas of 12 `v100` are given away, but the cluster has 8"],
    );
    check(
        "  lab: { quota: { v100: 4 } }\n  lab/nlp: { quota: { v100: 6 } }",
        &["quotas of 6 `v100` are given away, but lab has 4"],
    );
}

#[test]
fn the_shipped_schema_is_the_newest() {
    let shipped: serde_json::Value =
        serde_json::from_str(include_str!("../../../examples/quotas.schema.json"))
            .expect("the schema is JSON");
    assert_eq!(shipped, het_wire::quotas::json_schema(), "`het schema quotas` writes the newest");
}

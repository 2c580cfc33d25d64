//! `het topo` of templates and files.

use crate::support::Sandbox;

#[test]
fn a_template_as_a_tree() {
    assert_told!(Sandbox::new().told(&["topo", "hgx-a100-8x4+rail"]));
}

#[test]
fn a_template_as_a_table() {
    assert_told!(Sandbox::new().told(&["topo", "atlas-a3", "-o", "table"]));
}

#[test]
fn a_template_that_does_not_exist() {
    assert_told!(Sandbox::new().told(&["topo", "hgx-h100-9"]));
}

#[test]
fn a_file_with_a_dangling_link() {
    let sandbox = Sandbox::new();
    let head = "apiVersion: heterosis.dev/v1alpha1\nkind: Cluster\nmetadata: { name: lab }\n";
    let nodes = "nodes:\n  - devices: [{ name: gpu0, class: t4 }]\n    links:\n      \
                 - { from: gpu0, to: cpu0, kind: pcie }\n";
    sandbox.write("lab.yaml", &format!("{head}{nodes}"));
    assert_told!(sandbox.told(&["topo", "lab.yaml"]));
}

#[test]
fn a_picture_of_many_nodes_stays_small() {
    let output = Sandbox::new().run(&["topo", "hgx-h100-8x2048+rail", "-o", "svg"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
    let shapes = text.matches("<rect ").count() + text.matches("<path ").count();
    assert!(shapes < 400, "{shapes} shapes");
}

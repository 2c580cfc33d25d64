//! Nodes that join and leave with nothing waiting: time of a turn and memory.
//!
//! `cargo run --release -p het-lab --example membership [NODES_AT_ONCE] [JOINS]`

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use het_control::Controller;
use het_core::{Event, NodeId, State, Topology};
use het_engine::Fake;
use het_perf::Rates;
use het_policy::by_name;
use het_wire::topology::from_word;

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let mut args = std::env::args().skip(1);
    let mut number =
        |default: usize| args.next().map_or(default, |word| word.parse().expect("a number"));
    let (at_once, joins) = (number(1_000), number(10_000));
    let template = from_word("hgx-h100-8").expect("a template").topology;
    let policy = by_name("adaptive").expect("the table has it");
    let state = State::new(Arc::new(Topology::default()));
    let mut control = Controller::new(state, Rates::default(), policy, Fake::default(), ());
    let (mut turns, mut present) = (Vec::new(), VecDeque::new());
    let first = from_word(&format!("hgx-h100-8x{at_once}")).expect("a template").topology;
    present.extend(first.nodes.iter().map(|node| node.name.clone()));
    control.accept(Event::NodesJoined { nodes: Arc::new(first) });
    writeln!(
        out,
        "{at_once} nodes at once: a turn of {:.0} ms",
        turn(&mut control).as_secs_f64() * 1e3
    )?;
    for number in at_once..at_once + joins {
        let joining = named(&template, number);
        present.push_back(joining.nodes[0].name.clone());
        control.accept(Event::NodesJoined { nodes: Arc::new(joining) });
        turns.push(turn(&mut control));
        if present.len() > at_once {
            let name = present.pop_front().expect("it is not empty");
            control.accept(Event::NodeRemoved { name });
            turns.push(turn(&mut control));
        }
        if (number + 1 - at_once) % (joins / 10).max(1) == 0 {
            let rows = control.state().topology().nodes.len();
            writeln!(
                out,
                "{:>7} joined: {rows} rows, {} MB, {}",
                number + 1 - at_once,
                memory_mb(),
                summary(&turns)
            )?;
            turns.clear();
        }
    }
    Ok(())
}

/// The template's node under another name, with switches of its own.
fn named(template: &Topology, number: usize) -> Topology {
    let mut node = template.only(NodeId(0));
    let before = node.nodes[0].name.clone();
    let name = format!("node-{number}");
    for link in &mut node.links {
        for end in [&mut link.from, &mut link.to] {
            if let het_core::Vertex::Switch(switch) = end
                && let Some(rest) = switch.as_str().strip_prefix(&format!("{before}/"))
            {
                *switch = format!("{name}/{rest}").into();
            }
        }
    }
    for device in &mut node.devices {
        device.visible_id = format!("{name}-{}", device.name).into();
    }
    node.nodes[0].name = name.into();
    node
}

fn turn(control: &mut Controller<Fake, ()>) -> Duration {
    let began = Instant::now();
    let now = control.now();
    control.turn(Some(now)).expect("the log is nowhere");
    began.elapsed()
}

fn summary(turns: &[Duration]) -> String {
    let mut sorted = turns.to_vec();
    sorted.sort_unstable();
    let at = |part: usize| sorted[(sorted.len() - 1) * part / 100].as_secs_f64() * 1e3;
    format!("turn p50 {:.2} ms, p99 {:.2} ms", at(50), at(99))
}

fn memory_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1_024
}

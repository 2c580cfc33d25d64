//! Packets followed one by one through first-in-first-out queues, with senders that set their rate
//! from what comes back. What a model of shares cannot tell: short flows that stand in the queues
//! of long ones, newcomers at line rate, rates that recover slowly. Nothing is lost: a fabric for
//! training is held lossless, and queues here are as long as windows make them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::rate_control::{Ack, Hop, Sender};
use super::{Control, LinkId, Marking, Network};

/// So much data for the other end of a path.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    pub arrival_s: f64,
    /// Without headers.
    pub bytes: u64,
    pub path: Vec<LinkId>,
}

/// What packets look like and how they are sent.
#[derive(Debug, Clone, PartialEq)]
pub struct PacketModel {
    pub payload_bytes_max: u32,
    pub header_bytes: u32,
    /// Bytes that a sender may have under way at line rate; less in proportion to its rate.
    pub window_bytes: f64,
    pub marking: Marking,
    pub control: Control,
    /// For the choice of packets that are marked.
    pub seed: u64,
}

/// Seconds from arrival to the last byte at the other end, of every message in their order.
///
/// # Panics
/// When a path has no finite link: nothing says how fast its sender is.
pub fn deliver(network: &Network, messages: &[Message], model: &PacketModel) -> Vec<f64> {
    let mut fabric = Fabric::new(network, messages, model);
    for (flow, message) in messages.iter().enumerate() {
        fabric.at(picoseconds(message.arrival_s), Event::Send(flow as u32));
    }
    while let Some(Reverse((now, _, event))) = fabric.events.pop() {
        match event {
            Event::Send(flow) => fabric.send(flow, now),
            Event::Reach(packet) => fabric.reach(packet, now),
            Event::Free(link) => fabric.start(link, now),
            Event::Acknowledge(packet) => fabric.acknowledge(packet, now),
        }
    }
    fabric.completed
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A flow may send.
    Send(u32),
    /// A packet reaches its next link, or the end.
    Reach(u32),
    /// A link may start its next packet.
    Free(u32),
    Acknowledge(u32),
}

#[derive(Debug, Clone, Default)]
struct Packet {
    flow: u32,
    hop: u32,
    payload: u32,
    /// Bytes of the flow up to its end.
    ends: u64,
    sent: u64,
    marked: bool,
    hops: Vec<Hop>,
}

/// A link with what waits for it. The first link of a path is its sender's own: flows take turns on
/// it, nothing queues and nothing is marked. Others serve packets as they came.
#[derive(Debug, Clone, Default)]
struct Queue {
    /// Flows whose turn comes.
    turns: VecDeque<u32>,
    /// Packets, and their bytes.
    waiting: VecDeque<u32>,
    bytes: f64,
    free_at: u64,
    awaited: bool,
    sent_bytes: f64,
}

#[derive(Debug, Clone)]
struct Source {
    sender: Sender,
    sent: u64,
    acknowledged: u64,
    received: u64,
    may_send_at: u64,
    /// When it wakes by itself.
    looks_at: u64,
    takes_turns: bool,
    /// Of its newest packet.
    wire: f64,
    latency: u64,
}

struct Fabric<'a> {
    network: &'a Network,
    messages: &'a [Message],
    model: &'a PacketModel,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    entered: u64,
    packets: Vec<Packet>,
    unused: Vec<u32>,
    queues: Vec<Queue>,
    sources: Vec<Source>,
    completed: Vec<f64>,
    drawn: u64,
}

impl<'a> Fabric<'a> {
    fn new(network: &'a Network, messages: &'a [Message], model: &'a PacketModel) -> Self {
        let sources = messages.iter().map(|message| {
            let capacities = message.path.iter().map(|link| network.link(*link).bytes_per_s);
            let line = capacities.into_iter().find(|capacity| capacity.is_finite());
            let line = line.expect("a path has a link that says how fast its sender is");
            Source {
                sender: Sender::new(&model.control, line, model.window_bytes),
                sent: 0,
                acknowledged: 0,
                received: 0,
                may_send_at: 0,
                looks_at: picoseconds(message.arrival_s),
                takes_turns: false,
                wire: 0.0,
                latency: picoseconds(network.latency_s(&message.path)),
            }
        });
        Self {
            network,
            messages,
            model,
            events: BinaryHeap::new(),
            entered: 0,
            packets: Vec::new(),
            unused: Vec::new(),
            queues: vec![Queue::default(); network.links().len()],
            sources: sources.collect(),
            completed: vec![0.0; messages.len()],
            drawn: 0,
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.entered += 1;
        self.events.push(Reverse((time, self.entered, event)));
    }

    /// The time of a flow has come, unless it was put off.
    fn send(&mut self, flow: u32, now: u64) {
        let source = &mut self.sources[flow as usize];
        if source.looks_at == now {
            source.looks_at = NEVER;
            self.try_to_send(flow, now);
        }
    }

    fn try_to_send(&mut self, flow: u32, now: u64) {
        if self.sources[flow as usize].takes_turns || !self.may_send(flow, now) {
            return;
        }
        let source = &mut self.sources[flow as usize];
        if source.may_send_at > now {
            return self.look_later(flow);
        }
        let first = self.messages[flow as usize].path[0];
        if self.network.link(first).bytes_per_s == f64::INFINITY {
            let slot = self.next_packet(flow, now);
            return self.reach(slot, now);
        }
        source.takes_turns = true;
        self.queues[first.0 as usize].turns.push_back(flow);
        self.wake(first.0, now);
    }

    /// Has the flow look again when its rate allows another packet.
    fn look_later(&mut self, flow: u32) {
        let source = &mut self.sources[flow as usize];
        if source.looks_at != source.may_send_at {
            source.looks_at = source.may_send_at;
            let at = source.looks_at;
            self.at(at, Event::Send(flow));
        }
    }

    /// Whether it has something left, and room in its window.
    fn may_send(&mut self, flow: u32, now: u64) -> bool {
        let source = &mut self.sources[flow as usize];
        source.sender.advance(&self.model.control, seconds(now));
        let under_way = (source.sent - source.acknowledged) as f64;
        source.sent < self.messages[flow as usize].bytes
            && under_way < source.sender.window().max(1.0)
    }

    /// Makes the flow's next packet.
    fn next_packet(&mut self, flow: u32, now: u64) -> u32 {
        let bytes = self.messages[flow as usize].bytes;
        let source = &mut self.sources[flow as usize];
        let payload = (bytes - source.sent).min(u64::from(self.model.payload_bytes_max)) as u32;
        source.sent += u64::from(payload);
        let ends = source.sent;
        let wire = f64::from(payload + self.model.header_bytes);
        source.may_send_at = now + picoseconds(wire / source.sender.rate);
        source.wire = wire;
        if ends < bytes {
            self.look_later(flow);
        }
        let slot = self.unused.pop().unwrap_or_else(|| {
            self.packets.push(Packet::default());
            self.packets.len() as u32 - 1
        });
        let packet = &mut self.packets[slot as usize];
        packet.hops.clear();
        let hops = std::mem::take(&mut packet.hops);
        *packet = Packet { flow, hop: 0, payload, ends, sent: now, marked: false, hops };
        slot
    }

    /// Passes links without limit at once; queues at the others.
    fn reach(&mut self, slot: u32, now: u64) {
        let packet = &mut self.packets[slot as usize];
        let path = &self.messages[packet.flow as usize].path;
        let Some(link) = path.get(packet.hop as usize) else { return self.receive(slot, now) };
        let properties = self.network.link(*link);
        if properties.bytes_per_s == f64::INFINITY {
            packet.hop += 1;
            let at = now + picoseconds(properties.latency_s);
            return self.at(at, Event::Reach(slot));
        }
        let queue = &mut self.queues[link.0 as usize];
        queue.waiting.push_back(slot);
        queue.bytes += f64::from(packet.payload + self.model.header_bytes);
        self.wake(link.0, now);
    }

    /// Something waits for a link.
    fn wake(&mut self, link: u32, now: u64) {
        let queue = &mut self.queues[link as usize];
        if queue.awaited {
            return;
        }
        if queue.free_at <= now {
            return self.start(link, now);
        }
        queue.awaited = true;
        let at = queue.free_at;
        self.at(at, Event::Free(link));
    }

    /// Sends the first packet that waits, or one of the flow whose turn it is.
    fn start(&mut self, link: u32, now: u64) {
        self.queues[link as usize].awaited = false;
        let slot = match self.queues[link as usize].waiting.pop_front() {
            Some(slot) => {
                self.mark(slot, link, now);
                slot
            }
            None => loop {
                let Some(flow) = self.queues[link as usize].turns.pop_front() else { return };
                self.sources[flow as usize].takes_turns = false;
                if self.may_send(flow, now) {
                    break self.next_packet(flow, now);
                }
            },
        };
        let properties = *self.network.link(LinkId(link));
        let packet = &mut self.packets[slot as usize];
        packet.hop += 1;
        let wire = f64::from(packet.payload + self.model.header_bytes);
        let queue = &mut self.queues[link as usize];
        queue.sent_bytes += wire;
        queue.free_at = now + picoseconds(wire / properties.bytes_per_s);
        queue.awaited = !queue.waiting.is_empty() || !queue.turns.is_empty();
        let (again, free_at) = (queue.awaited, queue.free_at);
        if again {
            self.at(free_at, Event::Free(link));
        }
        self.at(free_at + picoseconds(properties.latency_s), Event::Reach(slot));
    }

    /// A packet that leaves a queue is marked by what it leaves behind, and notes it.
    fn mark(&mut self, slot: u32, link: u32, now: u64) {
        let packet = &mut self.packets[slot as usize];
        let queue = &mut self.queues[link as usize];
        queue.bytes -= f64::from(packet.payload + self.model.header_bytes);
        let probability = self.model.marking.probability(queue.bytes);
        if probability > 0.0 {
            self.drawn += 1;
            let drawn = super::hash(self.model.seed, self.drawn);
            packet.marked |= (drawn >> 11) as f64 / (1_u64 << 53) as f64 <= probability;
        }
        if matches!(self.model.control, Control::Hpcc(_)) {
            packet.hops.push(Hop {
                at_s: seconds(now),
                sent_bytes: queue.sent_bytes,
                queue_bytes: queue.bytes,
                bytes_per_s: self.network.link(LinkId(link)).bytes_per_s,
            });
        }
    }

    fn receive(&mut self, slot: u32, now: u64) {
        let packet = &self.packets[slot as usize];
        let flow = packet.flow as usize;
        let source = &mut self.sources[flow];
        source.received += u64::from(packet.payload);
        if source.received >= self.messages[flow].bytes {
            self.completed[flow] = seconds(now) - self.messages[flow].arrival_s;
        }
        let at = now + source.latency;
        self.at(at, Event::Acknowledge(slot));
    }

    fn acknowledge(&mut self, slot: u32, now: u64) {
        let packet = &self.packets[slot as usize];
        let flow = packet.flow;
        let source = &mut self.sources[flow as usize];
        source.acknowledged = packet.ends;
        let ack = Ack {
            now_s: seconds(now),
            sent_s: seconds(packet.sent),
            acknowledged_bytes: packet.ends,
            sent_bytes: source.sent,
            marked: packet.marked,
            hops: &packet.hops,
        };
        let size = u64::from(self.model.payload_bytes_max);
        let before = source.sender.rate;
        source.sender.acknowledged(&self.model.control, &ack, size);
        if matches!(self.model.control, Control::Hpcc(_)) {
            // It spaces packets by its newest rate, those already spaced included.
            let (shorter, longer) = (source.wire / before, source.wire / source.sender.rate);
            let at = source.may_send_at + picoseconds(longer);
            source.may_send_at = at.saturating_sub(picoseconds(shorter));
        }
        self.unused.push(slot);
        self.try_to_send(flow, now);
    }
}

/// A time that does not come.
const NEVER: u64 = u64::MAX;

/// Time is whole inside, so that the order of events does not hang on rounding.
fn picoseconds(seconds: f64) -> u64 {
    (seconds * 1e12).round() as u64
}

fn seconds(picoseconds: u64) -> f64 {
    picoseconds as f64 * 1e-12
}

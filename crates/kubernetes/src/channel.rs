//! What the API server and those who write to it tell the engine.

use std::collections::BTreeMap;

use het_core::{Event, LeaseId, Name};
use tokio::sync::mpsc;

use crate::dra::DraNews;
use crate::groups::GroupRow;
use crate::names::ObjectKey;
use crate::network::NetworkObjects;
use crate::objects::{NodeRow, PodRow};
use crate::workload_kinds::{WorkloadKind, WorkloadName};
use crate::workloads::WorkloadRow;

/// Messages that may wait for the engine; who watches waits for room.
const WAITING_MAX: usize = 65_536;

#[derive(Debug)]
pub(crate) enum Message {
    /// A list of all pods begins: those that it does not name are gone.
    PodsBegin,
    PodsEnd,
    Pod(Box<PodRow>),
    PodGone {
        key: ObjectKey,
        uid: String,
    },
    /// A list of all nodes begins: those that it does not name are gone.
    NodesBegin,
    NodesEnd,
    Node(Box<NodeRow>),
    NodeGone(Name),
    /// A pod was asked for by name; `None` where it is not there.
    Looked {
        lease: LeaseId,
        rank: u32,
        row: Option<Box<PodRow>>,
    },
    /// The uids of the pods that ranks of a gang have now, and why they will not run.
    Begun {
        lease: LeaseId,
        made: Vec<Option<String>>,
        refused: Option<String>,
    },
    /// A list of all workloads of a kind begins: those that it does not name are gone.
    WorkloadsBegin(WorkloadKind),
    WorkloadsEnd(WorkloadKind),
    Workload(Box<WorkloadRow>),
    WorkloadGone {
        name: WorkloadName,
        uid: String,
    },
    Dra(DraNews),
    /// Groups of pods are served in this version.
    GroupsServed(&'static str),
    /// It is not known which groups there are, and why.
    GroupsUnknown(String),
    /// A list of all groups begins: those that it does not name are gone.
    GroupsBegin,
    GroupsEnd,
    Group(Box<GroupRow>),
    GroupGone {
        key: ObjectKey,
        uid: String,
    },
    /// All objects of a kind that say how nodes are connected.
    Network(Box<NetworkObjects>),
    /// The values of all priority classes.
    PriorityClasses(BTreeMap<String, i64>),
    /// A workload was not unsuspended.
    NotUnsuspended {
        lease: LeaseId,
        reason: String,
    },
    /// A workload is suspended, since this version of its object.
    Suspended {
        lease: LeaseId,
        version: u64,
    },
    /// A pod of a workload did not get the node of its lease.
    NotPlaced {
        lease: LeaseId,
        uid: String,
        reason: String,
    },
    /// A fact that somebody else found.
    Fact(Box<Event>),
    /// Somebody ends the wait.
    Wake,
}

/// The way to the engine; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Sender(mpsc::Sender<Message>);

pub(crate) fn channel() -> (Sender, mpsc::Receiver<Message>) {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    (Sender(sender), receiver)
}

impl Sender {
    /// Nothing where the engine is gone.
    pub async fn send(&self, message: Message) {
        let _ = self.0.send(message).await;
    }

    /// From a thread that may wait.
    pub fn send_blocking(&self, message: Message) {
        let _ = self.0.blocking_send(message);
    }

    /// Where the engine has something to read anyway, nobody has to wake it.
    pub fn wake(&self) {
        let _ = self.0.try_send(Message::Wake);
    }
}

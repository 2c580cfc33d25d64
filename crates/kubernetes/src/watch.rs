//! Follows what changes in the cluster.

use futures_util::{StreamExt, pin_mut};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client};

use crate::channel::{Message, Sender};
use crate::names::Scheduler;
use crate::objects::{self, NodeObject, NodeRow, ObjectKey, PodObject, PodRow};

/// All pods of the cluster: those of others take room, too. Goes on until the engine is gone;
/// a watch that breaks is begun anew after a pause.
pub(crate) async fn pods(client: Client, scheduler: Scheduler, sender: Sender) {
    let api: Api<PodObject> = Api::all_with(client, &objects::pods());
    let events = watcher(api, Config::default()).default_backoff();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        let message = match event {
            Ok(Event::Init) => Message::PodsBegin,
            Ok(Event::InitDone) => Message::PodsEnd,
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => match PodRow::of(pod, &scheduler) {
                Some(row) => Message::Pod(Box::new(row)),
                None => continue,
            },
            Ok(Event::Delete(pod)) => match gone(pod) {
                Some((key, uid)) => Message::PodGone { key, uid },
                None => continue,
            },
            // The stream begins anew by itself.
            Err(_) => continue,
        };
        sender.send(message).await;
    }
}

/// All nodes, as [`pods`].
pub(crate) async fn nodes(client: Client, sender: Sender) {
    let api: Api<NodeObject> = Api::all_with(client, &objects::nodes());
    let events = watcher(api, Config::default()).default_backoff();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        let message = match event {
            Ok(Event::Init) => Some(Message::NodesBegin),
            Ok(Event::InitDone) => Some(Message::NodesEnd),
            Ok(Event::Apply(node) | Event::InitApply(node)) => {
                NodeRow::of(node).map(|row| Message::Node(Box::new(row)))
            }
            Ok(Event::Delete(node)) => {
                node.metadata.name.map(|name| Message::NodeGone(name.as_str().into()))
            }
            // The stream begins anew by itself.
            Err(_) => None,
        };
        if let Some(message) = message {
            sender.send(message).await;
        }
    }
}

fn gone(pod: PodObject) -> Option<(ObjectKey, String)> {
    let namespace = pod.metadata.namespace.unwrap_or_default();
    let key = ObjectKey { namespace, name: pod.metadata.name? };
    Some((key, pod.metadata.uid.unwrap_or_default()))
}

//! Informers, one a kind: what changes in the cluster, as messages for the engine.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use futures_util::{Stream, StreamExt, pin_mut};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::watcher::{Config, Error, Event};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use crate::channel::{Message, Sender};
use crate::client::{FORBIDDEN, NOT_FOUND};
use crate::dra::{
    self, ClaimObject, ClaimRow, ClassObject, ClassRow, DraKind, DraNews, SliceObject, SliceRow,
    TaintRule, TaintRuleObject,
};
use crate::group_api;
use crate::groups::GroupRow;
use crate::names::{ObjectKey, Scheduler};
use crate::network::{NetworkKind, NetworkObjects};
use crate::objects::{self, NodeObject, NodeRow, PodObject, PodRow};
use crate::watch::{Watches, status_of};
use crate::workload_kinds::{WorkloadKind, WorkloadName};
use crate::workloads::WorkloadRow;

/// Between two tries to find out what is served.
const DISCOVERY_PAUSE: Duration = Duration::from_secs(1);

/// Whom objects are read from, and who hears where that fails; cheap to clone.
#[derive(Clone)]
pub(crate) struct Source {
    pub client: Client,
    pub watches: Watches,
}

impl Source {
    /// All objects of a kind.
    fn follow<K>(
        &self,
        resource: &ApiResource,
    ) -> impl Stream<Item = Result<Event<K>, Error>> + use<K>
    where
        K: Resource<DynamicType = ApiResource> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let api = Api::all_with(self.client.clone(), resource);
        self.watches.follow(api, resource, Config::default())
    }
}

/// All pods of the cluster: those of others take room, too. Goes on until the engine is gone;
/// a watch that breaks is begun anew after a pause.
pub(crate) async fn pods(source: Source, scheduler: Scheduler, sender: Sender) {
    let events = source.follow::<PodObject>(&objects::pods());
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
pub(crate) async fn nodes(source: Source, sender: Sender) {
    let events = source.follow::<NodeObject>(&objects::nodes());
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

/// All workloads of a kind, as [`pods`]. Of a kind that the API server does not know there are
/// none; of one that the account may not list nobody knows which.
pub(crate) async fn workloads(
    (source, kind, scheduler, sender): (Source, WorkloadKind, Scheduler, Sender),
) {
    let events = source.follow::<DynamicObject>(&kind.resource());
    pin_mut!(events);
    while let Some(event) = events.next().await {
        let message = match event {
            Ok(Event::Init) => Some(Message::WorkloadsBegin(kind)),
            Ok(Event::InitDone) => Some(Message::WorkloadsEnd(kind)),
            Ok(Event::Apply(object) | Event::InitApply(object)) => {
                let row = WorkloadRow::of(kind, object, &scheduler);
                row.map(|row| Message::Workload(Box::new(row)))
            }
            Ok(Event::Delete(object)) => object.metadata.name.map(|name| {
                let namespace = object.metadata.namespace.unwrap_or_default();
                let name = WorkloadName { kind, key: ObjectKey { namespace, name } };
                Message::WorkloadGone { name, uid: object.metadata.uid.unwrap_or_default() }
            }),
            Err(error) if code_of(&error) == NOT_FOUND => {
                sender.send(Message::WorkloadsBegin(kind)).await;
                Some(Message::WorkloadsEnd(kind))
            }
            // The stream begins anew by itself.
            Err(_) => None,
        };
        if let Some(message) = message {
            sender.send(message).await;
        }
    }
}

/// All objects of a kind of dynamic resource allocation, as [`pods`].
pub(crate) async fn dra(source: Source, kind: DraKind, scheduler: Scheduler, sender: Sender) {
    match kind {
        DraKind::Slices => {
            let slices = source.follow::<SliceObject>(&dra::slices());
            let row = |slice| SliceRow::of(slice).map(DraNews::Slice);
            follow_dra(slices, (kind, sender), row, |gone| DraNews::SliceGone(gone.name.into()))
                .await;
        }
        DraKind::Classes => {
            let classes = source.follow(&dra::classes());
            let row = |class: ClassObject| {
                let name = class.metadata.name.clone()?;
                Some(DraNews::Class(name, ClassRow::of(class)))
            };
            follow_dra(classes, (kind, sender), row, |gone| DraNews::ClassGone(gone.name)).await;
        }
        DraKind::Claims => {
            let claims = source.follow(&dra::claims());
            let row = |claim: ClaimObject| ClaimRow::of(claim, &scheduler.name).map(DraNews::Claim);
            follow_dra(claims, (kind, sender), row, DraNews::ClaimGone).await;
        }
        DraKind::TaintRules => {
            let rules = source.follow(&dra::taint_rules());
            let row = |rule: TaintRuleObject| {
                let name = rule.metadata.name.clone()?;
                Some(DraNews::TaintRule(name, TaintRule::of(rule)))
            };
            let gone = |gone: ObjectKey| DraNews::TaintRule(gone.name, None);
            follow_dra(rules, (kind, sender), row, gone).await;
        }
    }
}

async fn follow_dra<K>(
    events: impl Stream<Item = Result<Event<K>, Error>>,
    (kind, sender): (DraKind, Sender),
    row: impl Fn(K) -> Option<DraNews>,
    gone: impl Fn(ObjectKey) -> DraNews,
) where
    K: Resource,
{
    pin_mut!(events);
    let mut was_listed = false;
    while let Some(event) = events.next().await {
        let news = match event {
            Ok(Event::Init) => Some(DraNews::Begin(kind)),
            Ok(Event::InitDone) => {
                was_listed = true;
                Some(DraNews::End(kind))
            }
            Ok(Event::Apply(object) | Event::InitApply(object)) => row(object),
            Ok(Event::Delete(object)) => Some(gone(ObjectKey {
                namespace: object.namespace().unwrap_or_default(),
                name: object.name_any(),
            })),
            // What was listed once does not go because rights were missing for a while.
            Err(error) if !was_listed && matches!(code_of(&error), FORBIDDEN | NOT_FOUND) => {
                Some(DraNews::None(kind))
            }
            // The stream begins anew by itself.
            Err(_) => None,
        };
        if let Some(news) = news {
            sender.send(Message::Dra(news)).await;
        }
    }
}

/// All groups of pods, as [`pods`], in the newest version that the API server has by then.
pub(crate) async fn groups(source: Source, sender: Sender) {
    let version = loop {
        match served_version(&source.client).await {
            Ok(Some(version)) => break version,
            Ok(None) => {
                let versions = group_api::VERSIONS.join(" or ");
                let why = format!(
                    "the API server served no PodGroup (`{}` in {versions}) when this server \
                     began",
                    group_api::API_GROUP
                );
                return sender.send(Message::GroupsUnknown(why)).await;
            }
            Err(_) => sleep(DISCOVERY_PAUSE).await,
        }
    };
    sender.send(Message::GroupsServed(version)).await;
    let events = source.follow::<DynamicObject>(&group_api::resource(version));
    pin_mut!(events);
    while let Some(event) = events.next().await {
        let message = match event {
            Ok(Event::Init) => Some(Message::GroupsBegin),
            Ok(Event::InitDone) => Some(Message::GroupsEnd),
            Ok(Event::Apply(group) | Event::InitApply(group)) => {
                GroupRow::of(group).map(|row| Message::Group(Box::new(row)))
            }
            Ok(Event::Delete(group)) => group.metadata.name.map(|name| {
                let namespace = group.metadata.namespace.unwrap_or_default();
                let uid = group.metadata.uid.unwrap_or_default();
                Message::GroupGone { key: ObjectKey { namespace, name }, uid }
            }),
            Err(error) if code_of(&error) == FORBIDDEN => {
                let why = "this server may not list PodGroups: apply `het kubernetes manifests` \
                           again";
                Some(Message::GroupsUnknown(why.to_owned()))
            }
            // The stream begins anew by itself.
            Err(_) => None,
        };
        if let Some(message) = message {
            sender.send(message).await;
        }
    }
}

async fn served_version(client: &Client) -> Result<Option<&'static str>, kube::Error> {
    for version in group_api::VERSIONS {
        let group = format!("{}/{version}", group_api::API_GROUP);
        match client.list_api_group_resources(&group).await {
            Ok(list) if list.resources.iter().any(|it| it.name == group_api::PLURAL) => {
                return Ok(Some(version));
            }
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Values of priority classes.
pub(crate) async fn priority_classes(source: Source, sender: Sender) {
    let values = |classes: &BTreeMap<String, PriorityClass>| {
        let value = |class: &PriorityClass| i64::from(class.value.unwrap_or_default());
        let values = classes.iter().map(|(name, class)| (name.clone(), value(class)));
        Message::PriorityClasses(values.collect())
    };
    let resource = ApiResource::erase::<PriorityClass>(&());
    let events =
        source.watches.follow(Api::all(source.client.clone()), &resource, Config::default());
    whole(events, sender, values).await;
}

/// Objects of a kind that say how nodes are connected.
pub(crate) async fn network(source: Source, kind: NetworkKind, sender: Sender) {
    let objects = |all: &BTreeMap<String, DynamicObject>| {
        Message::Network(Box::new(NetworkObjects::of(kind, all)))
    };
    whole(source.follow(&kind.resource()), sender, objects).await;
}

/// All objects of a kind whenever one changes, by name; none where it is not known, or the account
/// may not list them.
async fn whole<K>(
    events: impl Stream<Item = Result<Event<K>, Error>>,
    sender: Sender,
    tell: impl Fn(&BTreeMap<String, K>) -> Message,
) where
    K: Resource,
{
    pin_mut!(events);
    let mut all = BTreeMap::new();
    let mut is_listing = true;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => {
                all.clear();
                is_listing = true;
            }
            Ok(Event::InitDone) => is_listing = false,
            Ok(Event::Apply(one) | Event::InitApply(one)) => {
                all.insert(one.name_any(), one);
            }
            Ok(Event::Delete(one)) => drop(all.remove(&one.name_any())),
            Err(error) if matches!(code_of(&error), FORBIDDEN | NOT_FOUND) => is_listing = false,
            // The stream begins anew by itself.
            Err(_) => continue,
        }
        if !is_listing {
            sender.send(tell(&all)).await;
        }
    }
}

/// Of the answer to a list; 0 of what is none.
fn code_of(error: &Error) -> u16 {
    match error {
        Error::InitialListFailed(_) => status_of(error).map_or(0, |status| status.code),
        _ => 0,
    }
}

fn gone(pod: PodObject) -> Option<(ObjectKey, String)> {
    let namespace = pod.metadata.namespace.unwrap_or_default();
    let key = ObjectKey { namespace, name: pod.metadata.name? };
    Some((key, pod.metadata.uid.unwrap_or_default()))
}

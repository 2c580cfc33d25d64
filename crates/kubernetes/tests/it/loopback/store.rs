//! Objects with versions, all that ever happened to them, and who watches.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::body::{Answer, Lines, stream};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Node,
    Pod,
    Service,
    Job,
    Lease,
}

impl Kind {
    pub fn of_plural(plural: &str) -> Option<Self> {
        Some(match plural {
            "nodes" => Self::Node,
            "pods" => Self::Pod,
            "services" => Self::Service,
            "trainingjobs" => Self::Job,
            "leases" => Self::Lease,
            _ => return None,
        })
    }

    /// `apiVersion` and `kind` of its objects.
    fn types(self) -> (&'static str, &'static str) {
        match self {
            Self::Node => ("v1", "Node"),
            Self::Pod => ("v1", "Pod"),
            Self::Service => ("v1", "Service"),
            Self::Job => ("heterosis.dev/v1alpha1", "TrainingJob"),
            Self::Lease => ("coordination.k8s.io/v1", "Lease"),
        }
    }
}

/// Which object. Nodes have no namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// How a watch ends that does not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The stream ends between two lines.
    End,
    /// The stream ends within a line.
    Within,
    /// The connection breaks.
    Break,
    /// The version is too old.
    Gone,
}

#[derive(Debug)]
struct Change {
    version: u64,
    key: Key,
    word: &'static str,
    object: Arc<Value>,
}

#[derive(Debug)]
struct Watcher {
    kind: Kind,
    lines: Lines,
    /// How many more changes it is told of, and what comes then.
    cut: Option<(u64, Cut)>,
}

#[derive(Debug, Default)]
pub struct Store {
    version: u64,
    uids: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    history: Vec<Change>,
    watchers: Vec<Watcher>,
}

impl Store {
    pub fn version(&self) -> u64 {
        self.version
    }

    /// How often anything but a Lease has changed.
    pub fn changes(&self) -> u64 {
        self.history.iter().filter(|change| change.key.kind != Kind::Lease).count() as u64
    }

    pub fn get(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        self.objects.iter().filter(move |(key, _)| key.kind == kind)
    }

    pub fn keys(&self, kind: Kind) -> Vec<Key> {
        self.of_kind(kind).map(|(key, _)| key.clone()).collect()
    }

    /// Takes in a new object; nothing of its name may be there.
    pub fn create(&mut self, key: Key, mut object: Value) -> Arc<Value> {
        self.uids += 1;
        let (api, kind) = key.kind.types();
        (object["apiVersion"], object["kind"]) = (json!(api), json!(kind));
        object["metadata"]["name"] = json!(key.name);
        object["metadata"]["uid"] = json!(format!("uid-{}", self.uids));
        if !key.namespace.is_empty() {
            object["metadata"]["namespace"] = json!(key.namespace);
        }
        self.change(key, "ADDED", object)
    }

    /// Changes an object that is there.
    pub fn update(&mut self, key: &Key, change: impl FnOnce(&mut Value)) -> Arc<Value> {
        let mut object = Value::clone(&self.objects[key]);
        change(&mut object);
        self.change(key.clone(), "MODIFIED", object)
    }

    pub fn remove(&mut self, key: &Key) -> Arc<Value> {
        let object = Value::clone(&self.objects[key]);
        self.change(key.clone(), "DELETED", object)
    }

    fn change(&mut self, key: Key, word: &'static str, mut object: Value) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = Arc::new(object);
        match word {
            "DELETED" => drop(self.objects.remove(&key)),
            _ => drop(self.objects.insert(key.clone(), Arc::clone(&object))),
        }
        let line = line_of(word, &object);
        self.watchers.retain_mut(|watcher| watcher.kind != key.kind || watcher.tell(&line));
        self.history.push(Change { version: self.version, key, word, object: Arc::clone(&object) });
        object
    }

    /// All objects of a kind as they were at a version.
    pub fn list(&self, kind: Kind, namespace: &str, version: u64) -> Value {
        let mut objects: BTreeMap<&Key, &Arc<Value>> = BTreeMap::new();
        let is_asked =
            |key: &Key| key.kind == kind && (namespace.is_empty() || key.namespace == namespace);
        let until = self.history.iter().take_while(|change| change.version <= version);
        for change in until.filter(|change| is_asked(&change.key)) {
            match change.word {
                "DELETED" => drop(objects.remove(&change.key)),
                _ => drop(objects.insert(&change.key, &change.object)),
            }
        }
        let (api, word) = kind.types();
        json!({
            "apiVersion": api, "kind": format!("{word}List"),
            "metadata": { "resourceVersion": version.to_string() },
            "items": objects.into_values().map(|object| Value::clone(object)).collect::<Vec<_>>(),
        })
    }

    /// All changes of objects of a kind after a version, and those that come.
    pub fn watch(&mut self, kind: Kind, after: u64, cut: Option<(u64, Cut)>) -> Answer {
        let (lines, answer) = stream();
        let mut watcher = Watcher { kind, lines, cut };
        let missed = self.history.iter().filter(|it| it.version > after && it.key.kind == kind);
        let goes_on = watcher.begin() && missed.into_iter().all(|it| watcher.tell(&it.line()));
        if goes_on {
            self.watchers.push(watcher);
        }
        answer
    }
}

impl Change {
    fn line(&self) -> String {
        line_of(self.word, &self.object)
    }
}

impl Watcher {
    /// Whether it may be told of anything at all.
    fn begin(&mut self) -> bool {
        match self.cut {
            Some((0, cut)) => self.end(cut, ""),
            _ => true,
        }
    }

    /// Whether it goes on.
    fn tell(&mut self, line: &str) -> bool {
        match &mut self.cut {
            Some((left, cut)) if *left <= 1 => {
                let cut = *cut;
                self.end(cut, line)
            }
            cut => {
                cut.iter_mut().for_each(|(left, _)| *left -= 1);
                self.lines.write(line.to_owned())
            }
        }
    }

    /// Instead of this line.
    fn end(&self, cut: Cut, line: &str) -> bool {
        match cut {
            Cut::End => {}
            Cut::Within => {
                self.lines.write(line[..line.len() / 2].to_owned());
            }
            Cut::Break => self.lines.fail(),
            Cut::Gone => {
                let status = failure(410, "Expired", "too old resource version");
                self.lines.write(line_of("ERROR", &status));
            }
        }
        false
    }
}

fn line_of(word: &str, object: &Value) -> String {
    format!("{{\"type\":\"{word}\",\"object\":{object}}}\n")
}

/// Why a request was not carried out.
pub fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message,
    })
}

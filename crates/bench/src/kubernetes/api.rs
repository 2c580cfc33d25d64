//! A client of an API server that makes and deletes thousands of objects.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use kube::core::params::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Config, Error};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::BenchError;

/// Requests under way at once.
const REQUESTS_MAX: usize = 64;
const CONFLICT: u16 = 409;
const NOT_FOUND: u16 = 404;

pub(super) struct Api {
    runtime: Runtime,
    client: Client,
}

impl Api {
    pub fn connect(kubeconfig: &Path) -> Result<Self, BenchError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| refused("threads", &error))?;
        let file = Kubeconfig::read_from(kubeconfig).map_err(|error| unusable(&error))?;
        let options = KubeConfigOptions::default();
        let config = runtime.block_on(Config::from_custom_kubeconfig(file, &options));
        let config = config.map_err(|error| unusable(&error))?;
        // Its tasks need the runtime.
        let _entered = runtime.enter();
        let client = Client::try_from(config).map_err(|error| unusable(&error))?;
        Ok(Self { client, runtime })
    }

    /// Makes objects at a path; those that are there already stay.
    pub fn make(&self, path: &str, objects: Vec<Value>) -> Result<(), BenchError> {
        self.each(objects, |client, object| async move {
            let request = Request::new(path).create(&PostParams::default(), bytes(&object));
            taken(client.request::<Value>(request.map_err(Error::BuildRequest)?).await, CONFLICT)
        })
    }

    /// Changes objects at paths by merging.
    pub fn merge(&self, path: &str, names: Vec<String>, change: &Value) -> Result<(), BenchError> {
        self.each(names, |client, name| async move {
            let patch = Patch::Merge(change);
            let request = Request::new(path).patch(&name, &PatchParams::default(), &patch);
            client.request::<Value>(request.map_err(Error::BuildRequest)?).await.map(drop)
        })
    }

    /// Deletes objects at once; those that are gone already are gone.
    pub fn delete(&self, path: &str, names: Vec<String>) -> Result<(), BenchError> {
        self.each(names, |client, name| async move {
            let at_once = DeleteParams::default().grace_period(0);
            let request = Request::new(path).delete(&name, &at_once);
            taken(client.request::<Value>(request.map_err(Error::BuildRequest)?).await, NOT_FOUND)
        })
    }

    fn each<T, F: Future<Output = Result<(), Error>>>(
        &self,
        all: Vec<T>,
        act: impl Fn(Client, T) -> F,
    ) -> Result<(), BenchError> {
        let client = &self.client;
        let acts = all.into_iter().map(|one| act(client.clone(), one));
        let mut results = stream::iter(acts).buffer_unordered(REQUESTS_MAX);
        self.runtime.block_on(async {
            while let Some(result) = results.next().await {
                result.map_err(|error| refused("a request", &error))?;
            }
            Ok(())
        })
    }

    pub fn get(&self, path: &str, name: &str) -> Result<Value, BenchError> {
        let request = Request::new(path).get(name, &Default::default());
        let request = request.map_err(|error| refused(name, &error))?;
        let answer = self.runtime.block_on(self.client.request(request));
        answer.map_err(|error| refused(name, &error))
    }

    /// How many objects there are at a path.
    pub fn count(&self, path: &str) -> Result<usize, BenchError> {
        let parameters = ListParams::default().limit(1);
        let answer = self.list(path, &parameters)?;
        let more = answer["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
        Ok(answer["items"].as_array().map_or(0, Vec::len) + more as usize)
    }

    fn list(&self, path: &str, parameters: &ListParams) -> Result<Value, BenchError> {
        let request = Request::new(path).list_metadata(parameters);
        let request = request.map_err(|error| refused(path, &error))?;
        let answer = self.runtime.block_on(self.client.request(request));
        answer.map_err(|error| refused(path, &error))
    }

    /// Names of the objects at a path that selectors choose: of labels, and of fields.
    pub fn names(
        &self,
        path: &str,
        (labels, fields): (&str, &str),
        limit: Option<u32>,
    ) -> Result<Vec<String>, BenchError> {
        let mut parameters = ListParams::default().labels(labels).fields(fields);
        parameters.limit = limit;
        let answer = self.list(path, &parameters)?;
        let items = answer["items"].as_array().into_iter().flatten();
        let names = items.filter_map(|item| item["metadata"]["name"].as_str());
        Ok(names.map(str::to_owned).collect())
    }
}

/// Waits until something is so.
pub(super) fn await_that(
    what: &str,
    (every, limit): (Duration, Duration),
    mut is_so: impl FnMut() -> Result<bool, BenchError>,
) -> Result<(), BenchError> {
    let deadline = Instant::now() + limit;
    while !is_so()? {
        if Instant::now() > deadline {
            let what = format!("{what} within {} s", limit.as_secs());
            return Err(BenchError::Nothing { what: format!("not so: {what}") });
        }
        thread::sleep(every);
    }
    Ok(())
}

fn bytes(object: &Value) -> Vec<u8> {
    object.to_string().into_bytes()
}

fn taken(result: Result<Value, Error>, usual: u16) -> Result<(), Error> {
    match result {
        Err(Error::Api(status)) if status.code == usual => Ok(()),
        result => result.map(drop),
    }
}

fn unusable(error: &dyn std::error::Error) -> BenchError {
    refused("the kubeconfig", error)
}

fn refused(what: &str, error: &dyn std::error::Error) -> BenchError {
    BenchError::Nothing { what: format!("{what}: {error}") }
}

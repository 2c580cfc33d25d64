//! Groups of pods by which kube-scheduler binds all of a gang or nothing.

use kube::Error;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use serde_json::Value;

use super::{CONFLICT, Refusal, Tried, Wanted, Writer, is_of_another};
use crate::group_api;
use crate::names::ObjectKey;

impl Writer {
    pub(super) async fn make_group(
        &self,
        namespace: &str,
        group: &Value,
        wanted: &Wanted,
    ) -> Result<(), Refusal> {
        let version = group["apiVersion"].as_str().unwrap_or_default();
        let version = version.rsplit_once('/').map_or("", |(_, version)| version);
        let resource = group_api::resource(version);
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let object: DynamicObject = serde_json::from_value(group.clone())
            .map_err(|error| Refusal::For(format!("the group of the gang: {error}")))?;
        let parameters = PostParams::default();
        match self.tried(wanted, || api.create(&parameters, &object)).await {
            Ok(_) => Ok(()),
            Err(Tried::Refused(Error::Api(status))) if status.code == CONFLICT => Ok(()),
            Err(tried) => Err(tried.refusal("the group of the gang")),
        }
    }

    /// Deletes the group of a gang that has ended: its name is of that attempt alone.
    pub async fn delete_group(self, key: ObjectKey, version: &'static str) {
        let resource = group_api::resource(version);
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &key.namespace, &resource);
        let (wanted, parameters) = (Wanted::default(), DeleteParams::default());
        // Perhaps it was never made.
        let delete = || api.delete(&key.name, &parameters);
        let _ = self.tried_until(&wanted, is_of_another, delete).await;
    }
}

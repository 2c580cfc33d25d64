//! Objects of dynamic resource allocation: what is read of them, and the rows that are kept.
//!
//! Format: Kubernetes API reference, `resource.k8s.io/v1`.

use std::collections::{BTreeMap, BTreeSet};

use het_core::Name;
use k8s_openapi::api::resource::v1;
use kube::api::{ApiResource, Object};
use kube::core::GroupVersionKind;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::names::{ObjectKey, is_for};
use crate::quantity::Amount;

pub(crate) type SliceObject = Object<SliceSpec, IgnoredAny>;
pub(crate) type ClassObject = Object<ClassSpec, IgnoredAny>;
pub(crate) type ClaimObject = Object<ClaimSpec, ClaimStatus>;
pub(crate) type TaintRuleObject = Object<TaintRuleSpec, IgnoredAny>;

pub(crate) fn slices() -> ApiResource {
    ApiResource::erase::<v1::ResourceSlice>(&())
}

pub(crate) fn classes() -> ApiResource {
    ApiResource::erase::<v1::DeviceClass>(&())
}

pub(crate) fn claims() -> ApiResource {
    ApiResource::erase::<v1::ResourceClaim>(&())
}

/// Served from Kubernetes 1.37 on.
pub(crate) fn taint_rules() -> ApiResource {
    let kind = GroupVersionKind::gvk("resource.k8s.io", "v1", "DeviceTaintRule");
    ApiResource::from_gvk_with_plural(&kind, "devicetaintrules")
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SliceSpec {
    driver: String,
    pool: Pool,
    node_name: Option<String>,
    devices: Vec<SliceDevice>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Pool {
    name: String,
    generation: i64,
    resource_slice_count: i64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SliceDevice {
    name: String,
    attributes: BTreeMap<String, AttributeValue>,
    capacity: BTreeMap<String, Capacity>,
    consumes_counters: Vec<IgnoredAny>,
    taints: Vec<DeviceTaint>,
    binding_conditions: Vec<IgnoredAny>,
    binds_to_node: bool,
    allow_multiple_allocations: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct AttributeValue {
    string: Option<String>,
    version: Option<String>,
    int: Option<i64>,
    bool: Option<bool>,
}

#[derive(Debug, Clone, Deserialize)]
struct Capacity {
    value: Amount,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct DeviceTaint {
    effect: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TaintRuleSpec {
    device_selector: TaintedDevices,
    taint: DeviceTaint,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct TaintedDevices {
    driver: Option<String>,
    pool: Option<String>,
    device: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ClassSpec {
    selectors: Vec<SelectorSpec>,
    config: Vec<Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct SelectorSpec {
    cel: Expression,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Expression {
    expression: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimSpec {
    devices: DeviceClaim,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct DeviceClaim {
    requests: Vec<DeviceRequest>,
    constraints: Vec<IgnoredAny>,
    config: Vec<Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeviceRequest {
    name: String,
    exactly: Option<SubRequest>,
    first_available: Vec<SubRequest>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SubRequest {
    name: String,
    device_class_name: String,
    selectors: Vec<SelectorSpec>,
    allocation_mode: String,
    count: Option<u32>,
    admin_access: bool,
    capacity: Option<IgnoredAny>,
    tolerations: Vec<Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimStatus {
    allocation: Option<Allocation>,
    reserved_for: Vec<Consumer>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Allocation {
    devices: AllocatedDevices,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct AllocatedDevices {
    results: Vec<AllocatedDevice>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AllocatedDevice {
    driver: String,
    pool: String,
    device: String,
    admin_access: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Consumer {
    uid: String,
}

/// A device as its driver names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeviceId {
    pub driver: Name,
    pub pool: Name,
    pub device: Name,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attribute {
    Text(String),
    Number(i64),
    Flag(bool),
}

/// A device that one claim may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceRow {
    pub id: DeviceId,
    pub attributes: BTreeMap<String, Attribute>,
    /// In thousandths.
    pub capacity: BTreeMap<String, u64>,
}

/// A part of what a driver offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SliceRow {
    pub name: Name,
    pub driver: Name,
    pub pool: Name,
    pub generation: i64,
    /// Slices of the pool in this generation.
    pub slices: i64,
    /// Whose devices they are; `None` of devices that several nodes reach.
    pub node: Option<Name>,
    pub devices: Vec<DeviceRow>,
}

impl SliceRow {
    /// `None` of an object without a name.
    pub fn of(slice: SliceObject) -> Option<Self> {
        let SliceSpec { driver, pool, node_name, devices } = slice.spec;
        let (driver, name): (Name, Name) = (driver.as_str().into(), pool.name.as_str().into());
        let devices = devices.into_iter().filter(SliceDevice::is_plain);
        let devices = devices.map(|device| DeviceRow {
            id: DeviceId {
                driver: driver.clone(),
                pool: name.clone(),
                device: device.name.as_str().into(),
            },
            attributes: device.attributes.into_iter().filter_map(AttributeValue::read).collect(),
            capacity: device.capacity.into_iter().filter_map(Capacity::read).collect(),
        });
        Some(Self {
            name: slice.metadata.name?.as_str().into(),
            devices: devices.collect(),
            node: node_name.map(Name::from),
            generation: pool.generation,
            slices: pool.resource_slice_count,
            driver,
            pool: name,
        })
    }
}

/// Which devices an administrator keeps from whoever wants some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaintRule {
    driver: Option<String>,
    pool: Option<String>,
    device: Option<String>,
}

impl TaintRule {
    /// `None` of one that keeps nobody away.
    pub fn of(rule: TaintRuleObject) -> Option<Self> {
        let TaintedDevices { driver, pool, device } = rule.spec.device_selector;
        rule.spec.taint.repels().then_some(Self { driver, pool, device })
    }

    pub fn is_of(&self, id: &DeviceId) -> bool {
        let is = |wanted: &Option<String>, name: &Name| {
            wanted.as_ref().is_none_or(|wanted| *name == wanted.as_str())
        };
        is(&self.driver, &id.driver) && is(&self.pool, &id.pool) && is(&self.device, &id.device)
    }
}

impl DeviceTaint {
    fn repels(&self) -> bool {
        self.effect != "None"
    }
}

impl SliceDevice {
    /// Whether it is one claim's as a whole, and at once.
    fn is_plain(&self) -> bool {
        self.consumes_counters.is_empty()
            && self.binding_conditions.is_empty()
            && !self.binds_to_node
            && !self.allow_multiple_allocations
            && !self.taints.iter().any(DeviceTaint::repels)
    }
}

impl AttributeValue {
    fn read((name, value): (String, Self)) -> Option<(String, Attribute)> {
        let text = value.string.or(value.version).map(Attribute::Text);
        let number = value.int.map(Attribute::Number);
        Some((name, text.or(number).or(value.bool.map(Attribute::Flag))?))
    }
}

impl Capacity {
    fn read((name, capacity): (String, Self)) -> Option<(String, u64)> {
        Some((name, capacity.value.milli()?))
    }
}

/// Which devices a class is of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ClassRow {
    pub selectors: Vec<String>,
    /// What drivers are told of them.
    pub config: Vec<Value>,
}

impl ClassRow {
    pub fn of(class: ClassObject) -> Self {
        Self { selectors: expressions(class.spec.selectors), config: class.spec.config }
    }
}

/// What a claim asks for: one of these, the first where it does not matter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClaimAsk {
    /// Names of its requests, and how many devices each is for; of several each asks for the same.
    pub requests: Vec<(String, u32)>,
    pub options: Vec<AskOption>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AskOption {
    /// Of `firstAvailable`.
    pub name: Option<String>,
    pub class: String,
    pub selectors: Vec<String>,
    /// Of all requests together.
    pub count: u32,
}

/// A claim on devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimRow {
    pub key: ObjectKey,
    pub uid: String,
    /// What of it is not considered: one phrase.
    pub asks: Result<ClaimAsk, String>,
    /// What drivers are told.
    pub config: Vec<Value>,
    /// By request as an allocation names it: the taints of its devices that may come while it has
    /// them, as an allocation has them.
    pub tolerations: BTreeMap<String, Vec<Value>>,
    pub allocated: Vec<DeviceId>,
    /// Uids of pods that may use it.
    pub reserved_for: BTreeSet<String>,
    /// This scheduler has allocated it.
    pub is_ours: bool,
    /// Of the object.
    pub version: u64,
}

impl ClaimRow {
    /// `None` of an object without a name.
    pub fn of(claim: ClaimObject, scheduler: &str) -> Option<Self> {
        let metadata = claim.metadata;
        let ClaimStatus { allocation, reserved_for } = claim.status.unwrap_or_default();
        let (labels, version) = (metadata.labels.as_ref(), metadata.resource_version.as_deref());
        let is_marked = metadata.annotations.is_some_and(|it| it.contains_key(crate::names::EPOCH));
        let results = allocation.unwrap_or_default().devices.results;
        // Who looks after a device takes it from nobody.
        let taken = results.into_iter().filter(|device| !device.admin_access);
        Some(Self {
            key: ObjectKey {
                namespace: metadata.namespace.unwrap_or_default(),
                name: metadata.name?,
            },
            uid: metadata.uid.unwrap_or_default(),
            asks: claim.spec.devices.asks(),
            tolerations: claim.spec.devices.tolerations(),
            config: claim.spec.devices.config,
            allocated: taken.map(AllocatedDevice::id).collect(),
            reserved_for: reserved_for.into_iter().map(|consumer| consumer.uid).collect(),
            is_ours: is_marked && is_for(labels, scheduler),
            version: version.and_then(|version| version.parse().ok()).unwrap_or_default(),
        })
    }
}

impl AllocatedDevice {
    fn id(self) -> DeviceId {
        DeviceId { driver: self.driver.into(), pool: self.pool.into(), device: self.device.into() }
    }
}

impl DeviceClaim {
    /// # Errors
    /// What of it is not considered: one phrase.
    fn asks(&self) -> Result<ClaimAsk, String> {
        if !self.constraints.is_empty() {
            return Err("constraints of a resource claim".to_owned());
        }
        let asked: Vec<_> =
            self.requests.iter().map(DeviceRequest::options).collect::<Result<_, _>>()?;
        let Some((first, others)) = asked.split_first() else {
            return Err("a resource claim without requests".to_owned());
        };
        let kind = |option: &AskOption| (option.class.clone(), option.selectors.clone());
        let is_same = |other: &Vec<AskOption>| match (first.as_slice(), other.as_slice()) {
            ([one], [other]) => kind(one) == kind(other),
            _ => false,
        };
        if !others.iter().all(is_same) {
            return Err("a resource claim whose requests ask for different devices".to_owned());
        }
        let of_each = asked.iter().map(|options| options[0].count);
        let names = self.requests.iter().map(|request| request.name.clone());
        let requests: Vec<(String, u32)> = names.zip(of_each).collect();
        let mut options = first.clone();
        if let [option] = options.as_mut_slice() {
            option.count = requests.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count));
        }
        let selectors = options.iter().flat_map(|option| &option.selectors);
        if options.iter().any(|option| option.count > DEVICES_MAX) {
            return Err(format!("a resource claim on more than {DEVICES_MAX} devices"));
        }
        if selectors.map(String::len).sum::<usize>() > SELECTORS_BYTES_MAX {
            return Err(format!("selectors of more than {SELECTORS_BYTES_MAX} bytes in a claim"));
        }
        Ok(ClaimAsk { requests, options })
    }

    fn tolerations(&self) -> BTreeMap<String, Vec<Value>> {
        let mut tolerations = BTreeMap::new();
        for request in &self.requests {
            let exactly = request.exactly.iter().map(|it| (None, it));
            let options = request.first_available.iter().map(|it| (Some(it.name.as_str()), it));
            let named = exactly.chain(options).filter(|(_, it)| !it.tolerations.is_empty());
            tolerations.extend(
                named.map(|(option, it)| {
                    (option_name(&request.name, option), it.tolerations.clone())
                }),
            );
        }
        tolerations
    }
}

/// What an allocation calls a request, or of one of several options that option.
pub(crate) fn option_name(request: &str, option: Option<&str>) -> String {
    option.map_or_else(|| request.to_owned(), |option| format!("{request}/{option}"))
}

/// Longest selectors of a claim together: they are looked at for each kind of device.
const SELECTORS_BYTES_MAX: usize = 4 << 10;

/// Most devices of a claim (`AllocationResultsMaxSize`).
const DEVICES_MAX: u32 = 32;

impl DeviceRequest {
    /// Of `firstAvailable` several.
    fn options(&self) -> Result<Vec<AskOption>, String> {
        match &self.exactly {
            Some(exactly) => Ok(vec![exactly.option(None)?]),
            None if self.first_available.is_empty() => {
                Err("a request of a resource claim of a kind that is not known".to_owned())
            }
            None => {
                let of = self.first_available.iter();
                of.map(|request| request.option(Some(request.name.clone()))).collect()
            }
        }
    }
}

impl SubRequest {
    fn option(&self, name: Option<String>) -> Result<AskOption, String> {
        let rules = [
            (!matches!(self.allocation_mode.as_str(), "" | "ExactCount"), "all devices of a node"),
            (self.admin_access, "a claim with `adminAccess`"),
            (self.capacity.is_some(), "a claim on a part of a device (`capacity`)"),
        ];
        match rules.into_iter().find_map(|(is_asked, what)| is_asked.then_some(what)) {
            Some(what) => Err(what.to_owned()),
            None => Ok(AskOption {
                name,
                class: self.device_class_name.clone(),
                selectors: expressions(self.selectors.clone()),
                count: self.count.unwrap_or(1).max(1),
            }),
        }
    }
}

fn expressions(selectors: Vec<SelectorSpec>) -> Vec<String> {
    selectors.into_iter().map(|selector| selector.cel.expression).collect()
}

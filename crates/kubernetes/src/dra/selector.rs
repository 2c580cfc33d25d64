//! Expressions that say which devices will do.
//!
//! Source of what they know: Kubernetes API reference, `CELDeviceSelector`: a variable `device`
//! with `driver`, `attributes` and `capacity` by domain, `quantity()` and `semver()` with
//! `compareTo`, `isGreaterThan` and `isLessThan`. As in the language itself, a part that does not
//! matter need not have a value: `false && x` is false whatever `x` is.

use std::cmp::Ordering;

use super::expression::{Comparison, Expression, Function, read};
use super::objects::{Attribute, DeviceRow};
use crate::quantity::Amount;

/// Longest expression that the API server takes.
const BYTES_MAX: usize = 10 << 10;

/// One that was read.
#[derive(Debug)]
pub(crate) struct Selector {
    expression: Expression,
    reads: Reads,
}

/// Why an expression has no value.
type NoValue = String;

#[derive(Debug, Clone, PartialEq)]
enum Value<'a> {
    Text(String),
    Number(i64),
    Flag(bool),
    /// In thousandths.
    Amount(u64),
    Version([u64; 3]),
    List(Vec<Self>),
    Device(&'a DeviceRow),
    Domains(&'a DeviceRow, Properties),
    Domain(&'a DeviceRow, Properties, String),
}

/// What a device has by domain and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Properties {
    Attributes,
    Capacity,
}

impl Selector {
    /// # Errors
    /// Why it is not understood: one phrase.
    pub fn new(expression: &str) -> Result<Self, String> {
        let text = Some(expression).filter(|text| text.len() <= BYTES_MAX);
        let read = text.and_then(read);
        let read = read.map(|it| Self { reads: Reads::of(&it), expression: it });
        read.ok_or_else(|| {
            let begin: String = expression.chars().take(200).collect();
            format!("the selector `{begin}`")
        })
    }

    /// Whether a device will do.
    ///
    /// # Errors
    /// When it does not say so of this device: what it asks for, the device may not have.
    pub fn accepts(&self, device: &DeviceRow) -> Result<bool, String> {
        flag(&self.expression, device)
    }

    /// What it reads of a device: those of which it reads the same are alike to it.
    pub fn kind(&self, device: &DeviceRow) -> String {
        let of_driver = device.id.driver.as_str();
        let properties =
            self.reads.properties.iter().map(|(which, domain, name)| {
                format!("{:?}", property(device, *which, (domain, name)))
            });
        let names = device.attributes.keys().chain(device.capacity.keys());
        let names = names.filter(|_| self.reads.names).cloned();
        [of_driver.to_owned()]
            .into_iter()
            .chain(properties)
            .chain(names)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// What an expression reads of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Reads {
    /// Domain and name each.
    properties: Vec<(Properties, String, String)>,
    /// Which domains and names there are.
    names: bool,
}

impl Reads {
    fn of(expression: &Expression) -> Self {
        let (mut reads, mut waiting) = (Self::default(), vec![expression]);
        while let Some(expression) = waiting.pop() {
            match expression {
                Expression::Member(of, name) if let Some((which, domain)) = domain_of(of) => {
                    reads.properties.push((which, domain, name.clone()));
                }
                Expression::In(one, among) if !matches!(**among, Expression::List(_)) => {
                    reads.names = true;
                    waiting.push(one);
                }
                expression => waiting.extend(expression.parts()),
            }
        }
        reads
    }
}

/// Of `device.attributes["domain"]`.
fn domain_of(expression: &Expression) -> Option<(Properties, String)> {
    let Expression::Member(of, domain) = expression else { return None };
    let Expression::Member(device, which) = &**of else { return None };
    let which = match which.as_str() {
        "attributes" => Properties::Attributes,
        "capacity" => Properties::Capacity,
        _ => return None,
    };
    (**device == Expression::Device).then(|| (which, domain.clone()))
}

fn flag(expression: &Expression, device: &DeviceRow) -> Result<bool, NoValue> {
    match value(expression, device)? {
        Value::Flag(flag) => Ok(flag),
        other => Err(format!("{other:?} is neither true nor false")),
    }
}

fn value<'a>(expression: &Expression, device: &'a DeviceRow) -> Result<Value<'a>, NoValue> {
    let of = |part: &Expression| value(part, device);
    match expression {
        Expression::Text(text) => Ok(Value::Text(text.clone())),
        Expression::Number(number) => Ok(Value::Number(*number)),
        Expression::Flag(flag) => Ok(Value::Flag(*flag)),
        Expression::List(parts) => Ok(Value::List(parts.iter().map(of).collect::<Result<_, _>>()?)),
        Expression::Device => Ok(Value::Device(device)),
        Expression::Member(whole, name) => member(of(whole)?, name),
        Expression::Has(of_what) => has(of_what, device).map(Value::Flag),
        Expression::Call { function, arguments } => {
            let arguments: Vec<Value<'a>> = arguments.iter().map(of).collect::<Result<_, _>>()?;
            call(*function, &arguments)
        }
        Expression::Not(part) => Ok(Value::Flag(!flag(part, device)?)),
        Expression::All(parts) => decided(parts, device, false),
        Expression::Any(parts) => decided(parts, device, true),
        Expression::Compare(comparison, one, other) => {
            compare(*comparison, &of(one)?, &of(other)?).map(Value::Flag)
        }
        Expression::In(one, among) => is_in(&of(one)?, &of(among)?).map(Value::Flag),
    }
}

/// What one part decides whatever the others are; the first that has no value, where none does.
fn decided<'a>(
    parts: &[Expression],
    device: &'a DeviceRow,
    decides: bool,
) -> Result<Value<'a>, NoValue> {
    let mut none = None;
    for part in parts {
        match flag(part, device) {
            Ok(flag) if flag == decides => return Ok(Value::Flag(decides)),
            Ok(_) => {}
            Err(why) => drop(none.get_or_insert(why)),
        }
    }
    none.map_or(Ok(Value::Flag(!decides)), Err)
}

fn member<'a>(of: Value<'a>, name: &str) -> Result<Value<'a>, NoValue> {
    match (of, name) {
        (Value::Device(device), "driver") => Ok(Value::Text(device.id.driver.to_string())),
        (Value::Device(device), "attributes") => Ok(Value::Domains(device, Properties::Attributes)),
        (Value::Device(device), "capacity") => Ok(Value::Domains(device, Properties::Capacity)),
        // Only devices that are for one claim are offered.
        (Value::Device(_), "allowMultipleAllocations") => Ok(Value::Flag(false)),
        (Value::Domains(device, which), _) => Ok(Value::Domain(device, which, name.to_owned())),
        (Value::Domain(device, which, domain), _) => {
            let known = property(device, which, (&domain, name));
            known.ok_or_else(|| format!("device `{}` has no `{domain}/{name}`", device.id.device))
        }
        (of, _) => Err(format!("{of:?} has no `{name}`")),
    }
}

fn property<'a>(
    device: &'a DeviceRow,
    which: Properties,
    (domain, name): (&str, &str),
) -> Option<Value<'a>> {
    let full = format!("{domain}/{name}");
    // What has no domain is of the driver's.
    let bare = (device.id.driver == *domain).then_some(name);
    let names = [Some(full.as_str()), bare];
    let mut names = names.into_iter().flatten();
    match which {
        Properties::Attributes => {
            let attribute = names.find_map(|name| device.attributes.get(name))?;
            Some(match attribute {
                Attribute::Text(text) => Value::Text(text.clone()),
                Attribute::Number(number) => Value::Number(*number),
                Attribute::Flag(flag) => Value::Flag(*flag),
            })
        }
        Properties::Capacity => {
            names.find_map(|name| device.capacity.get(name)).copied().map(Value::Amount)
        }
    }
}

fn has(of: &Expression, device: &DeviceRow) -> Result<bool, NoValue> {
    let Expression::Member(whole, name) = of else { return Err("`has` of no member".to_owned()) };
    match value(whole, device)? {
        Value::Domain(device, which, domain) => {
            Ok(property(device, which, (&domain, name)).is_some())
        }
        of => member(of, name).map(|_| true),
    }
}

fn call<'a>(function: Function, arguments: &[Value<'a>]) -> Result<Value<'a>, NoValue> {
    let order = || match arguments {
        [one, other] => order(one, other),
        _ => Err("it compares two".to_owned()),
    };
    match (function, arguments) {
        (Function::Quantity, [Value::Text(text)]) => {
            let amount = Amount::Text(text.clone()).milli().map(Value::Amount);
            amount.ok_or_else(|| format!("`{text}` is no amount"))
        }
        (Function::Version, [Value::Text(text)]) => {
            let version = version(text).map(Value::Version);
            version.ok_or_else(|| format!("`{text}` is no version `MAJOR.MINOR.PATCH`"))
        }
        (Function::CompareTo, _) => Ok(Value::Number(order()? as i64)),
        (Function::IsGreaterThan, _) => Ok(Value::Flag(order()?.is_gt())),
        (Function::IsLessThan, _) => Ok(Value::Flag(order()?.is_lt())),
        (Function::StartsWith, [Value::Text(text), Value::Text(part)]) => {
            Ok(Value::Flag(text.starts_with(part)))
        }
        (Function::EndsWith, [Value::Text(text), Value::Text(part)]) => {
            Ok(Value::Flag(text.ends_with(part)))
        }
        (Function::Contains, [Value::Text(text), Value::Text(part)]) => {
            Ok(Value::Flag(text.contains(part)))
        }
        (Function::Lower, [Value::Text(text)]) => Ok(Value::Text(text.to_ascii_lowercase())),
        (function, of) => Err(format!("{function:?} is not of {of:?}")),
    }
}

/// How two amounts, two versions, or two of another kind stand to each other.
fn order(one: &Value<'_>, other: &Value<'_>) -> Result<Ordering, NoValue> {
    match (one, other) {
        (Value::Amount(one), Value::Amount(other)) => Ok(one.cmp(other)),
        (Value::Number(one), Value::Number(other)) => Ok(one.cmp(other)),
        (Value::Version(one), Value::Version(other)) => Ok(one.cmp(other)),
        // A version that a driver tells is a text here.
        (Value::Text(one), Value::Version(other)) => match version(one) {
            Some(one) => Ok(one.cmp(other)),
            None => Err(format!("`{one}` is no version `MAJOR.MINOR.PATCH`")),
        },
        (Value::Text(one), Value::Text(other)) => Ok(one.cmp(other)),
        (one, other) => Err(format!("{one:?} and {other:?} have no order")),
    }
}

/// `MAJOR.MINOR.PATCH`; `None` of others, whose order semantic versioning says at length.
fn version(text: &str) -> Option<[u64; 3]> {
    let numbers: Vec<u64> = text.split('.').map(|it| it.parse().ok()).collect::<Option<_>>()?;
    numbers.try_into().ok()
}

fn compare(comparison: Comparison, one: &Value<'_>, other: &Value<'_>) -> Result<bool, NoValue> {
    let is_equal = || match (one, other) {
        (Value::Flag(one), Value::Flag(other)) => Ok(one == other),
        _ => order(one, other).map(Ordering::is_eq),
    };
    match comparison {
        Comparison::Equal => is_equal(),
        Comparison::Other => is_equal().map(|is_equal| !is_equal),
        Comparison::Less => order(one, other).map(Ordering::is_lt),
        Comparison::LessOrEqual => order(one, other).map(Ordering::is_le),
        Comparison::Greater => order(one, other).map(Ordering::is_gt),
        Comparison::GreaterOrEqual => order(one, other).map(Ordering::is_ge),
    }
}

fn is_in(one: &Value<'_>, among: &Value<'_>) -> Result<bool, NoValue> {
    match (one, among) {
        (_, Value::List(parts)) => {
            Ok(parts.iter().any(|part| compare(Comparison::Equal, one, part) == Ok(true)))
        }
        (Value::Text(domain), Value::Domains(device, which)) => {
            let begin = format!("{domain}/");
            let names: Box<dyn Iterator<Item = &String>> = match which {
                Properties::Attributes => Box::new(device.attributes.keys()),
                Properties::Capacity => Box::new(device.capacity.keys()),
            };
            let is_of_driver = device.id.driver == domain.as_str();
            let mut names = names;
            Ok(names.any(|name| name.starts_with(&begin) || is_of_driver && !name.contains('/')))
        }
        (Value::Text(name), Value::Domain(device, which, domain)) => {
            Ok(property(device, *which, (domain, name)).is_some())
        }
        (one, among) => Err(format!("nobody knows whether {one:?} is in {among:?}")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dra::objects::DeviceId;

    fn gpu() -> DeviceRow {
        let attributes = [
            ("productName", Attribute::Text("NVIDIA A100-SXM4-80GB".to_owned())),
            ("architecture", Attribute::Text("Ampere".to_owned())),
            ("index", Attribute::Number(3)),
            ("driverVersion", Attribute::Text("550.54.15".to_owned())),
            ("resource.kubernetes.io/pcieRoot", Attribute::Text("pci0000:01".to_owned())),
            ("healthy", Attribute::Flag(true)),
        ];
        DeviceRow {
            id: DeviceId {
                driver: "gpu.nvidia.com".into(),
                pool: "node-1".into(),
                device: "gpu-3".into(),
            },
            attributes: attributes.map(|(name, value)| (name.to_owned(), value)).into(),
            capacity: [("memory".to_owned(), 80 * 1_024u64.pow(3) * 1_000)].into(),
        }
    }

    #[track_caller]
    fn check(expression: &str, expected: bool) {
        let selector = Selector::new(expression).expect("it can be read");
        assert_eq!(selector.accepts(&gpu()), Ok(expected), "{expression}");
    }

    #[test]
    fn devices_are_selected_as_kubernetes_has_it() {
        check("device.driver == 'gpu.nvidia.com'", true);
        check("device.driver == 'gpu.amd.com' && device.attributes['x'].y == 1", false);
        check("device.attributes['x'].y == 1 || device.driver != 'gpu.amd.com'", true);
        let of = "device.attributes['gpu.nvidia.com']";
        check(&format!("{of}.productName.startsWith('NVIDIA A100')"), true);
        check(&format!("{of}.architecture in ['Hopper', 'Ampere']"), true);
        check(&format!("{of}.index > 3 || !{of}.healthy"), false);
        check(&format!("has({of}.brand)"), false);
        check("'gpu.nvidia.com' in device.attributes", true);
        check("device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:01'", true);
        let memory = "device.capacity['gpu.nvidia.com'].memory";
        check(&format!("{memory}.compareTo(quantity('80Gi')) >= 0"), true);
        check(&format!("{memory}.isLessThan(quantity('80Gi'))"), false);
        check(&format!("{of}.driverVersion.isGreaterThan(semver('550.9.0'))"), true);
    }

    #[test]
    fn what_is_not_understood_is_said() {
        assert!(Selector::new("device.driver ==").is_err());
        for hostile in ["(", "!", "[", "-", "device.", "has("] {
            assert!(Selector::new(&hostile.repeat(1_000)).is_err(), "{hostile}");
        }
        let deep = |times: usize| format!("{}true{}", "(".repeat(times), ")".repeat(times));
        assert!(Selector::new(&deep(10)).is_ok());
        assert!(Selector::new(&deep(100)).is_err());
        assert!(Selector::new("device.attributes['a'].?b.orValue('') == 'c'").is_err());
        assert!(Selector::new("unknown(device)").is_err());
        for expression in [
            "device.attributes['gpu.nvidia.com'].brand == 'Tesla'",
            "device.attributes['other.example'].model == 'A'",
            "device.driver",
            "device.attributes['gpu.nvidia.com'].productName.compareTo(semver('1.0.0')) > 0",
            "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('much')) > 0",
        ] {
            let selector = Selector::new(expression);
            assert!(selector.is_ok_and(|it| it.accepts(&gpu()).is_err()), "{expression}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, ..ProptestConfig::default()
        })]

        #[test]
        fn no_text_ends_the_server(words in prop::collection::vec(
            prop::sample::select(vec![
                "device", ".", "attributes", "[", "]", "(", ")", "'a'", "==", "&&", "||", "!", "1",
                "?", ":", "{", "}", ",", "in", "has", "all", "x", "-", "quantity", "\"", "\\",
            ]),
            0..40,
        )) {
            if let Ok(selector) = Selector::new(&words.concat()) {
                let _ = selector.accepts(&gpu());
            }
        }
    }
}

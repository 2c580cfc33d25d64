//! What a policy carries from one decision to the next.
//!
//! What it could not work out again stands in the state, as an event put it there: a decision
//! follows from state, rates, time and cadence alone. So it comes back after a restart, and a copy
//! of the state decides as the original would. What only saves work is in a [`Cache`].

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use het_core::{PolicyMemory, State};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What a policy worked out before and may use again. With an empty one it decides the same.
#[derive(Default)]
pub struct Cache(Option<Box<dyn Any + Send>>);

impl Cache {
    /// The policy's own, made empty if there is none of this type yet.
    pub(crate) fn of<T: Default + Send + 'static>(&mut self) -> &mut T {
        if !self.0.as_ref().is_some_and(|held| held.is::<T>()) {
            self.0 = Some(Box::new(T::default()));
        }
        let held = self.0.as_mut().and_then(|held| held.downcast_mut());
        held.expect("it was just made of this type")
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("empty", &self.0.is_none()).finish()
    }
}

/// What can stand in a state.
pub(crate) trait Stored: Serialize + DeserializeOwned {}

impl<T: Serialize + DeserializeOwned> Stored for T {}

/// The memory of a state as the policy's own type, read once.
#[derive(Debug, Default)]
pub(crate) struct Recalled<T> {
    value: T,
    from: Option<Arc<PolicyMemory>>,
}

impl<T: Stored + Clone + Default + PartialEq> Recalled<T> {
    /// What `policy` remembers in a state. Of a shape that this version does not know it remembers
    /// nothing.
    pub fn recall(&mut self, state: &State, policy: &str) -> T {
        let own = |memory: &&Arc<PolicyMemory>| memory.policy == *policy;
        let stored = state.policy_memory().filter(own);
        let is_read = match (stored, &self.from) {
            (Some(stored), Some(from)) => Arc::ptr_eq(stored, from),
            (None, None) => true,
            _ => false,
        };
        if !is_read {
            let read = stored.and_then(|stored| serde_json::from_str(&stored.json).ok());
            self.value = read.unwrap_or_default();
            self.from = stored.cloned();
        }
        self.value.clone()
    }

    /// What the state has to be told after a decision; `None` where it knows already.
    pub fn remember(&mut self, policy: &str, value: T) -> Option<Arc<PolicyMemory>> {
        if value == self.value {
            return None;
        }
        let json = serde_json::to_string(&value).expect("memories have no keys but text");
        let memory = Arc::new(PolicyMemory { policy: policy.into(), json });
        self.value = value;
        self.from = Some(Arc::clone(&memory));
        Some(memory)
    }
}

/// Numbers that are read exactly as they were written, whoever reads them.
pub(crate) mod exact {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Lists of such numbers.
pub(crate) mod exact_list {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(values: &[f64], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(ToString::to_string))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
        let words = Vec::<String>::deserialize(from)?;
        words.iter().map(|word| word.parse().map_err(D::Error::custom)).collect()
    }
}

/// Times as milliseconds.
pub(crate) mod millis {
    use het_core::Time;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(at: &Time, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(at.0)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        u64::deserialize(from).map(Time)
    }
}

/// The same, or nothing.
pub(crate) mod millis_if_any {
    use het_core::Time;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "derived code calls it so")]
    pub fn serialize<S: Serializer>(at: &Option<Time>, to: S) -> Result<S::Ok, S::Error> {
        at.map(|at| at.0).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Time>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Time))
    }
}

/// Stages as job and number.
pub(crate) mod stage {
    use het_core::{JobId, StageIndex, StageKey};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub type Word = (u64, u16);

    pub fn word(key: StageKey) -> Word {
        (key.job.0, key.stage.0)
    }

    pub fn key((job, stage): Word) -> StageKey {
        StageKey { job: JobId(job), stage: StageIndex(stage) }
    }

    pub fn serialize<S: Serializer>(stage: &StageKey, to: S) -> Result<S::Ok, S::Error> {
        word(*stage).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<StageKey, D::Error> {
        Word::deserialize(from).map(key)
    }
}

/// Lists of stages.
pub(crate) mod stages {
    use het_core::StageKey;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::stage;

    pub fn serialize<S: Serializer>(stages: &[StageKey], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(stages.iter().copied().map(stage::word))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<StageKey>, D::Error> {
        let words = Vec::<stage::Word>::deserialize(from)?;
        Ok(words.into_iter().map(stage::key).collect())
    }
}

/// Something for each of several stages, as pairs: text has no other keys than text.
pub(crate) mod pairs {
    use het_core::StageKey;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::stage;

    pub fn serialize<'a, S: Serializer, T: Serialize + 'a, I>(
        of: I,
        to: S,
    ) -> Result<S::Ok, S::Error>
    where
        I: IntoIterator<Item = &'a (StageKey, T)>,
    {
        to.collect_seq(of.into_iter().map(|(key, value)| (stage::word(*key), value)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>, T: Deserialize<'de>, I>(
        from: D,
    ) -> Result<I, D::Error>
    where
        I: FromIterator<(StageKey, T)>,
    {
        let words = Vec::<(stage::Word, T)>::deserialize(from)?;
        Ok(words.into_iter().map(|(word, value)| (stage::key(word), value)).collect())
    }
}

/// Lists of numbers for each of several stages.
pub(crate) mod exact_by_stage {
    use std::collections::BTreeMap;

    use het_core::StageKey;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{exact_list, stage};

    #[derive(Serialize, Deserialize)]
    struct Row(stage::Word, #[serde(with = "exact_list")] Vec<f64>);

    type Rows = BTreeMap<StageKey, Vec<f64>>;

    pub fn serialize<S: Serializer>(rows: &Rows, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(rows.iter().map(|(key, values)| Row(stage::word(*key), values.clone())))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Rows, D::Error> {
        let rows = Vec::<Row>::deserialize(from)?;
        Ok(rows.into_iter().map(|Row(word, values)| (stage::key(word), values)).collect())
    }
}

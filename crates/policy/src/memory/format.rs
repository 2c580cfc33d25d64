//! How memories are written: what JSON and `core` have no words for.

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

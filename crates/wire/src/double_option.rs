//! Tells an absent field from an explicit `null`: `None`, `Some(None)`, `Some(Some(value))`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}

#[expect(clippy::ref_option, reason = "serde fixes the signature")]
pub(crate) fn serialize<T, S>(value: &Option<Option<T>>, serializer: S) -> Result<S::Ok, S::Error>
where
    T: Serialize,
    S: Serializer,
{
    value.as_ref().and_then(Option::as_ref).serialize(serializer)
}

//! Between domain types and what a column holds.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use domain::{BuildSpec, BuildStep, EgressRules, RuntimeDefaults, Shape};
use jiff::Timestamp;
use serde_json::{Value, json};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::StoreError;

fn corrupt(column: &'static str, found: impl Display) -> StoreError {
    StoreError::Corrupt { column, found: found.to_string() }
}

/// A text column with a type that parses.
pub(crate) fn parsed<T: FromStr>(row: &SqliteRow, column: &'static str) -> Result<T, StoreError>
where
    T::Err: Display,
{
    row.try_get::<&str, _>(column)?.parse().map_err(|error: T::Err| corrupt(column, error))
}

/// A text column that may be unset, with a type that parses.
pub(crate) fn maybe_parsed<T: FromStr>(row: &SqliteRow, column: &'static str) -> Result<Option<T>, StoreError>
where
    T::Err: Display,
{
    let text = row.try_get::<Option<&str>, _>(column)?;
    text.map(|text| text.parse().map_err(|error: T::Err| corrupt(column, error))).transpose()
}

/// A whole number that fits the type asked for.
pub(crate) fn number<T: TryFrom<i64>>(row: &SqliteRow, column: &'static str) -> Result<T, StoreError> {
    let value = row.try_get::<i64, _>(column)?;
    T::try_from(value).map_err(|_| corrupt(column, "a number out of range"))
}

/// A whole number that may be unset.
pub(crate) fn maybe_number<T: TryFrom<i64>>(
    row: &SqliteRow,
    column: &'static str,
) -> Result<Option<T>, StoreError> {
    let value = row.try_get::<Option<i64>, _>(column)?;
    value.map(|v| T::try_from(v).map_err(|_| corrupt(column, "a number out of range"))).transpose()
}

/// A time.
pub(crate) fn time(row: &SqliteRow, column: &'static str) -> Result<Timestamp, StoreError> {
    Timestamp::from_microsecond(row.try_get(column)?).map_err(|_| corrupt(column, "a time out of range"))
}

/// A time that may be unset.
pub(crate) fn maybe_time(row: &SqliteRow, column: &'static str) -> Result<Option<Timestamp>, StoreError> {
    let value = row.try_get::<Option<i64>, _>(column)?;
    value
        .map(|v| Timestamp::from_microsecond(v).map_err(|_| corrupt(column, "a time out of range")))
        .transpose()
}

/// Microseconds of a time that may be unset.
pub(crate) fn micros(time: Option<Timestamp>) -> Option<i64> {
    time.map(Timestamp::as_microsecond)
}

/// The three columns of a shape.
pub(crate) fn shape(row: &SqliteRow) -> Result<Shape, StoreError> {
    Ok(Shape {
        vcpu: number(row, "vcpu")?,
        memory_mib: number(row, "memory_mib")?,
        disk_mib: number(row, "disk_mib")?,
    })
}

fn json(row: &SqliteRow, column: &'static str) -> Result<Value, StoreError> {
    // The error of serde_json would quote the text, which may be private.
    serde_json::from_str(row.try_get::<&str, _>(column)?).map_err(|_| corrupt(column, "malformed JSON"))
}

/// A JSON object of strings.
pub(crate) fn map(row: &SqliteRow, column: &'static str) -> Result<BTreeMap<String, String>, StoreError> {
    serde_json::from_str(row.try_get::<&str, _>(column)?).map_err(|_| corrupt(column, "malformed JSON"))
}

/// A JSON list of strings.
pub(crate) fn list(row: &SqliteRow, column: &'static str) -> Result<Vec<String>, StoreError> {
    serde_json::from_str(row.try_get::<&str, _>(column)?).map_err(|_| corrupt(column, "malformed JSON"))
}

/// A map of strings as JSON.
pub(crate) fn map_text(map: &BTreeMap<String, String>) -> String {
    json!(map).to_string()
}

/// A list of strings as JSON.
pub(crate) fn list_text(list: &[String]) -> String {
    json!(list).to_string()
}

/// Runtime defaults as JSON.
pub(crate) fn defaults_text(defaults: &RuntimeDefaults) -> String {
    json!({
        "env": defaults.env,
        "workdir": defaults.workdir,
        "user": defaults.user,
        "start_cmd": defaults.start_cmd,
        "ready_cmd": defaults.ready_cmd,
    })
    .to_string()
}

/// Runtime defaults from JSON.
pub(crate) fn defaults(row: &SqliteRow, column: &'static str) -> Result<RuntimeDefaults, StoreError> {
    let value = json(row, column)?;
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let env = match &value["env"] {
        Value::Object(env) => {
            env.iter().filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect()
        }
        _ => return Err(corrupt(column, "no env object")),
    };
    Ok(RuntimeDefaults {
        env,
        workdir: text("workdir"),
        user: text("user"),
        start_cmd: text("start_cmd"),
        ready_cmd: text("ready_cmd"),
    })
}

/// Egress rules as JSON.
pub(crate) fn network_text(rules: &EgressRules) -> String {
    json!({ "allow_out": rules.allow_out(), "deny_out": rules.deny_out(), "strict": rules.strict })
        .to_string()
}

/// Egress rules from JSON, checked again on the way in.
pub(crate) fn network(row: &SqliteRow, column: &'static str) -> Result<EgressRules, StoreError> {
    let value = json(row, column)?;
    let list = |key: &str| -> Vec<String> {
        let entries = value[key].as_array().into_iter().flatten();
        entries.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let rules = EgressRules::parse(&list("allow_out"), &list("deny_out"));
    let rules = rules.map_err(|problem| corrupt(column, problem))?;
    Ok(EgressRules { strict: value["strict"].as_bool().unwrap_or(false), ..rules })
}

/// A build spec as JSON, always the same text for the same spec.
#[must_use]
pub fn spec_text(spec: &BuildSpec) -> String {
    let steps: Vec<Value> = spec
        .steps()
        .iter()
        .map(|step| match step {
            BuildStep::Run(command) => json!({ "run": command }),
            BuildStep::Env { key, value } => json!({ "env": { "key": key, "value": value } }),
            BuildStep::Workdir(path) => json!({ "workdir": path }),
            BuildStep::User { name, sudo } => json!({ "user": { "name": name, "sudo": sudo } }),
        })
        .collect();
    let mut text = json!({
        "from": spec.from(),
        "steps": steps,
        "start_cmd": spec.start_cmd(),
        "ready_cmd": spec.ready_cmd(),
    });
    // Only where it is on: specs from before it have the text, and the hash, that they had.
    if spec.image_cmd() {
        text["image_cmd"] = true.into();
    }
    text.to_string()
}

/// A build spec from JSON, checked again on the way in.
pub(crate) fn spec(row: &SqliteRow, column: &'static str) -> Result<Option<BuildSpec>, StoreError> {
    if row.try_get::<Option<&str>, _>(column)?.is_none() {
        return Ok(None);
    }
    let value = json(row, column)?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let step = |step: &Value| -> Option<BuildStep> {
        if let Some(command) = text(&step["run"]) {
            return Some(BuildStep::Run(command));
        }
        if let Some(path) = text(&step["workdir"]) {
            return Some(BuildStep::Workdir(path));
        }
        if let Some(key) = text(&step["env"]["key"]) {
            return Some(BuildStep::Env { key, value: text(&step["env"]["value"])? });
        }
        let name = text(&step["user"]["name"])?;
        Some(BuildStep::User { name, sudo: step["user"]["sudo"].as_bool()? })
    };
    let steps = value["steps"].as_array().into_iter().flatten().map(step).collect::<Option<Vec<_>>>();
    let steps = steps.ok_or_else(|| corrupt(column, "an unknown step"))?;
    let from = value["from"].as_str().unwrap_or_default();
    BuildSpec::new(from, steps, text(&value["start_cmd"]), text(&value["ready_cmd"]))
        .map(|spec| Some(spec.with_image_cmd(value["image_cmd"].as_bool().unwrap_or(false))))
        .map_err(|problem| corrupt(column, problem))
}

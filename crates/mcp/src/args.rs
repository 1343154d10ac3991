//! Arguments of a call, checked against the parameter table. All problems are reported together, so that a model can
//! mend them in one step; nothing is sent to the platform before the check has passed (`spec/mcp.md` §C.0).
//!
//! Lenient where models are known to be sloppy: `null` for an optional argument is absent, `5.0` and `"5"` are the
//! integer 5. Values are never echoed: they may be secrets.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use crate::params::{Kind, MAX_ID_CHARS, Param};
use crate::path;

/// Most unknown argument names that are mentioned.
const MAX_UNKNOWN_SHOWN: usize = 8;
/// Most characters of an unknown name that are shown.
const MAX_NAME_SHOWN: usize = 64;

/// A checked value.
#[derive(Clone, PartialEq, Eq)]
enum Value {
    Text(String),
    Integer(i64),
    Null,
    Map(BTreeMap<String, String>),
    List(Vec<String>),
    Point([i64; 2]),
    Flag(bool),
}

/// Checked arguments. Getters take a value out; they panic on a name or kind the tool's table does not have, which is
/// a defect of the tool that any test of it finds.
#[derive(Default)]
pub(crate) struct Args {
    values: BTreeMap<&'static str, Value>,
}

impl std::fmt::Debug for Args {
    /// Names only: values may be secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

/// What a check of arguments yields.
#[derive(Debug)]
pub(crate) struct Checked {
    /// The usable values.
    pub(crate) args: Args,
    /// What is wrong, one clause each; empty when the call may go on.
    pub(crate) problems: Vec<String>,
    /// Names the tool does not have, with a guess at what was meant.
    pub(crate) unknown: Vec<String>,
}

impl Args {
    /// Checks `raw` against `params`.
    pub(crate) fn check(params: &[Param], mut raw: Map<String, Json>) -> Checked {
        let mut args = Self::default();
        let mut problems = Vec::new();
        for param in params {
            let nullable = matches!(param.kind, Kind::NullableInteger { .. });
            match raw.remove(param.name) {
                None | Some(Json::Null) if param.required => {
                    problems.push(format!("`{}` is required", param.name));
                }
                None => {}
                Some(Json::Null) if nullable => drop(args.values.insert(param.name, Value::Null)),
                Some(Json::Null) => {}
                Some(given) => match convert(param.kind, given) {
                    Ok(value) => drop(args.values.insert(param.name, value)),
                    Err(problem) => problems.push(format!("`{}` {problem}", param.name)),
                },
            }
        }
        let unknown = raw.keys().take(MAX_UNKNOWN_SHOWN).map(|name| describe_unknown(name, params)).collect();
        Checked { args, problems, unknown }
    }

    /// A text argument.
    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        match self.values.remove(name)? {
            Value::Text(text) => Some(text),
            _ => panic!("`{name}` is not text by the table"),
        }
    }

    /// A text argument the table marks as required.
    pub(crate) fn required_text(&mut self, name: &str) -> String {
        self.text(name).unwrap_or_else(|| panic!("`{name}` is not required by the table"))
    }

    /// A whole number.
    pub(crate) fn integer(&mut self, name: &str) -> Option<i64> {
        match self.values.remove(name)? {
            Value::Integer(number) => Some(number),
            _ => panic!("`{name}` is not a number by the table"),
        }
    }

    /// A whole number, `null`, or absent.
    pub(crate) fn nullable_integer(&mut self, name: &str) -> Option<Option<i64>> {
        match self.values.remove(name)? {
            Value::Integer(number) => Some(Some(number)),
            Value::Null => Some(None),
            _ => panic!("`{name}` is not a nullable number by the table"),
        }
    }

    /// A map.
    pub(crate) fn map(&mut self, name: &str) -> Option<BTreeMap<String, String>> {
        match self.values.remove(name)? {
            Value::Map(map) => Some(map),
            _ => panic!("`{name}` is not a map by the table"),
        }
    }

    /// A list.
    pub(crate) fn list(&mut self, name: &str) -> Option<Vec<String>> {
        match self.values.remove(name)? {
            Value::List(list) => Some(list),
            _ => panic!("`{name}` is not a list by the table"),
        }
    }

    /// A place on a screen.
    pub(crate) fn point(&self, name: &str) -> Option<[i64; 2]> {
        match self.values.get(name)? {
            Value::Point(point) => Some(*point),
            _ => panic!("`{name}` is not a point by the table"),
        }
    }

    /// Yes or no.
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        match self.values.get(name)? {
            Value::Flag(flag) => Some(*flag),
            _ => panic!("`{name}` is not a flag by the table"),
        }
    }

    /// A whole number, left where it is: for checks.
    pub(crate) fn peek_integer(&self, name: &str) -> Option<i64> {
        match self.values.get(name)? {
            Value::Integer(number) => Some(*number),
            _ => panic!("`{name}` is not a number by the table"),
        }
    }

    /// A text argument, left where it is: for checks.
    pub(crate) fn peek_text(&self, name: &str) -> Option<&str> {
        match self.values.get(name)? {
            Value::Text(text) => Some(text),
            _ => panic!("`{name}` is not text by the table"),
        }
    }

    /// Whether the argument was given; `null` counts where the parameter is nullable.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }
}

impl Args {
    /// Whether a whole number was given and is this one.
    pub(crate) fn is_integer(&self, name: &str, number: i64) -> bool {
        self.values.get(name) == Some(&Value::Integer(number))
    }
}

fn convert(kind: Kind, given: Json) -> Result<Value, String> {
    match kind {
        Kind::SandboxId => {
            let id = text(given)?;
            let ok = !id.is_empty()
                && id.len() <= MAX_ID_CHARS
                && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
            if ok {
                Ok(Value::Text(id))
            } else {
                Err(format!(
                    "is not a valid sandbox id (1 to {MAX_ID_CHARS} letters, digits and dashes); call sandbox_list to \
                     see the ids that exist"
                ))
            }
        }
        Kind::Path => {
            let given = text(given)?;
            path::check(&given).map_err(str::to_owned)?;
            Ok(Value::Text(given))
        }
        Kind::Text { min } => {
            let given = text(given)?;
            if given.chars().take(min).count() < min {
                return Err("must not be empty".to_owned());
            }
            Ok(Value::Text(given))
        }
        Kind::Integer { min, max, .. } => integer(&given, min, max).map(Value::Integer),
        Kind::NullableInteger { min, max } => integer(&given, min, Some(max))
            .map(Value::Integer)
            .map_err(|problem| format!("{problem}, or null")),
        Kind::Map => match given {
            Json::Object(map) => {
                let mut texts = BTreeMap::new();
                for (key, value) in map {
                    match value {
                        Json::String(value) => drop(texts.insert(key, value)),
                        other => {
                            return Err(format!(
                                "must map strings to strings, but `{}` has {}",
                                shorten(&key),
                                noun(&other)
                            ));
                        }
                    }
                }
                Ok(Value::Map(texts))
            }
            other => Err(format!("must be an object of strings, got {}", noun(&other))),
        },
        Kind::List => match given {
            Json::Array(items) => items
                .into_iter()
                .enumerate()
                .map(|(index, item)| match item {
                    Json::String(item) => Ok(item),
                    other => Err(format!("must be a list of strings, but item {index} is {}", noun(&other))),
                })
                .collect::<Result<_, _>>()
                .map(Value::List),
            other => Err(format!("must be a list of strings, got {}", noun(&other))),
        },
        Kind::Choice { of, .. } => {
            let given = text(given)?;
            if of.contains(&given.as_str()) {
                Ok(Value::Text(given))
            } else {
                Err(format!("must be one of {}", of.join(", ")))
            }
        }
        Kind::Action { of, also } => {
            let given = text(given)?;
            let meant =
                also.iter().find(|(name, _)| *name == given).map_or(given.as_str(), |(_, meant)| meant);
            match of.contains(&meant) {
                true => Ok(Value::Text(meant.to_owned())),
                false => Err(format!("must be one of {}", of.join(", "))),
            }
        }
        Kind::Point => {
            let wrong = || "must be two whole numbers [x, y], neither negative".to_owned();
            let Json::Array(items) = given else { return Err(wrong()) };
            let numbers: Vec<i64> = items
                .iter()
                .map(|item| integer(item, 0, None))
                .collect::<Result<_, _>>()
                .map_err(|_| wrong())?;
            numbers.try_into().map(Value::Point).map_err(|_| wrong())
        }
        Kind::Flag { .. } => match &given {
            Json::Bool(flag) => Ok(Value::Flag(*flag)),
            Json::String(text) if text == "true" || text == "false" => Ok(Value::Flag(text == "true")),
            other => Err(format!("must be true or false, got {}", noun(other))),
        },
    }
}

fn text(given: Json) -> Result<String, String> {
    match given {
        Json::String(text) => Ok(text),
        other => Err(format!("must be a string, got {}", noun(&other))),
    }
}

/// Accepts `5`, `5.0` and `"5"`.
fn integer(given: &Json, min: i64, max: Option<i64>) -> Result<i64, String> {
    let range = match max {
        Some(max) => format!("must be an integer from {min} to {max}"),
        None => format!("must be an integer of at least {min}"),
    };
    let number = match given {
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Some(number),
            (None, Some(float)) => whole(float),
            (None, None) => None,
        },
        Json::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    match number {
        None => match given {
            Json::Number(number) => Err(format!("{range}, got {number}")),
            other => Err(format!("{range}, got {}", noun(other))),
        },
        Some(number) if number < min || max.is_some_and(|max| number > max) => {
            Err(format!("{range}, got {number}"))
        }
        Some(number) => Ok(number),
    }
}

/// A float without a fraction as an integer. Beyond 2^53 a float no longer stands for one integer; no bound of ours is
/// as large, so such a value is clamped to the ends and fails the range check or is clamped by the tool.
fn whole(float: f64) -> Option<i64> {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a float to integer cast saturates, which is what is wanted"
    )]
    (float.is_finite() && float.fract() == 0.0).then_some(float as i64)
}

fn noun(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
    }
}

fn shorten(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(MAX_NAME_SHOWN).collect()
}

fn describe_unknown(name: &str, params: &[Param]) -> String {
    let name = shorten(name);
    let near = params
        .iter()
        .map(|param| (distance(&name, param.name), param.name))
        .min()
        .filter(|(distance, _)| *distance <= name.chars().count().div_ceil(3));
    match near {
        Some((_, meant)) => format!("Ignored unknown argument `{name}`; did you mean `{meant}`?"),
        None => format!("Ignored unknown argument `{name}`."),
    }
}

/// Edit distance; both names are short.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PARAMS: &[Param] = &[
        Param::sandbox_id(),
        Param::required("command", Kind::Text { min: 1 }, "."),
        Param::optional("path", Kind::Path, "."),
        Param::optional("count", Kind::Integer { min: 1, max: Some(10), default: None }, "."),
        Param::optional("window", Kind::NullableInteger { min: 0, max: 10 }, "."),
        Param::optional("env", Kind::Map, "."),
        Param::optional("hosts", Kind::List, "."),
        Param::optional("mode", Kind::Choice { of: &["text", "base64"], default: None }, "."),
        Param::optional("act", Kind::Action { of: &["move", "key"], also: &[("keypress", "key")] }, "."),
        Param::optional("at", Kind::Point, "."),
        Param::optional("look", Kind::Flag { default: true }, "."),
    ];

    fn check(raw: Json) -> Checked {
        let Json::Object(raw) = raw else { panic!("not an object") };
        Args::check(PARAMS, raw)
    }

    /// Problems of one extra argument next to the required ones.
    fn problem(name: &str, value: Json) -> String {
        let checked = check(json!({"sandbox_id": "a", "command": "b", name: value}));
        assert_eq!(checked.problems.len(), usize::from(!checked.problems.is_empty()), "one at a time");
        checked.problems.into_iter().next().unwrap_or_default()
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let checked = check(json!({"sandbox_id": "a.b/c", "count": 11, "hosts": "x", "env": {"A": 1}}));
        assert_eq!(checked.problems.len(), 5, "{:?}", checked.problems);
        let all = checked.problems.join("; ");
        for part in [
            "`sandbox_id` is not a valid",
            "sandbox_list",
            "`command` is required",
            "from 1 to 10, got 11",
            "`hosts` must be a list of strings, got a string",
            "`env` must map strings to strings, but `A` has a number",
        ] {
            assert!(all.contains(part), "{part} in {all}");
        }
    }

    #[test]
    fn integers_come_in_three_spellings() {
        for good in [json!(5), json!(5.0), json!("5"), json!(" 5 ")] {
            let mut checked = check(json!({"sandbox_id": "a", "command": "b", "count": good}));
            assert_eq!(checked.args.integer("count"), Some(5));
        }
        for bad in [
            json!(5.5),
            json!("5.0"),
            json!("five"),
            json!(true),
            json!([5]),
            json!(0),
            json!(-1),
            json!(1e300),
        ] {
            assert!(problem("count", bad.clone()).contains("must be an integer from 1 to 10"), "{bad}");
        }
    }

    #[test]
    fn null_is_absent_unless_it_means_something() {
        let mut checked = check(json!({"sandbox_id": "a", "command": "b", "count": null, "window": null}));
        assert!(checked.problems.is_empty());
        assert_eq!(checked.args.integer("count"), None);
        assert_eq!(checked.args.nullable_integer("window"), Some(None));
        assert_eq!(check(json!({"sandbox_id": "a", "command": "b"})).args.nullable_integer("window"), None);
        assert_eq!(check(json!({"sandbox_id": null, "command": "b"})).problems, ["`sandbox_id` is required"]);
        assert!(problem("window", json!(11)).ends_with("or null"));
    }

    #[test]
    fn points_flags_and_other_names() {
        for (at, expected) in [(json!([0, 7]), [0, 7]), (json!([5.0, "6"]), [5, 6])] {
            let checked = check(json!({"sandbox_id": "a", "command": "b", "at": at}));
            assert_eq!(checked.args.point("at"), Some(expected), "{:?}", checked.problems);
        }
        for bad in
            [json!([1]), json!([1, 2, 3]), json!([-1, 2]), json!([1.5, 2]), json!("1,2"), json!([null, 1])]
        {
            assert!(problem("at", bad.clone()).contains("[x, y]"), "{bad}");
        }
        for (look, expected) in [(json!(false), false), (json!("true"), true)] {
            let checked = check(json!({"sandbox_id": "a", "command": "b", "look": look}));
            assert_eq!(checked.args.flag("look"), Some(expected));
        }
        assert!(problem("look", json!(1)).contains("true or false, got a number"));
        for (act, expected) in [("keypress", "key"), ("move", "move")] {
            let mut checked = check(json!({"sandbox_id": "a", "command": "b", "act": act}));
            assert_eq!(checked.args.text("act").as_deref(), Some(expected));
        }
        assert_eq!(problem("act", json!("press")), "`act` must be one of move, key");
    }

    #[test]
    fn ids_are_host_safe() {
        for bad in ["", "a.b", "a/b", "a@b", "a b", "a\n", "ü", &"a".repeat(129)] {
            assert!(!check(json!({"sandbox_id": bad, "command": "b"})).problems.is_empty(), "{bad:?}");
        }
        for good in ["0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b", "sbx-1", &"a".repeat(128)] {
            assert!(check(json!({"sandbox_id": good, "command": "b"})).problems.is_empty(), "{good:?}");
        }
    }

    #[test]
    fn unknown_names_are_noted_with_a_guess() {
        let checked = check(json!({"sandbox_id": "a", "command": "b", "comand": "c", "zzzzzzz": 1}));
        assert!(checked.problems.is_empty());
        assert_eq!(
            checked.unknown,
            [
                "Ignored unknown argument `comand`; did you mean `command`?",
                "Ignored unknown argument `zzzzzzz`.",
            ]
        );
    }

    #[test]
    fn values_are_never_echoed() {
        let checked =
            check(json!({"sandbox_id": "s3cr3t!", "command": "b", "mode": "s3cr3t", "count": "s3cr3t",
            "path": "s3cr3t", "env": {"K": ["s3cr3t"]}}));
        assert_eq!(checked.problems.len(), 5);
        assert!(!checked.problems.concat().contains("s3cr3t"));
        assert!(
            !format!("{:?}", check(json!({"sandbox_id": "s3cr3t", "command": "b"})).args).contains("s3cr3t")
        );
    }
}

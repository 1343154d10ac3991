//! The parameters of a tool as one constant table. The published schema and the validation of arguments are both
//! derived from it, so they cannot disagree.
//!
//! Schemas are written out in place: no `$ref`, no type arrays, no tuple syntax, `anyOf` never at the root. Each of
//! these breaks some client (`spec/mcp.md` §C.0, §H.2).

use serde_json::{Map, Value, json};

/// One parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Param {
    /// The name, as published.
    pub(crate) name: &'static str,
    /// What is accepted.
    pub(crate) kind: Kind,
    /// Whether a call without it is refused.
    pub(crate) required: bool,
    /// What the model must know of it.
    pub(crate) about: &'static str,
}

/// What a parameter accepts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// A sandbox id; it goes into URLs and host names, so its alphabet is checked.
    SandboxId,
    /// An absolute path without `..` segments.
    Path,
    /// Any text with at least this many characters.
    Text { min: usize },
    /// A whole number.
    Integer { min: i64, max: Option<i64>, default: Option<i64> },
    /// A whole number, or `null` to switch something off: three-valued together with "absent".
    NullableInteger { min: i64, max: i64 },
    /// String to string.
    Map,
    /// Strings.
    List,
    /// One of a few words.
    Choice { of: &'static [&'static str], default: Option<&'static str> },
    /// One of a few words. Some have other names too, which are taken and not published.
    Action { of: &'static [&'static str], also: &'static [(&'static str, &'static str)] },
    /// A place on a screen: two whole numbers, neither negative.
    Point,
    /// Yes or no.
    Flag { default: bool },
}

/// Most characters of a sandbox id.
pub(crate) const MAX_ID_CHARS: usize = 128;

impl Param {
    /// A parameter every call must give.
    pub(crate) const fn required(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, kind, required: true, about }
    }

    /// A parameter a call may leave out.
    pub(crate) const fn optional(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, kind, required: false, about }
    }

    /// `sandbox_id`, which most tools need.
    pub(crate) const fn sandbox_id() -> Self {
        Self::required("sandbox_id", Kind::SandboxId, "Id from sandbox_create or sandbox_list.")
    }

    fn schema(&self) -> Value {
        let mut schema = self.kind.schema();
        schema.insert("description".into(), self.about.into());
        Value::Object(schema)
    }
}

impl Kind {
    fn schema(self) -> Map<String, Value> {
        let schema = match self {
            Self::SandboxId => json!({"type": "string", "pattern": "^[A-Za-z0-9-]+$"}),
            Self::Path => json!({"type": "string"}),
            Self::Text { min: 0 } => json!({"type": "string"}),
            Self::Text { min } => json!({"type": "string", "minLength": min}),
            Self::Integer { min, max, default } => {
                let mut schema = json!({"type": "integer", "minimum": min});
                if let Some(max) = max {
                    schema["maximum"] = max.into();
                }
                if let Some(default) = default {
                    schema["default"] = default.into();
                }
                schema
            }
            Self::NullableInteger { min, max } => json!({
                "anyOf": [{"type": "integer", "minimum": min, "maximum": max}, {"type": "null"}]
            }),
            Self::Map => json!({"type": "object", "additionalProperties": {"type": "string"}}),
            Self::List => json!({"type": "array", "items": {"type": "string"}}),
            Self::Choice { of, default } => {
                let mut schema = json!({"type": "string", "enum": of});
                if let Some(default) = default {
                    schema["default"] = default.into();
                }
                schema
            }
            Self::Action { of, .. } => json!({"type": "string", "enum": of}),
            Self::Point => json!({
                "type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2
            }),
            Self::Flag { default } => json!({"type": "boolean", "default": default}),
        };
        match schema {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }
}

/// The `inputSchema` of a tool with these parameters.
pub(crate) fn input_schema(params: &[Param]) -> Map<String, Value> {
    let properties: Map<String, Value> = params.iter().map(|p| (p.name.to_owned(), p.schema())).collect();
    let required: Vec<Value> = params.iter().filter(|p| p.required).map(|p| p.name.into()).collect();
    let mut schema = Map::new();
    schema.insert("type".into(), "object".into());
    schema.insert("properties".into(), properties.into());
    if !required.is_empty() {
        schema.insert("required".into(), required.into());
    }
    schema.insert("additionalProperties".into(), false.into());
    schema
}

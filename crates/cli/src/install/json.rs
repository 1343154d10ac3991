//! One server in a JSON configuration. Everything else keeps its bytes: order, indentation, comments.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstObjectProp, CstRootNode};
use serde::de::IgnoredAny;
use serde_json::Value;

use super::clients::McpClient;
use super::entry::{Field, INPUT_ID, Wanted};

const BOM: char = '\u{feff}';

/// `text` with the server in it; an error is a clause that says what is in the way.
pub(super) fn set(text: &str, client: McpClient, name: &str, wanted: &Wanted) -> Result<String, String> {
    let document = Document::parse(text, client)?;
    if wanted.asks() {
        document.add_input()?;
    }
    let servers = match document.servers()? {
        Some(servers) => servers,
        None => {
            document.root.append(client.container(), CstInputValue::Object(Vec::new()));
            document.servers()?.ok_or("it cannot be changed")?
        }
    };
    let fields = wanted.fields(client).into_iter();
    put(
        &servers,
        name,
        CstInputValue::Object(fields.map(|(name, field)| (name.to_owned(), value(field))).collect()),
    )?;
    Ok(document.text())
}

/// `text` without the server and what came with it, or with what `original` has in its place.
pub(super) fn unset(text: &str, client: McpClient, name: &str, original: &str) -> Result<String, String> {
    let document = Document::parse(text, client)?;
    let before = Document::parse(original, client)?;
    let servers_before = before.servers()?;
    if let Some(servers) = document.servers()? {
        let entry_before = match &servers_before {
            Some(servers) => single(servers, name)?.and_then(|entry| entry.to_serde_value()),
            None => None,
        };
        match (entry_before, single(&servers, name)?) {
            (Some(entry), _) => put(&servers, name, plain(entry))?,
            (None, Some(entry)) => entry.remove(),
            (None, None) => {}
        }
        if servers_before.is_none() && servers.properties().is_empty() {
            document.remove(client.container())?;
        }
    }
    if client == McpClient::VsCode && before.input()?.is_none() {
        let asked = document.text().contains(&format!("${{input:{INPUT_ID}}}"));
        if let Some(input) = document.input()?.filter(|_| !asked) {
            input.remove();
            let none = document.root.array_value("inputs").is_some_and(|inputs| inputs.elements().is_empty());
            if none && before.root.get("inputs").is_none() {
                document.remove("inputs")?;
            }
        }
    }
    Ok(document.text())
}

struct Document {
    // The nodes below refer to it weakly.
    tree: CstRootNode,
    root: CstObject,
    client: McpClient,
    bom: bool,
}

impl Document {
    fn parse(text: &str, client: McpClient) -> Result<Self, String> {
        let plain = text.strip_prefix(BOM).unwrap_or(text);
        let source = if plain.trim().is_empty() { "{}\n" } else { plain };
        if !client.reads_comments() {
            serde_json::from_str::<IgnoredAny>(source)
                .map_err(|error| invalid(error.line(), error.column()))?;
        }
        let options = ParseOptions {
            allow_comments: true,
            allow_trailing_commas: true,
            allow_loose_object_property_names: false,
            allow_missing_commas: false,
            allow_single_quoted_strings: false,
            allow_hexadecimal_numbers: false,
            allow_unary_plus_numbers: false,
            allow_bare_decimal_point_numbers: false,
            allow_non_finite_numbers: false,
            allow_extended_string_escapes: false,
        };
        let tree = CstRootNode::parse(source, &options)
            .map_err(|error| invalid(error.line_display(), error.column_display()))?;
        let root = tree.object_value().ok_or("it is not a JSON object")?;
        Ok(Self { tree, root, client, bom: text.len() != plain.len() })
    }

    fn text(&self) -> String {
        let text = self.tree.to_string();
        if self.bom { format!("{BOM}{text}") } else { text }
    }

    fn servers(&self) -> Result<Option<CstObject>, String> {
        let name = self.client.container();
        match single(&self.root, name)? {
            None => Ok(None),
            Some(servers) => {
                servers.object_value().map(Some).ok_or(format!("`{name}` is not an object in it"))
            }
        }
    }

    fn remove(&self, name: &str) -> Result<(), String> {
        if let Some(property) = single(&self.root, name)? {
            property.remove();
        }
        Ok(())
    }

    /// The question for the key.
    fn input(&self) -> Result<Option<CstObject>, String> {
        let Some(inputs) = single(&self.root, "inputs")? else { return Ok(None) };
        let inputs = inputs.array_value().ok_or("`inputs` is not an array in it")?;
        let ours = |input: &CstObject| {
            input.get("id").and_then(|id| id.to_serde_value()).is_some_and(|id| id == INPUT_ID)
        };
        Ok(inputs.elements().into_iter().filter_map(|input| input.as_object()).find(ours))
    }

    fn add_input(&self) -> Result<(), String> {
        if self.input()?.is_some() {
            return Ok(());
        }
        let text = |text: &str| CstInputValue::String(text.to_owned());
        let input = CstInputValue::Object(vec![
            ("type".to_owned(), text("promptString")),
            ("id".to_owned(), text(INPUT_ID)),
            ("description".to_owned(), text("Superserve API key")),
            ("password".to_owned(), CstInputValue::Bool(true)),
        ]);
        match self.root.array_value("inputs") {
            Some(inputs) => drop(inputs.append(input)),
            None => drop(self.root.append("inputs", CstInputValue::Array(vec![input]))),
        }
        Ok(())
    }
}

/// The errors' own texts quote the file, which may hold keys of others.
fn invalid(line: usize, column: usize) -> String {
    format!("it is not valid JSON at line {line}, column {column}")
}

/// The property of this name. Readers disagree on which of two counts, so there must not be two.
fn single(object: &CstObject, name: &str) -> Result<Option<CstObjectProp>, String> {
    let mut found =
        object.properties().into_iter().filter(|property| property.decoded_name().as_deref() == Some(name));
    match (found.next(), found.next()) {
        (found, None) => Ok(found),
        _ => Err(format!("`{name}` is in it twice")),
    }
}

fn put(object: &CstObject, name: &str, value: CstInputValue) -> Result<(), String> {
    match single(object, name)? {
        Some(property) => property.set_value(value),
        None => drop(object.append(name, value)),
    }
    Ok(())
}

fn value(field: Field) -> CstInputValue {
    match field {
        Field::Text(text) => CstInputValue::String(text),
        Field::Number(number) => CstInputValue::Number(number.to_string()),
        Field::List(list) => CstInputValue::Array(list.into_iter().map(CstInputValue::String).collect()),
        Field::Map(map) => {
            let pairs = map.into_iter().map(|(name, text)| (name.to_owned(), CstInputValue::String(text)));
            CstInputValue::Object(pairs.collect())
        }
    }
}

fn plain(value: Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(value),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text),
        Value::Array(items) => CstInputValue::Array(items.into_iter().map(plain).collect()),
        Value::Object(map) => {
            CstInputValue::Object(map.into_iter().map(|(name, value)| (name, plain(value))).collect())
        }
    }
}

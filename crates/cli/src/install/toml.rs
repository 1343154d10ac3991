//! One server in Codex's TOML configuration. Everything else keeps its bytes.

use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, Value};

use super::clients::McpClient;
use super::entry::{Field, Wanted};

/// `text` with the server in it; an error is a clause that says what is in the way.
pub(super) fn set(text: &str, name: &str, wanted: &Wanted) -> Result<String, String> {
    let mut document = parse(text)?;
    let mut entry = Table::new();
    for (key, field) in wanted.fields(McpClient::Codex) {
        entry.insert(key, Item::Value(value(field)));
    }
    put(&mut document, name, Item::Table(entry))?;
    Ok(document.to_string())
}

/// `text` without the server, or with what `original` has in its place.
pub(super) fn unset(text: &str, name: &str, original: &str) -> Result<String, String> {
    let (mut document, before) = (parse(text)?, parse(original)?);
    let container = McpClient::Codex.container();
    let servers_before = before.get(container).and_then(Item::as_table_like);
    if let Some(entry) = servers_before.and_then(|servers| servers.get(name)) {
        put(&mut document, name, entry.clone())?;
    } else if let Some(servers) = document.get_mut(container).and_then(Item::as_table_like_mut) {
        servers.remove(name);
        if servers.is_empty() && servers_before.is_none() {
            document.remove(container);
        }
    }
    Ok(document.to_string())
}

fn parse(text: &str) -> Result<DocumentMut, String> {
    text.parse().map_err(|error: toml_edit::TomlError| {
        // The error's own text quotes the file, which may hold keys of others.
        let offset = error.span().map_or(0, |span| span.start);
        let line = text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1;
        format!("it is not valid TOML at line {line}")
    })
}

fn put(document: &mut DocumentMut, name: &str, entry: Item) -> Result<(), String> {
    let container = McpClient::Codex.container();
    let servers = document.entry(container).or_insert_with(|| {
        let mut servers = Table::new();
        // Only the header of the server itself is written.
        servers.set_implicit(true);
        Item::Table(servers)
    });
    match servers {
        Item::Table(servers) => drop(servers.insert(name, entry)),
        Item::Value(Value::InlineTable(servers)) => {
            let entry = entry.into_value().map_err(|_| "its servers cannot be changed")?;
            servers.insert(name, entry);
        }
        _ => return Err(format!("`{container}` is not a table in it")),
    }
    Ok(())
}

fn value(field: Field) -> Value {
    match field {
        Field::Text(text) => text.into(),
        Field::Number(number) => number.into(),
        Field::List(list) => Value::Array(list.into_iter().collect::<Array>()),
        Field::Map(map) => Value::InlineTable(map.into_iter().collect::<InlineTable>()),
    }
}

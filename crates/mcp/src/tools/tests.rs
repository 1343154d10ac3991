//! The published surface: `tools/list` as a golden file, and the rules each of which has a client's defect behind it.

use expect_test::expect_file;
use serde_json::{Value, json};

use super::*;
use crate::server::tests::tool_names_in;

/// Order and hints of all 20 (`spec/mcp.md` §A.1, §C.0.1): read-only, destructive, idempotent.
const SPEC: [(&str, (bool, bool, bool)); 20] = [
    ("sandbox_create", (false, false, false)),
    ("sandbox_template_list", (true, false, true)),
    ("sandbox_template_create", (false, false, false)),
    ("sandbox_list", (true, false, true)),
    ("sandbox_info", (true, false, true)),
    ("sandbox_pause", (false, false, true)),
    ("sandbox_resume", (false, false, true)),
    ("sandbox_kill", (false, true, true)),
    ("sandbox_update", (false, true, false)),
    ("sandbox_preview_url", (false, false, true)),
    ("sandbox_network_log", (true, false, true)),
    ("sandbox_exec", (false, false, false)),
    ("sandbox_files_read", (true, false, true)),
    ("sandbox_files_write", (false, false, true)),
    ("sandbox_files_list", (true, false, true)),
    ("sandbox_files_download_dir", (true, false, true)),
    ("secret_list", (true, false, true)),
    ("sandbox_attach_secret", (false, false, true)),
    ("sandbox_detach_secret", (false, false, true)),
    ("sandbox_computer", (false, false, false)),
];
/// Those that are not about one sandbox.
const WITHOUT_ID: [&str; 5] =
    ["sandbox_create", "sandbox_list", "sandbox_template_list", "sandbox_template_create", "secret_list"];

fn listings() -> Vec<Value> {
    ALL.iter().map(|tool| serde_json::to_value(tool.listing()).unwrap()).collect()
}

#[test]
fn golden() {
    let text = serde_json::to_string_pretty(&listings()).unwrap();
    expect_file!["../../tests/golden/tools.json"].assert_eq(&format!("{text}\n"));
}

#[test]
fn order_is_fixed_and_the_list_is_small() {
    let names: Vec<&str> = ALL.iter().map(|tool| tool.name).collect();
    let expected: Vec<&str> = SPEC.iter().map(|(name, _)| *name).filter(|name| listed(name)).collect();
    assert_eq!(names, expected);
    let bytes = serde_json::to_vec(&json!({"tools": listings()})).unwrap().len();
    assert!(bytes < 20 * 1024, "{bytes} bytes for {} tools", ALL.len());
    assert!(bytes * SPEC.len() / ALL.len() < 20 * 1024, "{bytes} bytes for {} tools of 20", ALL.len());
}

#[test]
fn hints_are_those_of_the_product() {
    for tool in ALL {
        let hints = (tool.hints.read_only, tool.hints.destructive, tool.hints.idempotent);
        let expected = SPEC.iter().find(|(name, _)| *name == tool.name).unwrap().1;
        assert_eq!(hints, expected, "{}", tool.name);
    }
    for listing in listings() {
        assert_eq!(listing["annotations"]["openWorldHint"], true);
        assert!(listing["annotations"].get("title").is_none());
    }
}

#[test]
fn schemas_suit_every_client() {
    for listing in listings() {
        let name = listing["name"].as_str().unwrap();
        assert!(name.is_ascii() && name.len() <= 64);
        for key in ["title", "description"] {
            assert!(!listing[key].as_str().unwrap().is_empty(), "{name} {key}");
        }
        let schema = listing["inputSchema"].as_object().unwrap();
        assert_eq!(schema["type"], "object");
        assert_eq!(schema["additionalProperties"], false);
        assert!(!schema.contains_key("anyOf") && !schema.contains_key("oneOf"), "{name}");
        assert_ne!(schema.get("required"), Some(&json!([])), "{name}: left out when empty");
        for (property, schema) in schema["properties"].as_object().unwrap() {
            assert!(!schema["description"].as_str().unwrap().is_empty(), "{name} {property}");
            assert!(schema.get("type").is_some() != schema.get("anyOf").is_some(), "{name} {property}");
            if schema.get("enum").is_some() {
                assert_eq!(schema["type"], "string", "{name} {property}");
            }
        }
        walk(&listing["inputSchema"], name);
        let needs_id = !WITHOUT_ID.contains(&name);
        let required = listing["inputSchema"].get("required").cloned().unwrap_or(json!([]));
        assert_eq!(required.as_array().unwrap().contains(&json!("sandbox_id")), needs_id, "{name}");
    }
}

fn walk(schema: &Value, name: &str) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                let forbidden =
                    ["$ref", "$defs", "definitions", "prefixItems", "exclusiveMinimum", "exclusiveMaximum"];
                assert!(!forbidden.contains(&key.as_str()), "{name}: {key}");
                if key == "type" && value.is_array() || key == "items" && !value.is_object() {
                    panic!("{name}: {key} is {value}");
                }
                walk(value, name);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| walk(item, name)),
        _ => {}
    }
}

#[test]
fn create_has_inline_maps_and_lists() {
    let create = &listings()[0]["inputSchema"]["properties"];
    for name in ["metadata", "env_vars", "secrets"] {
        assert_eq!(create[name]["type"], "object");
        assert_eq!(create[name]["additionalProperties"], json!({"type": "string"}));
    }
    for name in ["allow_out", "deny_out"] {
        assert_eq!(create[name]["type"], "array");
        assert_eq!(create[name]["items"], json!({"type": "string"}));
    }
    assert!(create["allow_out"]["description"].as_str().unwrap().contains("1.1.1.1/32"), "DNS hint");
}

#[test]
fn descriptions_name_listed_tools_only() {
    for listing in listings() {
        for name in tool_names_in(&listing.to_string()) {
            assert!(listed(&name), "{}: {name}", listing["name"]);
        }
    }
}

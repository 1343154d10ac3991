//! `server.json`, by which MCP registries know this server: the rules of their schema (revision 2025-12-11) that concern it, and
//! that it says what is so.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

use serde_json::{Value, json};

const SCHEMA: &str = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json";

fn file() -> Value {
    serde_json::from_str(include_str!("../../../server.json")).unwrap()
}

/// An object with these properties, the first of which must be there, and no others: registries ignore what is misspelt.
fn check_keys(object: &Value, required: &[&str], optional: &[&str]) {
    let object = object.as_object().unwrap();
    for key in object.keys() {
        assert!(required.contains(&key.as_str()) || optional.contains(&key.as_str()), "{key}");
    }
    for key in required {
        assert!(object.contains_key(*key), "{key} is missing");
    }
}

fn check_text(value: &Value, most: usize) {
    let text = value.as_str().unwrap();
    assert!((1..=most).contains(&text.chars().count()), "{text}");
}

fn check_url(value: &Value) {
    let url = value.as_str().unwrap();
    assert!(url.starts_with("https://") && !url.contains(char::is_whitespace), "{url}");
}

/// An exact version, no range.
fn check_version(value: &Value) {
    assert_eq!(value, env!("CARGO_PKG_VERSION"));
    assert!(
        value.as_str().unwrap().bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-+".contains(&byte))
    );
}

fn check_inputs(inputs: &Value) {
    let flags = ["isRequired", "isSecret"];
    for input in inputs.as_array().unwrap() {
        check_keys(
            input,
            &["name"],
            &["description", "default", "value", "variables", "isRequired", "isSecret"],
        );
        let variables = input.get("variables").and_then(Value::as_object).into_iter().flatten();
        for (name, variable) in variables {
            check_keys(variable, &[], &["description", "default", "isRequired", "isSecret"]);
            assert!(input["value"].as_str().unwrap().contains(&format!("{{{name}}}")), "{name} is not used");
        }
        for flag in flags {
            assert!(matches!(input.get(flag), None | Some(Value::Bool(_))), "{input}");
        }
    }
}

#[test]
fn the_file_keeps_to_the_schema() {
    let file = file();
    check_keys(
        &file,
        &["$schema", "name", "description", "version"],
        &["title", "websiteUrl", "repository", "packages", "remotes"],
    );
    assert_eq!(file["$schema"], SCHEMA);
    let (space, name) = file["name"].as_str().unwrap().split_once('/').unwrap();
    assert!(space.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte)));
    assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)));
    check_text(&file["title"], 100);
    check_text(&file["description"], 100);
    check_version(&file["version"]);
    check_url(&file["websiteUrl"]);
    check_keys(&file["repository"], &["url", "source"], &["subfolder"]);
    check_url(&file["repository"]["url"]);
    for package in file["packages"].as_array().unwrap() {
        check_keys(
            package,
            &["registryType", "identifier", "version", "transport"],
            &["runtimeHint", "environmentVariables"],
        );
        check_version(&package["version"]);
        assert_eq!(package["transport"], json!({"type": "stdio"}));
        check_inputs(&package["environmentVariables"]);
    }
    for remote in file["remotes"].as_array().unwrap() {
        check_keys(remote, &["type", "url"], &["headers"]);
        assert_eq!(remote["type"], "streamable-http");
        check_url(&remote["url"]);
        check_inputs(&remote["headers"]);
    }
}

#[test]
fn the_file_says_what_is_so() {
    let file = file();
    assert_eq!(file["name"], "io.github.superserve-ai/mcp");
    let folder = file["repository"]["subfolder"].as_str().unwrap();
    assert!(
        std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join(folder)
            .join("Cargo.toml")
            .exists()
    );
    let variables = &file["packages"][0]["environmentVariables"];
    assert_eq!(variables[0]["name"], mcp::API_KEY_VAR);
    assert_eq!((&variables[0]["isRequired"], &variables[0]["isSecret"]), (&json!(true), &json!(true)));
    assert_eq!(variables[1]["name"], mcp::BASE_URL_VAR);
    // What is used when the variable is not set.
    let config = mcp::McpConfig::from_vars(|name| (name == mcp::API_KEY_VAR).then(|| "ss_live_x".to_owned()));
    assert_eq!(variables[1]["default"], config.unwrap().base_url);
    let header = &file["remotes"][0]["headers"][0];
    assert_eq!((&header["name"], &header["isSecret"]), (&json!("Authorization"), &json!(true)));
}

//! Who may depend on whom (ARCHITECTURE.md), and that every crate keeps the workspace's lints: rules of ours, checked
//! like everything else.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

/// A crate may use crates of lower levels only, never of its own.
const LEVELS: &[(&str, u32)] = &[
    ("domain", 0),
    ("wire", 1),
    ("driver", 1),
    ("pack", 1),
    ("store", 1),
    ("activity", 2),
    ("secrets", 2),
    ("client", 2),
    ("agent", 2),
    ("templates", 2),
    ("driver-port", 2),
    ("driver-oci", 3),
    ("driver-vm", 3),
    ("egress", 2),
    ("broker", 3),
    ("node", 3),
    ("mcp", 3),
    ("cli", 3),
    ("lifecycle", 4),
    ("builds", 4),
    ("edge", 4),
    ("oauth", 4),
    ("api", 5),
    ("superserve", 6),
    ("testing", 7),
];
/// Heavy or dangerous things have one home.
const HOMES: &[(&str, &[&str])] = &[
    ("sqlx", &["store"]),
    ("rmcp", &["mcp"]),
    ("reqwest", &["client", "templates", "testing"]),
    ("axum", &["api", "mcp", "oauth", "superserve"]),
    ("psl", &["secrets"]),
    ("ring", &["secrets"]),
    ("oci-spec", &["driver-oci", "templates"]),
    ("prometheus", &["superserve"]),
];

fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

fn dependencies(package: &Value) -> impl Iterator<Item = &str> {
    let all = package["dependencies"].as_array().unwrap().iter();
    all.filter(|d| d["kind"].is_null()).map(|d| d["name"].as_str().unwrap())
}

#[test]
fn dependencies_point_downwards() {
    let levels: BTreeMap<_, _> = LEVELS.iter().copied().collect();
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        let level = levels.get(name).unwrap_or_else(|| panic!("{name} has no level; give it one"));
        for used in dependencies(&package) {
            if let Some(below) = levels.get(used) {
                assert!(below < level, "{name} (level {level}) may not use {used} (level {below})");
            }
            if let Some((_, homes)) = HOMES.iter().find(|(what, _)| *what == used) {
                assert!(homes.contains(&name), "{used} belongs to {homes:?}, not to {name}");
            }
        }
        if name == "agent" {
            assert!(
                dependencies(&package).filter(|d| levels.contains_key(d)).eq(["pack", "wire"]),
                "the agent needs only pack and wire"
            );
        }
    }
}

#[test]
fn every_crate_has_the_lints_of_the_workspace() {
    for package in packages() {
        let manifest = std::fs::read_to_string(package["manifest_path"].as_str().unwrap()).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true"), "{} opts out of the lints", package["name"]);
        assert_eq!(package["license"], "Apache-2.0");
    }
}

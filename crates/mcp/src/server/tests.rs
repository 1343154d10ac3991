//! The protocol over real byte streams, and what happens on the wire to the platform when things go wrong. The stub only
//! plays faults and hostile answers; that the tools work is shown against the real platform.

use std::collections::BTreeSet;

mod commands;
mod computer;
mod faults;
mod preview;
mod protocol;
mod session;
mod templates;

/// The words of a text that have the form of a tool name and are none of these.
pub(crate) fn tool_names_in(text: &str) -> BTreeSet<String> {
    let codes = domain::Code::ALL.iter().map(|code| code.as_str());
    let other: BTreeSet<&str> = codes.chain(["sandbox_id", "sandbox_files", "secret_name"]).collect();
    text.split(|c: char| !(c.is_ascii_lowercase() || c == '_'))
        .map(|word| word.trim_end_matches('_'))
        .filter(|word| word.starts_with("sandbox_") || word.starts_with("secret_"))
        .filter(|word| !other.contains(word))
        .map(str::to_owned)
        .collect()
}

use std::collections::BTreeSet;

/// The words of a text that have the form of a tool name.
pub(crate) fn tool_names_in(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !(c.is_ascii_lowercase() || c == '_'))
        .map(|word| word.trim_end_matches('_'))
        .filter(|word| {
            (word.starts_with("sandbox_") || word.starts_with("secret_"))
                && !matches!(*word, "sandbox_id" | "sandbox_files" | "secret_name")
        })
        .map(str::to_owned)
        .collect()
}

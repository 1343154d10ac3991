//! The change as a person reads it: the lines that go and come, with a little of what is around them.

use crate::out::printable;

/// Lines around the change.
const CONTEXT: usize = 2;
/// A file may be one long line.
const MAX_COLUMNS: usize = 200;

/// The difference, without the secret.
pub(super) fn unified(old: Option<&str>, new: Option<&str>, secret: Option<&str>) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) =
        (old.unwrap_or_default().lines().collect(), new.unwrap_or_default().lines().collect());
    let same_start = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let rest = old.len().min(new.len()) - same_start;
    let same_end =
        old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(old, new)| old == new).count();
    let mut text = String::new();
    let mut show = |mark: char, lines: &[&str]| {
        for line in lines {
            text.push_str(&format!("{mark} {}\n", shown(line, secret)));
        }
    };
    let (old_end, new_end) = (old.len() - same_end, new.len() - same_end);
    show(' ', &old[same_start.saturating_sub(CONTEXT)..same_start]);
    show('-', &old[same_start..old_end]);
    show('+', &new[same_start..new_end]);
    show(' ', &old[old_end..(old_end + CONTEXT).min(old.len())]);
    text
}

/// A line without keys of ours: the one that goes may still work.
fn without_keys(line: &str) -> String {
    let mut parts = line.split("ss_live_");
    let mut safe = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        safe.push_str("********");
        safe.push_str(part.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-'));
    }
    safe
}

fn shown(line: &str, secret: Option<&str>) -> String {
    let mut line = line.replace('\t', "    ");
    if let Some(secret) = secret {
        // In the file it may be written with escapes.
        let quoted = serde_json::Value::from(secret).to_string();
        line = line.replace(quoted.trim_matches('"'), "********").replace(secret, "********");
    }
    line = without_keys(&line);
    match line.char_indices().nth(MAX_COLUMNS) {
        Some((end, _)) => printable(&line[..end]) + "…",
        None => printable(&line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_and_never_the_secret() {
        let old = "a\nb\nc\nd\ne\nf\n";
        assert_eq!(
            unified(Some(old), Some("a\nb\nc\nX k\"ey\nd\ne\nf\n"), Some("k\"ey")),
            "  b\n  c\n+ X ********\n  d\n  e\n"
        );
        assert_eq!(unified(Some(old), Some("a\nb\nc\nd\n"), None), "  c\n  d\n- e\n- f\n");
        assert_eq!(unified(None, Some("a\u{1b}[2J\n"), None), "+ a\u{fffd}[2J\n");
        assert_eq!(unified(Some("a\n"), None, None), "- a\n");
        assert_eq!(unified(None, Some(&"ä".repeat(300)), None), format!("+ {}…\n", "ä".repeat(200)));
        assert_eq!(
            unified(Some("K: \"ss_live_abc_d-9\"\n"), Some("K: \"new\"\n"), Some("new")),
            "- K: \"********\"\n+ K: \"********\"\n"
        );
        assert_eq!(unified(Some("a\na\n"), Some("a\n"), None), "  a\n- a\n");
        assert_eq!(unified(Some(r#"{"a":"k\"ey"}"#), None, Some("k\"ey")), "- {\"a\":\"********\"}\n");
    }
}

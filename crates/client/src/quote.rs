//! Text of the other side, made safe to repeat: bounded, on one line, and without anything that looks like a
//! credential.

/// Longest quotation, characters.
pub const MAX_QUOTE_CHARS: usize = 500;

/// Cuts to [`MAX_QUOTE_CHARS`] and masks API keys, long tokens and URL queries. Control characters become spaces.
#[must_use]
pub fn quote(text: &str) -> String {
    let mut out = String::new();
    let mut left = MAX_QUOTE_CHARS;
    for word in text.trim().split_inclusive(|c: char| c.is_whitespace() || c.is_control()) {
        for c in scrub(word).chars() {
            if left == 0 {
                out.push('…');
                return out;
            }
            left -= 1;
            out.push(if c.is_control() { ' ' } else { c });
        }
    }
    out
}

fn scrub(word: &str) -> String {
    let (body, query) = match word.split_once('?') {
        Some((body, query)) if body.contains('/') && query.contains('=') => (body, true),
        _ => (word, false),
    };
    let mut out = String::with_capacity(body.len());
    let mut run = String::new();
    for c in body.chars() {
        if is_token_char(c) {
            run.push(c);
        } else {
            push_run(&mut out, &mut run);
            out.push(c);
        }
    }
    push_run(&mut out, &mut run);
    if query {
        out.push_str("?… ");
    }
    out
}

fn is_token_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

fn push_run(out: &mut String, run: &mut String) {
    out.push_str(if looks_secret(run) { "****" } else { run });
    run.clear();
}

/// A platform key, or 32 and more token characters that are no UUID. Long words of prose and paths have separators or
/// no digits, so they survive.
fn looks_secret(run: &str) -> bool {
    const SHORTEST_TOKEN: usize = 32;
    if run.contains("ss_live_") {
        return true;
    }
    let hyphens = run.bytes().filter(|b| *b == b'-').count();
    let uuid_like = hyphens >= 4 && run.len() <= 64;
    run.len() >= SHORTEST_TOKEN && !uuid_like && run.bytes().any(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_do_not_survive() {
        let check = |text: &str, expected: &str| assert_eq!(quote(text), expected);
        check("template x not found", "template x not found");
        check("key ss_live_abc is bad", "key **** is bad");
        check(&format!("token={}.", "0a".repeat(32)), "token=****.");
        check("see https://a.b/c?token=x&y=1 now", "see https://a.b/c?… now");
        check("what? a = b", "what? a = b");
        check(
            "sandbox 0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b not found",
            "sandbox 0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b not found",
        );
        check("a\nb\u{1b}[31mc", "a b [31mc");
    }

    #[test]
    fn length_is_bounded_in_characters() {
        let quoted = quote(&"ü ".repeat(1000));
        assert_eq!(quoted.chars().count(), MAX_QUOTE_CHARS + 1);
        assert!(quoted.ends_with('…'));
    }
}

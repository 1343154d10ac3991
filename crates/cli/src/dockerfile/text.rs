//! The text of a Dockerfile: lines, words, quotes.

/// Lines with their numbers, comments taken out and continued ones joined.
pub(super) fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_end();
        if line.trim_start().starts_with('#') || (line.trim().is_empty() && open.is_none()) {
            continue;
        }
        let (body, continues) = match line.strip_suffix('\\') {
            Some(body) => (body, true),
            None => (line, false),
        };
        let (_, joined) = open.get_or_insert_with(|| (number + 1, String::new()));
        joined.push_str(if joined.is_empty() { body.trim_start() } else { body });
        if !continues {
            found.extend(open.take());
        }
    }
    found.extend(open);
    found
}

pub(super) fn exec_form(text: &str) -> Result<Vec<String>, String> {
    serde_json::from_str(text).map_err(|_| "a JSON list of strings is expected".to_owned())
}

pub(super) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Words with quotes taken off.
pub(super) fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => word.get_or_insert_default().extend(chars.next()),
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("a quotation mark is missing".to_owned());
    }
    words.extend(word);
    Ok(words)
}

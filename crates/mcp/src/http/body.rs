//! The body of a request: never more of it in memory than is allowed and counted.

use axum::body::Body;
use http_body::Body as _;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::time::{Instant, timeout, timeout_at};

use super::config::Limits;
use super::refusal::Refusal;

/// Largest request: an 8 MiB write in base64 is about 10.7 MiB (`spec/mcp.md` §B.2).
pub(super) const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// Largest request that is read before it has a place, where its bytes are not counted: with every request that may be here at
/// once that makes some MiB.
const SMALL_BYTES: u64 = 4 * 1024;
/// The bytes and the values made of them are alive at once.
const COPIES: usize = 2;
/// Room is taken in pieces as bytes arrive: what is announced may never be sent.
const PIECE: usize = 256 * 1024;
/// Values in one message; the largest honest one has some hundred. Each may take a hundred times its text in memory.
const MAX_VALUES: usize = 4_096;
/// How much of a refused body is thrown away so that its sender sees the answer, and for how long.
const DISCARD_BYTES: usize = 64 * 1024 * 1024;
const DISCARD_TIME: std::time::Duration = std::time::Duration::from_secs(5);

/// Whether a body is certain to be small.
pub(super) fn is_small(body: &Body) -> bool {
    body.size_hint().upper().is_some_and(|most| most <= SMALL_BYTES)
}

/// Reads a whole body for which there is room, or gives back the rest of one that is refused.
pub(super) async fn read(
    mut body: Body,
    mut reserve: impl FnMut(usize) -> bool,
    limits: &Limits,
) -> Result<Vec<u8>, (Refusal, Body)> {
    let mut bytes = Vec::new();
    let mut counted = 0;
    let until = Instant::now() + limits.body_total;
    let refusal = loop {
        let wait = limits.body_idle.min(until.saturating_duration_since(Instant::now()));
        let chunk = match timeout(wait, body.frame()).await {
            // Trailers say nothing to us.
            Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            Ok(Some(Err(_))) => break Refusal::BrokenBody,
            Ok(None) => return Ok(bytes),
            Err(_) => break Refusal::SlowBody,
        };
        let total = bytes.len() + chunk.len();
        if u64::try_from(total).unwrap_or(u64::MAX) > MAX_BYTES {
            break Refusal::TooLarge;
        }
        if total > counted {
            let wanted = total.next_multiple_of(PIECE);
            if !reserve((wanted - counted) * COPIES) {
                break Refusal::Overload;
            }
            counted = wanted;
        }
        bytes.extend_from_slice(&chunk);
    };
    drop(bytes);
    Err((refusal, body))
}

/// Whether there are more values in it than in any honest message. What stands in texts does not count.
fn is_crowded(bytes: &[u8]) -> bool {
    let (mut values, mut in_text, mut escaped) = (0_usize, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => values += 1,
            _ => {}
        }
    }
    values > MAX_VALUES
}

/// One JSON-RPC message. Its parts other than the frame are not judged here.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, Refusal> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if is_crowded(bytes) {
        return Err(Refusal::NotJson);
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|_| Refusal::NotJson)?;
    let Value::Object(object) = &value else {
        return Err(if value.is_array() { Refusal::Batch } else { Refusal::NotAMessage });
    };
    let method = object.get("method").is_some_and(Value::is_string);
    let answer = !object.contains_key("method")
        && (object.contains_key("result") != object.contains_key("error"))
        && object.contains_key("id");
    let id = matches!(object.get("id"), None | Some(Value::String(_) | Value::Number(_)));
    let params = matches!(object.get("params"), None | Some(Value::Object(_)));
    let framed = object.get("jsonrpc").is_some_and(|version| version == "2.0");
    if framed && params && (answer || (method && id)) { Ok(value) } else { Err(Refusal::NotAMessage) }
}

/// Takes what is still coming and forgets it.
pub(super) async fn discard(mut body: Body) {
    let until = Instant::now() + DISCARD_TIME;
    let mut seen = 0;
    while let Ok(Some(Ok(frame))) = timeout_at(until, body.frame()).await {
        seen += frame.data_ref().map_or(0, |chunk| chunk.len());
        if seen > DISCARD_BYTES {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sixteen MiB of these would take well over a GiB once parsed.
    #[test]
    fn a_message_of_countless_values_is_refused_unparsed() {
        let message = |params: &str| {
            format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{{\"a\":{params}}}}}")
        };
        for crowd in [format!("[{}0]", "{\"\":0},".repeat(3_000)), format!("[{}]", "[".repeat(5_000))] {
            assert!(matches!(parse(message(&crowd).as_bytes()), Err(Refusal::NotJson)), "{}", &crowd[..20]);
        }
        let text = serde_json::Value::from("[{\"\\,".repeat(100_000)).to_string();
        assert!(parse(message(&text).as_bytes()).is_ok(), "texts may have anything");
        assert!(parse(message(&format!("[{}0]", "0,".repeat(1_000))).as_bytes()).is_ok());
    }
}

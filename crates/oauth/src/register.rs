//! Dynamic client registration (RFC 7591). Anybody may register, so a registration is worth nothing by itself: it is small,
//! public (no secret), and forgotten unless somebody soon grants it something.

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use serde::Deserialize;
use serde_json::json;
use store::OauthClientRow;
use uuid::Uuid;

use crate::observe::Event;
use crate::redirect::RedirectUri;
use crate::reply::Refused;
use crate::server::{OFFLINE, SCOPE};
use crate::{Server, address, form};

/// Registrations without a grant that are kept; more of them push out the oldest.
const KEEP_UNUSED: u32 = 1_000;
const MAX_REDIRECT_URIS: usize = 10;
/// Longest name that is shown.
const MAX_NAME_CHARS: usize = 80;
const NO_NAME: &str = "An application without a name";

/// The fields that matter here; the others are a client's to send and ours to ignore.
#[derive(Debug, Deserialize)]
struct Asked {
    redirect_uris: Option<Vec<String>>,
    client_name: Option<String>,
    grant_types: Option<Vec<String>>,
    response_types: Option<Vec<String>>,
}

fn refused(error: &'static str, description: &'static str) -> Refused {
    Refused { status: StatusCode::BAD_REQUEST, error, description }
}

pub(crate) async fn register(State(server): State<Server>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    match answer(&server, &parts, body).await {
        Ok(client) => {
            let body = json!({
                "client_id": client.id.to_string(),
                "client_id_issued_at": client.created_at.as_second(),
                "client_name": client.name,
                "redirect_uris": client.redirect_uris,
                "grant_types": ["authorization_code", "refresh_token"],
                "response_types": ["code"],
                "token_endpoint_auth_method": "none",
                "scope": format!("{SCOPE} {OFFLINE}"),
            });
            (StatusCode::CREATED, Json(body)).into_response()
        }
        Err(refused) => refused.into_response(),
    }
}

async fn answer(server: &Server, parts: &Parts, body: Body) -> Result<OauthClientRow, Refused> {
    let inner = &server.inner;
    if !inner.registrations.take(address::of(parts)) {
        inner.tell(Event::Limited);
        return Err(Refused::LIMITED);
    }
    let bytes = form::bytes(parts, body, "application/json").await?;
    let asked: Asked = serde_json::from_slice(&bytes)
        .map_err(|_| refused("invalid_client_metadata", "the body is not a client's metadata as JSON"))?;
    let client = check(asked, inner.clock.now())?;
    inner.store.oauth_client_add(&client, KEEP_UNUSED).await?;
    inner.tell(Event::Registered);
    Ok(client)
}

fn check(asked: Asked, now: jiff::Timestamp) -> Result<OauthClientRow, Refused> {
    let has = |list: Option<Vec<String>>, wanted: &str| {
        list.is_none_or(|list| list.iter().any(|item| item == wanted))
    };
    if !has(asked.grant_types, "authorization_code") || !has(asked.response_types, "code") {
        return Err(refused("invalid_client_metadata", "only the authorization code grant is there"));
    }
    let redirect_uris = asked.redirect_uris.unwrap_or_default();
    if redirect_uris.is_empty() || redirect_uris.len() > MAX_REDIRECT_URIS {
        return Err(refused("invalid_redirect_uri", "1 to 10 redirect_uris are needed"));
    }
    if redirect_uris.iter().any(|uri| RedirectUri::parse(uri).is_none()) {
        return Err(refused(
            "invalid_redirect_uri",
            "redirect_uris are https, http on the user's own machine, or a private scheme with a dot; without a fragment",
        ));
    }
    let name = name(asked.client_name.as_deref().unwrap_or_default());
    Ok(OauthClientRow { id: Uuid::new_v4(), name, redirect_uris, created_at: now, granted_at: None })
}

/// The name without what would make it look like something else on the page.
fn name(asked: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
                | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
    };
    let spaced: String = asked.chars().filter(|c| !hidden(*c)).collect();
    let name: String =
        spaced.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MAX_NAME_CHARS).collect();
    if name.is_empty() { NO_NAME.to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_they_look_like() {
        assert_eq!(name("  Claude\u{202e}\u{200b} \t\n\r Desktop\0 "), "Claude Desktop");
        assert_eq!(name("\u{200b}\u{202e}"), NO_NAME);
        assert_eq!(name(&"x".repeat(500)).len(), MAX_NAME_CHARS);
        assert_eq!(name("Überraschung 名前"), "Überraschung 名前");
    }
}

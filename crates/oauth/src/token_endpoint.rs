//! `POST /token`: a code becomes the first pair of tokens, a refresh token the next one. A code that comes twice, and a
//! refresh token that comes after its successor has been given out, ends everything that was granted with it.

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use store::{OauthGrant, OauthGrantRow};
use subtle::ConstantTimeEq;
use uuid::Uuid;

use crate::Server;
use crate::form::{self, Params};
use crate::observe::{Event, Reason, Subject};
use crate::reply::Refused;
use crate::server::{Inner, OFFLINE, SCOPE};
use crate::token::{Kind, Token};

/// An access token is asked for its grant at every use, so its life only bounds what a stolen one is worth.
const ACCESS_LIFE: SignedDuration = SignedDuration::from_hours(1);
/// A client that has not been used for so long asks its user again.
const REFRESH_LIFE: SignedDuration = SignedDuration::from_hours(30 * 24);
/// For so long the refresh token before the newest gets the same answer once more: clients renew in several calls and
/// processes at once, up to a minute apart, and answers get lost. Only after it is its return a sign of theft.
const REPEAT: SignedDuration = SignedDuration::from_secs(60);

pub(crate) async fn token(State(server): State<Server>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let answer = async {
        let params = form::read(&parts, body).await?;
        let grant_type = params.needed("grant_type", "grant_type is missing")?;
        if !["authorization_code", "refresh_token"].contains(&grant_type) {
            return Err(Refused::GRANT_TYPE);
        }
        let inner = &server.inner;
        let client = client(inner, &params).await?;
        check_resource(inner, &params)?;
        match grant_type {
            "authorization_code" => redeem(inner, client, &params).await,
            _ => refresh(inner, client, &params).await,
        }
    };
    match answer.await {
        Ok(body) => Json(body).into_response(),
        Err(refused) => refused.into_response(),
    }
}

/// The registered client that asks. All are public: whoever asks proves itself by the code's verifier or the token.
pub(crate) async fn client(inner: &Inner, params: &Params) -> Result<Uuid, Refused> {
    let id = params.one("client_id")?.and_then(|id| id.parse().ok()).ok_or(Refused::UNKNOWN_CLIENT)?;
    let known = inner.store.oauth_client_find(id).await?;
    known.map(|client| client.id).ok_or(Refused::UNKNOWN_CLIENT)
}

/// Every resource that is named must be ours (RFC 8707); none means ours.
pub(crate) fn check_resource(inner: &Inner, params: &Params) -> Result<(), Refused> {
    if params.all("resource").all(|resource| inner.is_resource(resource)) {
        Ok(())
    } else {
        Err(Refused::TARGET)
    }
}

async fn redeem(inner: &Inner, client: Uuid, params: &Params) -> Result<Value, Refused> {
    let code = params.needed("code", "code is missing")?;
    let verifier = params.needed("code_verifier", "code_verifier is missing")?;
    let redirect_uri = params.one("redirect_uri")?;
    let now = inner.clock.now();
    let code = inner.mint.open(code, Kind::Code).ok_or(Refused::GRANT)?;
    let found = inner.store.oauth_grant_find(code.grant, now).await?.ok_or(Refused::GRANT)?;
    let grant = &found.grant;
    let belongs = grant.client == client
        && redirect_uri.is_none_or(|uri| uri == grant.redirect_uri)
        && verified(verifier, &grant.challenge);
    if grant.generation != 0 || code.expired(now) || !belongs {
        return Err(end(inner, &found, Reason::Code).await?);
    }
    if !inner.store.oauth_grant_rotate(grant.id, 0, now, now + REFRESH_LIFE).await? {
        return Err(end(inner, &found, Reason::Code).await?);
    }
    inner.tell(Event::Granted(Subject::from(&found)));
    Ok(pair(inner, &OauthGrantRow { generation: 1, rotated_at: now, ..found.grant }, now))
}

fn verified(verifier: &str, challenge: &str) -> bool {
    let form = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    let formed = (43..=128).contains(&verifier.len()) && verifier.bytes().all(form);
    let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
    formed && bool::from(hash.as_bytes().ct_eq(challenge.as_bytes()))
}

async fn refresh(inner: &Inner, client: Uuid, params: &Params) -> Result<Value, Refused> {
    let token = params.needed("refresh_token", "refresh_token is missing")?;
    let now = inner.clock.now();
    let token =
        inner.mint.open(token, Kind::Refresh).filter(|token| !token.expired(now)).ok_or(Refused::GRANT)?;
    let mut found = find(inner, token, client, now).await?;
    if token.generation == found.grant.generation {
        if inner.store.oauth_grant_rotate(found.grant.id, token.generation, now, now + REFRESH_LIFE).await? {
            inner.tell(Event::Refreshed(Subject::from(&found)));
            let generation = token.generation + 1;
            return Ok(pair(inner, &OauthGrantRow { generation, rotated_at: now, ..found.grant }, now));
        }
        // Somebody was faster; that is what the repetition below is for.
        found = find(inner, token, client, now).await?;
    }
    let repeated = token.generation.checked_add(1) == Some(found.grant.generation)
        && now.duration_since(found.grant.rotated_at) <= REPEAT;
    if repeated {
        Ok(pair(inner, &found.grant, now))
    } else {
        Err(end(inner, &found, Reason::Refresh).await?)
    }
}

async fn find(inner: &Inner, token: Token, client: Uuid, now: Timestamp) -> Result<OauthGrant, Refused> {
    let found = inner.store.oauth_grant_find(token.grant, now).await?;
    found.filter(|found| found.grant.client == client).ok_or(Refused::GRANT)
}

async fn end(inner: &Inner, found: &OauthGrant, reason: Reason) -> Result<Refused, Refused> {
    if inner.store.oauth_grant_end(found.grant.id).await? {
        inner.tell(Event::Ended(Subject::from(found), reason));
    }
    Ok(Refused::GRANT)
}

/// The tokens of the grant's generation: the same texts whenever they are made.
fn pair(inner: &Inner, grant: &OauthGrantRow, now: Timestamp) -> Value {
    let made = |kind, life: SignedDuration| {
        let ends = grant.rotated_at.as_second() + life.as_secs();
        (inner.mint.make(&Token { kind, grant: grant.id, generation: grant.generation, ends }), ends)
    };
    let (access, ends) = made(Kind::Access, ACCESS_LIFE);
    let (refresh, _) = made(Kind::Refresh, REFRESH_LIFE);
    json!({
        "access_token": access.expose_secret(),
        "token_type": "Bearer",
        "expires_in": (ends - now.as_second()).max(0),
        "refresh_token": refresh.expose_secret(),
        "scope": format!("{SCOPE} {OFFLINE}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifier_of_rfc_7636() {
        let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
        assert!(verified("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk", challenge));
        for bad in
            ["dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXl", "", challenge, &"a".repeat(42), &"a".repeat(129)]
        {
            assert!(!verified(bad, challenge), "{bad}");
        }
    }
}

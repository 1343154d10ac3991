//! `/authorize`: shows the question, and takes the answer. A browser is sent to the client's redirect URI only by the
//! decision of whoever sees the page, or when that is a program on the user's own machine (RFC 9700 §4.11.2: with
//! registration open to all, any site can be a registered one).

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::header::{LOCATION, ORIGIN, RETRY_AFTER, SET_COOKIE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use jiff::SignedDuration;
use store::{OauthClientRow, OauthGrantRow, StoreError};
use uuid::Uuid;

use crate::consent::{self, Ask};
use crate::form::{self, Params};
use crate::observe::Event;
use crate::page::{self, Question};
use crate::redirect::{Place, RedirectUri};
use crate::reply::Refused;
use crate::server::Inner;
use crate::token::{Kind, Token};
use crate::token_endpoint::check_resource;
use crate::{Server, address};

/// A client redeems its code at once.
const CODE_LIFE: SignedDuration = SignedDuration::from_secs(120);
/// Clients connected with one key; one more ends the one that was used least lately.
const GRANTS_PER_KEY: u32 = 100;
/// Longer texts are no keys; hashing them would be work for nothing.
const LONGEST_KEY: usize = 256;
/// Clients put what they have to remember into it.
const MAX_STATE: usize = 4096;
/// Seconds.
const RETRY_AFTER_SECONDS: &str = "60";

const UNKNOWN: &str = "The application is not registered here, or its registration has expired.";
const ELSEWHERE: &str = "The application asked to be answered at an address that it has not registered.";
const STALE: &str = "This page was open for too long, or it did not come from here.";
const INTERNAL: &str = "An internal error. The log of the server has the cause.";
const WRONG_KEY: &str = "This is not a working API key.";
const LIMITED: &str = "Too many wrong keys. Wait a few minutes.";

fn problem(what: &str) -> Response {
    page::problem(StatusCode::BAD_REQUEST, what, None)
}

fn failed(error: &StoreError) -> Response {
    tracing::error!(cause = error as &dyn std::error::Error, "oauth: the database failed");
    page::problem(StatusCode::INTERNAL_SERVER_ERROR, INTERNAL, None)
}

fn see_other(location: &str) -> Response {
    match HeaderValue::try_from(location) {
        Ok(location) => (StatusCode::SEE_OTHER, [(LOCATION, location)]).into_response(),
        Err(_) => problem(ELSEWHERE),
    }
}

/// The redirect URI with an answer; `iss` lets the client tell which server it comes from (RFC 9207).
fn with_answer(inner: &Inner, uri: &RedirectUri<'_>, state: Option<&str>, answer: &[(&str, &str)]) -> String {
    let mut all = answer.to_vec();
    if let Some(state) = state {
        all.push(("state", state));
    }
    all.push(("iss", inner.url.origin()));
    uri.with(&all)
}

pub(crate) async fn show(State(server): State<Server>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let inner = &server.inner;
    let query = parts.uri.query().unwrap_or_default();
    if query.len() > form::MAX_BYTES {
        return problem(Refused::TOO_LARGE.description);
    }
    let params = Params::parse(query.as_bytes());
    // Until both are known to be in order, nothing may leave for the address that the request names.
    let (Ok(Some(id)), Ok(Some(uri))) = (params.one("client_id"), params.one("redirect_uri")) else {
        return problem(UNKNOWN);
    };
    let client = match id.parse::<Uuid>() {
        Ok(id) => inner.store.oauth_client_find(id).await,
        Err(_) => Ok(None),
    };
    let client = match client {
        Ok(Some(client)) => client,
        Ok(None) => return problem(UNKNOWN),
        Err(error) => return failed(&error),
    };
    let Some(redirect) = registered(&client, uri) else { return problem(ELSEWHERE) };
    match check(inner, &params) {
        Ok((state, challenge)) => {
            let ask = Ask {
                client: client.id,
                redirect_uri: uri.to_owned(),
                state: state.map(str::to_owned),
                challenge: challenge.to_owned(),
                ends: (inner.clock.now() + consent::LIFE).as_second(),
            };
            ask_for(inner, &parts.headers, &client, redirect, &ask)
        }
        Err(refused) => {
            let state = params.one("state").ok().flatten().filter(|state| state.len() <= MAX_STATE);
            let answer = [("error", refused.error), ("error_description", refused.description)];
            let link = with_answer(inner, &redirect, state, &answer);
            if redirect.place() == Place::Loopback {
                see_other(&link)
            } else {
                page::problem(StatusCode::BAD_REQUEST, refused.description, Some((&redirect, &link)))
            }
        }
    }
}

fn registered<'a>(client: &OauthClientRow, uri: &'a str) -> Option<RedirectUri<'a>> {
    RedirectUri::parse(uri).filter(|uri| client.redirect_uris.iter().any(|registered| uri.is(registered)))
}

/// State and challenge of a request that is in order.
fn check<'a>(inner: &Inner, params: &'a Params) -> Result<(Option<&'a str>, &'a str), Refused> {
    let invalid = Refused::invalid_request;
    if params.needed("response_type", "response_type is missing")? != "code" {
        let error = "unsupported_response_type";
        return Err(Refused { error, ..invalid("response_type must be code") });
    }
    if params.one("request")?.is_some() {
        return Err(Refused {
            error: "request_not_supported",
            ..invalid("request objects are not supported")
        });
    }
    if params.one("request_uri")?.is_some() {
        let error = "request_uri_not_supported";
        return Err(Refused { error, ..invalid("request objects are not supported") });
    }
    if params.one("response_mode")?.is_some_and(|mode| mode != "query") {
        return Err(invalid("response_mode must be query"));
    }
    let state = params.one("state")?;
    if state.is_some_and(|state| state.len() > MAX_STATE) {
        return Err(invalid("state is longer than 4096 bytes"));
    }
    let challenge = params.needed("code_challenge", "PKCE is needed: code_challenge is missing")?;
    // Absent, it would mean `plain`.
    if params.one("code_challenge_method")? != Some("S256") {
        return Err(invalid("PKCE is needed: code_challenge_method must be S256"));
    }
    let form = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if challenge.len() != 43 || !challenge.bytes().all(form) {
        return Err(invalid("code_challenge is not a SHA-256 as base64url"));
    }
    check_resource(inner, params)?;
    Ok((state, challenge))
}

/// The question, with the cookie that its answer needs.
fn ask_for(
    inner: &Inner,
    headers: &HeaderMap,
    client: &OauthClientRow,
    redirect: RedirectUri<'_>,
    ask: &Ask,
) -> Response {
    let https = inner.url.https();
    let Some(nonce) = consent::nonce(headers, https).or_else(|| consent::fresh_nonce().ok()) else {
        return page::problem(StatusCode::INTERNAL_SERVER_ERROR, INTERNAL, None);
    };
    let sealed = inner.consent.seal(ask, &nonce);
    let question = Question { client_name: &client.name, redirect, sealed: &sealed, again: None };
    let mut response = question.into_response(StatusCode::OK);
    if let Ok(cookie) = HeaderValue::try_from(consent::set_cookie(&nonce, https)) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

pub(crate) async fn decide(State(server): State<Server>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    decision(&server.inner, &parts, body).await.unwrap_or_else(|error| failed(&error))
}

/// Whether the form was sent from a page of ours, as far as the browser says.
fn from_here(inner: &Inner, headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or_default());
    text(ORIGIN.as_str()).is_none_or(|origin| origin == inner.url.origin())
        && text("sec-fetch-site").is_none_or(|site| site == "same-origin")
}

async fn decision(inner: &Inner, parts: &Parts, body: Body) -> Result<Response, StoreError> {
    let params = match form::read(parts, body).await {
        Ok(params) => params,
        Err(refused) => return Ok(page::problem(refused.status, refused.description, None)),
    };
    let now = inner.clock.now();
    let sealed = params.one("request").ok().flatten().unwrap_or_default();
    let ask = consent::nonce(&parts.headers, inner.url.https())
        .filter(|_| from_here(inner, &parts.headers))
        .and_then(|nonce| inner.consent.open(sealed, &nonce, now));
    let Some(ask) = ask else { return Ok(page::problem(StatusCode::FORBIDDEN, STALE, None)) };
    // It may have been forgotten since.
    let Some(client) = inner.store.oauth_client_find(ask.client).await? else { return Ok(problem(UNKNOWN)) };
    let Some(redirect) = registered(&client, &ask.redirect_uri) else { return Ok(problem(ELSEWHERE)) };
    let state = ask.state.as_deref();
    if params.one("decision") != Ok(Some("allow")) {
        inner.tell(Event::Denied);
        let answer = [("error", "access_denied"), ("error_description", "the user said no")];
        return Ok(see_other(&with_answer(inner, &redirect, state, &answer)));
    }
    let again = |status, why| {
        Question { client_name: &client.name, redirect, sealed, again: Some(why) }.into_response(status)
    };
    // Only wrong keys are counted: whoever has one may connect as many clients as it takes.
    let address = address::of(parts);
    if !inner.wrong_keys.has(address) {
        inner.tell(Event::Limited);
        let mut response = again(StatusCode::TOO_MANY_REQUESTS, LIMITED);
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
        return Ok(response);
    }
    let key = params.one("api_key").ok().flatten().unwrap_or_default().trim();
    let key =
        if key.is_empty() || key.len() > LONGEST_KEY { None } else { inner.store.key_find(key).await? };
    let Some(key) = key else {
        inner.wrong_keys.take(address);
        inner.tell(Event::WrongKey);
        return Ok(again(StatusCode::FORBIDDEN, WRONG_KEY));
    };
    let grant = OauthGrantRow {
        id: Uuid::new_v4(),
        client: client.id,
        api_key: key.id,
        redirect_uri: ask.redirect_uri.clone(),
        challenge: ask.challenge.clone(),
        resource: inner.resource(),
        generation: 0,
        created_at: now,
        rotated_at: now,
        expires_at: now + CODE_LIFE,
    };
    if !inner.store.oauth_grant_add(&grant, GRANTS_PER_KEY).await? {
        return Ok(again(StatusCode::FORBIDDEN, WRONG_KEY));
    }
    let ends = grant.expires_at.as_second();
    let code = inner.mint.make(&Token { kind: Kind::Code, grant: grant.id, generation: 0, ends });
    Ok(see_other(&with_answer(inner, &redirect, state, &[("code", code.expose_secret())])))
}

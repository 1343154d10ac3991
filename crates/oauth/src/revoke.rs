//! `POST /revoke` (RFC 7009): either token ends the whole grant. Whoever has a token may end it; what is none is none,
//! and is answered in the same way.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;

use crate::observe::{Event, Reason, Subject};
use crate::reply::Refused;
use crate::token::Kind;
use crate::token_endpoint::client;
use crate::{Server, form};

pub(crate) async fn revoke(State(server): State<Server>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let inner = &server.inner;
    let done = async {
        let params = form::read(&parts, body).await?;
        let token = params.needed("token", "token is missing")?;
        let client = client(inner, &params).await?;
        let opened = inner.mint.open(token, Kind::Refresh).or_else(|| inner.mint.open(token, Kind::Access));
        let Some(token) = opened else { return Ok(()) };
        let Some(found) = inner.store.oauth_grant_find(token.grant, inner.clock.now()).await? else {
            return Ok(());
        };
        if found.grant.client != client {
            return Err(Refused::GRANT);
        }
        if inner.store.oauth_grant_end(found.grant.id).await? {
            inner.tell(Event::Ended(Subject::from(&found), Reason::Client));
        }
        Ok(())
    };
    match done.await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(refused) => refused.into_response(),
    }
}

//! The agents platform of former times (§14): not here. Its clients read `detail`.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;

#[derive(Serialize)]
struct Gone {
    error: &'static str,
    detail: &'static str,
}

pub(crate) async fn gone() -> Response {
    let detail = "the legacy agents API is not part of this server; use /sandboxes";
    (StatusCode::NOT_FOUND, Json(Gone { error: "not_found", detail })).into_response()
}

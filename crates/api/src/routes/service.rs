//! What the server says of itself.

use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use http::header;
use serde::Serialize;
use wire::well_known::Descriptor;

use crate::ApiState;

/// Answer of `GET /health`.
#[derive(Debug, Serialize)]
pub(crate) struct Health {
    status: &'static str,
    version: String,
}

pub(crate) async fn health(State(state): State<ApiState>) -> Json<Health> {
    Json(Health { status: "ok", version: state.descriptor.version.clone() })
}

pub(crate) async fn descriptor(State(state): State<ApiState>) -> Json<Descriptor> {
    Json(state.descriptor.as_ref().clone())
}

pub(crate) async fn metrics(State(state): State<ApiState>) -> impl IntoResponse {
    /// Of the text format (Prometheus documentation, "Exposition formats").
    const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, FORMAT)], state.observer.page())
}

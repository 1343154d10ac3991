//! What the server says of itself; no key needed.

use axum::Json;
use axum::extract::State;
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

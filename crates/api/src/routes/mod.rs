//! The router, made from one list, so that a test can walk it and no route can be added without saying who may call it.

mod files;
mod legacy;
mod sandbox;
mod service;
mod template;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, patch, post};
use domain::{Code, NextStep, Problem};
use http::Uri;
use tower::Layer;
use tower::util::MapRequestLayer;

use crate::reply::{Failure, with_headers};
use crate::request_log::logged;
use crate::{ApiState, auth};

/// Who may call a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Anyone.
    Public,
    /// Who has a working key.
    Key,
}

/// One operation.
pub(crate) struct Route {
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "the handler knows it; the walk over all routes needs it")
    )]
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    handler: MethodRouter<ApiState>,
}

/// Every operation there is.
pub(crate) fn all() -> Vec<Route> {
    let public = |method, path, handler| Route { method, path, access: Access::Public, handler };
    let keyed = |method, path, handler| Route { method, path, access: Access::Key, handler };
    vec![
        public("GET", "/health", get(service::health)),
        public("GET", wire::well_known::PATH, get(service::descriptor)),
        keyed("GET", "/sandboxes", get(sandbox::list)),
        keyed("POST", "/sandboxes", post(sandbox::create)),
        keyed("GET", "/sandboxes/{id}", get(sandbox::get)),
        keyed("PATCH", "/sandboxes/{id}", patch(sandbox::patch)),
        keyed("DELETE", "/sandboxes/{id}", delete(sandbox::delete)),
        keyed("POST", "/sandboxes/{id}/pause", post(sandbox::pause)),
        keyed("POST", "/sandboxes/{id}/resume", post(sandbox::resume)),
        keyed("POST", "/sandboxes/{id}/activate", post(sandbox::activate)),
        keyed("GET", "/sandboxes/{id}/files", get(files::list)),
        keyed("GET", "/templates", get(template::list)),
        keyed("GET", "/templates/{name}", get(template::get)),
        // The Python SDK puts a name with its slash into the path as it is.
        keyed("GET", "/templates/{owner}/{name}", get(template::get_owned)),
    ]
}

/// The control plane.
pub fn router(state: ApiState) -> Router {
    let (public, keyed): (Vec<_>, Vec<_>) =
        all().into_iter().partition(|route| route.access == Access::Public);
    let collect = |routes: Vec<Route>| {
        routes.into_iter().fold(Router::new(), |router, route| router.route(route.path, route.handler))
    };
    let check = from_fn_with_state(state.clone(), auth::with_key);
    let inner = collect(keyed)
        .route_layer(check)
        .merge(collect(public))
        .route("/v1", axum::routing::any(legacy::gone))
        .route("/v1/{*rest}", axum::routing::any(legacy::gone))
        .fallback(unknown)
        .method_not_allowed_fallback(unknown)
        .layer(from_fn(logged))
        .layer(from_fn(with_headers))
        .with_state(state);
    // Outside the router, because routing itself must see the mended path.
    Router::new().fallback_service(MapRequestLayer::new(with_one_leading_slash).layer(inner))
}

async fn unknown(request: Request) -> Response {
    let shown: String = request.uri().path().chars().take(128).collect();
    let message = format!("there is no {} {shown} here", request.method());
    let next = NextStep::Fix { field: "path".to_owned(), accepted: "see the API reference".to_owned() };
    Failure(Problem::new(Code::NotFound, message, next)).into_response()
}

/// A base URL that ends with a slash makes `//sandboxes` (§1.1).
fn with_one_leading_slash(mut request: Request) -> Request {
    let text = request.uri().path_and_query().map_or("/", |path| path.as_str());
    if text.starts_with("//") {
        let mended = format!("/{}", text.trim_start_matches('/'));
        if let Ok(uri) = mended.parse::<Uri>() {
            *request.uri_mut() = uri;
        }
    }
    request
}

//! The router, made from one list, so that a test can walk it and no route can be added without saying who may call it.

mod activity;
mod build;
mod files;
mod legacy;
mod network;
mod preview;
mod sandbox;
mod secret;
mod service;
mod snapshot;
mod template;

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use domain::{Code, NextStep, Problem};
use http::{Method, Uri};
use tower::Layer;
use tower::util::MapRequestLayer;

use crate::observe::MetricsAccess;
use crate::reply::{Failure, with_headers};
use crate::request_log::logged;
use crate::{ApiState, auth};

/// Who may call a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Anyone.
    Public,
    /// Anyone on this machine, and who has a working key.
    Local,
    /// Who has a working key.
    Key,
}

/// One operation.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    handler: Box<dyn FnOnce(MethodFilter) -> MethodRouter<ApiState>>,
}

impl Route {
    fn new<H, T>(access: Access, method: Method, path: &'static str, handler: H) -> Self
    where
        H: Handler<T, ApiState>,
        T: 'static,
    {
        Self { method, path, access, handler: Box::new(|filter| on(filter, handler)) }
    }
}

/// Every operation there is.
pub(crate) fn all(metrics: MetricsAccess) -> Vec<Route> {
    use Access::{Key, Local, Public};
    let mut routes = vec![
        Route::new(Public, Method::GET, "/health", service::health),
        Route::new(Public, Method::GET, wire::well_known::PATH, service::descriptor),
        Route::new(Key, Method::GET, "/sandboxes", sandbox::list),
        Route::new(Key, Method::POST, "/sandboxes", sandbox::create),
        Route::new(Key, Method::GET, "/sandboxes/{id}", sandbox::get),
        Route::new(Key, Method::PATCH, "/sandboxes/{id}", sandbox::patch),
        Route::new(Key, Method::DELETE, "/sandboxes/{id}", sandbox::delete),
        Route::new(Key, Method::POST, "/sandboxes/{id}/pause", sandbox::pause),
        Route::new(Key, Method::POST, "/sandboxes/{id}/resume", sandbox::resume),
        Route::new(Key, Method::POST, "/sandboxes/{id}/activate", sandbox::activate),
        Route::new(Key, Method::POST, "/sandboxes/{id}/snapshot", snapshot::create),
        Route::new(Key, Method::GET, "/sandboxes/{id}/snapshots", snapshot::list),
        Route::new(Key, Method::GET, "/snapshots/{id}", snapshot::get),
        Route::new(Key, Method::PATCH, "/snapshots/{id}", snapshot::rename),
        Route::new(Key, Method::DELETE, "/snapshots/{id}", snapshot::delete),
        Route::new(Key, Method::GET, "/sandboxes/{id}/files", files::list),
        Route::new(Key, Method::GET, "/sandboxes/{id}/preview-ports", preview::list),
        Route::new(Key, Method::POST, "/sandboxes/{id}/preview-ports", preview::publish),
        Route::new(Key, Method::DELETE, "/sandboxes/{id}/preview-ports/{port}", preview::unpublish),
        Route::new(Key, Method::POST, "/sandboxes/{id}/preview-ports/{port}/token", preview::mint),
        Route::new(Key, Method::POST, "/sandboxes/{id}/preview-ports/{port}/token/rotate", preview::rotate),
        Route::new(Key, Method::GET, "/sandboxes/{id}/preview-ports/{port}/requests", preview::requests),
        Route::new(Key, Method::GET, "/previews", preview::all),
        Route::new(Key, Method::GET, "/sandboxes/{id}/network", network::list),
        Route::new(Key, Method::GET, "/templates", template::list),
        Route::new(Key, Method::GET, "/templates/{name}", template::get),
        // The Python SDK puts a name with its slash into the path as it is.
        Route::new(Key, Method::GET, "/templates/{owner}/{name}", template::get_owned),
        Route::new(Key, Method::POST, "/templates", build::create),
        Route::new(Key, Method::DELETE, "/templates/{name}", build::delete),
        Route::new(Key, Method::DELETE, "/templates/{owner}/{name}", build::delete_owned),
        Route::new(Key, Method::GET, "/templates/{name}/builds", build::list),
        Route::new(Key, Method::POST, "/templates/{name}/builds", build::rebuild),
        Route::new(Key, Method::GET, "/templates/{name}/builds/{build}", build::get),
        Route::new(Key, Method::DELETE, "/templates/{name}/builds/{build}", build::cancel),
        Route::new(Key, Method::GET, "/templates/{name}/builds/{build}/logs", build::logs),
        Route::new(Key, Method::GET, "/activity", activity::list),
        Route::new(Key, Method::POST, "/sandboxes/{id}/secrets", secret::attach),
        Route::new(Key, Method::DELETE, "/sandboxes/{id}/secrets/{env_key}", secret::detach),
        Route::new(Key, Method::GET, "/secrets", secret::list),
        Route::new(Key, Method::POST, "/secrets", secret::create),
        Route::new(Key, Method::GET, "/secrets/{name}", secret::get),
        Route::new(Key, Method::PATCH, "/secrets/{name}", secret::rotate),
        Route::new(Key, Method::DELETE, "/secrets/{name}", secret::delete),
        Route::new(Key, Method::GET, "/secrets/{name}/audit", secret::audit),
        Route::new(Key, Method::GET, "/secrets/{name}/sandboxes", secret::sandboxes),
        Route::new(Key, Method::GET, "/providers", secret::providers),
    ];
    match metrics {
        MetricsAccess::Off => {}
        MetricsAccess::Local => routes.push(Route::new(Local, Method::GET, "/metrics", service::metrics)),
        MetricsAccess::Key => routes.push(Route::new(Key, Method::GET, "/metrics", service::metrics)),
    }
    routes
}

/// The control plane.
pub fn router(state: ApiState) -> Router {
    let (mut public, mut local, mut keyed) = (Router::new(), Router::new(), Router::new());
    for route in all(state.metrics) {
        let filter = MethodFilter::try_from(route.method).expect("the list above uses standard methods");
        let router = match route.access {
            Access::Public => &mut public,
            Access::Local => &mut local,
            Access::Key => &mut keyed,
        };
        *router = std::mem::take(router).route(route.path, (route.handler)(filter));
    }
    if local.has_routes() {
        local = local.route_layer(from_fn_with_state(state.clone(), auth::local_or_with_key));
    }
    let inner = keyed
        .route_layer(from_fn_with_state(state.clone(), auth::with_key))
        .merge(local)
        .merge(public)
        .route("/v1", axum::routing::any(legacy::gone))
        .route("/v1/", axum::routing::any(legacy::gone))
        .route("/v1/{*rest}", axum::routing::any(legacy::gone))
        .fallback(unknown)
        .method_not_allowed_fallback(unknown)
        .layer(from_fn_with_state(state.clone(), logged))
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

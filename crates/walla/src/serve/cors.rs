//! Requests of scripts on web pages (CORS), for the origins of the options.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Server;

/// Allows the origin of a request, and answers the browser's question before a request.
pub(super) async fn cors(
    State(server): State<Arc<Server>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(origin) = allowed(&server.options.cors_origins, request.headers()) else {
        return next.run(request).await;
    };
    let headers = request.headers();
    let is_question = request.method() == Method::OPTIONS
        && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut answer = if is_question { permission(headers) } else { next.run(request).await };
    let headers = answer.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    // Caches keep the answers to other origins apart.
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    answer
}

/// The origin of a request, if it is allowed.
fn allowed(origins: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let is_its = |its: &String| its == "*" || its.as_bytes() == origin.as_bytes();
    origins.iter().any(is_its).then(|| origin.clone())
}

fn permission(headers: &HeaderMap) -> Response {
    let mut answer = StatusCode::NO_CONTENT.into_response();
    let given = answer.headers_mut();
    let methods = HeaderValue::from_static("GET, POST");
    given.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    // The key decides who may send requests, not their headers.
    if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        given.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    given.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    answer
}

//! Refusals, in the words of the protocol: `{"error": {"message", "type", "param", "code"}}`.

use axum::extract::Json;
use axum::extract::rejection::JsonRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use walla_runtime::{ActionError, ReplyError};

/// A refusal.
#[derive(Debug)]
pub(super) struct Refusal {
    pub status: StatusCode,
    pub message: String,
    /// The member of the request, such as `messages[2].tool_call_id`.
    pub param: Option<String>,
    pub code: Option<&'static str>,
}

/// The code of a reply that was ended because its grammar is too complex to continue. The request
/// is sound, but the same request fails again.
const CONSTRAINT_STOPPED: &str = "constraint_stopped";

impl Refusal {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A bad member of the request.
    pub fn of(param: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        let param = param.into();
        Self { param: Some(param.clone()), ..Self::bad(format!("{param}: {reason}")) }
    }

    pub fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    pub fn too_many(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, message).with_code("rate_limit_exceeded")
    }

    /// The error as an event of a stream, and as a body.
    pub fn body(&self) -> Value {
        let Self { status, message, param, code } = self;
        let kind = match *status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            _ if *code == Some(CONSTRAINT_STOPPED) => "constraint_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
    }
}

impl From<&ReplyError> for Refusal {
    fn from(error: &ReplyError) -> Self {
        let status = match error {
            ReplyError::TooManyAgents { .. }
            | ReplyError::Busy { .. }
            | ReplyError::TooManyAsks { .. } => return Self::too_many(error.to_string()),
            ReplyError::PromptTooLong { .. } => {
                let of_messages = Self::of("messages", error);
                return of_messages.with_code("context_length_exceeded");
            }
            ReplyError::Actions(reason) => {
                let is_choice =
                    matches!(**reason, ActionError::NoAction | ActionError::Constrained);
                return Self::of(if is_choice { "tool_choice" } else { "tools" }, error);
            }
            ReplyError::Text(_)
            | ReplyError::Constraint(_)
            | ReplyError::Unsupported(_)
            | ReplyError::NoTemplate(_) => StatusCode::BAD_REQUEST,
            ReplyError::ConstraintStopped(_) => {
                let failure = Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
                return failure.with_code(CONSTRAINT_STOPPED);
            }
            ReplyError::EngineGone(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

/// A body that is no request: its text begins with the place of the defect, if there is one.
impl From<JsonRejection> for Refusal {
    fn from(rejection: JsonRejection) -> Self {
        let text = rejection.body_text();
        let Some((_, defect)) = text.split_once("target type: ") else { return Self::bad(text) };
        let param = defect.split(": ").next().filter(|param| !param.contains(' '));
        Self { param: param.map(str::to_owned), ..Self::bad(defect) }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = Json(self.body());
        if self.code == Some(CONSTRAINT_STOPPED) {
            // Clients of the protocol repeat a request with this status otherwise.
            return (self.status, [("x-should-retry", "false")], body).into_response();
        }
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => {
                (self.status, [(header::RETRY_AFTER, "1")], body).into_response()
            }
            StatusCode::UNAUTHORIZED => {
                (self.status, [(header::WWW_AUTHENTICATE, "Bearer")], body).into_response()
            }
            status => (status, body).into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use walla_runtime::MatchError;

    /// Clients of the protocol repeat requests with status 500, unless a header forbids it.
    #[test]
    fn a_reply_that_its_grammar_stopped_is_not_asked_again() {
        let error = ReplyError::ConstraintStopped(MatchError::DeadEnd.into());
        let refusal = Refusal::from(&error);
        let expected = json!({"error": {
            "message": error.to_string(), "type": "constraint_error", "param": null,
            "code": "constraint_stopped"}});
        assert_eq!(refusal.body(), expected);
        let response = refusal.into_response();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.headers()["x-should-retry"], "false");
        let other = Refusal::from(&ReplyError::NotFinite).into_response();
        assert!(!other.headers().contains_key("x-should-retry"));
    }
}

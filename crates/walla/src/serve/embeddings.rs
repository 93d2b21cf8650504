//! Vectors of texts.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Json, State};
use axum::http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use super::table::Connection;
use super::wire::{self, Input, Texts};
use super::{Refusal, Server, no_model, receive};
use crate::{EmbedError, Purpose};

/// Maximum number of texts of a request, as in OpenAI's reference.
const MAX_INPUTS: usize = 2_048;

pub(super) async fn embeddings(
    State(server): State<Arc<Server>>,
    Extension(connection): Extension<Arc<Connection>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Refusal> {
    let Some(embedder) = &server.options.embedder else {
        return Err(no_model("the server has no embedding model (--embedding-model)".into()));
    };
    let (request, _busy) =
        receive::<wire::Embeddings>(&server, &connection, &headers, body).await?;
    let texts = match request.input {
        Input::Texts(Texts::One(text)) => vec![text],
        Input::Texts(Texts::Several(texts)) => texts,
        Input::Other(_) => return Err(Refusal::of("input", "expected a text or a list of texts")),
    };
    if texts.is_empty() || texts.len() > MAX_INPUTS {
        let reason = format!("{} texts, expected 1 to {MAX_INPUTS}", texts.len());
        return Err(Refusal::of("input", reason));
    }
    let is_text = match request.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            return Err(Refusal::of("encoding_format", format!("{other:?} is not supported")));
        }
    };
    let dimensions = request.dimensions.unwrap_or(embedder.dimensions());
    if dimensions == 0 || dimensions > embedder.dimensions() {
        let reason = format!("{dimensions}, expected 1 to {}", embedder.dimensions());
        return Err(Refusal::of("dimensions", reason));
    }
    let found = embedder.embed(texts, Purpose::Plain).await.map_err(|error| refusal(&error))?;
    let tokens: u64 = found.iter().map(|its| u64::from(its.tokens)).sum();
    let data: Vec<Value> = found
        .into_iter()
        .enumerate()
        .map(|(index, its)| {
            let vector = shortened(its.vector, dimensions);
            let vector = if is_text { base64(&vector).into() } else { json!(vector) };
            json!({"object": "embedding", "index": index, "embedding": vector})
        })
        .collect();
    Ok(Json(json!({
        "object": "list", "data": data, "model": server.options.embedding_model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}

fn refusal(error: &EmbedError) -> Refusal {
    match error {
        EmbedError::TooLong { text, .. } | EmbedError::Empty { text } => {
            Refusal::of(format!("input[{text}]"), error)
        }
        EmbedError::TooLarge(_) => Refusal::of("input", error),
        EmbedError::Stopped => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        _ => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// The first numbers of a vector, with length 1.
fn shortened(mut vector: Vec<f32>, dimensions: usize) -> Vec<f32> {
    if dimensions < vector.len() {
        vector.truncate(dimensions);
        let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        if length > 0.0 {
            vector.iter_mut().for_each(|x| *x /= length);
        }
    }
    vector
}

/// The numbers as bytes, the lowest first, in base 64 (RFC 4648, section 4).
fn base64(vector: &[f32]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let byte = |at: usize| u32::from(part.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) & 63;
            let is_used = digit <= part.len();
            text.push(if is_used { char::from(ALPHABET[value as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_has_the_form_of_the_reference() {
        assert_eq!(base64(&[]), "");
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[1.0, -2.0]), "AACAPwAAAMA=");
        assert_eq!(base64(&[1.0, -2.0, 0.5]), "AACAPwAAAMAAAAA/");
    }

    #[test]
    fn shortened_vectors_have_length_one() {
        assert_eq!(shortened(vec![0.6, 0.0, 0.8], 3), [0.6, 0.0, 0.8]);
        assert_eq!(shortened(vec![0.6, 0.0, 0.8], 2), [1.0, 0.0]);
        assert_eq!(shortened(vec![0.0, 1.0], 1), [0.0]);
    }
}

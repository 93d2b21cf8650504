//! Connections of a server: their number, their times, and bodies of requests in bounded memory.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use futures_util::StreamExt;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Refusal, ServeOptions};

/// Pause after a connection could not be accepted, for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time between two checks whether a client has left.
const CHECK_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until the future is dropped, which ends them all.
pub(super) async fn accept(
    listener: TcpListener,
    router: Router,
    options: &ServeOptions,
) -> io::Result<()> {
    let connections = Arc::new(Semaphore::new(options.connections_max.max(1) as usize));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(options.request_time);
    let mut tasks = JoinSet::new();
    loop {
        let permit = Arc::clone(&connections).acquire_owned().await.map_err(io::Error::other)?;
        // Ends of earlier ones.
        while tasks.try_join_next().is_some() {}
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) if is_of_connection(&error) => continue,
            Err(error) => {
                tracing::warn!(target: "walla::serve", %error, "no connection can be accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok((stream, watched)) = watched(stream) else { continue };
        let service = TowerToHyperService::new(router.clone());
        let connection = http.serve_connection(TokioIo::new(stream), service);
        tasks.spawn(async move {
            tokio::select! {
                // Its errors are the client's: it has left, or its request is no HTTP.
                _ = connection => {}
                () = client_left(&watched) => {}
            }
            drop(permit);
        });
    }
}

/// Whether an error concerns only the connection that was being accepted.
fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// A connection, and a second handle that is never read.
fn watched(stream: TcpStream) -> io::Result<(TcpStream, TcpStream)> {
    stream.set_nodelay(true)?;
    let stream = stream.into_std()?;
    let watched = TcpStream::from_std(stream.try_clone()?)?;
    Ok((TcpStream::from_std(stream)?, watched))
}

/// Waits until the client has closed the connection. Without it, bytes of a next request that were
/// already received hide the end of the connection from the HTTP reader.
async fn client_left(watched: &TcpStream) {
    loop {
        match watched.ready(Interest::READABLE).await {
            Ok(ready) if !ready.is_read_closed() => sleep(CHECK_PAUSE).await,
            _ => return,
        }
    }
}

/// The bytes of a request, which count until they are dropped.
pub(super) struct Received {
    pub bytes: Vec<u8>,
    _memory: Option<OwnedSemaphorePermit>,
}

/// Receives the body of a request. `memory` has a permit per KiB of all bodies.
pub(super) async fn receive(
    body: Body,
    memory: &Arc<Semaphore>,
    options: &ServeOptions,
) -> Result<Received, Refusal> {
    let limit = options.request_bytes_max;
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large(limit));
    }
    match timeout(options.request_time, receive_all(body, memory, limit)).await {
        Ok(received) => received,
        Err(_) => {
            let message = format!("no whole request in {} s", options.request_time.as_secs_f32());
            Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, message))
        }
    }
}

async fn receive_all(
    body: Body,
    memory: &Arc<Semaphore>,
    limit: usize,
) -> Result<Received, Refusal> {
    let mut received = Received { bytes: Vec::new(), _memory: None };
    let mut parts = body.into_data_stream();
    let mut kib = 0;
    while let Some(part) = parts.next().await {
        let part: Bytes =
            part.map_err(|error| Refusal::bad(format!("the request is incomplete: {error}")))?;
        let length = received.bytes.len() + part.len();
        if length > limit {
            return Err(too_large(limit));
        }
        let more = u32::try_from(length.div_ceil(1024) - kib).unwrap_or(u32::MAX);
        if more > 0 {
            let permit = Arc::clone(memory).try_acquire_many_owned(more).map_err(|_| {
                let message = "too many bytes of requests are in progress";
                Refusal::new(StatusCode::TOO_MANY_REQUESTS, message)
            })?;
            match &mut received._memory {
                Some(all) => all.merge(permit),
                none => *none = Some(permit),
            }
            kib += more as usize;
        }
        received.bytes.extend_from_slice(&part);
    }
    Ok(received)
}

fn too_large(limit: usize) -> Refusal {
    let message = format!("a request has at most {limit} bytes");
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}

//! Connections of a server: their times, clients that leave, and bodies of requests in bounded
//! memory.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, StatusCode, Version};
use futures_util::StreamExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use walla_runtime::return_freed_memory;

use super::table::{Answering, Connection, Table};
use super::{Refusal, ServeOptions};

/// Pause after a connection could not be accepted, for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time without a new connection after which freed memory is returned to the system.
const QUIET: Duration = Duration::from_secs(5);

/// Time between two checks whether a client has left.
const CHECK_PAUSE: Duration = Duration::from_millis(100);

/// An interim answer, which clients skip. Some clients skip only this one, and only a few.
const PROBE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Pauses behind the probes of one connection.
const PROBE_PAUSES: [Duration; 3] = [CHECK_PAUSE, Duration::from_secs(2), Duration::from_secs(20)];

/// The answer to a connection of a peer that has too many.
const TOO_MANY: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\n\
connection: close\r\ncontent-length: 0\r\n\r\n";

/// Accepts connections until the future is dropped, which ends them all.
pub(super) async fn accept(
    listener: TcpListener,
    router: Router,
    options: &ServeOptions,
) -> io::Result<()> {
    let table = Table::new(options.max_connections, options.max_connections_per_peer);
    let mut http = http1::Builder::new();
    // Half-closed connections stay: such clients wait for their answer.
    http.timer(TokioTimer::new()).header_read_timeout(options.request_time).half_close(true);
    let mut tasks = JoinSet::new();
    let mut has_worked = false;
    loop {
        // Ends of earlier ones.
        while tasks.try_join_next().is_some() {}
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = sleep(QUIET), if has_worked => {
                has_worked = false;
                // It may wait for threads that allocate.
                let _detached = tokio::task::spawn_blocking(return_freed_memory);
                continue;
            }
        };
        has_worked = true;
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if is_of_connection(&error) => continue,
            Err(error) => {
                tracing::warn!(target: "walla::serve", %error, "no connection can be accepted");
                table.close_oldest(None);
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // One client has one address, also as an IPv4 address in the form of IPv6.
        let Some(connection) = table.admit(peer.ip().to_canonical()).await else {
            let _sent = stream.try_write(TOO_MANY);
            continue;
        };
        if stream.set_nodelay(true).is_err() {
            continue;
        }
        let (http, router) = (http.clone(), router.clone());
        let first_byte_time = options.first_byte_time;
        tasks.spawn(async move {
            tokio::select! {
                () = serve(stream, http, router, first_byte_time, &connection) => {}
                () = connection.closed() => {}
            }
        });
    }
}

/// Serves a connection until it ends or its client has left.
async fn serve(
    stream: TcpStream,
    http: http1::Builder,
    router: Router,
    first_byte_time: Duration,
    connection: &Arc<Connection>,
) {
    // `readable` returns at once for a new socket.
    if timeout(first_byte_time, stream.peek(&mut [0])).await.is_err() {
        return;
    }
    let (is_flushed, is_newer) = (AtomicBool::new(true), AtomicBool::new(false));
    let shared = Arc::new(Shared { stream, is_flushed, is_newer });
    let watched = Arc::clone(&shared);
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        watched.is_newer.store(request.version() == Version::HTTP_11, Ordering::Relaxed);
        request.extensions_mut().insert(Arc::clone(connection));
        let answer = router.call(request);
        async move {
            let answer = answer.await;
            connection.answers();
            answer
        }
    });
    tokio::select! {
        // Its errors are the client's: it has left, or its request is no HTTP.
        _ = http.serve_connection(TokioIo::new(Io(shared)), service) => {}
        () = client_left(&watched, connection) => {}
    }
}

/// Whether an error concerns only the connection that was being accepted.
fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// A connection that the HTTP protocol and the watch share.
struct Shared {
    stream: TcpStream,
    /// All bytes of answers so far were written.
    is_flushed: AtomicBool,
    /// The latest request is of HTTP 1.1. Older clients know no interim answers.
    is_newer: AtomicBool,
}

/// The protocol's side of a connection. Dropping it closes the connection.
struct Io(Arc<Shared>);

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = &self.0.stream;
        loop {
            ready!(stream.poll_read_ready(context))?;
            match stream.try_read(buffer.initialize_unfilled()) {
                Ok(bytes) => {
                    buffer.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Shared { stream, is_flushed, .. } = &*self.0;
        is_flushed.store(false, Ordering::Relaxed);
        loop {
            ready!(stream.poll_write_ready(context))?;
            match stream.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    /// The protocol flushes when it has written all that it holds.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.is_flushed.store(true, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }

    /// A drop follows.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Waits until the client has left.
///
/// The protocol does not see it while bytes of a next request are unread. A client that has closed
/// only its sending side still reads its answer: an interim answer separates the two, because the
/// system of a client that has left refuses it.
async fn client_left(shared: &Shared, connection: &Connection) {
    let Shared { stream, is_flushed, is_newer } = shared;
    let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
    loop {
        match stream.ready(Interest::READABLE).await {
            Ok(ready) if !ready.is_read_closed() => sleep(CHECK_PAUSE).await,
            Ok(_) => break,
            Err(_) => return,
        }
    }
    for pause in PROBE_PAUSES {
        // While an answer is being written, its writes fail.
        if connection.is_answering() && is_set(is_flushed) && is_set(is_newer) {
            match stream.try_write(PROBE) {
                Ok(bytes) if bytes == PROBE.len() => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
        sleep(pause).await;
        match stream.ready(Interest::READABLE | Interest::WRITABLE).await {
            Ok(ready) if !ready.is_write_closed() => {}
            _ => return,
        }
    }
    std::future::pending::<()>().await;
}

/// A request that is being answered.
pub(super) struct Busy {
    _request: OwnedSemaphorePermit,
    _answering: Answering,
}

impl Busy {
    /// A request of the connection was received.
    pub fn new(connection: &Arc<Connection>, requests: &Arc<Semaphore>) -> Result<Self, Refusal> {
        let request = Arc::clone(requests).try_acquire_owned();
        let refused = |_| Refusal::too_many("too many requests are in progress");
        Ok(Self { _request: request.map_err(refused)?, _answering: connection.begin() })
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
    let limit = options.max_request_bytes;
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
            let permit = Arc::clone(memory)
                .try_acquire_many_owned(more)
                .map_err(|_| Refusal::too_many("too many bytes of requests are in progress"))?;
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

//! `walla serve`: the engine as a server. Ctrl-C ends it.

use std::fmt::{self, Write};
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use tokio::net::{TcpListener, TcpSocket};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use walla::serve::{ServeOptions, serve};
use walla::{Embedder, EmbedderOptions, LongTexts, ModelCard};

use crate::Failure;
use crate::args::Serve;
use crate::load;
use crate::note::note;

/// Connections that the system holds until they are accepted: a flood waits here and not at its
/// senders, whose second try comes after a second.
const BACKLOG: u32 = 4_096;

pub fn run(arguments: &Serve) -> Result<(), Failure> {
    tracing::subscriber::set_global_default(Log)?;
    // Long requests are read while others are answered. The engine has its own threads.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(until_interrupted(arguments));
    runtime.shutdown_background();
    result
}

async fn until_interrupted(arguments: &Serve) -> Result<(), Failure> {
    let Serve { host, port, agents, context, .. } = arguments;
    let model = arguments.model.as_deref();
    let mut options = ServeOptions::default();
    options.max_requests = arguments.requests;
    options.max_connections = options.max_connections.max(arguments.requests.saturating_mul(2));
    let half = options.max_connections / 2;
    options.max_connections_per_peer = arguments.peer_connections.unwrap_or(half);
    options.cors_origins.clone_from(&arguments.cors);
    options.key = arguments.key_env.as_deref().map(key).transpose()?;
    options.agents_kept = *agents as usize;
    if let Some(model) = model {
        options.model = name(model);
    }
    if let Some(path) = &arguments.embedding_model {
        options.embedder = Some(embedder(path, arguments.engine.device.threads)?);
        options.embedding_model = name(path);
    }
    // Before the model is loaded, which can take long.
    let address = SocketAddr::new(*host, *port);
    let listener = listen(address).map_err(|error| format!("{address}: {error}"))?;
    let address = listener.local_addr()?;
    if !host.is_loopback() && options.key.is_none() {
        note!("walla: warning: {address} is reachable without a key (--key-env NAME requires one)");
    }
    let template = arguments.template.template.as_ref();
    let engine =
        load::engine(model, &arguments.engine, (*agents, *context), template, None).await?;
    let state = engine.model().map(|card| card.template.clone());
    if let Some(state) = state.filter(|state| !state.is_usable()) {
        let ways = crate::chat::WAYS_OUT;
        return Err(format!("the model cannot chat: {state}; {ways}").into());
    }
    let asked_to_end = load::asked_to_end()?;
    let device = engine.model().map(ModelCard::device_line).unwrap_or_default();
    note!("walla: {} on http://{address}/v1, device {device}", options.model);
    let served = async {
        tokio::select! {
            result = serve(listener, engine.clone(), options) => result,
            asked = asked_to_end => asked,
        }
    };
    Ok(load::until_done(&engine, served).await?)
}

/// The name of a model: its file's, without the ending.
fn name(path: &Path) -> String {
    path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // As the standard library: otherwise a restart waits for the end of old connections.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn embedder(path: &Path, threads: Option<u32>) -> Result<Embedder, Failure> {
    let long_texts = LongTexts::Refuse;
    let mut options = EmbedderOptions { long_texts, low_priority: false, ..Default::default() };
    options.threads = threads.unwrap_or(options.threads);
    Embedder::from_gguf(load::open(path)?, options).map_err(|error| load::named(path, &error))
}

/// Warnings of the server and the engine, as lines on standard error.
struct Log;

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("walla")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        note!("walla: warning: {}{}", line.message, line.fields);
    }

    /// Spans are not shown.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _infallible = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, ", {name}: {value:?}"),
        };
    }
}

fn key(variable: &str) -> Result<String, Failure> {
    let key = std::env::var(variable).map_err(|_| format!("{variable} is not set"))?;
    if key.trim().is_empty() {
        return Err(format!("{variable} is empty").into());
    }
    Ok(key.trim().to_owned())
}

//! `walla serve`: the engine as a server. Ctrl-C ends it.

use std::net::SocketAddr;
use std::path::Path;

use tokio::net::TcpListener;
use walla::serve::{ServeOptions, serve};

use crate::Failure;
use crate::args::Serve;
use crate::load;
use crate::note::note;

pub fn run(arguments: &Serve) -> Result<(), Failure> {
    // Long requests are read while others are answered. The engine has its own threads.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(until_interrupted(arguments));
    runtime.shutdown_background();
    result
}

async fn until_interrupted(arguments: &Serve) -> Result<(), Failure> {
    let Serve { host, port, device, budget, pre, agents, context, .. } = arguments;
    let model = arguments.model.as_deref();
    let mut options = ServeOptions::default();
    options.requests_max = arguments.requests;
    options.connections_max = options.connections_max.max(arguments.requests.saturating_mul(2));
    options.key = arguments.key_env.as_deref().map(key).transpose()?;
    options.agents_kept = *agents as usize;
    if let Some(name) = model.and_then(Path::file_stem) {
        options.model = name.to_string_lossy().into_owned();
    }
    // Before the model is loaded, which can take long.
    let address = SocketAddr::new(*host, *port);
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|error| format!("{address}: {error}"))?;
    let address = listener.local_addr()?;
    if !host.is_loopback() && options.key.is_none() {
        note!("walla: warning: {address} is reachable without a key (--key-env NAME requires one)");
    }
    let template = arguments.template.template.as_ref();
    let engine =
        load::engine(model, device, budget, (*agents, *context), (template, pre), None).await?;
    let state = engine.model().map(|card| card.template.clone());
    if let Some(state) = state.filter(|state| !state.is_usable()) {
        let ways = crate::chat::WAYS_OUT;
        return Err(format!("the model cannot chat: {state}; {ways}").into());
    }
    note!("walla: {} on http://{address}/v1", options.model);
    let result = tokio::select! {
        result = serve(listener, engine.clone(), options) => result,
        interrupted = tokio::signal::ctrl_c() => interrupted,
    };
    load::stop(&engine).await;
    Ok(result?)
}

fn key(variable: &str) -> Result<String, Failure> {
    let key = std::env::var(variable).map_err(|_| format!("{variable} is not set"))?;
    if key.trim().is_empty() {
        return Err(format!("{variable} is empty").into());
    }
    Ok(key.trim().to_owned())
}

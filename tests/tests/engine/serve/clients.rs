//! Published clients of the protocol, written in Python.

use std::path::Path;
use std::process::Command;

use super::protocol::embedder;
use super::*;

/// `WALLA_CLIENTS_PYTHON` names a Python with the packages, `WALLA_INSTRUCT_MODEL` a model instead
/// of the demo model.
#[tokio::test]
#[ignore = "needs WALLA_CLIENTS_PYTHON, a Python with the packages of tests/clients/requirements.txt"]
async fn published_clients_are_served() {
    let python = std::env::var_os("WALLA_CLIENTS_PYTHON").expect("WALLA_CLIENTS_PYTHON");
    let named = std::env::var_os("WALLA_INSTRUCT_MODEL");
    let model = EngineOptions {
        device: "cpu".into(),
        threads: Some(2),
        max_agents: Some(4),
        ..named.map_or_else(EngineOptions::demo, EngineOptions::model)
    };
    let engine = Engine::start(model).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut options = ServeOptions::default();
    options.embedder = Some(embedder());
    tokio::spawn(serve(listener, engine, options));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/run.py");
    let mut run = Command::new(python);
    run.arg(script).arg(format!("http://127.0.0.1:{port}/v1"));
    let status = tokio::task::spawn_blocking(move || run.status()).await.unwrap().unwrap();
    assert!(status.success());
}

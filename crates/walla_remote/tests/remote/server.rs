//! A server whose responses are bytes that a test writes, with pauses.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// A part of a response.
#[derive(Clone, Debug)]
pub enum Part {
    Bytes(Vec<u8>),
    Pause(Duration),
    /// These bytes again and again, until the connection ends.
    Endless(Vec<u8>),
    /// Ends the connection.
    Close,
}

/// A request as the server reads it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Request line and headers.
    pub head: String,
    pub body: Value,
}

type Script = dyn Fn(&Request) -> Vec<Part> + Send + Sync;

/// Runs until it is dropped.
pub struct Server {
    address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl Server {
    pub fn start(script: impl Fn(&Request) -> Vec<Part> + Send + Sync + 'static) -> Self {
        Self::start_with(script, None)
    }

    /// A server with TLS.
    pub fn start_with(
        script: impl Fn(&Request) -> Vec<Part> + Send + Sync + 'static,
        tls: Option<tokio_rustls::TlsAcceptor>,
    ) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let script: Arc<Script> = Arc::new(script);
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    () = accept(listener, script, tls) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, _stop: stop }
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

async fn accept(
    listener: TcpListener,
    script: Arc<Script>,
    tls: Option<tokio_rustls::TlsAcceptor>,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _small_writes = stream.set_nodelay(true);
        let (script, tls) = (Arc::clone(&script), tls.clone());
        tokio::spawn(async move {
            match tls {
                None => serve(stream, script).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        serve(stream, script).await;
                    }
                }
            }
        });
    }
}

async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, script: Arc<Script>) {
    while let Some(request) = read_request(&mut stream).await {
        for part in script(&request) {
            let sent = match part {
                Part::Bytes(bytes) => stream.write_all(&bytes).await,
                Part::Pause(pause) => {
                    tokio::time::sleep(pause).await;
                    Ok(())
                }
                Part::Endless(bytes) => loop {
                    if let Err(error) = stream.write_all(&bytes).await {
                        break Err(error);
                    }
                },
                Part::Close => {
                    let _closed = stream.shutdown().await;
                    return;
                }
            };
            if sent.is_err() {
                return;
            }
        }
    }
}

async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<Request> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
    });
    let end = head_end + length.unwrap_or(0);
    while bytes.len() < end {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let body = serde_json::from_slice(&bytes[head_end..end]).unwrap_or_default();
    Some(Request { head, body })
}

impl Request {
    /// Text of the last message.
    pub fn question(&self) -> &str {
        let messages = self.body["messages"].as_array().unwrap();
        messages.last().unwrap()["content"].as_str().unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (known, value) = line.split_once(':')?;
            known.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }
}

/// Head of a stream of events that ends with the connection.
pub const STREAM: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

pub fn bytes(text: impl Into<String>) -> Part {
    Part::Bytes(text.into().into_bytes())
}

/// A response with a length.
pub fn response(status: &str, headers: &str, body: &str) -> Part {
    let length = body.len();
    bytes(format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n{body}"))
}

/// An event with a chunk of one choice.
pub fn event(choice: &Value) -> String {
    format!("data: {}\n\n", json!({"object": "chat.completion.chunk", "choices": [choice]}))
}

/// An event with text.
pub fn text(content: &str) -> String {
    event(&json!({"index": 0, "delta": {"content": content}}))
}

/// The event that ends a reply.
pub fn finish(reason: &str) -> String {
    event(&json!({"index": 0, "delta": {}, "finish_reason": reason}))
}

/// Usage, and the end of the stream.
pub fn done(prompt_tokens: u32, completion_tokens: u32) -> String {
    let usage = json!({"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens});
    format!("data: {}\n\ndata: [DONE]\n\n", json!({"choices": [], "usage": usage}))
}

/// A whole reply, one event per word.
pub fn reply(words: &str) -> Vec<Part> {
    let mut stream = STREAM.to_owned();
    let mut count = 0;
    for word in words.split_inclusive(' ') {
        stream.push_str(&text(word));
        count += 1;
    }
    stream.push_str(&finish("stop"));
    stream.push_str(&done(10, count));
    vec![bytes(stream), Part::Close]
}

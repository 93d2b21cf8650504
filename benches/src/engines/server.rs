//! A server of the chat completions protocol inside the program. Its replies have the same
//! words, at times that were measured with a real server.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Times of a server, sorted, in milliseconds.
#[derive(Clone, Debug)]
pub struct Latencies {
    first: Arc<[f64]>,
    next: Arc<[f64]>,
}

impl Latencies {
    /// The times to the first tokens, and between two tokens. `None` without any.
    pub fn new(mut first: Vec<f64>, mut next: Vec<f64>) -> Option<Self> {
        first.sort_by(f64::total_cmp);
        next.sort_by(f64::total_cmp);
        let is_known = !first.is_empty() && !next.is_empty();
        is_known.then(|| Self { first: first.into(), next: next.into() })
    }

    pub fn json(&self) -> Value {
        let quantiles = |values: &[f64]| {
            let at = |share: f64| values[((values.len() - 1) as f64 * share) as usize];
            json!({"samples": values.len(), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99),
                "max": at(1.0)})
        };
        json!({"first_millis": quantiles(&self.first), "next_millis": quantiles(&self.next)})
    }
}

/// One of the measured times.
fn draw(millis: &[f64], uniform: f64) -> Duration {
    let at = (uniform * millis.len() as f64) as usize;
    Duration::from_secs_f64(millis.get(at).copied().unwrap_or(0.0).max(0.0) / 1e3)
}

/// A running server. It ends with the program.
pub struct StubServer(SocketAddr);

impl StubServer {
    pub fn start(latencies: Latencies) -> Result<Self, Box<dyn Error>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        std::thread::Builder::new().name("stub-server".into()).spawn(move || {
            runtime.block_on(async move {
                let mut seed = 1;
                while let Ok((stream, _)) = listener.accept().await {
                    seed += 1;
                    let latencies = latencies.clone();
                    // A connection that ends early is a cancelled request.
                    tokio::spawn(async move { serve(stream, latencies, seed).await.ok() });
                }
            });
        })?;
        Ok(Self(address))
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.0)
    }
}

const WORDS: usize = 24;

async fn serve(mut stream: TcpStream, latencies: Latencies, seed: u64) -> std::io::Result<()> {
    let mut random = seed;
    let mut uniform = || {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 11) as f64 / (1_u64 << 53) as f64
    };
    uniform();
    let mut buffer = Vec::new();
    loop {
        // One request after the other on a connection that is kept.
        let body_end = loop {
            if let Some(end) = end_of_request(&buffer) {
                break end;
            }
            let mut part = [0; 8_192];
            match stream.read(&mut part).await? {
                0 => return Ok(()),
                bytes => buffer.extend_from_slice(&part[..bytes]),
            }
        };
        buffer.drain(..body_end);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
            transfer-encoding: chunked\r\n\r\n";
        tokio::time::sleep(draw(&latencies.first, uniform())).await;
        stream.write_all(head.as_bytes()).await?;
        for at in 0..WORDS {
            if at > 0 {
                tokio::time::sleep(draw(&latencies.next, uniform())).await;
            }
            let delta = json!({"choices": [{"index": 0, "delta": {"content": "word "}}]});
            send(&mut stream, &delta.to_string()).await?;
        }
        let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
        send(&mut stream, &end.to_string()).await?;
        let usage = json!({"prompt_tokens": 20, "completion_tokens": WORDS, "total_tokens": 44});
        send(&mut stream, &json!({"choices": [], "usage": usage}).to_string()).await?;
        send(&mut stream, "[DONE]").await?;
        stream.write_all(b"0\r\n\r\n").await?;
    }
}

async fn send(stream: &mut TcpStream, data: &str) -> std::io::Result<()> {
    let event = format!("data: {data}\n\n");
    stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await
}

/// The end of the first whole request in the buffer.
fn end_of_request(buffer: &[u8]) -> Option<usize> {
    let head_end = buffer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(buffer.get(..head_end)?).ok()?.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"))?;
    let end = head_end + length.trim().parse::<usize>().ok()?;
    (buffer.len() >= end).then_some(end)
}

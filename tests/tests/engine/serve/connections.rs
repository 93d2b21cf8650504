//! Connections that are silent, many, or half closed.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;

/// No limit of time closes a connection before the test ends.
fn patient() -> ServeOptions {
    let mut options = ServeOptions::default();
    options.request_time = Duration::from_secs(3_600);
    options.first_byte_time = Duration::from_secs(3_600);
    options
}

/// Waits until the server has closed a connection.
async fn closed(stream: &mut TcpStream) {
    let read = tokio::time::timeout(TIMEOUT, stream.read(&mut [0; 64])).await;
    assert!(matches!(read.expect("it is closed"), Ok(0) | Err(_)));
}

async fn is_open(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 64];
    tokio::time::timeout(Duration::from_millis(20), stream.read(&mut buffer)).await.is_err()
}

async fn health(port: u16) -> u16 {
    let health = request(port, "GET /health", "");
    tokio::time::timeout(TIMEOUT, health).await.expect("an answer").0
}

#[tokio::test]
async fn the_oldest_idle_connection_gives_way() {
    let mut options = patient();
    options.max_connections = 8;
    let (_local, port) = server(options).await;
    // One that has had an answer and stays, one with half a head, one with half a body.
    let mut client = send(port, "GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(client.read(&mut [0; 1_024]).await.unwrap() > 0);
    let mut half_head = send(port, "POST /v1/chat").await;
    let mut half_body = send(port, &(head(1_000) + "{")).await;
    let mut silent = Vec::new();
    for _ in 0..5 {
        silent.push(send(port, "").await);
    }
    // All places are in use.
    assert_eq!(health(port).await, 200);
    closed(&mut half_head).await;
    // The place of the request is free again, so nothing more is closed for one connection.
    let mut others = vec![send(port, "").await, send(port, "").await];
    closed(&mut half_body).await;
    others.push(send(port, "").await);
    closed(&mut silent[0]).await;
    for stream in silent.iter_mut().skip(1).chain(&mut others) {
        assert!(is_open(stream).await);
    }
    // It is older than all of them, but has been a client.
    client.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(client.read(&mut [0; 1_024]).await.unwrap() > 0);
}

#[tokio::test]
async fn an_answer_in_progress_does_not_give_way() {
    let mut options = patient();
    options.max_connections = 2;
    let (local, port) = server(options).await;
    let body = json!({
        "messages": [{"role": "user", "content": "Sing!"}], "max_tokens": 300,
        "structured_outputs": {"regex": "[abc ]{200}"}, "stream": true,
    });
    let body = body.to_string();
    let head = head(body.len()).replace("host: x", "host: x\r\nconnection: close");
    let mut singers =
        [send(port, &(head.clone() + &body)).await, send(port, &(head + &body)).await];
    let start = Instant::now();
    while local.stats().agents_active < 2 && local.stats().tokens < 400 {
        assert!(start.elapsed() < TIMEOUT, "no reply");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // It waits for one of them.
    assert_eq!(health(port).await, 200);
    for singer in &mut singers {
        let mut text = Vec::new();
        singer.read_to_end(&mut text).await.unwrap();
        assert!(String::from_utf8_lossy(&text).contains("[DONE]"));
    }
}

#[tokio::test]
async fn a_silent_connection_is_closed_after_its_time() {
    let mut options = patient();
    options.first_byte_time = Duration::from_millis(50);
    let (_local, port) = server(options).await;
    let mut silent = send(port, "").await;
    let mut speaking = send(port, "GET /hea").await;
    closed(&mut silent).await;
    assert!(is_open(&mut speaking).await);
}

#[tokio::test]
async fn a_peer_has_a_limit_of_its_own() {
    let mut options = patient();
    options.max_connections_per_peer = 4;
    let (_local, port) = server(options).await;
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(send(port, "").await);
    }
    assert_eq!(health(port).await, 200);
    closed(&mut silent[0]).await;
    for stream in &mut silent[1..] {
        assert!(is_open(stream).await);
    }
}

/// Two descriptors of one connection would halve the number of connections.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_connection_has_one_descriptor() {
    let (_local, port) = server(patient()).await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = send(port, "GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(client.read(&mut [0; 1_024]).await.unwrap() > 0);
        clients.push(client);
    }
    // Sockets with the local port of the server, without the listener: their inodes.
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let local = format!(":{port:04X}");
    let of_server = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_server = of_server.filter(|line| line[1].ends_with(&local) && line[3] == "01");
    let inodes: Vec<_> = of_server.map(|line| format!("socket:[{}]", line[9])).collect();
    assert_eq!(inodes.len(), clients.len());
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = descriptors.filter_map(|it| std::fs::read_link(it.unwrap().path()).ok());
    let its = targets.filter(|target| inodes.contains(&target.to_string_lossy().into_owned()));
    assert_eq!(its.count(), clients.len());
}

/// Silent connections of another thread.
struct Flood {
    stop: Arc<AtomicBool>,
    opened: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

/// Also if the test has failed.
impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Flood {
    /// At most `max_open` are open at the same time. The thread returns the number that the server
    /// has closed.
    fn start(port: u16, max_open: usize) -> Self {
        let (stop, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (its_stop, its_opened) = (Arc::clone(&stop), Arc::clone(&opened));
        let thread = std::thread::spawn(move || {
            let (mut open, mut closed) = (VecDeque::new(), 0);
            while !its_stop.load(Ordering::Relaxed) {
                let Ok(stream) = std::net::TcpStream::connect(("127.0.0.1", port)) else {
                    continue;
                };
                its_opened.fetch_add(1, Ordering::Relaxed);
                stream.set_nonblocking(true).unwrap();
                open.push_back(stream);
                if open.len() >= max_open
                    && let Some(mut oldest) = open.pop_front()
                {
                    let read = oldest.read(&mut [0; 8]);
                    let is_open = read.is_err_and(|it| it.kind() == std::io::ErrorKind::WouldBlock);
                    closed += u64::from(!is_open);
                }
            }
            closed
        });
        Self { stop, opened, thread: Some(thread) }
    }
}

/// Requests are answered while another thread opens connections as fast as it can.
#[tokio::test]
async fn a_flood_of_silent_connections_does_not_keep_clients_out() {
    const REQUESTS: usize = 40;
    let mut options = patient();
    options.max_connections = 64;
    let (_local, port) = server(options).await;
    let mut flood = Flood::start(port, 200);
    let start = Instant::now();
    while flood.opened.load(Ordering::Relaxed) < 300 {
        assert!(start.elapsed() < TIMEOUT, "connections wait");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // A client that keeps its connection, and one that opens a new one each time, and tries again
    // if it had no time to send its request.
    let mut kept = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let mut answered = 0;
    for _ in 0..REQUESTS {
        let get = async { while health(port).await != 200 {} };
        tokio::time::timeout(TIMEOUT, get).await.expect("an answer");
        answered += 1;
        if kept.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.is_err()
            || !matches!(kept.read(&mut [0; 1_024]).await, Ok(1..))
        {
            kept = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        }
    }
    flood.stop.store(true, Ordering::Relaxed);
    let closed = flood.thread.take().unwrap().join().unwrap();
    assert_eq!(answered, REQUESTS);
    assert!(closed > 100, "{closed} idle connections gave way");
}

#[tokio::test]
async fn a_client_that_closes_its_sending_side_gets_its_answer() {
    let (_local, port) = server(ServeOptions::default()).await;
    let body = json!({
        "messages": [{"role": "user", "content": "Sing!"}], "max_tokens": 200,
        "structured_outputs": {"regex": "[abc ]{150}"},
    });
    for is_streamed in [false, true] {
        let mut body = body.clone();
        body["stream"] = is_streamed.into();
        let body = body.to_string();
        let mut stream = send(port, &(head(body.len()) + &body)).await;
        stream.shutdown().await.unwrap();
        let answer = answer(stream).await;
        let (_, last) = answer.rsplit_once("HTTP/1.1 ").unwrap_or_default();
        assert!(last.starts_with("200") && last.contains("\"finish_reason\""), "{answer}");
    }
}

//! Proxies: the requests that go through them, and the bytes that they get.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use walla_remote::{ApiKey, OptionsError, Proxy, RemoteEngine, RemoteOptions};
use walla_runtime::AgentSpec;

use crate::client::{LONG, add, ask, client, hear, options};
use crate::server::{Server, reply};
use crate::tls;

const KEY: &str = "sk-proxied";
const PERSONA: &str = "You are Greta.";
const QUESTION: &str = "Who are you?";

/// The last request to a [`Recorder`].
const END: &[u8] = b"end\r\n\r\n";

/// A proxy that records its requests, and connects to nothing.
struct Recorder {
    address: SocketAddr,
    thread: JoinHandle<String>,
}

impl Recorder {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let mut received = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(LONG)).unwrap();
                let mut request = Vec::new();
                let mut bytes = [0; 4_096];
                while !request.windows(4).any(|four| four == b"\r\n\r\n") {
                    match stream.read(&mut bytes) {
                        Ok(count) if count > 0 => request.extend_from_slice(&bytes[..count]),
                        _ => break,
                    }
                }
                if request == END {
                    return String::from_utf8(received).unwrap();
                }
                received.extend_from_slice(&request);
                let _closed = stream.write_all(b"HTTP/1.1 502 No\r\ncontent-length: 0\r\n\r\n");
            }
        });
        Self { address, thread }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests of all programs that have ended.
    fn received(self) -> String {
        TcpStream::connect(self.address).unwrap().write_all(END).unwrap();
        self.thread.join().unwrap()
    }
}

/// Runs [`asks_a_server`] in a program with these environment variables.
fn asked_in_a_program(url: &str, variables: &[(&str, &str)]) {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["proxy::asks_a_server", "--exact", "--ignored"]).env("WALLA_TEST_URL", url);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"] {
        program.env_remove(name).env_remove(name.to_ascii_lowercase());
    }
    let output = program.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{url}: {text}");
}

#[test]
#[ignore = "a program of the other tests"]
fn asks_a_server() {
    let variable = |name: &str| std::env::var(name).ok();
    let url = variable("WALLA_TEST_URL").unwrap();
    let mut options = RemoteOptions::new(url, "m");
    options.key = Some(ApiKey::from_fn(|| Ok(KEY.into())));
    options.allow_plain_http = true;
    options.retries.max_retries = 0;
    options.limits.connect = Duration::from_secs(2);
    options.root_certificates.extend(variable("WALLA_TEST_ROOT"));
    match variable("WALLA_TEST_PROXY") {
        None => {}
        Some(proxy) if proxy.is_empty() => options.proxy = Proxy::None,
        Some(proxy) => options.proxy = Proxy::Url(proxy),
    }
    let client = client(options);
    let agent = add(&client, AgentSpec::new(PERSONA));
    let heard = hear(&client, ask(&client, agent, QUESTION));
    if let Some(expected) = variable("WALLA_TEST_REPLY") {
        assert_eq!(heard.text, expected, "{heard:?}");
    }
}

#[test]
fn servers_on_this_machine_get_no_proxy() {
    let plain = Server::start(|_| reply("Plain."));
    let (encrypted, certificate) = tls::server("localhost");
    let proxy = Recorder::start();
    let (port, url) = (plain.port(), proxy.url());
    let proxies = [("HTTP_PROXY", &*url), ("HTTPS_PROXY", &url), ("ALL_PROXY", &url)];
    for host in ["localhost", "127.0.0.1"] {
        let variables = [&proxies[..], &[("WALLA_TEST_REPLY", "Plain.")]].concat();
        asked_in_a_program(&format!("http://{host}:{port}/v1"), &variables);
        asked_in_a_program(
            &format!("http://{host}:{port}/v1"),
            &[("all_proxy", &url), ("WALLA_TEST_PROXY", &url), ("WALLA_TEST_REPLY", "Plain.")],
        );
    }
    let reply = [("WALLA_TEST_ROOT", &*certificate), ("WALLA_TEST_REPLY", "Safe.")];
    let port = encrypted.port();
    asked_in_a_program(&format!("https://localhost:{port}/v1"), &[&proxies[..], &reply].concat());
    // These may not be reachable here.
    for host in ["127.9.9.9", "[::1]", "[::ffff:127.0.0.1]"] {
        for scheme in ["http", "https"] {
            asked_in_a_program(&format!("{scheme}://{host}:{port}/v1"), &proxies);
        }
    }
    assert_eq!(proxy.received(), "");
}

#[test]
fn plain_text_gets_no_proxy() {
    let proxy = Recorder::start();
    let url = proxy.url();
    for proxies in [[("HTTP_PROXY", &*url), ("ALL_PROXY", &url)], [("WALLA_TEST_PROXY", &*url); 2]]
    {
        asked_in_a_program("http://inference.invalid/v1", &proxies);
    }
    assert_eq!(proxy.received(), "");
}

#[test]
fn an_encrypted_request_goes_through_the_proxy_without_readable_text() {
    for (name, no_proxy) in [
        ("HTTPS_PROXY", ""),
        ("https_proxy", "other.invalid"),
        ("ALL_PROXY", ""),
        ("WALLA_TEST_PROXY", "*"),
    ] {
        let proxy = Recorder::start();
        let url = proxy.url();
        asked_in_a_program(
            "https://inference.invalid/v1",
            &[(name, &*url), ("NO_PROXY", no_proxy)],
        );
        let received = proxy.received();
        assert!(received.starts_with("CONNECT inference.invalid:443 HTTP/1.1\r\n"), "{received}");
        for text in [KEY, PERSONA, QUESTION] {
            assert!(!received.contains(text), "{name}: {received}");
        }
    }
}

#[test]
fn a_proxy_of_the_environment_can_be_excluded() {
    let proxy = Recorder::start();
    let (url, address) = ("https://model.inference.invalid/v1", proxy.url());
    for other in [
        ("NO_PROXY", "inference.invalid"),
        ("no_proxy", "a.example, .inference.invalid"),
        ("NO_PROXY", "*"),
        ("WALLA_TEST_PROXY", ""),
    ] {
        asked_in_a_program(url, &[("HTTPS_PROXY", &*address), ("ALL_PROXY", &address), other]);
    }
    assert_eq!(proxy.received(), "");
}

#[test]
fn a_proxy_that_cannot_be_used_is_refused_without_its_password() {
    for url in ["", "ftp://me:hunter2@proxy.example", "http://me:hunter2@", "http://a b:hunter2"] {
        let server = Server::start(|_| reply("Yes."));
        let mut options = options(&server);
        options.url = "https://inference.invalid/v1".into();
        options.proxy = Proxy::Url(url.into());
        assert!(!format!("{options:?}").contains("hunter2"));
        let error = RemoteEngine::start(options).err().unwrap();
        assert!(matches!(error, OptionsError::Proxy { .. }), "{url}: {error:?}");
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }
}

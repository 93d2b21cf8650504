//! Models from a registry: content, resumed downloads, refusals.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use walla_remote::pull::{MAX_TEXT_BYTES, PullError, PullEvent, PullOptions, Pulled, pull};
use walla_remote::{ApiKey, Retries};

use crate::server::{Part, Request, Server, bytes, response};

const MILLIS: Duration = Duration::from_millis(1);

const LICENSE: &str = "Apache License\nVersion 2.0";

/// Bytes of a model: long enough for several reads of the client.
fn content() -> &'static [u8] {
    static CONTENT: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..300_000_u32).flat_map(u32::to_le_bytes).collect());
    &CONTENT
}

/// The digest of the model.
fn digest() -> &'static str {
    static DIGEST: LazyLock<String> = LazyLock::new(|| sha256(content()));
    &DIGEST
}

fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn layer(kind: &str, bytes: &[u8]) -> Value {
    json!({
        "mediaType": format!("application/vnd.ollama.image.{kind}"),
        "digest": format!("sha256:{}", sha256(bytes)),
        "size": bytes.len(),
    })
}

fn manifest() -> Value {
    let layers = [layer("license", LICENSE.as_bytes()), layer("model", content())];
    json!({"schemaVersion": 2, "config": {"digest": "sha256:0"}, "layers": layers})
}

fn json_response(json: &Value) -> Vec<Part> {
    vec![response("200 OK", "content-type: application/json\r\n", &json.to_string())]
}

/// A file, from the requested byte on if the server knows ranges.
fn file(request: &Request, content: &[u8], has_ranges: bool) -> Vec<Part> {
    let range = request.header("range").filter(|_| has_ranges);
    let begin = range.map(|range| range["bytes=".len()..range.len() - 1].parse().unwrap());
    let (total, from) = (content.len(), begin.unwrap_or(0));
    let (status, range) = match begin {
        Some(begin) => (
            "206 Partial Content",
            format!("content-range: bytes {begin}-{}/{total}\r\n", total - 1),
        ),
        None => ("200 OK", String::new()),
    };
    let head = format!("HTTP/1.1 {status}\r\n{range}content-length: {}\r\n\r\n", total - from);
    vec![bytes(head), Part::Bytes(content[from..].to_vec())]
}

/// Closes the connection after some bytes of the content.
fn cut(mut parts: Vec<Part>, after: usize) -> Vec<Part> {
    let Some(Part::Bytes(content)) = parts.get_mut(1) else { panic!("no content") };
    content.truncate(after);
    parts.push(Part::Close);
    parts
}

/// The answers of a registry with a model, its license and ranges.
fn usual(request: &Request) -> Vec<Part> {
    let path = request.head.split(' ').nth(1).unwrap();
    if path == "/v2/a/m/manifests/Q8_0" {
        json_response(&manifest())
    } else if path == format!("/v2/a/m/blobs/sha256:{}", sha256(LICENSE.as_bytes())) {
        file(request, LICENSE.as_bytes(), true)
    } else if path == format!("/v2/a/m/blobs/sha256:{}", digest()) {
        file(request, content(), true)
    } else {
        vec![response("404 Not Found", "", "{\"errors\": [{\"code\": \"NAME_UNKNOWN\"}]}")]
    }
}

fn is_model(request: &Request) -> bool {
    request.head.contains(digest())
}

fn is_manifest(request: &Request) -> bool {
    request.head.contains("/manifests/")
}

/// The usual registry, with another answer for the model.
fn with_model(answer: impl Fn(&Request) -> Vec<Part> + Send + Sync + 'static) -> Server {
    Server::start(move |request| if is_model(request) { answer(request) } else { usual(request) })
}

fn with_manifest(answer: impl Fn() -> Vec<Part> + Send + Sync + 'static) -> Server {
    Server::start(move |request| if is_manifest(request) { answer() } else { usual(request) })
}

fn options(server: &Server, folder: &Path) -> PullOptions {
    let mut options = PullOptions::new("a/m:Q8_0");
    options.registry = format!("http://127.0.0.1:{}", server.port());
    options.folder = folder.to_owned();
    let pause = Duration::from_millis(1);
    options.retries = Retries { max_retries: 2, pause_min: pause, max_pause: pause };
    options.stall = Duration::from_secs(10);
    options
}

fn run_with(
    options: &PullOptions,
    events: &mut (dyn FnMut(PullEvent<'_>) + Send),
) -> Result<Pulled, PullError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(pull(options, events))
}

fn run(options: &PullOptions) -> Result<Pulled, PullError> {
    run_with(options, &mut |_| {})
}

/// Pulls from a server into an empty folder, and returns the error and the names of its files.
fn refusal(server: &Server) -> (PullError, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let error = run(&options(server, folder.path())).unwrap_err();
    (error, names(folder.path()))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

const ALL: [&str; 2] = ["m-Q8_0.gguf", "m-Q8_0.license.txt"];

fn assert_whole(folder: &Path) {
    assert_eq!(names(folder), ALL);
    assert!(std::fs::read(folder.join(ALL[0])).unwrap() == content());
    assert_eq!(std::fs::read_to_string(folder.join(ALL[1])).unwrap(), LICENSE);
}

#[test]
fn a_model_and_its_license_arrive_and_are_not_fetched_again() {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    let server = Server::start(move |request| {
        seen.lock().unwrap().push(request.head.clone());
        usual(request)
    });
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(&server, &folder.path().join("new/folder"));
    let (mut license, mut last, mut is_before) = (String::new(), (0, 0), false);
    let pulled = run_with(&options, &mut |event| match event {
        PullEvent::License(text) => {
            license = text.to_owned();
            is_before = last.0 == 0;
        }
        PullEvent::Bytes { done, total } => {
            assert!(done > last.0, "{done} after {last:?}");
            last = (done, total);
        }
        event => panic!("{event:?}"),
    })
    .unwrap();
    assert_whole(&options.folder);
    let bytes = content().len() as u64;
    assert_eq!((license.as_str(), is_before, last), (LICENSE, true, (bytes, bytes)));
    assert!(!pulled.was_here && pulled.bytes == bytes);
    assert_eq!(pulled.path, options.folder.join(ALL[0]));
    assert_eq!(pulled.license, Some(options.folder.join(ALL[1])));
    let heads = std::mem::take(&mut *requests.lock().unwrap());
    assert_eq!(heads.len(), 3, "{heads:#?}");
    assert!(heads.iter().all(|head| !head.to_lowercase().contains("authorization")));
    assert!(run(&options).unwrap().was_here);
    assert!(!requests.lock().unwrap().iter().any(|head| head.contains(digest())));
    // Also if it may be replaced.
    options.force = true;
    assert!(run(&options).unwrap().was_here);
    assert_whole(&options.folder);
}

#[test]
fn a_cut_connection_is_continued() {
    let ranges = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&ranges);
    let server = with_model(move |request| {
        let mut seen = seen.lock().unwrap();
        seen.push(request.header("range").map(str::to_owned));
        let parts = file(request, content(), true);
        if seen.len() < 3 { cut(parts, 100_000) } else { parts }
    });
    let folder = tempfile::tempdir().unwrap();
    let mut retries = 0;
    let mut count =
        |event: PullEvent<'_>| retries += u32::from(matches!(event, PullEvent::Retry(..)));
    run_with(&options(&server, folder.path()), &mut count).unwrap();
    assert_whole(folder.path());
    assert_eq!(retries, 2);
    let from = |byte: &str| Some(format!("bytes={byte}-"));
    assert_eq!(*ranges.lock().unwrap(), [None, from("100000"), from("200000")]);
}

/// The attempts are bounded without progress; the count begins again after a mebibyte.
#[test]
fn attempts_are_bounded() {
    for (cut_after, expected) in [(0, 3), (1000, 3)] {
        let count = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&count);
        let server = with_model(move |request| {
            seen.fetch_add(1, Ordering::Relaxed);
            cut(file(request, content(), true), cut_after)
        });
        let folder = tempfile::tempdir().unwrap();
        let error = run(&options(&server, folder.path())).unwrap_err();
        assert!(matches!(error, PullError::Connection { .. }), "{error}");
        assert_eq!(count.load(Ordering::Relaxed), expected);
        // The bytes that have arrived stay.
        let part = folder.path().join("m-Q8_0.gguf.part");
        let kept = std::fs::metadata(&part).map_or(0, |part| part.len());
        assert_eq!(kept, 3 * cut_after as u64);
    }
    // Three cuts, and one of them behind a mebibyte.
    let server = with_model(|request| {
        let bytes = match request.header("range") {
            None => 1000,
            Some("bytes=1000-") => 1 << 20,
            Some(_) => 80_000,
        };
        cut(file(request, content(), true), bytes)
    });
    let folder = tempfile::tempdir().unwrap();
    run(&options(&server, folder.path())).unwrap();
    assert_whole(folder.path());
}

/// A server without ranges begins again each time: an attempt that comes no further than an earlier
/// one is no progress, however many bytes arrive.
#[test]
fn a_server_that_begins_again_and_again_is_given_up() {
    let count = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&count);
    let server = with_model(move |request| {
        let is_even = seen.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        cut(file(request, content(), false), if is_even { (1 << 20) + 1000 } else { 1000 })
    });
    let folder = tempfile::tempdir().unwrap();
    let error = run(&options(&server, folder.path())).unwrap_err();
    assert!(matches!(error, PullError::Connection { .. }), "{error}");
    // The first attempt is progress, and a new count begins.
    assert_eq!(count.load(Ordering::Relaxed), 3);
}

/// A server that refuses the range, or sends another one, sends the file from its first byte.
#[test]
fn a_partial_file_that_the_server_cannot_continue_is_fetched_again() {
    for is_refused in [true, false] {
        let server = with_model(move |request| {
            if request.header("range").is_none() {
                file(request, content(), false)
            } else if is_refused {
                vec![response("416 Range Not Satisfiable", "", "")]
            } else {
                let total = content().len();
                let head = format!(
                    "HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 0-{}/{total}\r\n\
                     content-length: {total}\r\n\r\n",
                    total - 1
                );
                vec![bytes(head), Part::Bytes(content().to_vec())]
            }
        });
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("m-Q8_0.gguf.part"), &content()[..1000]).unwrap();
        run(&options(&server, folder.path())).unwrap();
        assert_whole(folder.path());
    }
}

#[test]
fn a_partial_file_is_continued_by_the_next_call() {
    for has_ranges in [true, false] {
        for kept in [1, 400_000, content().len()] {
            let sent = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&sent);
            let server = with_model(move |request| {
                seen.lock().unwrap().push(request.header("range").map(str::to_owned));
                file(request, content(), has_ranges)
            });
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("m-Q8_0.gguf.part"), &content()[..kept]).unwrap();
            run(&options(&server, folder.path())).unwrap();
            assert_whole(folder.path());
            let range = Some(format!("bytes={kept}-"));
            let is_whole = kept == content().len();
            assert_eq!(*sent.lock().unwrap(), if is_whole { vec![] } else { vec![range] });
        }
    }
}

/// A partial file of another version, a damaged one, and one that is too long.
#[test]
fn a_wrong_partial_file_is_replaced_once() {
    let server = Server::start(usual);
    for wrong in [vec![7; 1000], vec![7; content().len()], vec![7; content().len() + 1]] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("m-Q8_0.gguf.part"), &wrong).unwrap();
        let mut restarts = 0;
        let mut count =
            |event: PullEvent<'_>| restarts += u32::from(matches!(event, PullEvent::Restart));
        run_with(&options(&server, folder.path()), &mut count).unwrap();
        assert_whole(folder.path());
        assert_eq!(restarts, u32::from(wrong.len() <= content().len()));
    }
}

#[test]
fn content_of_another_digest_is_refused_and_removed() {
    let count = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&count);
    let server = with_model(move |request| {
        seen.fetch_add(1, Ordering::Relaxed);
        file(request, &vec![7; content().len()], true)
    });
    let folder = tempfile::tempdir().unwrap();
    let error = run(&options(&server, folder.path())).unwrap_err();
    assert!(matches!(&error, PullError::WrongDigest { expected, found }
        if *expected == digest() && *found == sha256(&vec![7; content().len()])));
    assert_eq!((names(folder.path()), count.load(Ordering::Relaxed)), (vec![ALL[1].into()], 1));
    // Behind a partial file it is tried once more, from the start.
    std::fs::write(folder.path().join("m-Q8_0.gguf.part"), [0; 10]).unwrap();
    let error = run(&options(&server, folder.path())).unwrap_err();
    assert!(matches!(error, PullError::WrongDigest { .. }), "{error}");
    assert_eq!((names(folder.path()), count.load(Ordering::Relaxed)), (vec![ALL[1].into()], 3));
    // A licence too.
    let server = Server::start(|request| {
        if is_manifest(request) { usual(request) } else { file(request, b"other", true) }
    });
    let (error, names) = refusal(&server);
    assert!(matches!(error, PullError::WrongDigest { .. }), "{error}");
    assert!(names.is_empty(), "{names:?}");
}

/// Other lengths, other ranges, and web pages never change a partial file.
#[test]
fn other_content_than_requested_is_refused() {
    let twenty = "01234567890123456789";
    let range = "content-range: bytes 0-19/1200000\r\n";
    let answers = [
        ("20 bytes instead of", response("200 OK", "", twenty)),
        ("web page", response("200 OK", "content-type: text/html\r\n", "<html>Log in</html>")),
        ("another byte", response("206 Partial Content", range, twenty)),
        ("HTTP 416", response("416 Range Not Satisfiable", "", "no")),
    ];
    for (expected, answer) in answers {
        let server = with_model(move |_| vec![answer.clone()]);
        let folder = tempfile::tempdir().unwrap();
        let part = folder.path().join("m-Q8_0.gguf.part");
        std::fs::write(&part, &content()[..1000]).unwrap();
        let error = run(&options(&server, folder.path())).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(std::fs::read(&part).unwrap() == content()[..1000], "{expected}");
    }
    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
    let server = with_model(move |_| vec![bytes(head), Part::Endless(vec![7; 1 << 16])]);
    let (error, names) = refusal(&server);
    assert!(matches!(error, PullError::WrongContent(_)), "{error}");
    assert_eq!(names, [ALL[1]]);
}

#[test]
fn redirects_are_followed_without_the_key_but_not_in_a_circle() {
    let keys = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&keys);
    let other = Server::start(move |request| {
        seen.lock().unwrap().push(request.header("authorization").map(str::to_owned));
        cut(file(request, content(), true), 900_000)
    });
    let location = format!("location: http://127.0.0.1:{}/cdn?token=1\r\n", other.port());
    let seen = Arc::clone(&keys);
    let server = with_model(move |request| {
        seen.lock().unwrap().push(request.header("authorization").map(str::to_owned));
        vec![response("307 Temporary Redirect", &location, "")]
    });
    let folder = tempfile::tempdir().unwrap();
    let mut with_key = options(&server, folder.path());
    with_key.key = Some(ApiKey::from_fn(|| Ok("hf_secret".into())));
    run(&with_key).unwrap();
    assert_whole(folder.path());
    let key = Some("Bearer hf_secret".to_owned());
    assert_eq!(*keys.lock().unwrap(), [key.clone(), None, key, None], "also when it is continued");
    let server = with_model(|request| {
        let path = request.head.split(' ').nth(1).unwrap();
        vec![response("302 Found", &format!("location: {path}\r\n"), "")]
    });
    let (error, _) = refusal(&server);
    assert!(error.to_string().contains("redirect"), "{error}");
}

#[test]
fn statuses_say_what_to_do_and_never_the_key() {
    let answer = |status: &'static str| {
        with_manifest(move || {
            let headers = "content-type: application/json\r\n";
            vec![response(status, headers, "{\"error\": \"hf_secret is no \u{1b}[31m key\"}")]
        })
    };
    let folder = tempfile::tempdir().unwrap();
    for (status, expected) in [
        ("404 Not Found", "no model a/m:Q8_0"),
        ("401 Unauthorized", "needs a key"),
        ("403 Forbidden", "needs a key"),
        ("400 Bad Request", "HTTP 400"),
        ("429 Too Many Requests", "HTTP 429"),
    ] {
        let server = answer(status);
        let mut options = options(&server, folder.path());
        options.key = Some(ApiKey::from_fn(|| Ok("hf_secret".into())));
        let mut retries = 0;
        let mut count =
            |event: PullEvent<'_>| retries += u32::from(matches!(event, PullEvent::Retry(..)));
        let error = run_with(&options, &mut count).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("hf_secret") && !error.contains('\u{1b}'), "{error}");
        assert_eq!(retries, if status.starts_with("429") { 2 } else { 0 });
    }
    assert!(names(folder.path()).is_empty());
}

/// A condition on an error.
type Is = fn(&PullError) -> bool;

#[test]
fn manifests_that_are_none_are_refused() {
    let model = || layer("model", content());
    let with = |field: &str, value: Value| {
        let mut layer = layer("model", content());
        layer[field] = value;
        json!({"layers": [layer]}).to_string()
    };
    let licenses = json!({"mediaType": "application/vnd.ollama.image.license",
        "digest": format!("sha256:{}", "0".repeat(64)), "size": MAX_TEXT_BYTES + 1});
    let cases: [(String, Is); 12] = [
        ("<html>Log in</html>".into(), |error| matches!(error, PullError::NotAManifest { .. })),
        (String::new(), |error| matches!(error, PullError::NotAManifest { .. })),
        ("{\"layers\": 1}".into(), |error| matches!(error, PullError::NotAManifest { .. })),
        ("[".repeat(100_000), |error| matches!(error, PullError::NotAManifest { .. })),
        (with("size", json!(-1)), |error| matches!(error, PullError::NotAManifest { .. })),
        (" ".repeat(MAX_TEXT_BYTES + 1), |error| matches!(error, PullError::TooLong)),
        (json!({"layers": [model(), licenses]}).to_string(), |error| {
            matches!(error, PullError::TooLong)
        }),
        ("{\"layers\": []}".into(), |error| matches!(error, PullError::NumberOfFiles(0))),
        (json!({"layers": [model(), model()]}).to_string(), |error| {
            matches!(error, PullError::NumberOfFiles(2))
        }),
        (with("digest", json!("sha512:00")), |error| matches!(error, PullError::UnknownDigest(_))),
        (with("digest", json!(format!("sha256:../{}", "a".repeat(61)))), |error| {
            matches!(error, PullError::UnknownDigest(_))
        }),
        (with("size", json!(0)), |error| matches!(error, PullError::WrongContent(_))),
    ];
    for (text, is_expected) in cases {
        let begin = text[..text.len().min(80)].to_owned();
        let server = with_manifest(move || vec![response("200 OK", "", &text)]);
        let (error, names) = refusal(&server);
        assert!(is_expected(&error), "{begin}: {error:?}");
        assert!(names.is_empty(), "{begin}: {names:?}");
    }
}

/// On systems that report the free space.
#[test]
#[cfg(unix)]
fn a_file_that_does_not_fit_is_not_begun() {
    let mut model = layer("model", content());
    model["size"] = json!(u64::MAX);
    let text = json!({"layers": [model]}).to_string();
    let server = with_manifest(move || vec![response("200 OK", "", &text)]);
    let (error, names) = refusal(&server);
    assert!(matches!(error, PullError::NoSpace { needed: u64::MAX, .. }), "{error}");
    assert!(names.is_empty(), "{names:?}");
}

#[test]
fn other_files_are_kept_unless_they_may_be_replaced() {
    let server = Server::start(usual);
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(&server, folder.path());
    for name in ALL {
        for other in [b"mine".to_vec(), vec![7; content().len()]] {
            let path = folder.path().join(name);
            std::fs::write(&path, &other).unwrap();
            let error = run(&options).unwrap_err();
            assert!(matches!(&error, PullError::Exists { path: of } if *of == path), "{error}");
            assert!(std::fs::read(&path).unwrap() == other);
            assert_eq!(names(folder.path()), [name]);
            std::fs::remove_file(&path).unwrap();
        }
    }
    for name in ALL {
        std::fs::write(folder.path().join(name), "mine").unwrap();
    }
    options.force = true;
    run(&options).unwrap();
    assert_whole(folder.path());
    // A folder is never replaced.
    std::fs::remove_file(folder.path().join(ALL[0])).unwrap();
    std::fs::create_dir(folder.path().join(ALL[0])).unwrap();
    assert!(matches!(run(&options), Err(PullError::Exists { .. })));
    // A file in the place of the folder.
    options.folder = folder.path().join(ALL[1]);
    assert!(matches!(run(&options), Err(PullError::Io { .. })));
}

/// The second of two calls is refused while the first one downloads, and finds its file later. The
/// file gets its name only when it is whole.
#[test]
fn two_calls_at_once_do_not_share_a_partial_file() {
    let server = with_model(|request| {
        let mut parts = file(request, content(), true);
        parts.insert(1, Part::Pause(Duration::from_millis(300)));
        parts
    });
    let folder = tempfile::tempdir().unwrap();
    let options = options(&server, folder.path());
    let part = folder.path().join("m-Q8_0.gguf.part");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| run(&options).unwrap());
        while !part.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!folder.path().join(ALL[0]).exists());
        let error = run(&options).unwrap_err();
        assert!(matches!(&error, PullError::InUse { path } if *path == part), "{error}");
        assert!(!first.join().unwrap().was_here);
    });
    assert!(run(&options).unwrap().was_here);
    assert_whole(folder.path());
    // Many at once: each has the file or is refused.
    std::fs::remove_file(folder.path().join(ALL[0])).unwrap();
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(|| run(&options))).collect();
        let all = all.into_iter().map(|call| call.join().unwrap());
        let done = all.filter(|result| match result {
            Ok(_) => true,
            Err(PullError::InUse { .. }) => false,
            Err(error) => panic!("{error}"),
        });
        assert!(done.count() > 0);
    });
    assert_whole(folder.path());
}

#[test]
fn a_silent_server_ends_the_attempt() {
    let server = with_manifest(|| vec![Part::Pause(Duration::from_secs(60))]);
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(&server, folder.path());
    options.stall = Duration::from_millis(100);
    let error = run(&options).unwrap_err();
    assert!(matches!(error, PullError::Connection { .. }), "{error}");
    let port = server.port();
    drop(server);
    options.registry = format!("http://127.0.0.1:{port}");
    let error = run(&options).unwrap_err();
    assert!(matches!(error, PullError::Connection { .. }), "{error}");
}

/// Bytes that arrive too slowly are a connection that is cut.
#[test]
fn a_slow_server_ends_the_attempt() {
    let server = with_model(|request| {
        let parts = file(request, content(), true);
        let [head, Part::Bytes(content)] = &parts[..] else { panic!("{parts:?}") };
        let slow = content.chunks(5).take(200);
        let slow = slow.flat_map(|few| [Part::Bytes(few.into()), Part::Pause(MILLIS * 20)]);
        [head.clone()].into_iter().chain(slow).collect()
    });
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(&server, folder.path());
    options.stall = MILLIS * 400;
    options.retries.max_retries = 0;
    let error = run(&options).unwrap_err();
    assert!(error.to_string().contains("1 KiB"), "{error}");
    let part = std::fs::metadata(folder.path().join("m-Q8_0.gguf.part")).unwrap();
    assert!((5..500).contains(&part.len()), "{part:?}");
}

/// No retry: the next attempt would end the same.
#[test]
fn errors_of_tls_are_final_and_name_the_server() {
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let plain_port = plain.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut connection, _) = plain.accept().unwrap();
        let _hello = connection.read(&mut [0; 10_000]).unwrap();
        connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let (unknown, _) = crate::tls::server("localhost");
    let addresses = [
        (format!("127.0.0.1:{plain_port}"), "http://"),
        (format!("localhost:{}", unknown.port()), "certificate"),
    ];
    for (address, hint) in addresses {
        let folder = tempfile::tempdir().unwrap();
        let mut options = options(&unknown, folder.path());
        options.registry = address;
        let mut is_retried = false;
        let error = run_with(&options, &mut |_| is_retried = true).unwrap_err();
        assert!(matches!(&error, PullError::Connection { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&options.registry) && text.contains(hint), "{text}");
        assert!(!is_retried, "{text}");
    }
}

#[test]
fn a_redirect_to_no_address_is_refused_with_the_server() {
    for location in ["file:///etc/passwd", "http://", "ftp://a.example/m"] {
        let location = format!("location: {location}\r\n");
        let server = with_manifest(move || vec![response("302 Found", &location, "")]);
        let (error, _) = refusal(&server);
        let text = error.to_string();
        assert!(text.contains("redirect") || text.contains("scheme"), "{text}");
        let is_named = text.contains(&format!("127.0.0.1:{}", server.port()));
        assert!(is_named || text.contains("a.example"), "{text}");
    }
}

/// On Unix, the address 0.0.0.0 leads to this machine but is none of its loopback addresses.
#[test]
#[cfg(unix)]
fn a_machine_without_encryption_is_reported_once() {
    let other = Server::start(usual);
    let address = format!("http://0.0.0.0:{}", other.port());
    let location = format!("location: {address}/v2/a/m/blobs/sha256:{}\r\n", digest());
    let redirects = with_model(move |_| vec![response("302 Found", &location, "")]);
    for (server, registry) in [(&other, Some(address)), (&redirects, None)] {
        let folder = tempfile::tempdir().unwrap();
        let mut options = options(server, folder.path());
        options.registry = registry.unwrap_or(options.registry);
        let mut warnings = 0;
        let is_warning = |event: PullEvent<'_>| matches!(event, PullEvent::Unencrypted);
        run_with(&options, &mut |event| warnings += u32::from(is_warning(event))).unwrap();
        assert_whole(folder.path());
        assert_eq!(warnings, 1);
    }
}

#[test]
fn a_folder_that_is_a_file_is_named() {
    let server = Server::start(usual);
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = run(&options(&server, file.path())).unwrap_err().to_string();
    assert!(error.contains("a file, and no folder"), "{error}");
}

/// No request is sent: the addresses do not exist.
#[test]
fn addresses_and_names_are_checked_before_a_request() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = PullOptions::new("a/m");
    options.folder = folder.path().join("new");
    for registry in [
        "",
        "ftp://a.example",
        "https://",
        "https://u:hunter2@a.example",
        "https://hunter2@a.example",
        "https://a.example/?q=hunter2",
        "https://a.example:hunter2",
        "file:///tmp",
    ] {
        registry.clone_into(&mut options.registry);
        let error = run(&options).unwrap_err();
        assert!(matches!(error, PullError::Registry(_)), "{registry}: {error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    options.key = Some(ApiKey::from_fn(|| Ok("hf_secret".into())));
    "http://registry.invalid".clone_into(&mut options.registry);
    assert!(matches!(run(&options), Err(PullError::PlainKey)));
    "../../x".clone_into(&mut options.name);
    assert!(matches!(run(&options), Err(PullError::Name { .. })));
    assert!(!options.folder.exists());
}

#[test]
#[cfg(unix)]
fn a_partial_file_that_is_none_is_refused() {
    let server = Server::start(usual);
    let folder = tempfile::tempdir().unwrap();
    let mine = folder.path().join("mine");
    std::fs::write(&mine, "mine").unwrap();
    std::os::unix::fs::symlink(&mine, folder.path().join("m-Q8_0.gguf.part")).unwrap();
    let error = run(&options(&server, folder.path())).unwrap_err();
    assert!(matches!(error, PullError::Io { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(&mine).unwrap(), "mine");
}

/// A path that is no file is neither replaced nor waited for.
#[test]
#[cfg(unix)]
fn links_to_nowhere_and_pipes_are_kept() {
    let server = Server::start(usual);
    for name in ALL {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::os::unix::fs::symlink("nowhere", &path).unwrap();
        for force in [false, true] {
            let mut options = options(&server, folder.path());
            options.force = force;
            let error = run(&options).unwrap_err();
            assert!(matches!(&error, PullError::Exists { path: found } if *found == path));
        }
        assert!(std::fs::symlink_metadata(&path).unwrap().is_symlink());
    }
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join(ALL[1]);
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let error = run(&options(&server, folder.path())).unwrap_err();
    assert!(matches!(&error, PullError::Exists { path } if *path == pipe), "{error}");
}

//! `walla pull`: its output, exit codes and settings. The download itself is tested in
//! `walla_remote`.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use serde_json::json;

use crate::command::{Ran, run, tiny, walla};

/// A registry with the model `a/m:t`. It answers one request per connection.
struct Registry {
    address: String,
    folder: tempfile::TempDir,
}

impl Registry {
    fn start(model: Vec<u8>, license: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        // Until the test program ends.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let _closed = answer(&mut stream.unwrap(), &model, license);
            }
        });
        Self { address, folder: tempfile::tempdir().unwrap() }
    }

    fn pull(&self, name: &str, more: &[&str]) -> Ran {
        let to = self.folder.path().to_str().unwrap();
        run(&[&["pull", name, "--registry", &self.address, "--to", to], more].concat())
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }
}

fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn answer(stream: &mut TcpStream, model: &[u8], license: &str) -> std::io::Result<()> {
    let mut lines = BufReader::new(&*stream).lines();
    let request = lines.next().unwrap()?;
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let layer = |kind: &str, bytes: &[u8]| {
        let digest = format!("sha256:{}", sha256(bytes));
        let media_type = format!("application/vnd.ollama.image.{kind}");
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    };
    let mut layers = vec![layer("model", model)];
    if !license.is_empty() {
        layers.push(layer("license", license.as_bytes()));
    }
    let manifest = json!({"layers": layers}).to_string();
    let (status, body) = match request.split(' ').nth(1).unwrap() {
        "/v2/a/m/manifests/t" => ("200 OK", manifest.as_bytes()),
        "/v2/a/private/manifests/t" => ("401 Unauthorized", &b"no"[..]),
        path if path.ends_with(&sha256(model)) => ("200 OK", model),
        path if path.ends_with(&sha256(license.as_bytes())) => ("200 OK", license.as_bytes()),
        _ => ("404 Not Found", &b"no"[..]),
    };
    let length = body.len();
    write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n")?;
    stream.write_all(body)
}

#[test]
fn only_the_path_is_on_standard_output() {
    let license = "\n\u{1b}[2J Apache License \n2.0\n";
    let registry = Registry::start(std::fs::read(tiny()).unwrap(), license);
    let path = registry.path("m-t.gguf");
    let ran = registry.pull("a/m:t", &[]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(0), format!("{path}\n").as_str()),
        "{}",
        ran.err
    );
    for part in
        ["license: [2J Apache License\n", "has arrived", &format!("next: walla chat {path}")]
    {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    assert!(!ran.err.contains('\u{1b}') && !ran.err.contains("warning"), "{}", ran.err);
    assert!(std::fs::read(&path).unwrap() == std::fs::read(tiny()).unwrap());
    assert_eq!(std::fs::read_to_string(registry.path("m-t.license.txt")).unwrap(), license);
    // Again, by the address of the environment.
    let mut command = walla(&["pull", "a/m:t", "--to", registry.folder.path().to_str().unwrap()]);
    let again = command.env("WALLA_REGISTRY", &registry.address).output().unwrap();
    assert_eq!(again.stdout, ran.out.as_bytes());
    assert!(String::from_utf8(again.stderr).unwrap().contains("is already here"));
}

#[test]
fn failures_are_one_line_and_name_what_helps() {
    let registry = Registry::start(b"no model at all".to_vec(), "");
    let mine = registry.path("m-t.gguf");
    std::fs::write(&mine, "mine").unwrap();
    for (name, more, expected) in [
        ("a/m:t", &[][..], "--force"),
        ("a/private:t", &[], "--key-env"),
        (
            "a/private:t",
            &["--key-env", "WALLA_TEST_NO_SUCH_KEY"],
            "WALLA_TEST_NO_SUCH_KEY is not set",
        ),
        ("a/none:t", &[], "no model a/none:t"),
        ("../../x", &[], "no name of a model"),
        ("a/m:../t", &[], "no name of a model"),
    ] {
        let ran = registry.pull(name, more);
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{name}: {}", ran.err);
        assert!(ran.err.contains(expected), "{name}: {}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    }
    assert_eq!(std::fs::read(&mine).unwrap(), b"mine");
    // A whole file that walla cannot read stays, and is no success.
    let ran = registry.pull("a/m:t", &["--force"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{}", ran.err);
    assert!(ran.err.contains("no text of the license") && ran.err.contains("GGUF"), "{}", ran.err);
    assert!(Path::new(&mine).exists());
}

#[test]
fn without_a_folder_the_file_is_in_the_current_one() {
    let registry = Registry::start(std::fs::read(tiny()).unwrap(), "MIT");
    let mut command = walla(&["pull", "a/m:t", "--registry", &registry.address]);
    let output = command.current_dir(registry.folder.path()).output().unwrap();
    assert_eq!(output.stdout, b"m-t.gguf\n", "{}", String::from_utf8_lossy(&output.stderr));
    assert!(Path::new(&registry.path("m-t.gguf")).exists());
}

//! Paths that are not model files: the message names the kind of file and a remedy, and opening
//! never blocks.

use std::path::Path;
use walla_reference_test::reference_test;

use crate::reference_data::data;
use walla_model::gguf::{FileKind, Foreign};
use walla_model::{Gguf, GgufError, ModelSpec};

fn refusal(path: &Path) -> GgufError {
    Gguf::open(path).unwrap_err()
}

fn kind(path: &Path) -> FileKind {
    match refusal(path) {
        GgufError::NotAFile { path: named, kind } => {
            assert_eq!(named, path);
            kind
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_directory_error_names_its_models() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(kind(folder.path()), FileKind::Directory { models: Vec::new() });
    for name in ["b.gguf", "a.gguf", "readme.md"] {
        std::fs::write(folder.path().join(name), []).unwrap();
    }
    let message = refusal(folder.path()).to_string();
    assert!(message.ends_with("name the model file in it (a.gguf, b.gguf)"), "{message}");
}

/// A FIFO without a writer: opening it for reading would block until the test's time limit.
#[cfg(unix)]
#[test]
fn fifos_sockets_and_devices_are_refused_at_once() {
    use std::os::unix::net::UnixListener;
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo.gguf");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let (send, done) = std::sync::mpsc::channel();
    let of_thread = fifo.clone();
    std::thread::spawn(move || send.send(kind(&of_thread)));
    let answer = done.recv_timeout(std::time::Duration::from_secs(120));
    assert_eq!(answer.expect("it does not wait for a writer"), FileKind::Fifo);

    let socket = folder.path().join("socket.gguf");
    let _listener = UnixListener::bind(&socket).unwrap();
    assert_eq!(kind(&socket), FileKind::Socket);
    assert_eq!(kind(Path::new("/dev/zero")), FileKind::Device);
    // A link is treated as its target.
    let link = folder.path().join("link.gguf");
    std::os::unix::fs::symlink(&fifo, &link).unwrap();
    assert_eq!(kind(&link), FileKind::Fifo);
}

#[test]
fn files_of_other_formats_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let refuse = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        match refusal(&path) {
            GgufError::Foreign(foreign) => foreign,
            other => panic!("{other}"),
        }
    };
    assert_eq!(refuse(b""), Foreign::Empty);
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1\n";
    assert_eq!(refuse(pointer), Foreign::LfsPointer);
    assert!(Foreign::LfsPointer.to_string().contains("git lfs pull"));
    assert_eq!(refuse(b"<!doctype html><html><head>"), Foreign::Html);
    assert_eq!(refuse(b"\x1f\x8b\x08\0\0\0\0\0"), Foreign::Archive("gzip"));
    assert_eq!(refuse(&[0; 4096]), Foreign::Zeros);
}

#[reference_test]
fn reference_cases_of_other_files_are_named() {
    for (name, expected) in
        [("10-lfs-pointer.gguf", "a Git LFS pointer"), ("10-web-page.gguf", "a web page (HTML)")]
    {
        let message = refusal(&data(&format!("cases/{name}"))).to_string();
        assert!(message.contains(expected), "{message}");
    }
    let gguf = Gguf::open(data("cases/10-type-iq4_xs.gguf")).unwrap();
    assert!(ModelSpec::from_gguf(&gguf, 512).is_ok());
}

//! Output files: a failure leaves the previous file as it was, and no output replaces an input.

use crate::command::{NULL, run, succeed, tiny};
use crate::refusals::refused;

/// A folder of one test, with a copy of the model.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        std::fs::copy(tiny(), place.0.path().join("m.gguf")).unwrap();
        place
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Names in the folder, sorted.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn read(path: &str) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[test]
fn a_model_is_not_overwritten() {
    let place = Place::new();
    let model = place.path("m.gguf");
    let mut names = vec![model.clone(), format!("{}/./m.gguf", place.0.path().display())];
    std::fs::hard_link(&model, place.path("hard")).unwrap();
    names.push(place.path("hard"));
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("m.gguf", place.path("soft")).unwrap();
        std::os::unix::fs::symlink(place.path("soft"), place.path("softer")).unwrap();
        names.extend([place.path("soft"), place.path("softer")]);
    }
    let before = place.names();
    for out in &names {
        for arguments in [
            vec!["logits", &model, "--tokens", "1,2", "--out", out],
            vec!["bench", &model, "--agents", "1", "--tokens", "1", "--json", out],
        ] {
            refused(&arguments, &[out, "overwrite", &model]);
            assert!(read(&model) == read(tiny()), "{arguments:?} changed the model");
        }
    }
    // The model by a link, the output by its name.
    let link = place.path("hard");
    refused(&["logits", &link, "--tokens", "1", "--out", &model], &[&model, "overwrite", &link]);
    refused(
        &["bench", tiny(), "--llama", &model, "--json", &link, "--tokens", "1"],
        &[&model, "overwrite", &link],
    );
    assert!(read(&model) == read(tiny()));
    assert_eq!(place.names(), before);
}

#[test]
fn a_failure_keeps_the_previous_file() {
    let place = Place::new();
    let (keep, model) = (place.path("keep"), place.path("m.gguf"));
    std::fs::write(&keep, "kept").unwrap();
    let no_bench = ["--agents", "1", "--context", "8", "--tokens", "1"];
    for arguments in [
        vec!["logits", &model, "--tokens", "999999", "--out", &keep],
        vec!["logits", &model, "--tokens", "1", "--device", "tpu", "--out", &keep],
        vec!["logits", "/no/such/model", "--tokens", "1", "--out", &keep],
        [&["bench", &model, "--device", "tpu", "--json", &keep], &no_bench[..]].concat(),
        [&["bench", &model, "--agents", "0", "--json", &keep][..]].concat(),
    ] {
        let ran = run(&arguments);
        assert_eq!(ran.code, Some(1), "{arguments:?}: {}", ran.err);
        assert_eq!(read(&keep), b"kept", "{arguments:?}");
    }
    // It fails after the measurement.
    let llama = place.path("no-llama");
    let arguments =
        [&["bench", &model, "--llama", &llama, "--json", &keep], &no_bench[..]].concat();
    assert_eq!(run(&arguments).code, Some(1));
    assert_eq!(read(&keep), b"kept");
    assert_eq!(place.names(), ["keep", "m.gguf"], "no temporary file remains");
}

#[test]
fn a_complete_file_replaces_the_previous_one() {
    let place = Place::new();
    let (out, model) = (place.path("out"), place.path("m.gguf"));
    std::fs::write(&out, "x".repeat(1 << 20)).unwrap();
    succeed(&["logits", &model, "--tokens", "1,2", "--out", &out, "--device", "cpu"]);
    assert_eq!(read(&out).len(), 2 * 300 * 4);
    std::fs::write(&out, "x".repeat(1 << 20)).unwrap();
    let one = ["--agents", "1", "--context", "8", "--tokens", "1", "--device", "cpu"];
    succeed(&[&["bench", &model, "--json", &out], &one[..]].concat());
    assert!(serde_json::from_slice::<serde_json::Value>(&read(&out)).is_ok());
    assert_eq!(place.names(), ["m.gguf", "out"]);
}

/// It has no content to lose, and nothing can be renamed to it.
#[test]
fn a_device_is_written_in_place() {
    let place = Place::new();
    let model = place.path("m.gguf");
    succeed(&["logits", &model, "--tokens", "1", "--out", NULL, "--device", "cpu"]);
    assert!(!std::path::Path::new(NULL).is_file());
    assert_eq!(place.names(), ["m.gguf"]);
}

/// Links stay links, modes stay, a write-protected file and a folder are refused.
#[test]
#[cfg(unix)]
fn the_target_keeps_its_file_type() {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    let place = Place::new();
    let model = place.path("m.gguf");
    let logits = |out: &str| {
        succeed(&["logits", &model, "--tokens", "1", "--out", out, "--device", "cpu"]);
    };
    for (link, target) in [("link", "file"), ("dangling", "new")] {
        std::os::unix::fs::symlink(target, place.path(link)).unwrap();
    }
    std::fs::write(place.path("file"), "old").unwrap();
    std::fs::set_permissions(place.path("file"), PermissionsExt::from_mode(0o640)).unwrap();
    for (link, target) in [("link", "file"), ("dangling", "new")] {
        logits(&place.path(link));
        assert!(Path::new(&place.path(link)).is_symlink());
        assert_eq!(read(&place.path(target)).len(), 300 * 4);
    }
    let mode = std::fs::metadata(place.path("file")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    // A new file has the permissions of any other new file.
    std::fs::write(place.path("other"), "").unwrap();
    let mode = |name| std::fs::metadata(place.path(name)).unwrap().permissions().mode();
    assert_eq!(mode("new"), mode("other"));
    std::fs::remove_file(place.path("other")).unwrap();
    let folder = place.0.path().to_str().unwrap();
    for out in [folder, &format!("{folder}/none/"), ""] {
        refused(&["logits", &model, "--tokens", "1", "--out", out], &[out]);
    }
    assert_eq!(place.names(), ["dangling", "file", "link", "m.gguf", "new"]);
}

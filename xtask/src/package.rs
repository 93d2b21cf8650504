//! Packages: every published crate is complete and can be packaged, and the registry takes its
//! size.

use std::path::Path;

use serde_json::Value;

/// Maximum size of a package, in bytes. crates.io takes 10 MiB.
const MAX_BYTES: u64 = 10_000_000;

/// Packages all crates that are published, without a build and without network.
///
/// # Errors
/// The reason why cargo refuses, or all packages that are too large.
pub fn check() -> Result<(), String> {
    let metadata = crate::metadata("--no-deps --offline")?;
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    // An empty list means `publish = false`; absent means every registry.
    let packages = packages.iter().filter(|package| package["publish"].is_null());
    let published: Vec<(&str, &str)> = packages
        .clone()
        .filter_map(|package| Some((package["name"].as_str()?, package["version"].as_str()?)))
        .collect();
    let mut wrong: Vec<String> = packages.flat_map(missing).collect();
    let mut command = crate::cargo_command("package --quiet --no-verify --offline --allow-dirty");
    command.args(published.iter().flat_map(|(name, _)| ["--package", name]));
    crate::run(&mut command)?;
    let folder = crate::target_folder(&metadata)?.join("package");
    for (name, version) in &published {
        let path = folder.join(format!("{name}-{version}.crate"));
        let file = path.metadata().map_err(|error| format!("{}: {error}", path.display()))?;
        if file.len() > MAX_BYTES {
            wrong.push(format!("{name}: {} bytes, at most {MAX_BYTES}", file.len()));
        }
    }
    if !wrong.is_empty() {
        return Err(wrong.join("\n"));
    }
    eprintln!("xtask: {} crates can be packaged", published.len());
    Ok(())
}

/// Missing parts of a package, as messages.
fn missing(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let folder = package["manifest_path"].as_str().and_then(|path| Path::new(path).parent());
    let folder = folder.unwrap_or(Path::new("."));
    let mut wrong = Vec::new();
    for key in ["description", "license", "repository", "rust_version"] {
        if package[key].as_str().is_none_or(str::is_empty) {
            wrong.push(format!("{name}: no {key}"));
        }
    }
    for key in ["categories", "keywords"] {
        if package[key].as_array().is_none_or(Vec::is_empty) {
            wrong.push(format!("{name}: no {key}"));
        }
    }
    if package["metadata"]["docs"]["rs"].is_null() {
        wrong.push(format!("{name}: no settings for docs.rs"));
    }
    // A crate's own page: the project's README describes the whole.
    let readme = std::fs::read_to_string(folder.join("README.md")).unwrap_or_default();
    if package["readme"] != "README.md" || !readme.starts_with(&format!("# {name}\n")) {
        wrong.push(format!("{name}: no README.md with its name as title"));
    }
    for file in ["LICENSE-APACHE", "LICENSE-MIT"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
        let path = folder.join(file);
        // git writes a symbolic link as a text file on Windows.
        let is_file = path.symlink_metadata().is_ok_and(|metadata| metadata.is_file());
        if !is_file || std::fs::read(&path).ok() != std::fs::read(root).ok() {
            wrong.push(format!("{name}: no copy of {file}"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn an_incomplete_package_is_refused() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let package = json!({
            "name": "xtask", "manifest_path": path, "license": "MIT", "description": "",
            "keywords": ["a"], "metadata": null,
        });
        let wrong = super::missing(&package);
        for part in
            ["description", "repository", "rust_version", "categories", "docs.rs", "README", "MIT"]
        {
            assert!(wrong.iter().any(|line| line.contains(part)), "{part}: {wrong:?}");
        }
        assert!(!wrong.iter().any(|line| line.contains("keywords")), "{wrong:?}");
    }
}

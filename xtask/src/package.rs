//! Packages: every published crate can be packaged, and the registry takes its size.

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
    let published: Vec<(&str, &str)> = packages
        .iter()
        .filter(|package| package["publish"].is_null())
        .filter_map(|package| Some((package["name"].as_str()?, package["version"].as_str()?)))
        .collect();
    let mut command = crate::cargo_command("package --quiet --no-verify --offline --allow-dirty");
    command.args(published.iter().flat_map(|(name, _)| ["--package", name]));
    crate::run(&mut command)?;
    let folder = crate::target_folder(&metadata)?.join("package");
    let mut wrong = Vec::new();
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

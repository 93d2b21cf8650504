//! `xtask dependencies`: checks licences, duplicate versions, sources, banned crates and banned
//! features of all dependencies.
//!
//! The rules are read from `deny.toml`, in the format of `cargo deny`, so both tools apply the same
//! rules. This check needs `cargo metadata` and nothing else, and takes seconds on a fresh machine.
//! Two parts of `cargo deny` are missing: advisories, whose database is not available as a package,
//! and yanked versions, which only the registry knows. `cargo deny check advisories` covers both.

mod license;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use self::license::Expression;
use self::rules::Rules;

/// Workspaces with a separate lock file. Only the sources of their dependencies are checked: the
/// lock file names them, and no crate has to be downloaded.
const OTHER_WORKSPACES: &[&str] = &["fuzz", "windowed"];

/// Crates and features that may be active with a feature of ours for measurements, but not with the
/// default features.
const INACTIVE_BY_DEFAULT: &[(&str, &str)] = &[("cudarc", "runtime")];

/// Runs `xtask dependencies`.
///
/// # Errors
/// Every dependency that breaks a rule, one line each; or the reason why a file cannot be read.
pub fn check() -> Result<(), String> {
    // The lock file must be up to date.
    let metadata = crate::metadata("--locked --all-features")?;
    let root = Path::new(metadata["workspace_root"].as_str().unwrap_or_default());
    let rules = Rules::parse(&read(&root.join("deny.toml"))?)?;
    let mut faults = faults(&metadata, &rules);
    faults.extend(banned_features(&crate::metadata("--locked")?, &inactive_by_default()));
    for folder in OTHER_WORKSPACES {
        let lock = read(&root.join(folder).join("Cargo.lock"))?;
        let found = lock_faults(&lock, &rules).map_err(|e| format!("{folder}/Cargo.lock: {e}"))?;
        faults.extend(found.into_iter().map(|fault| format!("{folder}/Cargo.lock: {fault}")));
    }
    if !faults.is_empty() {
        return Err(faults.join("\n"));
    }
    let count = metadata["packages"].as_array().map_or(0, Vec::len);
    eprintln!("xtask: {count} packages: deny.toml allows their licences, sources and versions");
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// All violations, in the order of the rules.
fn faults(metadata: &Value, rules: &Rules) -> Vec<String> {
    let packages: Vec<Package<'_>> = list(&metadata["packages"]).map(Package::of).collect();
    let mut faults: Vec<String> = Vec::new();
    faults.extend(packages.iter().filter_map(|package| license_fault(package, rules)));
    faults.extend(packages.iter().filter_map(|package| source_fault(package, rules)));
    faults.extend(packages.iter().filter(|p| rules.banned.contains(p.name)).map(|package| {
        format!("{package} is banned: see [bans] in deny.toml and `cargo tree --invert`")
    }));
    faults.extend(packages.iter().flat_map(wildcards));
    faults.extend(duplicates(&packages, rules));
    faults.extend(banned_features(metadata, &rules.features));
    faults
}

/// The fields of a package that the rules use.
struct Package<'a> {
    name: &'a str,
    version: &'a str,
    license: Option<&'a str>,
    /// `None`: a path.
    source: Option<&'a str>,
    dependencies: &'a Value,
}

impl<'a> Package<'a> {
    fn of(package: &'a Value) -> Self {
        Self {
            name: package["name"].as_str().unwrap_or_default(),
            version: package["version"].as_str().unwrap_or_default(),
            license: package["license"].as_str(),
            source: package["source"].as_str(),
            dependencies: &package["dependencies"],
        }
    }
}

impl std::fmt::Display for Package<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn license_fault(package: &Package<'_>, rules: &Rules) -> Option<String> {
    let Some(text) = package.license else {
        return Some(format!("{package} has no licence expression"));
    };
    match Expression::parse(text) {
        Ok(expression) if expression.is_met_by(&rules.licenses) => None,
        Ok(_) => Some(format!("{package}: deny.toml does not allow the licence {text:?}")),
        Err(reason) => Some(format!("{package}: licence {text:?}: {reason}")),
    }
}

fn source_fault(package: &Package<'_>, rules: &Rules) -> Option<String> {
    let source = package.source?;
    (!rules.sources.iter().any(|allowed| source == allowed))
        .then(|| format!("{package}: deny.toml does not allow the source {source}"))
}

/// Dependencies of our own packages with the requirement `*`, unless they are paths.
fn wildcards(package: &Package<'_>) -> Vec<String> {
    let of_registry = list(package.dependencies)
        .filter(|d| d["req"].as_str() == Some("*") && d["path"].is_null());
    let ours = of_registry.filter(|_| package.source.is_none());
    ours.map(|d| format!("{package} accepts every version of {}", d["name"])).collect()
}

/// Crates with several versions, without the versions that the rules skip; and skipped versions
/// that match no duplicate.
fn duplicates(packages: &[Package<'_>], rules: &Rules) -> Vec<String> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(package.name).or_default().insert(package.version);
    }
    let is_skipped =
        |name: &str, version: &str| rules.duplicates.iter().any(|(n, v)| n == name && v == version);
    let mut faults = Vec::new();
    for (name, versions) in &versions {
        let counted = versions.iter().filter(|version| !is_skipped(name, version));
        if counted.count() > 1 {
            let all: Vec<&str> = versions.iter().copied().collect();
            faults.push(format!(
                "{name} has the versions {}: update one, or add it to `skip` in deny.toml",
                all.join(", ")
            ));
        }
    }
    let is_needed = |name: &str, version: &str| {
        versions.get(name).is_some_and(|all| all.len() > 1 && all.contains(version))
    };
    let idle = rules.duplicates.iter().filter(|(name, version)| !is_needed(name, version));
    faults.extend(idle.map(|(name, version)| {
        format!("deny.toml skips {name}@{version}, which is no duplicate: remove the entry")
    }));
    faults
}

fn inactive_by_default() -> Vec<(String, Vec<String>)> {
    let owned = |(name, feature): &(&str, &str)| ((*name).to_owned(), vec![(*feature).to_owned()]);
    INACTIVE_BY_DEFAULT.iter().map(owned).collect()
}

/// Features that are active although the rules ban them.
fn banned_features(metadata: &Value, banned: &[(String, Vec<String>)]) -> Vec<String> {
    let mut faults = Vec::new();
    for package in list(&metadata["packages"]) {
        let name = package["name"].as_str().unwrap_or_default();
        let nodes = list(&metadata["resolve"]["nodes"]);
        let node = nodes.into_iter().find(|node| node["id"] == package["id"]);
        let active = node.map(|node| &node["features"]).into_iter().flat_map(list);
        let active: BTreeSet<&str> = active.filter_map(Value::as_str).collect();
        for (banned_in, features) in banned {
            let found =
                features.iter().filter(|f| banned_in == name && active.contains(f.as_str()));
            faults.extend(found.map(|f| format!("{name}: the feature {f} is banned")));
        }
    }
    faults
}

/// Packages of a lock file whose source is not allowed.
fn lock_faults(lock: &str, rules: &Rules) -> Result<Vec<String>, String> {
    let lock = rules::parse_toml(lock)?;
    let packages: Vec<Package<'_>> = list(&lock["package"]).map(Package::of).collect();
    if packages.is_empty() {
        return Err("no package".to_owned());
    }
    Ok(packages.iter().filter_map(|package| source_fault(package, rules)).collect())
}

/// Runs `cargo deny check` where it is installed; without it advisories and yanked versions are not
/// checked.
///
/// # Errors
/// As `cargo deny`.
pub fn deny() -> Result<(), String> {
    let version = Command::new("cargo").args(["deny", "--version"]).stderr(Stdio::null()).output();
    if version.is_ok_and(|output| output.status.success()) {
        return crate::cargo("deny check");
    }
    eprintln!("xtask: advisories are not checked: `cargo install cargo-deny`, with network");
    Ok(())
}

#[cfg(test)]
mod tests;

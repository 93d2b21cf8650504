//! Which crate may depend on which: arrows are data, and this check reads them from `cargo metadata`.

use std::collections::BTreeMap;
use std::process::Command;

/// Floor of each crate. An arrow goes to a lower floor only, never sideways.
const FLOORS: &[(&str, u32)] = &[
    ("bevy_walla", 6),
    ("walla", 6),
    ("walla_runtime", 5),
    ("walla_exec", 4),
    ("walla_cuda", 3),
    ("walla_cpu", 3),
    ("walla_device", 2),
    ("walla_model", 1),
    ("walla_plan", 1),
    ("walla_types", 0),
    // Data without code: anybody above may embed it.
    ("walla_demo_model", 0),
    // Marks of stages, from every floor that has some.
    ("walla_trace", 0),
];

/// Third-party crates that stay on their floor, with the crates that may name them.
const CONFINED: &[(&str, &[&str])] = &[
    ("bevy_app", &["bevy_walla"]),
    ("bevy_diagnostic", &["bevy_walla"]),
    ("bevy_ecs", &["bevy_walla"]),
    ("bevy_time", &["bevy_walla"]),
    ("bevy_transform", &["bevy_walla"]),
    ("clap", &["walla"]),
    ("cudarc", &["walla_cuda", "walla_emulator"]),
    ("indicatif", &["walla"]),
    ("libloading", &["walla_trace"]),
    ("memmap2", &["walla_model"]),
    ("minijinja", &["walla_model"]),
    ("tokio", &["walla"]),
];

/// Crates outside the house: they may use all of it.
const OUTSIDE: &[&str] = &[
    "xtask",
    "walla_examples",
    "walla_benches",
    "walla_tests",
    "walla_runtime_models",
    "walla_emulator",
];

/// Checks every normal dependency of every crate in the workspace.
///
/// # Errors
/// All arrows that are wrong, a line each.
pub fn check() -> Result<(), String> {
    let wrong = wrong_arrows(&metadata()?);
    if wrong.is_empty() {
        eprintln!("xtask: every arrow points down");
        return Ok(());
    }
    Err(wrong.join("\n"))
}

/// What cargo says of the workspace.
///
/// # Errors
/// Why it cannot be asked.
pub fn metadata() -> Result<serde_json::Value, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .output()
        .map_err(|error| error.to_string())?;
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

fn wrong_arrows(metadata: &serde_json::Value) -> Vec<String> {
    let floors: BTreeMap<_, _> = FLOORS.iter().copied().collect();
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        if OUTSIDE.contains(&name) {
            continue;
        }
        let Some(&floor) = floors.get(name) else {
            wrong.push(format!("{name} has no floor: add it to xtask/src/layers.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let on = dependency["name"].as_str().unwrap_or_default();
            // Tests may look at a neighbour (the CPU is the oracle of the GPU); what ships may not.
            if dependency["kind"].as_str() == Some("dev") {
                continue;
            }
            if floors.get(on).is_some_and(|&below| below >= floor) {
                wrong.push(format!("{name} (floor {floor}) may not depend on {on}"));
            }
            let confined = CONFINED.iter().find(|(third_party, _)| *third_party == on);
            if confined.is_some_and(|(_, allowed)| !allowed.contains(&name)) {
                wrong.push(format!(
                    "{name} may not depend on {on}: it is confined to another floor"
                ));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn arrow(from: &str, to: &str) -> Vec<String> {
        let dependency = json!({"name": to, "kind": null});
        wrong_arrows(&json!({"packages": [{"name": from, "dependencies": [dependency]}]}))
    }

    #[test]
    fn arrows_point_down_only() {
        assert!(arrow("walla_exec", "walla_plan").is_empty());
        assert_eq!(arrow("walla_plan", "walla_exec").len(), 1);
        assert_eq!(arrow("walla_plan", "walla_model").len(), 1, "never sideways");
        assert_eq!(arrow("walla_plan", "tokio").len(), 1, "third parties stay on their floor");
        assert_eq!(arrow("walla_new", "half").len(), 1, "every crate has a floor");
    }

    #[test]
    fn tests_may_look_sideways() {
        let dependency = json!({"name": "walla_cpu", "kind": "dev"});
        let package = json!({"name": "walla_cuda", "dependencies": [dependency]});
        assert!(wrong_arrows(&json!({"packages": [package]})).is_empty());
    }
}

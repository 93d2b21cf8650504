//! Checks dependencies between crates: the allowed ones are a table, the actual ones are read from
//! `cargo metadata`.

use std::collections::BTreeSet;

use serde_json::Value;

/// Each crate with its layer and the third-party crates that it may use. A dependency must be on a
/// lower layer, never on the same one.
const CRATES: &[(&str, u32, &[&str])] = &[
    (
        "bevy_walla",
        7,
        &[
            "bevy_app",
            "bevy_asset",
            "bevy_audio",
            "bevy_color",
            "bevy_diagnostic",
            "bevy_ecs",
            "bevy_input",
            "bevy_reflect",
            "bevy_text",
            "bevy_time",
            "bevy_transform",
            "bevy_ui",
            "ron",
            "serde",
            "serde_path_to_error",
            "thiserror",
            "tracing",
        ],
    ),
    (
        "walla",
        7,
        &[
            "axum",
            "clap",
            "crossbeam-utils",
            "futures-core",
            "futures-util",
            "hound",
            "hyper",
            "hyper-util",
            "indicatif",
            "rustix",
            "same-file",
            "serde",
            "serde_json",
            "tempfile",
            "thiserror",
            "tokio",
            "tracing",
        ],
    ),
    (
        "walla_record",
        6,
        &["crossbeam-queue", "miniz_oxide", "serde", "serde_json", "thiserror", "tracing"],
    ),
    ("walla_router", 6, &["thiserror", "tracing"]),
    (
        "walla_memory",
        6,
        &[
            "atomic-waker",
            "crossbeam-queue",
            "libm",
            "pollster",
            "serde",
            "serde_json",
            "thiserror",
            "tracing",
            "unicode-normalization",
            "unicode-segmentation",
        ],
    ),
    (
        "walla_remote",
        6,
        &[
            "atomic-waker",
            "backon",
            "bytes",
            "eventsource-stream",
            "futures-util",
            "httpdate",
            "reqwest",
            "ring",
            "rustix",
            "rustls",
            "rustls-platform-verifier",
            "serde",
            "serde_json",
            "thiserror",
            "tokio",
            "tracing",
            "url",
        ],
    ),
    (
        "walla_runtime",
        5,
        &[
            "atomic-waker",
            "bevy_reflect",
            "crc32fast",
            "crossbeam-queue",
            "crossbeam-utils",
            "libc",
            "serde",
            "serde_json",
            "thiserror",
            "tracing",
        ],
    ),
    (
        "walla_voice",
        5,
        &[
            "atomic-waker",
            "crossbeam-queue",
            "earshot",
            "libm",
            "loqui-g2p",
            "rayon",
            "rten",
            "rten-onnx",
            "rten-tensor",
            "rtrb",
            "rustfft",
            "serde_json",
            "thiserror",
            "tracing",
            "unicode-normalization",
        ],
    ),
    ("walla_embed", 5, &["atomic-waker", "crossbeam-queue", "pollster", "thiserror", "tracing"]),
    (
        "walla_grammar",
        2,
        &["llguidance", "regex-syntax", "schemars", "serde", "serde_json", "thiserror"],
    ),
    ("walla_exec", 4, &["bytemuck", "thiserror"]),
    ("walla_vulkan", 3, &["ash", "bytemuck", "crc32fast", "half", "libloading", "lzma-rust2"]),
    ("walla_cuda", 3, &["bytemuck", "cudarc", "half", "lzma-rust2", "tracing"]),
    (
        "walla_cpu",
        3,
        &["bytemuck", "crossbeam-utils", "half", "libc", "libm", "sysinfo", "windows-sys"],
    ),
    ("walla_device", 2, &["bytemuck", "thiserror"]),
    ("walla_model", 1, &["libc", "libm", "minijinja", "serde_json", "thiserror"]),
    ("walla_plan", 1, &["libm", "serde", "thiserror"]),
    // Trace marks, used on several layers.
    ("walla_trace", 1, &["libloading", "thiserror", "tracing"]),
    ("walla_types", 0, &["half", "libm", "serde", "thiserror"]),
    // Data without code: any crate on a higher layer may embed it.
    ("walla_demo_model", 0, &[]),
    ("walla_minilm", 0, &[]),
];

/// Crates outside the layers: they may use all crates.
const OUTSIDE: &[&str] = &[
    "xtask",
    "walla_examples",
    "walla_packed_game",
    "walla_village",
    "walla_benches",
    "walla_tests",
    "walla_doubles",
    "walla_reference_test",
    "walla_cpu_models",
    "walla_runtime_models",
    "walla_emulator",
];

/// Heading of the table in `ARCHITECTURE.md` with the reasons for third-party crates. Its first
/// column names them.
const REASONS: &str = "## Third-party crates";

/// Checks every dependency of every crate in the workspace.
///
/// # Errors
/// All forbidden dependencies, all third-party crates without a reason and all reasons without a
/// crate, one line each.
pub fn check() -> Result<(), String> {
    let metadata = crate::metadata("--no-deps")?;
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    let page = std::path::Path::new(root).join("ARCHITECTURE.md");
    let page = std::fs::read_to_string(&page).map_err(|e| format!("{}: {e}", page.display()))?;
    let mut wrong = wrong_dependencies(&metadata);
    wrong.extend(wrong_reasons(&metadata, &page));
    if wrong.is_empty() {
        eprintln!(
            "xtask: every dependency is on a lower layer, and every third-party crate has a reason"
        );
        return Ok(());
    }
    Err(wrong.join("\n"))
}

/// Name and dependencies of each package.
fn packages(metadata: &Value) -> impl Iterator<Item = (&str, &[Value])> {
    metadata["packages"].as_array().into_iter().flatten().map(|package| {
        let dependencies = package["dependencies"].as_array().map_or(&[][..], Vec::as_slice);
        (package["name"].as_str().unwrap_or_default(), dependencies)
    })
}

fn wrong_dependencies(metadata: &Value) -> Vec<String> {
    let layer_of = |name| CRATES.iter().find(|(known, ..)| *known == name);
    let mut wrong = Vec::new();
    for (name, dependencies) in packages(metadata) {
        if OUTSIDE.contains(&name) {
            continue;
        }
        let Some(&(_, layer, third_party)) = layer_of(name) else {
            wrong.push(format!("{name} has no layer: add it to xtask/src/layers.rs"));
            continue;
        };
        for dependency in dependencies {
            let on = dependency["name"].as_str().unwrap_or_default();
            // Tests may use a crate of the same layer (the CPU is the oracle of the GPU); shipped
            // code may not.
            if dependency["kind"].as_str() == Some("dev") {
                continue;
            }
            match layer_of(on) {
                Some(&(_, below, _)) if below >= layer => {
                    wrong.push(format!("{name} (layer {layer}) may not depend on {on}"));
                }
                None if !third_party.contains(&on) => {
                    wrong.push(format!("{name} may not depend on {on}: see xtask/src/layers.rs"));
                }
                _ => {}
            }
        }
    }
    wrong
}

/// Third-party crates that the table on `page` does not name, and names in the table that no
/// package depends on.
fn wrong_reasons(metadata: &Value, page: &str) -> Vec<String> {
    let ours: BTreeSet<&str> = packages(metadata).map(|(name, _)| name).collect();
    let used: BTreeSet<&str> = packages(metadata)
        .flat_map(|(_, dependencies)| dependencies)
        .filter_map(|dependency| dependency["name"].as_str())
        .filter(|name| !ours.contains(name))
        .collect();
    let table = page.split_once(REASONS).map_or("", |(_, rest)| rest);
    let table = table.split("\n## ").next().unwrap_or_default();
    let first_cells = table.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    let reasons: BTreeSet<&str> =
        first_cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let missing = used.difference(&reasons);
    let missing = missing.map(|name| format!("ARCHITECTURE.md has no reason for {name}"));
    let idle = reasons.difference(&used);
    let idle = idle.map(|name| format!("ARCHITECTURE.md has a reason for {name}: nobody uses it"));
    missing.chain(idle).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn wrong(from: &str, to: &str) -> Vec<String> {
        let dependency = json!({"name": to, "kind": null});
        wrong_dependencies(&json!({"packages": [{"name": from, "dependencies": [dependency]}]}))
    }

    #[test]
    fn dependencies_point_only_to_lower_layers() {
        assert!(wrong("walla_exec", "walla_plan").is_empty());
        assert_eq!(wrong("walla_plan", "walla_exec").len(), 1);
        assert_eq!(wrong("walla_plan", "walla_model").len(), 1, "never sideways");
        assert!(wrong("walla", "tokio").is_empty());
        assert_eq!(
            wrong("walla_plan", "tokio").len(),
            1,
            "third-party crates are named for each crate"
        );
        assert_eq!(
            wrong("walla_types", "unheard_of").len(),
            1,
            "what is not listed is not allowed"
        );
        assert_eq!(wrong("walla_new", "half").len(), 1, "every crate has a layer");
    }

    #[test]
    fn dev_dependencies_may_point_to_the_same_layer() {
        let dependency = json!({"name": "walla_cpu", "kind": "dev"});
        let package = json!({"name": "walla_cuda", "dependencies": [dependency]});
        assert!(wrong_dependencies(&json!({"packages": [package]})).is_empty());
    }

    #[test]
    fn third_party_crates_and_reasons_match() {
        let dependencies =
            json!([{"name": "walla_plan", "kind": null}, {"name": "half", "kind": "dev"}]);
        let metadata = json!({"packages": [
            {"name": "walla_exec", "dependencies": dependencies},
            {"name": "walla_plan", "dependencies": []},
        ]});
        let page = |names: &str| {
            format!(
                "# A\n\n{REASONS}\n\n| crate | why |\n|---|---|\n| {names} | `x` |\n\n## B\n\n| `y` |\n"
            )
        };
        assert!(wrong_reasons(&metadata, &page("`half`")).is_empty());
        assert_eq!(wrong_reasons(&metadata, &page("`half`, `idle` (a note)")).len(), 1);
        let missing = wrong_reasons(&metadata, &page("`other`"));
        assert_eq!(missing.len(), 2, "{missing:?}");
    }
}

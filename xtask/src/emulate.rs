//! `xtask emulate`: runs the GPU tests of `walla_cuda` on `tools/emulator`, a replacement of the
//! driver library.
//!
//! The library has the driver's name and is in a separate subfolder of the target folder. Only
//! these tests get its path; other tests on the same machine find no GPU.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::{env, fs};

use crate::cargo_command;

/// Compute capabilities that the emulator supports.
const CAPABILITIES: &[&str] = &["7.5", "8.0", "8.6", "8.9", "9.0", "12.0"];

/// Test selections of CI: for 9.0 (H100) all tests except slow ones (a minute or more each).
/// [`FULL`] has some of these, and tests of the differences between the PTX texts of the others.
const CI: &[(&str, &[&str])] = &[
    (
        "9.0",
        &[
            "--skip=a_row_does_not_depend",
            "--skip=rows_of_large_matrices",
            "--skip=rows_with_post_norms",
            "--skip=a_row_of_experts",
            "--skip=row_by_row_and_batched",
            "--skip=draws",
            "--skip=ten_thousand",
            "--skip=every_feature",
            // The emulator runs PTX without WGMMA, so these tests would repeat others.
            "--skip=kv_prefetch",
            "--skip=products_without_wgmma",
            // Kernels of other types, which the other tests run.
            "--skip=converted_types",
            "--skip=any_mixture_of_types",
            "--skip=groups_of_12",
            "--skip=groups_of_4",
            "--skip=groups_of_7",
            "--skip=heads_of_256",
            "--skip=heads_of_512",
            "--skip=layers_with_inputs",
            "--skip=delta_nets_agree",
            "--skip=rows_of_a_delta_net",
            "--skip=experts_of_every_type",
            "--skip=experts_of_other_shapes",
            "--skip=every_launch_has_the_block",
            "--skip=rows_far_into_a_text",
            "--skip=blocks_with_heads_of_128",
            "--skip=heads_of_128_agree",
            "--skip=gates_after_products",
            "--skip=clusters_of_two_blocks_agree",
            "--skip=wide_rows",
            "--skip=rows_of_steps_of_hundreds",
            "--skip=every_other_type",
            "--skip=groups_of_1_",
            "--skip=two_gpus_of_a_process",
            "--skip=of_hundreds_of_rows",
            "--skip=neighboring_allowed",
            "--skip=growing_scores",
            "--skip=suppressed_tokens",
            "--skip=pages_of_8_bits",
            "--skip=states_are_copied",
            // Multiprocessors that the emulator does not have.
            "--skip=a_share_of_the_multiprocessors",
            // Below, with other capabilities: the same kernels.
            "--skip=mixed_types",
            "--skip=any_choice",
            "--skip=eager_launches",
        ],
    ),
    // Sequential: these tests measure free memory or allocate all of it ([`MEMORY_MIB`]).
    (
        "9.0",
        &[
            "--ignored",
            "--test-threads=1",
            "a_dropped_device",
            "steps_continue_while",
            "a_cache_returns_memory",
        ],
    ),
];

/// Tests that run alone: only if the arguments have `--ignored`.
const ALONE: &[&str] = &[
    "--skip=a_dropped_device",
    "--skip=steps_continue_while",
    "--skip=a_cache_returns_memory",
    "--skip=resources_in_the_programs_context",
    "--skip=graphs_use_only_their_share",
];

/// Further selections of `cargo xtask ci --full`.
const FULL: &[(&str, &[&str])] = &[
    (
        "9.0",
        &[
            "clusters_of_two_blocks_agree",
            "wide_rows",
            "rows_of_steps_of_hundreds",
            "every_other_type",
            "groups_of_1_",
            "two_gpus_of_a_process",
            "of_hundreds_of_rows",
            "neighboring_allowed",
            "growing_scores",
            "suppressed_tokens",
            "pages_of_8_bits",
            "states_are_copied",
        ],
    ),
    (
        "8.0",
        &[
            "parity::every_",
            "any_choice",
            "f16_pages",
            "a_mask_without_bits",
            "packed_rows",
            "eager_launches",
        ],
    ),
    (
        "7.5",
        &["parity::every_", "any_choice", "f16_pages", "a_mask_without_bits", "eager_launches"],
    ),
    // The PTX of 9.0 with less than half of its shared memory.
    ("12.0", &["parity::mixed_types", "heads_of_256", "--skip=rows_far"]),
];

/// Memory of the device in CI: the host backs all memory that tests allocate, and the largest cache
/// has 1,000 MiB.
const MEMORY_MIB: (&str, &str) = ("WALLA_EMULATED_MEMORY_MIB", "1600");

/// The capability, for tests that are started without `xtask`.
const CAPABILITY: &str = "WALLA_EMULATED_CAPABILITY";

/// Cargo arguments that run the tests. No package is named: with the features that the packages
/// have in `cargo test`, nothing is built again.
const TESTS: &str = "test --test gpu --";
/// Cargo arguments that build the emulator, as a dependency of its test.
const BUILD: &str = "test --no-run --test kernels --message-format json-render-diagnostics";

const EMULATOR: &str = "walla_emulator";

/// Runs `xtask emulate`.
///
/// # Errors
/// The build error, or that a test failed.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let (capability, arguments) = match arguments {
        [option, capability, rest @ ..] if option == "--capability" => {
            (Some(capability.clone()), rest)
        }
        all => (env::var(CAPABILITY).ok(), all),
    };
    let capability = capability.unwrap_or_else(|| "9.0".to_owned());
    // Before anything is built.
    if !CAPABILITIES.contains(&capability.as_str()) {
        return Err(format!("capability {capability:?} is none of {}", CAPABILITIES.join(", ")));
    }
    test(&install(&build()?)?, &capability, arguments, &[])
}

/// Runs the CI tests.
///
/// # Errors
/// As [`run`].
pub fn ci(is_full: bool) -> Result<(), String> {
    if !cfg!(target_os = "linux") {
        eprintln!("xtask: no emulator here: libraries are found in another way");
        return Ok(());
    }
    let folder = install(&build()?)?;
    let known = names()?;
    let further = if is_full { FULL } else { &[] };
    let selections = || CI.iter().chain(further);
    let mut all = selections().map(|(_, arguments)| *arguments).chain([ALONE]);
    if let Some(stale) = all.find_map(|arguments| stale(arguments, &known)) {
        return Err(format!("{stale} selects none of the GPU tests: see xtask/src/emulate.rs"));
    }
    selections()
        .try_for_each(|(capability, arguments)| test(&folder, capability, arguments, &[MEMORY_MIB]))
}

/// Runs tests with a capability and the emulator in `folder`.
fn test(
    folder: &Path,
    capability: &str,
    arguments: &[impl AsRef<OsStr>],
    environment: &[(&str, &str)],
) -> Result<(), String> {
    let mut command = cargo_command(TESTS);
    command.envs(environment.iter().copied());
    // Without a GPU all tests are ignored.
    if !arguments.iter().any(|argument| argument.as_ref() == "--ignored") {
        command.arg("--include-ignored").args(ALONE);
    }
    command.args(arguments).env(CAPABILITY, capability).env("LD_LIBRARY_PATH", first(folder)?);
    crate::run(&mut command)
}

/// The names of all tests.
fn names() -> Result<String, String> {
    let mut command = cargo_command(TESTS);
    command.arg("--list").stderr(Stdio::inherit());
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{command:?}: {}", output.status)),
    }
}

/// The first argument that selects no test, for example because tests were renamed.
fn stale<'a>(arguments: &[&'a str], known: &str) -> Option<&'a str> {
    let part = |argument: &'a str| match argument.strip_prefix("--skip=") {
        Some(part) => part,
        None if argument.starts_with("--") => "",
        None => argument,
    };
    arguments.iter().copied().find(|argument| !known.contains(part(argument)))
}

/// Builds the emulator. Returns the path of the library.
fn build() -> Result<PathBuf, String> {
    let mut command = cargo_command(BUILD);
    command.stderr(Stdio::inherit());
    eprintln!("xtask: {command:?}");
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    said.lines().find_map(library).ok_or_else(|| "cargo built no shared library".to_owned())
}

/// The shared library in a cargo message, if the message is about the emulator.
fn library(message: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    if message["target"]["name"].as_str() != Some(EMULATOR) {
        return None;
    }
    let files = message["filenames"].as_array()?.iter().filter_map(|file| file.as_str());
    files.map(PathBuf::from).find(|file| file.extension().is_some_and(|end| end == "so"))
}

/// Installs the library into its folder under both of the driver's names. Returns the folder.
fn install(library: &Path) -> Result<PathBuf, String> {
    let folder = crate::target_folder(&crate::metadata("--no-deps")?)?.join("emulator");
    let failed = |error| format!("{}: {error}", folder.display());
    let [copied, named, numbered] =
        ["copied", "libcuda.so", "libcuda.so.1"].map(|name| folder.join(name));
    fs::create_dir_all(&folder).map_err(failed)?;
    // Renamed into place: a running test keeps the open old file.
    fs::copy(library, &copied).map_err(failed)?;
    fs::rename(&copied, &named).map_err(failed)?;
    // A hard link, so that a process does not load two drivers.
    if numbered.exists() {
        fs::remove_file(&numbered).map_err(failed)?;
    }
    fs::hard_link(&named, &numbered).map_err(failed)?;
    Ok(folder)
}

/// `LD_LIBRARY_PATH` with a folder in front.
fn first(folder: &Path) -> Result<OsString, String> {
    let others = env::var_os("LD_LIBRARY_PATH");
    let others = others.iter().flat_map(env::split_paths);
    let folders = [folder.to_path_buf()].into_iter().chain(others);
    env::join_paths(folders).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_without_a_test_is_reported() {
        let known = "cache::pages_move: test\nsampling::draws: test\n";
        assert_eq!(stale(&["--ignored", "--skip=draws", "pages"], known), None);
        assert_eq!(stale(&["pages", "--skip=renamed"], known), Some("--skip=renamed"));
        assert_eq!(stale(&["renamed"], known), Some("renamed"));
    }

    #[test]
    fn only_the_emulators_library_is_selected() {
        let of = |name: &str, files: &str| {
            library(&format!(r#"{{"target": {{"name": "{name}"}}, "filenames": [{files}]}}"#))
        };
        let files = r#""t/libwalla_emulator.rlib", "t/libwalla_emulator.so""#;
        assert_eq!(of(EMULATOR, files), Some(PathBuf::from("t/libwalla_emulator.so")));
        assert_eq!(of("half", files), None);
        assert_eq!(of(EMULATOR, r#""t/libwalla_emulator.rlib""#), None);
        assert_eq!(library("no message"), None);
    }

    #[test]
    fn an_unknown_chip_is_refused_before_anything_is_built() {
        let arguments = ["--capability", "8.7"].map(str::to_owned);
        assert!(run(&arguments).unwrap_err().contains("8.7"));
    }
}

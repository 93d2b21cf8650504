//! Other platforms than the one that builds: type checks, and programs in an emulator.
//!
//! Needs Debian 12 and root: `tools/cross/setup` installs a compiler, std for each target, linkers
//! and emulators. Build results are in `target/cross`, because the compiler is another one.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A platform and the lines for cargo that try it.
struct Platform {
    name: &'static str,
    targets: &'static [&'static str],
    /// Type checks.
    checks: &'static [&'static str],
    /// Tests and programs, in an emulator. Behind `--` are arguments of the program.
    runs: &'static [&'static str],
}

/// The crates that a stranger depends on, with all features except Bevy's UI and NVTX.
const ALL: &str = "check --package walla --package bevy_walla --features \
                   walla/cuda,walla/evaluate,walla/pull,walla/remote,bevy_walla/cuda,bevy_walla/remote,\
                   bevy_walla/assets,bevy_walla/lod,bevy_walla/reflect,bevy_walla/serialize";

const PLATFORMS: &[Platform] = &[
    Platform {
        name: "windows",
        targets: &["x86_64-pc-windows-gnu"],
        checks: &[ALL, "check --tests"],
        runs: &[
            "test --no-fail-fast",
            "run --bin walla -- devices",
            "run --example hello_agent",
            "run --example tavern",
        ],
    },
    Platform {
        name: "arm64",
        targets: &["aarch64-unknown-linux-gnu"],
        checks: &[ALL],
        runs: &[
            "test --no-fail-fast --package walla_types --package walla_plan --package walla_cpu \
             --package walla_model --package walla_exec --package walla_runtime",
            "test --no-fail-fast --package walla_tests --test engine -- oracle_cpu",
            "run --example hello_agent",
        ],
    },
    Platform {
        name: "macos",
        targets: &["aarch64-apple-darwin", "x86_64-apple-darwin"],
        checks: &[ALL, "check --tests"],
        runs: &[],
    },
    Platform {
        name: "wasm",
        targets: &["wasm32-unknown-unknown"],
        checks: &["check --package walla_plan --package walla_model --package walla_memory"],
        runs: &[],
    },
];

/// Prepares and tries the named platforms, or all; `checks` is the selection of CI.
///
/// # Errors
/// An unknown name, a failed preparation, or all lines that failed.
pub fn run(names: &[String]) -> Result<(), String> {
    if names == ["checks"] {
        return ci(false);
    }
    let known = |name: &String| PLATFORMS.iter().any(|platform| platform.name == name);
    if let Some(name) = names.iter().find(|name| !known(name)) {
        let all: Vec<_> = PLATFORMS.iter().map(|platform| platform.name).collect();
        let all = all.join(", ");
        return Err(format!("no platform is named {name:?}: {all}; or only `checks`"));
    }
    let wanted =
        |platform: &&Platform| names.is_empty() || names.iter().any(|n| n == platform.name);
    let platforms: Vec<&Platform> = PLATFORMS.iter().filter(wanted).collect();
    let environment = prepare(&platforms.iter().map(|its| its.name).collect::<Vec<_>>())?;
    let mut failed = Vec::new();
    for platform in platforms {
        for line in platform.checks.iter().chain(platform.runs) {
            failed.extend(cargo(&environment, line, platform.targets, &[]).err());
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// The selection of CI: type checks of `walla` and all below it, with `cuda`, for Windows, and if
/// `is_full` for macOS, which shares more code with Linux. The plugin has no code for a platform;
/// it, the other features and the tests need more time than CI has.
///
/// # Errors
/// A check failed. A machine that cannot be prepared is no error but a message.
pub fn ci(is_full: bool) -> Result<(), String> {
    let (names, targets): (&[_], &[_]) = match is_full {
        true => (&["checks", "macos"], &["x86_64-pc-windows-gnu", "aarch64-apple-darwin"]),
        false => (&["checks"], &["x86_64-pc-windows-gnu"]),
    };
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    let environment = if is_root && Path::new("/etc/debian_version").exists() {
        prepare(names)
    } else {
        Err("this needs Debian 12 and root".to_owned())
    };
    match environment {
        Ok(environment) => {
            cargo(&environment, "check --package walla --features cuda", targets, &[])
        }
        Err(reason) => {
            eprintln!("xtask: NOT CHECKED: other platforms: {reason}");
            Ok(())
        }
    }
}

/// Installs the requirements of the platforms and returns the file with the environment.
///
/// # Errors
/// The script failed.
pub fn prepare(names: &[&str]) -> Result<PathBuf, String> {
    let mut setup = Command::new(root().join("tools/cross/setup"));
    crate::run(setup.args(names).env("WALLA_CROSS", folder()))?;
    Ok(folder().join("env.sh"))
}

/// The folder of files that belong to no package: `wine` in it starts a Windows program.
pub fn folder() -> PathBuf {
    std::env::var_os("WALLA_CROSS").map_or_else(|| "/opt/walla-cross".into(), PathBuf::from)
}

/// Runs a line for all targets at once, with further flags of the compiler.
///
/// # Errors
/// The line, if it failed.
pub fn cargo(
    environment: &Path,
    line: &str,
    targets: &[&str],
    flags: &[String],
) -> Result<(), String> {
    let (ours, behind) = line.split_once(" -- ").unwrap_or((line, ""));
    let mut command = Command::new("bash");
    command.args(["-c", "source \"$0\"; exec cargo \"$@\""]).arg(environment);
    command.args(ours.split_whitespace());
    command.args(targets.iter().flat_map(|target| ["--target", target]));
    if !behind.is_empty() {
        command.arg("--").args(behind.split_whitespace());
    }
    command.current_dir(root()).env("CARGO_TARGET_DIR", "target/cross");
    if ours.starts_with("check") {
        // Without it, dependencies are prepared for inlining.
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    }
    let own = ["-D", "warnings"].map(str::to_owned);
    command.env("CARGO_ENCODED_RUSTFLAGS", [&own[..], flags].concat().join("\x1f"));
    // Of the compiler that runs this program.
    for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "LD_LIBRARY_PATH"] {
        command.env_remove(name);
    }
    crate::run(&mut command).map_err(|_| format!("failed on {}: {line}", targets.join(" and ")))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

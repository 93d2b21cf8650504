//! Environment variables. Shipped code reads the environment only in this module.
//!
//! A variable that is unset or empty has no effect.
//!
//! | variable | read by | effect |
//! |---|---|---|
//! | `WALLA_TRACE` | [`trace_file`] | writes a trace of every frame to this file |
//! | `WALLA_CPU_VARIANT` | [`cpu_variant`] | CPU kernels: `scalar`, `avx2fma`, `avxvnni`, `avx512vnni`, `neon`, `neondot`, `neoni8mm` |
//! | `WALLA_CUDA_GRAPHS` | [`cuda_graphs`] | `0`: launches programs op by op instead of as graphs |
//! | `WALLA_CUDA_WARPGROUPS` | [`cuda_warpgroups`] | `0`: uses no WGMMA kernels |
//! | `WALLA_CUDA_HOST_TABLES` | [`cuda_host_tables`] | `0`: loads all embeddings to the device |
//! | `WALLA_CUDA_IMAGES` | [`cuda_images`] | kernel images to consider: files and folders, separated as in `PATH` |
//! | `WALLA_VULKAN_WITHOUT` | [`vulkan_without`] | features of a GPU not to use, separated by commas: `dot`, `matrices` |
//! | `WALLA_VULKAN_CACHE` | [`vulkan_cache`] | folder for the Vulkan device's compiled shaders; `0`: they are not kept |
//! | `WALLA_REGISTRY` | [`registry`] | the registry of `walla pull` |
//! | `NVTX_INJECTION64_PATH` | [`nvtx_injection`] | set by NVIDIA's profilers: the library that receives ranges |
//! | `XDG_CACHE_HOME`, `HOME`, `LOCALAPPDATA` | [`user_cache_folder`] | the user's cache folder, for measured step costs of the command and compiled shaders |
//!
//! Variables of single tests and benchmarks are read and documented there: seeds of simulations
//! (`WALLA_SIMULATION_SEEDS`, `WALLA_CLIENT_SIMULATION_SEEDS`, `WALLA_CONSISTENCY_SEEDS`), lengths
//! of runs (`WALLA_LIFECYCLE_CYCLES`), the tested device (`WALLA_TEST_DEVICE`) and `WALLA_BENCH_…`.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

/// Name of the variable of [`trace_file`].
pub const TRACE_FILE: &str = "WALLA_TRACE";

/// Name of the variable of [`cpu_variant`].
pub const CPU_VARIANT: &str = "WALLA_CPU_VARIANT";

/// Name of the variable of [`cuda_graphs`].
pub const CUDA_GRAPHS: &str = "WALLA_CUDA_GRAPHS";

/// Name of the variable of [`cuda_warpgroups`].
pub const CUDA_WARPGROUPS: &str = "WALLA_CUDA_WARPGROUPS";

/// Name of the variable of [`cuda_host_tables`].
pub const CUDA_HOST_TABLES: &str = "WALLA_CUDA_HOST_TABLES";

/// Name of the variable of [`cuda_images`].
pub const CUDA_IMAGES: &str = "WALLA_CUDA_IMAGES";

/// Name of the variable of [`vulkan_without`].
pub const VULKAN_WITHOUT: &str = "WALLA_VULKAN_WITHOUT";

/// Name of the variable of [`vulkan_cache`].
pub const VULKAN_CACHE: &str = "WALLA_VULKAN_CACHE";

/// Name of the variable of [`registry`].
pub const REGISTRY: &str = "WALLA_REGISTRY";

/// Name of the variable of [`nvtx_injection`].
pub const NVTX_INJECTION: &str = "NVTX_INJECTION64_PATH";

/// The file for a trace. Default: none.
#[must_use]
pub fn trace_file() -> Option<PathBuf> {
    text(TRACE_FILE).map(PathBuf::from)
}

/// Name of the CPU kernels. Default: none, the best kernels of this machine.
#[must_use]
pub fn cpu_variant() -> Option<String> {
    env::var(CPU_VARIANT).ok().filter(|name| !name.is_empty())
}

/// Whether CUDA programs are launched as graphs. Default: `true`.
#[must_use]
pub fn cuda_graphs() -> bool {
    !is_zero(CUDA_GRAPHS)
}

/// Whether WGMMA kernels are used where GPU and image support them. Default: `true`. `false` is for
/// comparisons: results are bitwise identical.
#[must_use]
pub fn cuda_warpgroups() -> bool {
    !is_zero(CUDA_WARPGROUPS)
}

/// Whether large embeddings that are only looked up stay in host memory. Default: `true`.
#[must_use]
pub fn cuda_host_tables() -> bool {
    !is_zero(CUDA_HOST_TABLES)
}

/// Files and folders with CUDA kernel images to consider in addition to the crate's. Default: none.
#[must_use]
pub fn cuda_images() -> Vec<PathBuf> {
    text(CUDA_IMAGES).iter().flat_map(env::split_paths).collect()
}

/// Names of the features that the Vulkan device does not use even if a GPU has them, for tests and
/// comparisons. Default: none.
#[must_use]
pub fn vulkan_without() -> Vec<String> {
    let names = env::var(VULKAN_WITHOUT).unwrap_or_default();
    names
        .split(',')
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| !name.is_empty())
        .collect()
}

/// The folder in which the Vulkan device keeps compiled shaders. Default: `walla` in the
/// [user's cache folder](user_cache_folder).
#[must_use]
pub fn vulkan_cache() -> Option<PathBuf> {
    if is_zero(VULKAN_CACHE) {
        return None;
    }
    let default = || user_cache_folder().map(|folder| folder.join("walla"));
    text(VULKAN_CACHE).map(PathBuf::from).or_else(default)
}

/// Address of the registry from which the command pulls models. Default: none, the command's.
#[must_use]
pub fn registry() -> Option<String> {
    env::var(REGISTRY).ok().filter(|address| !address.is_empty())
}

/// The library to which a profiler that started this program wants ranges to be sent.
#[must_use]
pub fn nvtx_injection() -> Option<OsString> {
    text(NVTX_INJECTION)
}

/// The user's cache folder. `None` if the system defines none.
#[must_use]
pub fn user_cache_folder() -> Option<PathBuf> {
    let folder = |name: &str| text(name).map(PathBuf::from);
    if cfg!(windows) {
        folder("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        folder("HOME").map(|home| home.join("Library/Caches"))
    } else {
        folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))
    }
}

fn text(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|text| !text.is_empty())
}

fn is_zero(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| value == "0")
}

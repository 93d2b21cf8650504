//! `xtask kernels` compiles `kernels/*.cu` and packs them into `crates/walla_cuda/images/`. `xtask
//! kernels --check` checks that the packed images are up to date. An image contains every kernel
//! file for one target: PTX, which the driver compiles on the player's machine, or machine code for
//! one chip.
//!
//! The check compares a hash of all source files and compiler flags with the manifest next to the
//! images, so it needs no compiler. If the nvcc version of the images is found (in `NVCC`,
//! otherwise on the path, otherwise where `xtask kernels --fetch` installs it: a Python virtual
//! environment in the target folder), the check also compiles again and compares the kernels by
//! name. Bytes are not comparable: nvcc numbers registers differently from run to run. Shipped
//! images are built by that version only.
//!
//! If nvdisasm is next to nvcc, machine code is also checked for register hazards of asynchronous
//! warpgroup products (`hazards`).
//!
//! `xtask kernels --out FOLDER [--only TARGET …]` writes images to another folder, for
//! `WALLA_CUDA_IMAGES` or for shipping with a program. This includes machine code for chips for
//! which the crate has only PTX, such as `sm_89`.
//!
//! Compiled files are cached in the target folder under the hash of a file and all of its includes,
//! so only files affected by a change are compiled.

mod compiler;
mod fetch;
mod hazards;
mod sources;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::{env, fs};

use lzma_rust2::{LzipOptions, LzipReader, LzipWriter};

use self::compiler::{Compiler, entries};
pub use self::sources::Fnv;
use self::sources::Sources;

/// Code of one kind for one architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target<'a> {
    name: &'a str,
    kind: Kind,
}

impl<'a> Target<'a> {
    /// A shipped image name selects the shipped target; any other chip gets machine code.
    fn named(name: &'a str) -> Result<Self, String> {
        if let Some(shipped) = TARGETS.iter().find(|target| target.name == name) {
            return Ok(*shipped);
        }
        let number = name.strip_prefix("sm_").map(|rest| rest.strip_suffix('a').unwrap_or(rest));
        let is_chip = number.is_some_and(|number| {
            matches!(number.len(), 2 | 3) && number.bytes().all(|byte| byte.is_ascii_digit())
        });
        let machine_code = Self { name, kind: Kind::Cubin };
        is_chip.then_some(machine_code).ok_or_else(|| format!("{name} is no chip such as sm_89"))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// PTX for this and every later architecture.
    Ptx,
    /// Machine code for this architecture only.
    Cubin,
}

/// Targets of the shipped images. `walla_cuda` selects one of them; a kernel file may be limited to
/// some (see [`Sources::is_for`]).
const TARGETS: &[Target<'static>] = &[
    Target { name: "sm_75", kind: Kind::Ptx },
    Target { name: "sm_80", kind: Kind::Ptx },
    Target { name: "sm_90", kind: Kind::Ptx },
    Target { name: "sm_90a", kind: Kind::Cubin },
];

/// No contraction of products and sums except explicit `fmaf`: results must not depend on the
/// inlining of templates.
const FLAGS: &[&str] = &["-std=c++17", "-fmad=false", "-I."];

/// The oldest PTX version with all features that the compiled kernels use; drivers from CUDA 12.3
/// on accept it. The compiler writes its current version, which older drivers refuse. The assembler
/// checks the text against the stated version.
const PTX_VERSION: &str = "8.3";

const USAGE: &str = "usage: xtask kernels [--check | --fetch | --out FOLDER [--only TARGET …]]";

/// Runs `xtask kernels`.
///
/// # Errors
/// The failure, or the stale image and how to rebuild it.
pub fn run(args: &[String]) -> Result<(), String> {
    let root = root()?;
    let sources = Sources::read(&root.join("kernels"))?;
    let shipped = root.join("crates/walla_cuda/images");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => {
            let compiler = Compiler::find(&environment(&root), Some(fetch::VERSION))?;
            build(&root, &compiler, &sources, &shipped, TARGETS)
        }
        ["--check"] => check(&root, &sources, &shipped),
        ["--fetch"] => fetch::fetch(&environment(&root)).map(|nvcc| println!("{}", nvcc.display())),
        ["--out", folder] => build_elsewhere(&root, &sources, folder, TARGETS),
        ["--out", folder, "--only", ref names @ ..] if !names.is_empty() => {
            let targets: Result<Vec<_>, _> = names.iter().map(|name| Target::named(name)).collect();
            build_elsewhere(&root, &sources, folder, &targets?)
        }
        _ => Err(USAGE.to_owned()),
    }
}

/// The project's folder.
pub fn root() -> Result<PathBuf, String> {
    // Prefer cargo's run-time manifest path to the compile-time one: a built xtask can serve
    // another checkout.
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().map(Path::to_path_buf).ok_or_else(|| "xtask has no parent folder".to_owned())
}

/// The folder of builds.
pub fn target(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Creates the cache folder of compiled files and returns its absolute path (the compiler runs in
/// the sources' folder).
fn store(root: &Path) -> Result<PathBuf, String> {
    let store = target(root).join("walla_kernels");
    let failed = |e: std::io::Error| format!("{}: {e}", store.display());
    fs::create_dir_all(&store).map_err(failed)?;
    store.canonicalize().map_err(failed)
}

/// Folder of a fetched compiler.
fn environment(root: &Path) -> PathBuf {
    target(root).join("walla_nvcc")
}

/// Builds images that are not shipped with the crate, with any version of nvcc.
fn build_elsewhere(
    root: &Path,
    sources: &Sources,
    folder: &str,
    targets: &[Target<'_>],
) -> Result<(), String> {
    let compiler = Compiler::find(&environment(root), None)?;
    build(root, &compiler, sources, Path::new(folder), targets)
}

fn build(
    root: &Path,
    compiler: &Compiler,
    sources: &Sources,
    folder: &Path,
    targets: &[Target<'_>],
) -> Result<(), String> {
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
    let mut manifest = format!(
        "# Written by `cargo xtask kernels`; checked by `cargo xtask kernels --check`.\n\
         source_hash {:016x}\ncompiler {}\nptx {PTX_VERSION}\ninterface {}\n",
        sources.hash(),
        compiler.version,
        sources.interface()?,
    );
    let store = store(root)?;
    let images = compiler.images(sources, targets, &store)?;
    for (target, image) in targets.iter().zip(images) {
        let damaged = |why| format!("{}: {why}", target.name);
        if target.kind == Kind::Cubin && !compiler.look_through(&image, &store).map_err(damaged)? {
            eprintln!("xtask: {} is not looked through: no nvdisasm beside nvcc", target.name);
        }
        let packed = pack(&image).map_err(|error| damaged(error.to_string()))?;
        let mut hash = Fnv::default();
        hash.write(&image);
        manifest += &format!("{} {:016x} {} bytes\n", target.name, hash.get(), image.len());
        println!("{}: {} bytes, {} packed", target.name, image.len(), packed.len());
        let path = folder.join(format!("{}.bin", target.name));
        fs::write(&path, packed).map_err(|e| failed(&path, e))?;
    }
    let path = folder.join("manifest.txt");
    fs::write(&path, manifest).map_err(|e| failed(&path, e))
}

/// An image as its crate unpacks it. The window contains the whole image, because its kernels
/// resemble each other.
///
/// # Errors
/// The compressor's.
pub fn pack(image: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut options = LzipOptions::with_preset(6);
    options.lzma_options.dict_size = 16 << 20;
    let mut packed = LzipWriter::new(Vec::new(), options);
    packed.write_all(image)?;
    packed.finish()
}

fn check(root: &Path, sources: &Sources, folder: &Path) -> Result<(), String> {
    let stale = |why: String| format!("{why}: run `cargo xtask kernels` where nvcc is, and commit");
    let manifest = fs::read_to_string(folder.join("manifest.txt"))
        .map_err(|e| stale(format!("no manifest of kernel images ({e})")))?;
    let has = |wanted: String| manifest.lines().any(|line| line == wanted);
    if !has(format!("source_hash {:016x}", sources.hash())) {
        return Err(stale("the kernel images are older than kernels/".to_owned()));
    }
    let mut packed = Vec::new();
    for target in TARGETS {
        let path = folder.join(format!("{}.bin", target.name));
        let damaged = |why: String| stale(format!("{}: {why}", path.display()));
        let bytes = fs::read(&path).map_err(|e| damaged(e.to_string()))?;
        let mut image = Vec::new();
        LzipReader::new(&bytes[..])
            .read_to_end(&mut image)
            .map_err(|error| damaged(error.to_string()))?;
        let mut hash = Fnv::default();
        hash.write(&image);
        if !has(format!("{} {:016x} {} bytes", target.name, hash.get(), image.len())) {
            return Err(damaged("not what the manifest says".to_owned()));
        }
        packed.push(image);
    }
    let wanted = manifest.lines().find_map(|line| line.strip_prefix("compiler "));
    let wanted = wanted.ok_or_else(|| stale("the manifest names no compiler".to_owned()))?;
    let compiler = Compiler::find(&environment(root), Some(wanted));
    if let Ok(compiler) = &compiler {
        let store = store(root)?;
        for (target, image) in TARGETS.iter().zip(&packed) {
            let damaged = |why| format!("{}.bin: {why}", target.name);
            if compiler.look_through(image, &store).map_err(damaged)? {
                println!("{}: nothing writes to what products under way read", target.name);
            }
        }
        let again = compiler.images(sources, TARGETS, &store)?;
        for ((target, image), packed) in TARGETS.iter().zip(again).zip(packed) {
            if entries(&image) != entries(&packed) {
                let what = format!("compiling again gives other kernels than {}.bin", target.name);
                return Err(stale(what));
            }
        }
    }
    let by =
        compiler.map_or_else(|missing| format!("hash; {missing}"), |_| "hash and compiler".into());
    println!("kernel images are fresh ({by})");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_without_a_ptx_image_get_a_cubin() {
        let kind = |name| Target::named(name).map(|target| target.kind);
        assert_eq!(kind("sm_80"), Ok(Kind::Ptx));
        assert_eq!(kind("sm_90a"), Ok(Kind::Cubin));
        assert_eq!(kind("sm_89"), Ok(Kind::Cubin));
        assert_eq!(kind("sm_120a"), Ok(Kind::Cubin));
        for wrong in ["89", "sm_", "sm_9", "sm_a", "sm_8900", "sm_8x", "compute_89"] {
            assert!(kind(wrong).unwrap_err().contains(wrong));
        }
    }
}

//! `xtask kernels`: compiles `kernels/*.cu` to PTX and packs it into `crates/walla_cuda/images/`; `xtask kernels --check`
//! proves that what is packed is fresh.
//!
//! Freshness is a hash over every source file and the compiler's flags, kept in the manifest beside the images, so the check
//! needs no compiler. Where nvcc is found (in `NVCC`, on the path), the check compiles again too and compares the kernels by name: nvcc
//! numbers registers differently from run to run, so bytes say nothing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, thread};

/// Compute capabilities that images are built for: a device takes the highest that is not above its own.
const TARGETS: &[u32] = &[75, 80, 90];

/// No contraction of products and sums but where a kernel says `fmaf`: results must not depend on how a template was inlined.
const FLAGS: &[&str] = &["-std=c++17", "-ptx", "-fmad=false"];

/// The oldest version of the PTX language that has everything the compiled kernels use: drivers from CUDA 12.3 on take it. The compiler writes
/// its own version, which older drivers refuse; the assembler checks the text against the version it states.
const PTX_VERSION: &str = "8.3";

/// Runs `xtask kernels [--check]`.
///
/// # Errors
/// What failed, or what is stale and how to rebuild it.
pub fn run(args: &[String]) -> Result<(), String> {
    let root = root()?;
    let sources = Sources::read(&root.join("kernels"))?;
    match args {
        [] => build(&root, &sources),
        [flag] if flag == "--check" => check(&root, &sources),
        _ => Err(format!("usage: xtask kernels [--check], got {args:?}")),
    }
}

fn root() -> Result<PathBuf, String> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map(Path::to_path_buf).ok_or_else(|| "xtask has no parent folder".to_owned())
}

/// Every kernel source, in order of name.
struct Sources {
    folder: PathBuf,
    files: Vec<(String, Vec<u8>)>,
}

impl Sources {
    fn read(folder: &Path) -> Result<Self, String> {
        let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.map_err(|e| e.to_string())?.path();
            let is_source = path.extension().is_some_and(|e| e == "cu" || e == "cuh");
            if let (true, Some(name)) = (is_source, path.file_name().and_then(|n| n.to_str())) {
                let bytes = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
                files.push((name.to_owned(), bytes));
            }
        }
        files.sort();
        Ok(Self { folder: folder.to_path_buf(), files })
    }

    /// Names of what is compiled, without the ending.
    fn units(&self) -> Vec<&str> {
        self.files.iter().filter_map(|(name, _)| name.strip_suffix(".cu")).collect()
    }

    fn hash(&self) -> u64 {
        let mut hash = Fnv::default();
        for flag in FLAGS.iter().copied().chain([PTX_VERSION]) {
            hash.write(flag.as_bytes());
        }
        for target in TARGETS {
            hash.write(&target.to_le_bytes());
        }
        for (name, bytes) in &self.files {
            hash.write(name.as_bytes());
            hash.write(bytes);
        }
        hash.0
    }
}

/// FNV-1a over length-prefixed parts: finds staleness, not malice.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn write(&mut self, bytes: &[u8]) {
        let length = (bytes.len() as u64).to_le_bytes();
        for byte in length.iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

fn build(root: &Path, sources: &Sources) -> Result<(), String> {
    let compiler = Compiler::find().ok_or("nvcc not found: put it on PATH or name it in NVCC")?;
    let folder = root.join("crates/walla_cuda/images");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut manifest = format!(
        "# Written by `cargo xtask kernels`; checked by `cargo xtask kernels --check`.\n\
         source_hash {:016x}\ncompiler {}\nptx {PTX_VERSION}\n",
        sources.hash(),
        compiler.version
    );
    for target in TARGETS {
        let archive = compiler.archive(sources, *target)?;
        let packed = miniz_oxide::deflate::compress_to_vec_zlib(&archive, 9);
        let mut hash = Fnv::default();
        hash.write(&archive);
        manifest += &format!("sm_{target} {:016x} {} bytes\n", hash.0, archive.len());
        println!("sm_{target}: {} bytes of PTX, {} packed", archive.len(), packed.len());
        let path = folder.join(format!("sm_{target}.bin"));
        fs::write(&path, packed).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let path = folder.join("manifest.txt");
    fs::write(&path, manifest).map_err(|e| format!("{}: {e}", path.display()))
}

fn check(root: &Path, sources: &Sources) -> Result<(), String> {
    let stale = |why: String| format!("{why}: run `cargo xtask kernels` where nvcc is, and commit");
    let folder = root.join("crates/walla_cuda/images");
    let manifest = fs::read_to_string(folder.join("manifest.txt"))
        .map_err(|e| stale(format!("no manifest of kernel images ({e})")))?;
    let wanted = format!("source_hash {:016x}", sources.hash());
    if !manifest.lines().any(|line| line == wanted) {
        return Err(stale("the kernel images are older than kernels/".to_owned()));
    }
    let compiler = Compiler::find();
    for target in TARGETS {
        let path = folder.join(format!("sm_{target}.bin"));
        let packed = fs::read(&path).map_err(|e| stale(format!("{}: {e}", path.display())))?;
        let archive = miniz_oxide::inflate::decompress_to_vec_zlib(&packed)
            .map_err(|e| stale(format!("{}: {e}", path.display())))?;
        let mut hash = Fnv::default();
        hash.write(&archive);
        let line = format!("sm_{target} {:016x} {} bytes", hash.0, archive.len());
        if !manifest.lines().any(|l| l == line) {
            return Err(stale(format!("{} is not what the manifest says", path.display())));
        }
        let same_compiler = compiler
            .as_ref()
            .filter(|c| manifest.lines().any(|l| l == format!("compiler {}", c.version)));
        if let Some(compiler) = same_compiler
            && entries(&compiler.archive(sources, *target)?) != entries(&archive)
        {
            return Err(stale(format!(
                "compiling again gives other kernels than {}",
                path.display()
            )));
        }
    }
    println!(
        "kernel images are fresh ({})",
        if compiler.is_some() { "hash and compiler" } else { "hash; no nvcc here" }
    );
    Ok(())
}

/// Names of the kernels in an archive.
fn entries(archive: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(archive);
    let names = text.split(".entry ").skip(1);
    let mut names: Vec<_> =
        names.map(|rest| rest.split(['(', '\n']).next().unwrap_or_default().to_owned()).collect();
    names.sort();
    names
}

/// nvcc, where there is one.
struct Compiler {
    nvcc: PathBuf,
    version: String,
}

impl Compiler {
    fn find() -> Option<Self> {
        let nvcc = env::var_os("NVCC").map_or_else(|| PathBuf::from("nvcc"), PathBuf::from);
        let output = Command::new(&nvcc).arg("--version").output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        // "Cuda compilation tools, release 13.0, V13.0.88"
        let version = text.split_whitespace().find(|word| word.starts_with('V'))?.to_owned();
        Some(Self { nvcc, version })
    }

    /// All kernels for one target: for each, the length of its name and the name, the length of its text and the text with a
    /// zero at its end; lengths are 32 bits, little-endian.
    fn archive(&self, sources: &Sources, target: u32) -> Result<Vec<u8>, String> {
        let units = sources.units();
        let next = AtomicUsize::new(0);
        let compiled: Vec<_> = thread::scope(|scope| {
            let worker = || {
                let mut done = Vec::new();
                while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                    done.push((*unit, self.compile(&sources.folder, unit, target)));
                }
                done
            };
            let threads = thread::available_parallelism().map_or(1, |n| n.get().min(4));
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().flat_map(|w| w.join().unwrap_or_default()).collect()
        });
        let mut sorted = compiled;
        sorted.sort_by_key(|(unit, _)| *unit);
        let mut archive = Vec::new();
        for (unit, text) in sorted {
            let mut text = text?.into_bytes();
            text.push(0);
            for part in [unit.as_bytes(), &text] {
                let length = u32::try_from(part.len()).map_err(|e| e.to_string())?;
                archive.extend(length.to_le_bytes());
                archive.extend(part);
            }
        }
        Ok(archive)
    }

    fn compile(&self, folder: &Path, unit: &str, target: u32) -> Result<String, String> {
        let name = format!("walla-{}-{unit}-sm_{target}.ptx", std::process::id());
        let out = env::temp_dir().join(name);
        let output = Command::new(&self.nvcc)
            .current_dir(folder)
            .args(FLAGS)
            .arg(format!("-arch=compute_{target}"))
            .arg(format!("{unit}.cu"))
            .arg("-o")
            .arg(&out)
            .output()
            .map_err(|e| format!("{}: {e}", self.nvcc.display()))?;
        if !output.status.success() {
            return Err(format!("{unit}.cu: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let text = fs::read_to_string(&out).map_err(|e| format!("{}: {e}", out.display()))?;
        let lowered = lower(&text).ok_or_else(|| format!("{unit}.cu: no .version in its PTX"))?;
        fs::write(&out, &lowered).map_err(|e| format!("{}: {e}", out.display()))?;
        let assembled = self.assemble(&out, target);
        let _ = fs::remove_file(&out);
        assembled.map(|()| lowered)
    }

    /// Lets the assembler check the lowered text: it refuses what the stated version does not have.
    fn assemble(&self, ptx: &Path, target: u32) -> Result<(), String> {
        let ptxas = self.nvcc.with_file_name("ptxas");
        let output = Command::new(&ptxas)
            .arg(format!("-arch=sm_{target}"))
            .args(["-o", "/dev/null"])
            .arg(ptx)
            .output()
            .map_err(|e| format!("{}: {e}", ptxas.display()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{}: {}", ptx.display(), String::from_utf8_lossy(&output.stderr)))
    }
}

/// States [`PTX_VERSION`] and drops comments (they name the compiler's build).
fn lower(ptx: &str) -> Option<String> {
    let start = ptx.find(".version ")?;
    let (_, rest) = ptx.get(start..)?.split_once('\n')?;
    let mut text = format!(".version {PTX_VERSION}\n");
    for line in rest.lines().filter(|line| !line.trim_start().starts_with("//")) {
        text += line;
        text.push('\n');
    }
    Some(text)
}

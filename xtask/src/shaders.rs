//! `xtask shaders` compiles `kernels/vulkan/*.slang` to SPIR-V and packs it into
//! `crates/walla_vulkan/shaders/`. `xtask shaders --check` checks that it is up to date, by a hash
//! of all sources and options, without a compiler.
//!
//! A file whose first line is `// walla: variants NAME=VALUE,VALUE … NAME=VALUE …` is compiled once
//! for each combination; files that are only included have no such line. The name of a shader is
//! its file's with the definitions: `product KIND=KIND_Q4 DOT=1`.
//!
//! The compiler is Slang's, from the Python package index.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use lzma_rust2::LzipReader;

use crate::kernels::{Fnv, pack, root, target};
use crate::python::{self, Archive};

/// Slang 2026.14.1.
const COMPILER: &[Archive] = &[Archive {
    package: "slangtorch==1.3.22",
    sha256: "7755f2f53509ebbd65839dcd8a104e7105aeaf3e3600aea9385c2bec9beb2eaa",
}];

/// Structs are laid out as in C; products and sums are contracted only in an explicit `fma`. The
/// package has no optimiser: drivers optimise.
const FLAGS: &[&str] =
    &["-target", "spirv", "-O0", "-fvk-use-scalar-layout", "-fp-mode", "precise"];

/// Prefix of the line with a file's variants.
const MARKER: &str = "// walla: variants";

const USAGE: &str = "usage: xtask shaders [--check]";

/// Runs `xtask shaders`.
///
/// # Errors
/// The compiler's messages, or the stale file.
pub fn run(args: &[String]) -> Result<(), String> {
    let root = root()?;
    let sources = Sources::read(&root.join("kernels/vulkan"))?;
    let folder = root.join("crates/walla_vulkan/shaders");
    match args {
        [] => build(&root, &sources, &folder),
        [check] if check == "--check" => self::check(&sources, &folder),
        _ => Err(USAGE.to_owned()),
    }
}

struct Sources {
    folder: PathBuf,
    /// Names and texts, in order.
    files: Vec<(String, String)>,
}

/// A file with its definitions: its name is both.
struct Shader {
    file: String,
    defines: Vec<String>,
}

impl Shader {
    fn name(&self) -> String {
        let stem = self.file.trim_end_matches(".slang").to_owned();
        [vec![stem], self.defines.clone()].concat().join(" ")
    }
}

impl Sources {
    fn read(folder: &Path) -> Result<Self, String> {
        let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
        let mut files = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|its| its == "slang") {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                files.push((name, fs::read_to_string(&path).map_err(failed)?));
            }
        }
        files.sort();
        Ok(Self { folder: folder.to_path_buf(), files })
    }

    fn hash(&self) -> u64 {
        let mut hash = Fnv::default();
        for flag in FLAGS.iter().chain(COMPILER.iter().map(|its| &its.package)) {
            hash.write(flag.as_bytes());
        }
        for (name, text) in &self.files {
            hash.write(name.as_bytes());
            hash.write(text.as_bytes());
        }
        hash.get()
    }

    fn shaders(&self) -> Vec<Shader> {
        let mut shaders = Vec::new();
        for (file, text) in &self.files {
            let first = text.lines().next().unwrap_or_default();
            let Some(choices) = first.strip_prefix(MARKER) else { continue };
            let mut all = vec![Vec::new()];
            for choice in choices.split_whitespace() {
                let (name, values) = choice.split_once('=').unwrap_or((choice, ""));
                let defines: Vec<_> = values.split(',').map(|it| format!("{name}={it}")).collect();
                let with_each = |before: &Vec<String>| {
                    let with = |define: &String| {
                        [before.as_slice(), std::slice::from_ref(define)].concat()
                    };
                    defines.iter().map(with).collect::<Vec<_>>()
                };
                all = all.iter().flat_map(with_each).collect();
            }
            shaders.extend(all.into_iter().map(|defines| Shader { file: file.clone(), defines }));
        }
        shaders
    }
}

fn build(root: &Path, sources: &Sources, folder: &Path) -> Result<(), String> {
    let compiler = compiler(root)?;
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let shaders = sources.shaders();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let each = shaders.len().div_ceil(cores).max(1);
    let compiled: Vec<_> = std::thread::scope(|scope| {
        let parts = shaders.chunks(each).enumerate().map(|(number, part)| {
            let out = target(root).join(format!("walla_shader_{number}.spv"));
            let compiler = &compiler;
            scope.spawn(move || {
                let spirv = part.iter().map(|its| compile(compiler, sources, its, &out));
                spirv.collect::<Result<Vec<_>, _>>()
            })
        });
        let parts: Vec<_> = parts.collect();
        parts
            .into_iter()
            .map(|part| part.join().map_err(|_| "a thread panicked".to_owned())?)
            .collect()
    });
    let mut archive = Vec::new();
    let mut rest = shaders.iter();
    for part in compiled {
        for (spirv, shader) in part?.iter().zip(rest.by_ref()) {
            for part in [shader.name().as_bytes(), spirv] {
                archive.extend((part.len() as u32).to_le_bytes());
                archive.extend(part);
            }
        }
    }
    let packed = pack(&archive).map_err(|error| error.to_string())?;
    println!("{} shaders: {} bytes, {} packed", shaders.len(), archive.len(), packed.len());
    fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
    let path = folder.join("shaders.bin");
    fs::write(&path, &packed).map_err(|e| failed(&path, e))?;
    let path = folder.join("manifest.txt");
    fs::write(&path, manifest(sources, &archive)).map_err(|e| failed(&path, e))
}

/// The SPIR-V of a shader, written to `out` on the way.
fn compile(
    compiler: &Path,
    sources: &Sources,
    shader: &Shader,
    out: &Path,
) -> Result<Vec<u8>, String> {
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let mut command = Command::new(compiler);
    command.args(FLAGS).args(shader.defines.iter().map(|define| format!("-D{define}")));
    command.arg(sources.folder.join(&shader.file)).arg("-o").arg(out);
    let output = command.output().map_err(|e| failed(compiler, e))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {}", shader.name(), why.trim()));
    }
    let spirv = without_names(&fs::read(out).map_err(|e| failed(out, e))?);
    fs::write(out, &spirv).map_err(|e| failed(out, e))?;
    validate(out).map_err(|why| format!("{}: {why}", shader.name()))?;
    Ok(spirv)
}

/// Checks SPIR-V with `spirv-val` (Debian: `spirv-tools`), where that is installed: the compiler
/// can write invalid code, which some drivers accept.
fn validate(spirv: &Path) -> Result<(), String> {
    let mut command = Command::new("spirv-val");
    command.args(["--target-env", "vulkan1.2", "--scalar-block-layout"]).arg(spirv);
    let Ok(output) = command.output() else { return Ok(()) };
    let why = String::from_utf8_lossy(&output.stderr);
    // Versions before 2023 do not know matrix units.
    if output.status.success() || why.contains("Invalid capability operand: 6022") {
        return Ok(());
    }
    Err(why.trim().to_owned())
}

/// SPIR-V without the names of sources and variables: validators of older drivers do not know
/// Slang as a source.
fn without_names(spirv: &[u8]) -> Vec<u8> {
    const SOURCES: std::ops::RangeInclusive<u32> = 2..=8;
    const HEADER_BYTES: usize = 20;
    let (header, mut rest) = spirv.split_at(HEADER_BYTES.min(spirv.len()));
    let mut out = header.to_vec();
    while let Some(first) = rest.first_chunk::<4>() {
        let word = u32::from_le_bytes(*first);
        let bytes = (word >> 16) as usize * 4;
        let (instruction, next) = rest.split_at(bytes.clamp(4, rest.len()));
        if !SOURCES.contains(&(word & 0xffff)) {
            out.extend(instruction);
        }
        rest = next;
    }
    out
}

fn manifest(sources: &Sources, archive: &[u8]) -> String {
    let mut hash = Fnv::default();
    hash.write(archive);
    format!(
        "# Written by `cargo xtask shaders`; checked by `cargo xtask shaders --check`.\n\
         source_hash {:016x}\nshaders {:016x}\n",
        sources.hash(),
        hash.get(),
    )
}

fn check(sources: &Sources, folder: &Path) -> Result<(), String> {
    let stale = |why: String| format!("{why}: run `cargo xtask shaders`, and commit");
    let read = |name: &str| fs::read(folder.join(name)).map_err(|e| stale(format!("{name}: {e}")));
    let mut archive = Vec::new();
    let unpacked = LzipReader::new(&read("shaders.bin")?[..]).read_to_end(&mut archive);
    unpacked.map_err(|error| stale(error.to_string()))?;
    if read("manifest.txt")? != manifest(sources, &archive).as_bytes() {
        return Err(stale("the shaders are older than kernels/vulkan/".to_owned()));
    }
    println!("shaders are fresh");
    Ok(())
}

/// The compiler; fetches it if it is not there.
fn compiler(root: &Path) -> Result<PathBuf, String> {
    let folder = target(root).join("walla_slang");
    let compiler = folder.join("slangtorch/bin/slangc");
    if !compiler.is_file() {
        python::unpack(&folder, COMPILER)?;
        make_executable(&compiler).map_err(|e| format!("{}: {e}", compiler.display()))?;
    }
    Ok(compiler)
}

#[cfg(unix)]
fn make_executable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn make_executable(_: &Path) -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_shader_for_each_combination() {
        let text = "// walla: variants A=1,2 B=X,Y\n".to_owned();
        let files = vec![("c.slang".to_owned(), String::new()), ("p.slang".to_owned(), text)];
        let sources = Sources { folder: PathBuf::new(), files };
        let names: Vec<_> = sources.shaders().iter().map(Shader::name).collect();
        assert_eq!(names, ["p A=1 B=X", "p A=1 B=Y", "p A=2 B=X", "p A=2 B=Y"]);
    }
}

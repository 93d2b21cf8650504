//! nvcc and its output.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, thread};

use super::sources::Sources;
use super::{FLAGS, Kind, PTX_VERSION, Target, hazards};

/// An nvcc that was found.
#[derive(Debug)]
pub struct Compiler {
    nvcc: PathBuf,
    pub version: String,
}

impl Compiler {
    /// Looks for nvcc in `NVCC`, otherwise on the path, and then for the fetched one. Returns the
    /// first of version `wanted`, or the first one if `wanted` is `None`.
    ///
    /// # Errors
    /// The missing version, and the versions that were found.
    pub fn find(fetched: &Path, wanted: Option<&str>) -> Result<Self, String> {
        let named = env::var_os("NVCC").map_or_else(|| PathBuf::from("nvcc"), PathBuf::from);
        let places = std::iter::once(named).chain(super::fetch::find(fetched));
        Self::choose(places.filter_map(Self::at), wanted)
    }

    fn choose(found: impl Iterator<Item = Self>, wanted: Option<&str>) -> Result<Self, String> {
        let mut others = Vec::new();
        for compiler in found {
            if wanted.is_none_or(|wanted| wanted == compiler.version) {
                return Ok(compiler);
            }
            others.push(format!("{} is {}", compiler.nvcc.display(), compiler.version));
        }
        let wanted = wanted.map(|version| format!(" {version}")).unwrap_or_default();
        let others =
            if others.is_empty() { String::new() } else { format!(" ({})", others.join(", ")) };
        Err(format!(
            "nvcc{wanted} not found{others}: put it on PATH, name it in NVCC, or run `cargo xtask kernels --fetch`"
        ))
    }

    fn at(nvcc: PathBuf) -> Option<Self> {
        let output = Command::new(&nvcc).arg("--version").output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        // "Cuda compilation tools, release 13.0, V13.0.88"
        let version = text.split_whitespace().find(|word| word.starts_with('V'))?.to_owned();
        Some(Self { nvcc, version })
    }

    /// Builds an image for each target. An image is a list of records: length of the name, name,
    /// length of the content, content; lengths are 32 bits, little-endian. The first record,
    /// `manifest`, describes the image. The others are kernel files: PTX with a terminating zero,
    /// or machine code.
    pub fn images(
        &self,
        sources: &Sources,
        targets: &[Target<'_>],
        store: &Path,
    ) -> Result<Vec<Vec<u8>>, String> {
        let jobs: Vec<(&Target<'_>, &str)> = targets
            .iter()
            .flat_map(|target| sources.units(*target).into_iter().map(move |unit| (target, unit)))
            .collect();
        let next = AtomicUsize::new(0);
        let mut compiled: Vec<(usize, Result<Vec<u8>, String>)> = thread::scope(|scope| {
            let worker = || {
                let mut done = Vec::new();
                loop {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    let Some((target, unit)) = jobs.get(job) else { return done };
                    done.push((job, self.stored(sources, unit, **target, store)));
                }
            };
            let threads = thread::available_parallelism().map_or(1, |n| n.get().min(4));
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().flat_map(|w| w.join().unwrap_or_default()).collect()
        });
        compiled.sort_by_key(|(job, _)| *job);
        let mut images = Vec::new();
        let mut compiled = compiled.into_iter();
        for target in targets {
            let mut image = Vec::new();
            append(&mut image, "manifest", self.manifest(sources, *target)?.as_bytes())?;
            for unit in sources.units(*target) {
                let (_, code) = compiled.next().ok_or("a worker died")?;
                append(&mut image, unit, &code?)?;
            }
            images.push(image);
        }
        Ok(images)
    }

    /// The manifest record of an image.
    fn manifest(&self, sources: &Sources, target: Target<'_>) -> Result<String, String> {
        let kind = match target.kind {
            Kind::Ptx => "ptx",
            Kind::Cubin => "cubin",
        };
        Ok(format!(
            "target {}\nkind {kind}\ninterface {}\nsource_hash {:016x}\ncompiler {}\n",
            target.name,
            sources.interface()?,
            sources.hash(),
            self.version
        ))
    }

    /// Reads a unit from the cache, or compiles it into the cache.
    fn stored(
        &self,
        sources: &Sources,
        unit: &str,
        target: Target<'_>,
        store: &Path,
    ) -> Result<Vec<u8>, String> {
        let hash = sources.unit_hash(unit, target, &self.version);
        let path = store.join(format!("{unit}-{}-{hash:016x}", target.name));
        if let Ok(code) = fs::read(&path) {
            return Ok(code);
        }
        let out = store.join(format!("{unit}-{}-{}", target.name, std::process::id()));
        let file = sources.path_of(unit).ok_or_else(|| format!("{unit}.cu: no such file"))?;
        let code = match target.kind {
            Kind::Ptx => self.ptx(&sources.folder, file, target, &out),
            Kind::Cubin => self.cubin(&sources.folder, file, target, &out),
        };
        let _ = fs::remove_file(&out); // it may not exist
        let code = code?;
        // Renamed into place: concurrent runs see only complete files.
        fs::write(&out, &code).map_err(|e| format!("{}: {e}", out.display()))?;
        fs::rename(&out, &path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(code)
    }

    fn cubin(
        &self,
        folder: &Path,
        file: &str,
        target: Target<'_>,
        out: &Path,
    ) -> Result<Vec<u8>, String> {
        self.compile(folder, file, &["-cubin", &format!("-arch={}", target.name)], out)?;
        fs::read(out).map_err(|e| format!("{}: {e}", out.display()))
    }

    fn ptx(
        &self,
        folder: &Path,
        file: &str,
        target: Target<'_>,
        out: &Path,
    ) -> Result<Vec<u8>, String> {
        let arch = target.name.replace("sm_", "-arch=compute_");
        self.compile(folder, file, &["-ptx", &arch], out)?;
        let text = fs::read_to_string(out).map_err(|e| format!("{}: {e}", out.display()))?;
        let lowered = lower(&text).ok_or_else(|| format!("{file}: no .version in its PTX"))?;
        fs::write(out, &lowered).map_err(|e| format!("{}: {e}", out.display()))?;
        self.assemble(out, target)?;
        let mut code = lowered.into_bytes();
        code.push(0);
        Ok(code)
    }

    fn compile(&self, folder: &Path, file: &str, args: &[&str], out: &Path) -> Result<(), String> {
        let output = Command::new(&self.nvcc)
            .current_dir(folder)
            .args(FLAGS)
            .args(args)
            .arg(file)
            .arg("-o")
            .arg(out)
            .output()
            .map_err(|e| format!("{}: {e}", self.nvcc.display()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{file} {args:?}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Checks the machine code of an image for hazards. A recompiled image would have other
    /// registers, so the image itself is disassembled. Returns `false` if it has no machine code,
    /// or if nvdisasm is not next to nvcc.
    ///
    /// # Errors
    /// Writes to registers that a product in flight reads.
    pub fn look_through(&self, image: &[u8], store: &Path) -> Result<bool, String> {
        let nvdisasm = self.nvcc.with_file_name("nvdisasm");
        let mut any = false;
        let cubin = store.join(format!("looked-through-{}", std::process::id()));
        for (unit, code) in records(image)?.into_iter().filter(|(_, code)| code.starts_with(ELF)) {
            fs::write(&cubin, code).map_err(|e| format!("{}: {e}", cubin.display()))?;
            let output = Command::new(&nvdisasm).arg("-c").arg(&cubin).output();
            let _ = fs::remove_file(&cubin);
            let output = match output {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
                output => output.map_err(|e| format!("{}: {e}", nvdisasm.display()))?,
            };
            if !output.status.success() {
                return Err(format!("{unit}: {}", String::from_utf8_lossy(&output.stderr)));
            }
            let found = hazards::find(&String::from_utf8_lossy(&output.stdout))?;
            if !found.is_empty() {
                let found = found.join("\n");
                return Err(format!("{unit}: written to while products read it:\n{found}"));
            }
            any = true;
        }
        Ok(any)
    }

    /// Runs the assembler on the lowered text: it refuses features that the stated version lacks.
    fn assemble(&self, ptx: &Path, target: Target<'_>) -> Result<(), String> {
        let ptxas = self.nvcc.with_file_name("ptxas");
        let output = Command::new(&ptxas)
            .arg(format!("-arch={}", target.name))
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

fn append(image: &mut Vec<u8>, name: &str, content: &[u8]) -> Result<(), String> {
    for part in [name.as_bytes(), content] {
        let length = u32::try_from(part.len()).map_err(|e| e.to_string())?;
        image.extend(length.to_le_bytes());
        image.extend(part);
    }
    Ok(())
}

/// Magic number of machine code.
const ELF: &[u8] = b"\x7fELF";

/// The records of an image, as written by [`append`].
fn records(mut image: &[u8]) -> Result<Vec<(String, &[u8])>, String> {
    let mut part = || {
        let (length, rest) = image.split_first_chunk::<4>()?;
        let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        image = rest;
        Some(part)
    };
    let mut records = Vec::new();
    while let Some(name) = part() {
        let content = part().ok_or("a damaged image")?;
        records.push((String::from_utf8_lossy(name).into_owned(), content));
    }
    Ok(records)
}

/// Replaces the version by [`PTX_VERSION`] and drops comments (they contain the compiler's build).
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

/// Names of the kernels in an image: entries of PTX, sections of machine code.
pub fn entries(image: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(image);
    let named = |mark: &str, ends: &[char]| -> Vec<String> {
        let names = text.split(mark).skip(1);
        names.map(|rest| rest.split(ends).next().unwrap_or_default().to_owned()).collect()
    };
    let mut names = named(".entry ", &['(', '\n']);
    names.extend(named(".text.", &['\0']));
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appended_records_are_read_back() {
        let mut image = Vec::new();
        append(&mut image, "manifest", b"target sm_90a").unwrap();
        append(&mut image, "embed", ELF).unwrap();
        let records = records(&image).unwrap();
        assert_eq!(records, [("manifest".into(), &b"target sm_90a"[..]), ("embed".into(), ELF)]);
        assert!(super::records(&image[..image.len() - 1]).is_err());
    }

    #[test]
    fn the_first_compiler_of_the_required_version_is_used() {
        let found = || {
            [("nvcc", "V12.4.131"), ("fetched/nvcc", "V13.0.88")]
                .map(|(nvcc, version)| Compiler { nvcc: nvcc.into(), version: version.into() })
                .into_iter()
        };
        let version = |wanted| Compiler::choose(found(), wanted).map(|compiler| compiler.version);
        assert_eq!(version(None).as_deref(), Ok("V12.4.131"));
        assert_eq!(version(Some("V13.0.88")).as_deref(), Ok("V13.0.88"), "behind another one");
        let missing = version(Some("V13.1.0")).unwrap_err();
        for part in ["nvcc V13.1.0 not found", "nvcc is V12.4.131", "fetched/nvcc is V13.0.88"] {
            assert!(missing.contains(part), "{missing}");
        }
        assert!(Compiler::choose(std::iter::empty(), None).is_err());
    }
}

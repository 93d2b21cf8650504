//! The kernel sources and the properties derived from their text.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{FLAGS, PTX_VERSION, TARGETS, Target};

/// Prefix of the line that names a file's targets.
const MARKER: &str = "// walla: targets ";

/// Prefix of the line with the interface number of kernels and host. Increment it when a kernel's
/// name, grid or semantics change without a change of its structs.
const INTERFACE: &str = "// walla: interface ";

/// The header with the interface number.
const HEADER: &str = "common/walla.cuh";

/// Every kernel source, ordered by path relative to the folder: `gemm/pack.cu`.
pub struct Sources {
    pub folder: PathBuf,
    files: Vec<(String, String)>,
}

impl Sources {
    pub fn read(folder: &Path) -> Result<Self, String> {
        let mut files = Vec::new();
        let mut folders = vec![folder.to_path_buf()];
        while let Some(next) = folders.pop() {
            let failed = |e: std::io::Error| format!("{}: {e}", next.display());
            for entry in fs::read_dir(&next).map_err(failed)? {
                let path = entry.map_err(failed)?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|e| e == "cu" || e == "cuh") {
                    let text = fs::read_to_string(&path)
                        .map_err(|e| format!("{}: {e}", path.display()))?;
                    files.push((relative(&path, folder)?, text));
                }
            }
        }
        files.sort();
        let sources = Self { folder: folder.to_path_buf(), files };
        sources.check_names()?;
        Ok(sources)
    }

    /// Images name units by file name alone.
    fn check_names(&self) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        let paths = self.files.iter().map(|(path, _)| path).filter(|path| path.ends_with(".cu"));
        match paths.into_iter().find(|path| !seen.insert(unit_of(path))) {
            Some(path) => Err(format!("{path}: another folder has a file of this name")),
            None => Ok(()),
        }
    }

    /// Names of the files that are compiled for a target, without folder and extension.
    pub fn units(&self, target: Target<'_>) -> Vec<&str> {
        let units = self.files.iter().filter(|(_, text)| Self::is_for(text, target));
        let units = units.filter(|(path, _)| path.ends_with(".cu"));
        units.map(|(path, _)| unit_of(path)).collect()
    }

    /// Path of a unit, relative to the folder.
    pub fn path_of(&self, unit: &str) -> Option<&str> {
        let mut paths = self.files.iter().map(|(path, _)| path.as_str());
        paths.find(|path| path.ends_with(".cu") && unit_of(path) == unit)
    }

    /// Whether a file is compiled for a target. Its first line may limit the targets, as in
    /// `// walla: targets sm_90a`.
    pub fn is_for(text: &str, target: Target<'_>) -> bool {
        let marked = text.lines().next().and_then(|line| line.strip_prefix(MARKER));
        marked.is_none_or(|names| names.split_whitespace().any(|name| name == target.name))
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.files.iter().find(|(file, _)| file == name).map(|(_, text)| text.as_str())
    }

    /// Hash over all sources, targets and flags.
    pub fn hash(&self) -> u64 {
        let mut hash = Fnv::of_flags();
        for target in TARGETS {
            hash.write(target.name.as_bytes());
        }
        for (name, text) in &self.files {
            hash.write(name.as_bytes());
            hash.write(text.as_bytes());
        }
        hash.get()
    }

    /// Hash over one unit, its includes, and the compiler and flags.
    pub fn unit_hash(&self, unit: &str, target: Target<'_>, compiler: &str) -> u64 {
        let mut hash = Fnv::of_flags();
        hash.write(target.name.as_bytes());
        hash.write(format!("{:?}", target.kind).as_bytes());
        hash.write(compiler.as_bytes());
        for file in self.closure(self.path_of(unit).unwrap_or_default()) {
            hash.write(file.as_bytes());
            hash.write(self.text(file).unwrap_or_default().as_bytes());
        }
        hash.get()
    }

    /// A file and all project files that it includes, directly or indirectly.
    fn closure<'a>(&'a self, file: &str) -> BTreeSet<&'a str> {
        let mut found = BTreeSet::new();
        let mut open = vec![file.to_owned()];
        while let Some(name) = open.pop() {
            let Some((file, text)) = self.files.iter().find(|(file, _)| *file == name) else {
                continue;
            };
            if found.insert(file.as_str()) {
                let includes = text.lines().filter_map(|l| l.trim().strip_prefix("#include \""));
                open.extend(includes.filter_map(|l| Some(l.split_once('"')?.0.to_owned())));
            }
        }
        found
    }

    /// Interface version of host and kernels: the number in `walla.cuh` and a hash over every
    /// struct of the sources, without comments and spaces. An image with another interface is
    /// refused.
    ///
    /// # Errors
    /// If `common/walla.cuh` has no number.
    pub fn interface(&self) -> Result<String, String> {
        let text = self.text(HEADER).unwrap_or_default();
        let number = text.lines().find_map(|line| line.strip_prefix(INTERFACE));
        let number = number.and_then(|n| n.trim().parse::<u32>().ok());
        let number = number.ok_or_else(|| format!("{HEADER} has no line {INTERFACE}NUMBER"))?;
        let mut hash = Fnv::default();
        for (_, text) in &self.files {
            structs(text).iter().for_each(|body| hash.write(body.as_bytes()));
        }
        Ok(format!("{number}.{:016x}", hash.get()))
    }
}

fn relative(path: &Path, folder: &Path) -> Result<String, String> {
    let relative = path.strip_prefix(folder).unwrap_or(path);
    let parts: Option<Vec<_>> = relative.iter().map(|part| part.to_str()).collect();
    Ok(parts.ok_or_else(|| format!("{}: not UTF-8", path.display()))?.join("/"))
}

/// File name without folder and extension.
fn unit_of(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.strip_suffix(".cu").unwrap_or(name)
}

/// Bodies of structs, without comments and spaces.
fn structs(text: &str) -> Vec<String> {
    let bare: Vec<_> =
        text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let bare = bare.join(" ");
    let found = bare.split("struct ").skip(1);
    let bodies = found.filter_map(|rest| rest.split_once("};").map(|(body, _)| body));
    bodies.map(|body| body.split_whitespace().collect()).collect()
}

/// FNV-1a over length-prefixed parts: detects staleness, not tampering.
pub struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn of_flags() -> Self {
        let mut hash = Self::default();
        FLAGS.iter().copied().chain([PTX_VERSION]).for_each(|flag| hash.write(flag.as_bytes()));
        hash
    }

    pub fn write(&mut self, bytes: &[u8]) {
        let length = (bytes.len() as u64).to_le_bytes();
        for byte in length.iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    pub fn get(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Sources {
        let files = files.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect();
        Sources { folder: PathBuf::new(), files }
    }

    const PTX: Target<'_> = Target { name: "sm_90", kind: Kind::Ptx };
    const CUBIN: Target<'_> = Target { name: "sm_90a", kind: Kind::Cubin };

    #[test]
    fn a_file_names_its_only_targets_in_its_first_line() {
        let all = sources(&[("a.cu", ""), ("b.cu", "// walla: targets sm_90a\n"), ("c.cuh", "")]);
        assert_eq!(all.units(PTX), ["a"]);
        assert_eq!(all.units(CUBIN), ["a", "b"]);
    }

    #[test]
    fn two_units_of_one_name_are_refused() {
        assert!(sources(&[("a/x.cu", ""), ("b/x.cuh", ""), ("b/y.cu", "")]).check_names().is_ok());
        assert!(sources(&[("a/x.cu", ""), ("b/x.cu", "")]).check_names().is_err());
    }

    #[test]
    fn a_unit_is_stale_when_something_that_it_includes_changes() {
        let with = |inner: &str, other: &str| {
            let files = sources(&[
                ("family/a.cu", "#include \"outer.cuh\"\n"),
                ("common/inner.cuh", inner),
                ("other.cuh", other),
                ("outer.cuh", "#include \"common/inner.cuh\"\n"),
            ]);
            files.unit_hash("a", PTX, "V1")
        };
        assert_eq!(with("1", "2"), with("1", "3"));
        assert_ne!(with("1", "2"), with("2", "2"));
    }

    #[test]
    fn the_interface_changes_with_structs_and_not_with_comments() {
        let of = |body: &str| {
            let text = format!("// walla: interface 3\nstruct A {{{body}}};\nint f();\n");
            sources(&[(HEADER, &text)]).interface().unwrap()
        };
        assert!(of("int a;").starts_with("3."));
        assert_eq!(of("int a; // one\n"), of("\n  int a;"));
        assert_ne!(of("int a;"), of("long a;"));
        assert!(sources(&[(HEADER, "")]).interface().is_err());
    }
}

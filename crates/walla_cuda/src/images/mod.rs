//! Kernel images: `kernels/` compiled ahead of time by `xtask kernels`. An image holds every kernel file for one target: PTX, which
//! the driver compiles for this chip and keeps, or machine code for one chip, which it only copies.
//!
//! Images ship packed inside the crate. Others may be named by `WALLA_CUDA_IMAGES` (files and folders, as in a search path) or lie in a folder
//! `walla_images` beside the program; those that state another interface than this crate's are refused, the rest compete by
//! [score](Target::score).

mod archive;
mod target;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use self::archive::{Archive, Code};
pub(crate) use self::target::{Kind, Target};

/// The folder beside the program that is searched.
const FOLDER: &str = "walla_images";

/// Largest file that is read as an image.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Most files of a folder that are looked at.
const FILES_MAX: usize = 64;

/// What the images of the crate say of themselves.
const MANIFEST: &str = include_str!("../../images/manifest.txt");

macro_rules! packed {
    ($($name:literal $kind:ident;)*) => {
        [$(($name, Kind::$kind, include_bytes!(concat!("../../images/", $name, ".bin")))),*]
    };
}

/// The images of the crate.
const PACKED: [(&str, Kind, &[u8]); 4] = packed! {
    "sm_90a" Machine;
    "sm_90" Ptx;
    "sm_80" Ptx;
    "sm_75" Ptx;
};

/// An image that can be used here, still packed.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) target: Target,
    /// `None`: of the crate.
    file: Option<PathBuf>,
    packed: Cow<'static, [u8]>,
}

impl Image {
    /// Unpacks it.
    ///
    /// # Errors
    /// In words, what is wrong with it.
    pub(crate) fn unpack(&self) -> Result<Archive, String> {
        Archive::unpack(&self.packed).map_err(|why| format!("{self}: {why}"))
    }
}

impl std::fmt::Display for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.target)?;
        self.file.as_ref().map_or(Ok(()), |file| write!(f, " from {}", file.display()))
    }
}

/// The images of the crate and those that were found, and what was found but cannot be used.
#[derive(Clone, Debug)]
pub(crate) struct Images {
    all: Arc<Vec<Image>>,
    /// A line for each, with the reason.
    pub(crate) refused: Arc<Vec<String>>,
}

impl Default for Images {
    /// The images of the crate.
    fn default() -> Self {
        let image = |(name, kind, bytes): &(&str, Kind, &'static [u8])| {
            let target = Target::parse(name, *kind)?;
            Some(Image { target, file: None, packed: Cow::Borrowed(bytes) })
        };
        let all = PACKED.iter().filter_map(image).collect();
        Self { all: Arc::new(all), refused: Arc::default() }
    }
}

impl Images {
    /// The images of the crate, those of the named files and folders, and those beside the program.
    pub(crate) fn find(named: &[PathBuf]) -> Self {
        let own = Self::default();
        let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(FOLDER)));
        let beside = beside.filter(|folder| folder.is_dir());
        // Found ones first: of two that are equally good, the one that somebody put there.
        let mut all = Vec::new();
        let mut refused = Vec::new();
        for place in named.iter().chain(beside.as_ref()) {
            for file in files(place) {
                match file.and_then(|file| read(&file)) {
                    Ok(image) => all.push(image),
                    Err(reason) => refused.push(reason),
                }
            }
        }
        all.extend(own.all.iter().cloned());
        Self { all: Arc::new(all), refused: Arc::new(refused) }
    }

    /// Those that run on a chip, best first.
    pub(crate) fn ranked(&self, capability: (u32, u32)) -> Vec<&Image> {
        let scored = self.all.iter().filter_map(|i| Some((i.target.score(capability)?, i)));
        let mut scored: Vec<_> = scored.collect();
        scored.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
        scored.into_iter().map(|(_, image)| image).collect()
    }
}

/// The files that a place names, in order: itself, or those of a folder that end in `.bin`.
fn files(place: &Path) -> Vec<Result<PathBuf, String>> {
    if !place.is_dir() {
        return vec![Ok(place.to_path_buf())];
    }
    match std::fs::read_dir(place) {
        Err(error) => vec![Err(format!("{}: {error}", place.display()))],
        Ok(entries) => {
            let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
            let images = paths.filter(|path| path.extension().is_some_and(|e| e == "bin"));
            let mut images: Vec<_> = images.take(FILES_MAX).collect();
            images.sort();
            images.into_iter().map(Ok).collect()
        }
    }
}

/// Reads an image from a file, if it fits this crate.
fn read(file: &Path) -> Result<Image, String> {
    let refused = |why: &dyn std::fmt::Display| format!("{}: {why}", file.display());
    let bytes = std::fs::metadata(file).map_err(|error| refused(&error))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(refused(&format!("{bytes} bytes are no kernel image")));
    }
    let packed = std::fs::read(file).map_err(|error| refused(&error))?;
    let archive = Archive::unpack(&packed).map_err(|why| refused(&why))?;
    let wanted = interface();
    if archive.interface != wanted {
        let why = format!("of interface {}, this program has {wanted}", archive.interface);
        return Err(refused(&why));
    }
    Ok(Image { target: archive.target, file: Some(file.to_path_buf()), packed: Cow::Owned(packed) })
}

/// What the manifest says where images are of the interface (`kernels/walla.cuh`) that this side was written for.
const INTERFACE: &str = "\ninterface 9.";

// Images of another would run, and make nonsense.
const _: () = assert!(
    contains(MANIFEST, INTERFACE),
    "the kernel images are of another interface than this crate: run `cargo xtask kernels`"
);

const fn contains(text: &str, part: &str) -> bool {
    let (text, part) = (text.as_bytes(), part.as_bytes());
    let mut at = 0;
    while at + part.len() <= text.len() {
        let mut same = 0;
        while same < part.len() && text[at + same] == part[same] {
            same += 1;
        }
        if same == part.len() {
            return true;
        }
        at += 1;
    }
    false
}

/// The interface of this crate's images, with a hash of every struct.
fn interface() -> &'static str {
    MANIFEST.lines().find_map(|line| line.strip_prefix("interface ")).unwrap_or_default()
}

#[cfg(test)]
mod tests;

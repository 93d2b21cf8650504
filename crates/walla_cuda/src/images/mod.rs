//! Kernel images: `kernels/` compiled ahead of time by `xtask kernels`. An image holds every kernel
//! file for one target. It is either PTX, which the driver compiles for the GPU and caches, or
//! machine code for one GPU, which the driver only copies.
//!
//! Packed images ship inside the crate. More can be named in `WALLA_CUDA_IMAGES` (files and
//! folders, as in a search path) or placed in a folder `walla_images` next to the executable.
//! Images with another interface than this crate's are refused; the others are ranked by
//! [score](Target::score).

mod archive;
mod target;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use walla_device::GpuFacts;

pub(crate) use self::archive::{Archive, Code};
pub(crate) use self::target::{Kind, Target};

/// The searched folder next to the executable.
const FOLDER: &str = "walla_images";

/// Largest image file.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Maximum number of files read from a folder.
const MAX_FILES: usize = 64;

/// The first version of CUDA (1,000 times the major number plus 10 times the minor) whose driver
/// compiles the crate's PTX, and the drivers that include it. Source: the PTX manual, "Release
/// Notes".
const TEXT_CUDA_MIN: (u32, &str) = (12_030, "CUDA 12.3, driver 545");

/// Manifest of the crate's images.
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

/// A usable image, still packed.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) target: Target,
    /// `None`: an image of the crate.
    file: Option<PathBuf>,
    packed: Cow<'static, [u8]>,
}

impl Image {
    /// Unpacks it.
    ///
    /// # Errors
    /// A description of the damage.
    pub(crate) fn unpack(&self) -> Result<Archive, String> {
        Archive::unpack(&self.packed).map_err(|why| format!("{self}: {why}"))
    }

    /// Whether it is PTX of the crate that a driver of this CUDA version cannot compile. Images
    /// from files are checked by the driver.
    fn is_beyond(&self, driver_version: u32) -> bool {
        let (first, _) = TEXT_CUDA_MIN;
        self.file.is_none() && self.target.kind == Kind::Ptx && driver_version < first
    }
}

impl std::fmt::Display for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.target)?;
        self.file.as_ref().map_or(Ok(()), |file| write!(f, " from {}", file.display()))
    }
}

/// The images of the crate and from files, and the refused files.
#[derive(Clone, Debug)]
pub(crate) struct Images {
    all: Arc<Vec<Image>>,
    /// One line per refused file, with the reason.
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
    /// The images of the crate, of the named files and folders, and of the folder next to the
    /// executable.
    pub(crate) fn find(named: &[PathBuf]) -> Self {
        let own = Self::default();
        let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(FOLDER)));
        let beside = beside.filter(|folder| folder.is_dir());
        // Images from files are listed before the crate's: of two with equal scores, the user's is
        // preferred.
        let mut all = Vec::new();
        let mut refused = Vec::new();
        // An empty name comes from an empty variable or a trailing separator.
        let named = named.iter().filter(|place| !place.as_os_str().is_empty());
        for place in named.chain(beside.as_ref()) {
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

    /// The images that run on a GPU with its driver, best first.
    pub(crate) fn ranked(&self, gpu: &GpuFacts) -> Vec<&Image> {
        let capability = gpu.compute_capability;
        let usable = self.all.iter().filter(|image| !image.is_beyond(gpu.driver_version));
        let scored = usable.filter_map(|image| Some((image.target.score(capability)?, image)));
        let mut scored: Vec<_> = scored.collect();
        scored.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
        scored.into_iter().map(|(_, image)| image).collect()
    }

    /// The images that would run on a GPU with a newer driver: one line each, with the reason.
    pub(crate) fn beyond<'a>(&'a self, gpu: &'a GpuFacts) -> impl Iterator<Item = String> + 'a {
        let (version, (_, needed)) = (gpu.driver_version, TEXT_CUDA_MIN);
        let beyond = self.all.iter().filter(move |image| image.is_beyond(version));
        let runs = beyond.filter(|image| image.target.score(gpu.compute_capability).is_some());
        runs.map(move |image| format!("{image}: needs {needed}; this driver has {}", cuda(version)))
    }

    /// Why no image runs on a GPU: the requirement that it does not meet.
    pub(crate) fn shortcoming(&self, gpu: &GpuFacts) -> String {
        if self.beyond(gpu).next().is_some() {
            let (_, needed) = TEXT_CUDA_MIN;
            return format!("a driver of {} ({needed} or later needed)", cuda(gpu.driver_version));
        }
        let (major, minor) = gpu.compute_capability;
        format!("compute capability {major}.{minor} (7.5 or later needed)")
    }
}

/// A driver version in words.
fn cuda(version: u32) -> String {
    format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
}

/// The files that a place names, in order: itself, or the `.bin` files of a folder, truncated to
/// [`MAX_FILES`].
fn files(place: &Path) -> Vec<Result<PathBuf, String>> {
    if !place.is_dir() {
        return vec![Ok(place.to_path_buf())];
    }
    match std::fs::read_dir(place) {
        Err(error) => vec![Err(format!("{}: {error}", place.display()))],
        Ok(entries) => {
            let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
            let images = paths.filter(|path| path.extension().is_some_and(|e| e == "bin"));
            let mut images: Vec<_> = images.collect();
            images.sort();
            let more = images.len().saturating_sub(MAX_FILES);
            images.truncate(MAX_FILES);
            let more = (more > 0).then(|| {
                Err(format!("{}: {more} files beyond {MAX_FILES} are not read", place.display()))
            });
            images.into_iter().map(Ok).chain(more).collect()
        }
    }
}

/// Reads an image from a file, if its interface is this crate's.
fn read(file: &Path) -> Result<Image, String> {
    let refused = |why: &dyn std::fmt::Display| format!("{}: {why}", file.display());
    let bytes = std::fs::metadata(file).map_err(|error| refused(&error))?.len();
    if bytes > MAX_FILE_BYTES {
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

/// The manifest line of the interface (`kernels/common/walla.cuh`) that this side was written for.
const INTERFACE: &str = "\ninterface 16.";

// The PTX version that `TEXT_CUDA_MIN` belongs to.
const _: () = assert!(contains(MANIFEST, "\nptx 8.3\n"), "the texts are in another PTX");

// Images with another interface would run and compute wrong results.
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

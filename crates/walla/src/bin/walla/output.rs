//! Output files. A file is written under a temporary name in its folder and renamed when it is
//! complete, so that a failure leaves the previous file as it was.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::load;

/// Attempts to find an unused temporary name.
const NAMES_MAX: u32 = 64;

/// A checked path of an output file. Nothing has been written yet.
#[derive(Debug)]
pub struct Target {
    /// As the user wrote it, for errors.
    named: PathBuf,
    place: Place,
}

/// How a target is written.
#[derive(Debug)]
enum Place {
    /// At this path, with no link in its last component, by renaming a temporary file.
    File { path: PathBuf, previous: Option<Metadata> },
    /// A device, FIFO or socket, which has no content to lose.
    InPlace,
}

impl Target {
    /// Checks that a file can be written at `path` and that it is none of `inputs`, also through
    /// links. The target is not changed.
    pub fn new(path: &Path, inputs: &[&Path]) -> Result<Self, Failure> {
        let place = Self::place(path).map_err(|error| load::named(path, &error))?;
        if let Place::File { previous: Some(found), .. } = &place {
            for input in inputs {
                if is_same(path, found, input) {
                    return Err(format!(
                        "{}: the output would overwrite an input, {}",
                        path.display(),
                        input.display()
                    )
                    .into());
                }
            }
        }
        let target = Self { named: path.to_owned(), place };
        if let Place::File { .. } = target.place {
            // Shows before a long computation that the folder accepts files.
            drop(target.create()?);
        }
        Ok(target)
    }

    fn place(path: &Path) -> io::Result<Place> {
        let previous = match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) if !found.is_file() => return Ok(Place::InPlace),
            // A file that is write-protected is not replaced either.
            Ok(_) => Some(OpenOptions::new().write(true).open(path)?.metadata()?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let path = without_link(path)?;
        let is_folder = path.to_string_lossy().ends_with(std::path::is_separator);
        if is_folder || path.file_name().is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file"));
        }
        Ok(Place::File { path, previous })
    }

    /// Opens the file. Its content replaces the target in [`Output::finish`].
    pub fn create(&self) -> Result<Output, Failure> {
        let failed = |error: io::Error| self.failed(&error);
        let (file, part) = match &self.place {
            Place::InPlace => {
                (OpenOptions::new().write(true).open(&self.named).map_err(failed)?, None)
            }
            Place::File { path, previous } => {
                let (file, part) = create_beside(path).map_err(failed)?;
                let part = Part { from: part, to: path.clone(), is_complete: false };
                if let Some(previous) = previous {
                    file.set_permissions(previous.permissions()).map_err(failed)?;
                }
                (file, Some(part))
            }
        };
        Ok(Output { file, part })
    }

    /// An error with the target's name.
    pub fn failed(&self, error: &dyn std::error::Error) -> Failure {
        load::named(&self.named, error)
    }
}

/// An output file that is being written.
#[derive(Debug)]
pub struct Output {
    pub file: File,
    part: Option<Part>,
}

impl Output {
    /// Puts the complete file at its place.
    pub fn finish(self) -> io::Result<()> {
        let Self { file, part } = self;
        drop(file); // Windows renames no open file
        let Some(mut part) = part else { return Ok(()) };
        fs::rename(&part.from, &part.to)?;
        part.is_complete = true;
        Ok(())
    }
}

/// A temporary file. It is removed on drop unless it is complete. Declared after the open file in
/// [`Output`], so that the file is closed first.
#[derive(Debug)]
struct Part {
    from: PathBuf,
    to: PathBuf,
    is_complete: bool,
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_complete {
            let _removed = fs::remove_file(&self.from);
        }
    }
}

/// A new file in the folder of `path`.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let mut result = Err(io::ErrorKind::AlreadyExists.into());
    for number in 0..NAMES_MAX {
        // Independent of the target's name, which may have the maximum length already.
        let part = path.with_file_name(format!("walla-{}-{number}.part", std::process::id()));
        result = OpenOptions::new().write(true).create_new(true).open(&part).map(|f| (f, part));
        match &result {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            _ => break,
        }
    }
    result
}

/// The path that a chain of links leads to, whether or not a file exists there. The links remain
/// when the file is replaced.
fn without_link(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        // Opening the path has failed with another error if the links form a circle.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if !path.is_symlink() {
                return Ok(path.to_owned());
            }
            let folder = path.parent().unwrap_or(Path::new(""));
            without_link(&folder.join(path.read_link()?))
        }
        result => result,
    }
}

#[cfg(unix)]
fn is_same(_path: &Path, found: &Metadata, input: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(input).is_ok_and(|input| (input.dev(), input.ino()) == (found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn is_same(path: &Path, _found: &Metadata, input: &Path) -> bool {
    match (path.canonicalize(), input.canonicalize()) {
        (Ok(path), Ok(input)) => path == input,
        _ => false,
    }
}

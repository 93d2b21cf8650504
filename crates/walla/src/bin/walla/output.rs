//! Output files. A file is written under a temporary name in its folder and renamed when it is
//! complete, so that a failure leaves the previous file as it was.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempPath};

use crate::Failure;
use crate::load;

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
            // Devices of Windows, such as NUL, have no metadata: ERROR_INVALID_FUNCTION, and under
            // wine ERROR_INVALID_PARAMETER.
            Err(error) if cfg!(windows) && matches!(error.raw_os_error(), Some(1 | 87)) => {
                OpenOptions::new().write(true).open(path)?;
                return Ok(Place::InPlace);
            }
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
                let (file, part) = create_beside(path).map_err(failed)?.into_parts();
                if let Some(previous) = previous {
                    file.set_permissions(previous.permissions()).map_err(failed)?;
                }
                (file, Some((part, path.clone())))
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
    /// The temporary file, which is removed on drop, and the path that it gets. Declared after the
    /// open file, so that the file is closed first.
    part: Option<(TempPath, PathBuf)>,
}

impl Output {
    /// Puts the complete file at its place.
    pub fn finish(self) -> io::Result<()> {
        let Self { file, part } = self;
        drop(file); // Windows renames no open file
        part.map_or(Ok(()), |(part, path)| Ok(part.persist(path)?))
    }
}

/// A temporary file in the folder of `path`, with the permissions of a new file.
fn create_beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut builder = tempfile::Builder::new();
    // Independent of the target's name, which may have the maximum length already.
    builder.prefix("walla-").suffix(".part");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let made = builder.tempfile_in(folder.unwrap_or(Path::new(".")));
    // The error of the library has the name of the temporary file.
    made.map_err(|error| error.raw_os_error().map_or(error, io::Error::from_raw_os_error))
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

#[cfg(windows)]
fn is_same(path: &Path, _found: &Metadata, input: &Path) -> bool {
    same_file::is_same_file(path, input).unwrap_or(false)
}

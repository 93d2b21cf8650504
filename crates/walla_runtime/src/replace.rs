//! Replaces a file as a whole.
//!
//! After a crash or a power failure there is the old or the new file, and each is complete: the new
//! one is stored before it is renamed. When the function returns, the new one has replaced the old
//! one for good, as far as system and disk keep their promises (on other systems than Unix, the
//! name may still be that of the old one). Storing waits for the disk, for milliseconds on a fast
//! one: only threads of the engine replace files, never a frame.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of the next new file: two engines of a program may write to the same path.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Maximum number of files of earlier processes with this process id that are skipped.
const MAX_SKIPPED: u32 = 1_000;

/// Writes a file next to `path`, stores and renames it: a crash or a power failure leaves the old
/// or the new file. A link stays a link to the new file. After an error there is only the old file.
///
/// # Errors
/// The errors of `write`, and errors of the system, converted by `io`.
pub fn replace<T, E>(
    path: &Path,
    write: impl FnOnce(&mut File) -> Result<T, E>,
    io: impl Fn(io::Error) -> E,
) -> Result<T, E> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (mut file, beside) = create_beside(&path).map_err(&io)?;
    let written = write(&mut file).and_then(|written| {
        // Otherwise the name may be stored before the contents.
        file.sync_all().map_err(&io)?;
        Ok(written)
    });
    drop(file);
    let written = written.and_then(|written| {
        put(&beside, &path).map_err(&io)?;
        Ok(written)
    });
    if written.is_err() {
        // A full disk leaves a part of the new file.
        let _removed = fs::remove_file(&beside);
    }
    written
}

/// Renames a stored file in the place of another one.
///
/// # Errors
/// Errors of the system.
pub fn put(from: &Path, to: &Path) -> io::Result<()> {
    rename(from, to)?;
    sync_folder(to);
    Ok(())
}

#[cfg(not(windows))]
use fs::rename;

/// Renames over an existing file. Windows refuses this while another program, such as a scanner of
/// viruses, or another thread has one of the files open, which takes moments.
#[cfg(windows)]
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    use std::time::{Duration, Instant};

    /// Time after which a refusal is an error.
    const PATIENCE: Duration = Duration::from_secs(1);
    const ACCESS_DENIED: i32 = 5;
    const SHARING_VIOLATION: i32 = 32;
    let begin = Instant::now();
    loop {
        match fs::rename(from, to) {
            Err(error)
                if matches!(error.raw_os_error(), Some(ACCESS_DENIED | SHARING_VIOLATION))
                    && begin.elapsed() < PATIENCE =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

/// Stores the name of a file. Some file systems cannot store a folder and refuse it; the file is
/// complete all the same.
#[cfg(unix)]
fn sync_folder(path: &Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let stored = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
    if let Err(error) = stored {
        tracing::debug!(target: "walla::device", file = %path.display(), %error, "the name of a file may not be stored yet");
    }
}

#[cfg(not(unix))]
fn sync_folder(_path: &Path) {}

/// A new file in the folder of `path`, with a name that no other writer has.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let process = std::process::id();
    for _ in 0..MAX_SKIPPED {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Independent of the file's name, which may have the maximum length.
        let beside = path.with_file_name(format!(".walla-{process}-{number}.new"));
        // Not an existing file, and not through a link.
        match File::options().write(true).create_new(true).open(&beside) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created.map(|file| (file, beside)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn write(path: &Path, text: &str) -> io::Result<()> {
        replace(path, |file| file.write_all(text.as_bytes()), |error| error)
    }

    #[test]
    fn a_failure_keeps_the_file_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write(&path, "one").unwrap();
        let failed = replace(
            &path,
            |file| file.write_all(b"part").and(Err::<(), _>(io::ErrorKind::StorageFull.into())),
            |error| error,
        );
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write(&folder.path().join("none/file"), "x").is_err());
    }

    #[test]
    fn readers_and_other_writers_find_whole_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let texts = ["one", "two"].map(|text| text.repeat(10_000));
        write(&path, &texts[0]).unwrap();
        std::thread::scope(|scope| {
            let writers = texts.each_ref().map(|text| {
                let path = &path;
                scope.spawn(move || (0..50).for_each(|_| write(path, text).unwrap()))
            });
            while writers.iter().any(|writer| !writer.is_finished()) {
                // Windows may refuse to open a file that is being replaced, and to replace one that
                // is always open.
                if cfg!(windows) {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                match fs::read_to_string(&path) {
                    Ok(found) => assert!(texts.contains(&found)),
                    Err(_) if cfg!(windows) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[cfg(windows)]
    #[test]
    fn a_file_that_stays_open_alone_is_an_error() {
        use std::os::windows::fs::OpenOptionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write(&path, "one").unwrap();
        let open = File::options().read(true).share_mode(0).open(&path).unwrap();
        assert!(write(&path, "two").is_err());
        drop(open);
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let [path, link] = ["file", "link"].map(|name| folder.path().join(name));
        write(&path, "one").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        write(&link, "two").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
    }
}

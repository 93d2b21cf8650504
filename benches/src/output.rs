//! Output files of the measurements.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Checks before a measurement that a file can be written at `path` and that it is none of
/// `inputs`, also through links. Changes nothing.
///
/// # Errors
/// The path cannot be written, or it is an input.
pub fn check(path: &Path, inputs: &[impl AsRef<Path>]) -> io::Result<()> {
    let of_path = |error: io::Error| named(path, &error);
    if path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return Ok(()); // a device or FIFO, which is written in place
    }
    match File::options().append(true).open(path) {
        Ok(_) => {
            let found = path.canonicalize().map_err(of_path)?;
            for input in inputs {
                if is_same(&found, input.as_ref()) {
                    let text = format!("it is the input {}", input.as_ref().display());
                    return Err(named(path, &io::Error::new(io::ErrorKind::InvalidInput, text)));
                }
            }
            Ok(())
        }
        // A new file: its folder must exist.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            folder.unwrap_or(Path::new(".")).metadata().map(drop).map_err(of_path)
        }
        Err(error) => Err(of_path(error)),
    }
}

/// Replaces a file as a whole: the new content is written next to it and renamed. An error leaves
/// the previous file. A device is written in place.
///
/// # Errors
/// The file cannot be written. The message begins with the path.
pub fn replace(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    replace_with(path, |file| file.write_all(content.as_ref()))
}

/// As [`replace`], with the content that `fill` writes.
///
/// # Errors
/// As [`replace`], and the error of `fill`.
pub fn replace_with(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    write(path, fill).map_err(|error| named(path, &error))
}

fn write(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        return fill(&mut File::options().write(true).open(path)?);
    }
    // Links stay links.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut builder = tempfile::Builder::new();
    builder.prefix("walla-").suffix(".part");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut part = builder.tempfile_in(folder.unwrap_or(Path::new(".")))?;
    fill(part.as_file_mut())?;
    if let Ok(previous) = path.metadata() {
        part.as_file().set_permissions(previous.permissions())?;
    }
    part.persist(path)?;
    Ok(())
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(unix)]
fn is_same(path: &Path, input: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let of = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    of(path).is_some_and(|found| of(input) == Some(found))
}

#[cfg(not(unix))]
fn is_same(path: &Path, input: &Path) -> bool {
    input.canonicalize().is_ok_and(|input| input == path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_input_is_refused_and_a_failure_keeps_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let [input, link, out] = ["input", "link", "out"].map(|name| folder.path().join(name));
        fs::write(&input, "model").unwrap();
        fs::hard_link(&input, &link).unwrap();
        let refused = check(&link, &[&out, &input]).unwrap_err().to_string();
        assert!(refused.contains("link") && refused.contains("input"), "{refused}");
        check(&out, &[&input]).unwrap();
        assert!(!out.exists(), "a check changes nothing");
        assert!(check(&folder.path().join("none/out"), &[&input]).is_err());
        assert!(check(folder.path(), &[&input]).is_err());

        replace(&out, "one").unwrap();
        replace(&out, "two").unwrap();
        assert_eq!(fs::read_to_string(&out).unwrap(), "two");
        assert!(replace(&folder.path().join("none/out"), "three").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[cfg(unix)]
    #[test]
    fn links_and_permissions_are_preserved() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};

        let folder = tempfile::tempdir().unwrap();
        let [file, link, new, other] =
            ["file", "link", "new", "other"].map(|name| folder.path().join(name));
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        replace(&link, "new").unwrap();
        assert!(link.is_symlink());
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), mode(&file)), ("new", 0o640));
        replace(&new, "").unwrap();
        fs::write(&other, "").unwrap();
        assert_eq!(mode(&new), mode(&other), "as any new file");
        replace(Path::new("/dev/null"), "nothing").unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }
}

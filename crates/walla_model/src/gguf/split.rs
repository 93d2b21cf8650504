//! Split models: a model in several GGUF files, as llama.cpp's `gguf-split` writes them.
//!
//! The parts are named `NAME-00001-of-00003.gguf` and so on. The first part has all metadata. Each
//! part has some of the tensors, with its own table and data; the first may have none. Every part
//! has the keys `split.no` (from 0), `split.count` and `split.tensors.count` (of all parts).

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use super::{Gguf, GgufError, MetadataError, cursor::MAX_HEADER_BYTES, parse::MAX_TENSORS};

/// Maximum number of parts. Each part is an open file, and systems often limit a process to 1,024.
const MAX_PARTS: u64 = 512;

/// Number of parts.
pub(crate) const COUNT: &str = "split.count";
/// Number of a part, from 0.
pub(crate) const NUMBER: &str = "split.no";
/// Number of tensors in all parts.
pub(crate) const TENSORS: &str = "split.tensors.count";

/// Why the files of a split model cannot be read as one model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartError {
    /// The path names another part than the first: load the first one.
    #[error("this is part {part} of {parts} of a split model: load the first part, {first}")]
    NotFirst {
        /// Number of the part, from 1.
        part: u64,
        /// Number of parts.
        parts: u64,
        /// File name of the first part.
        first: String,
    },
    /// The name of the first part was changed, so the names of the others are unknown.
    #[error(
        "this is the first of {parts} parts of a split model, and its name does not end in \
         {ending:?}: give all parts their original names, or join them with \
         `llama-gguf-split --merge FIRST_PART WHOLE_MODEL`"
    )]
    Name {
        /// Number of parts.
        parts: u64,
        /// The required ending of the file's name.
        ending: String,
    },
    /// There is no such file: download it to the folder of the first part.
    #[error(
        "part {part} of {parts} of the model is missing: put all parts into the folder of the first"
    )]
    Missing {
        /// Number of the part, from 1.
        part: u64,
        /// Number of parts.
        parts: u64,
    },
    /// More parts than are supported: join them.
    #[error(
        "a model in {parts} parts, at most {max}: join them with \
         `llama-gguf-split --merge FIRST_PART WHOLE_MODEL`"
    )]
    TooMany {
        /// Number of parts.
        parts: u64,
        /// The maximum.
        max: u64,
    },
    /// A number of this part contradicts the first part or the file's name: the file belongs to
    /// another model, or to the same model in other parts. Get all parts from one place.
    #[error(
        "key {key:?} is {found}, expected {expected}: \
         this file is not part {part} of the same model"
    )]
    Foreign {
        /// The key.
        key: &'static str,
        /// Its value, or that it is missing.
        found: String,
        /// The expected value.
        expected: u64,
        /// Number of the part, from 1.
        part: u64,
    },
    /// A key of the first part is invalid: the file is damaged or a broken tool wrote it.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The parts have fewer or more tensors than the model: they belong to different models.
    #[error(
        "the {parts} parts of the model have {found} tensors together, expected {expected}: \
         get all parts from one place"
    )]
    Tensors {
        /// Number of parts.
        parts: u64,
        /// Number of tensors in all parts.
        found: u64,
        /// `split.tensors.count` of the first part.
        expected: u64,
    },
    /// A tensor is in two parts: they belong to different models.
    #[error(
        "tensor {tensor:?} is also in {other}: get all parts from one place",
        other = other.display()
    )]
    Duplicate {
        /// The name.
        tensor: String,
        /// The other part.
        other: PathBuf,
    },
    /// All parts together exceed a limit of a single file.
    #[error("{what} of all parts together: {found}, at most {max}")]
    TooLarge {
        /// The quantity.
        what: &'static str,
        /// Its amount in all parts, or in some of them.
        found: u64,
        /// The maximum.
        max: u64,
    },
}

impl PartError {
    fn at(self, path: &Path) -> GgufError {
        GgufError::Split { path: path.to_owned(), source: self }
    }
}

/// A name such as `NAME-00002-of-00003.gguf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartName<'n> {
    stem: &'n str,
    /// From 1.
    pub part: u64,
    pub parts: u64,
}

impl<'n> PartName<'n> {
    pub fn parse(name: &'n str) -> Option<Self> {
        let rest = name.strip_suffix(".gguf")?;
        let (rest, parts) = rest.rsplit_once("-of-")?;
        let (stem, part) = rest.rsplit_once('-')?;
        let number = |digits: &str| {
            let is_number = digits.len() >= 5 && digits.bytes().all(|b| b.is_ascii_digit());
            digits.parse().ok().filter(|_| is_number)
        };
        Some(Self { stem, part: number(part)?, parts: number(parts)? })
    }

    /// The name of another part.
    fn of(self, part: u64) -> String {
        name(self.stem, part, self.parts)
    }
}

/// The file name of a part, counted from 1.
pub(crate) fn name(stem: &str, part: u64, parts: u64) -> String {
    format!("{stem}{}", ending(part, parts))
}

fn ending(part: u64, parts: u64) -> String {
    format!("-{part:05}-of-{parts:05}.gguf")
}

/// The name of a path, as far as it is one of a part.
fn name_of(path: &Path) -> Option<PartName<'_>> {
    PartName::parse(path.file_name()?.to_str()?)
}

impl Gguf {
    /// Adds the other parts if this file is the first part of a split model.
    pub(super) fn with_parts(self, path: &Path) -> Result<Self, GgufError> {
        // A wrong type is an error of the model's specification.
        let parts = self.find::<u64>(COUNT).ok().flatten().unwrap_or(1);
        if parts <= 1 {
            return Ok(self);
        }
        let fail = |error: PartError| error.at(path);
        let number: u64 = self.find(NUMBER).map_err(|error| fail(error.into()))?.unwrap_or(0);
        let own = name_of(path);
        if number > 0 {
            let first = match own {
                Some(name) => name.of(1),
                None => format!("whose name ends in {}", ending(1, parts)),
            };
            return Err(fail(PartError::NotFirst { part: number.saturating_add(1), parts, first }));
        }
        if parts > MAX_PARTS {
            return Err(fail(PartError::TooMany { parts, max: MAX_PARTS }));
        }
        let Some(name) = own.filter(|name| (name.part, name.parts) == (1, parts)) else {
            return Err(fail(PartError::Name { parts, ending: ending(1, parts) }));
        };
        let mut header_bytes = self.header.data_start;
        let mut others = Vec::new();
        for part in 2..=parts {
            let path = path.with_file_name(name.of(part));
            let other = Self::open_part(&path).map_err(|error| match error {
                GgufError::Io { source, .. } if source.kind() == ErrorKind::NotFound => {
                    PartError::Missing { part, parts }.at(&path)
                }
                named if named.path().is_some() => named,
                source => GgufError::Part { path: path.clone(), source: Box::new(source) },
            })?;
            header_bytes = header_bytes.saturating_add(other.header.data_start);
            // Within the loop: 512 parts with the largest header each would not fit into memory.
            if header_bytes > MAX_HEADER_BYTES {
                let (what, found) = ("bytes of headers", header_bytes);
                return Err(fail(PartError::TooLarge { what, found, max: MAX_HEADER_BYTES }));
            }
            others.push((path, other));
        }
        self.joined(path, others)
    }

    /// Adds the other parts of a split model, in order, if they belong together.
    pub(super) fn joined(
        self,
        path: &Path,
        others: Vec<(PathBuf, Self)>,
    ) -> Result<Self, GgufError> {
        let parts = (others.len() as u64).saturating_add(1);
        let fail = |error: PartError| error.at(path);
        let tensors: Option<u64> = self.find(TENSORS).map_err(|error| fail(error.into()))?;
        let mut named: Vec<(&str, &Path)> = Vec::new();
        named.extend(self.tensors().map(|tensor| (tensor.name, path)));
        // `split.no` counts from 0.
        for (part, (path, other)) in (1..).zip(&others) {
            let expected = [(COUNT, Some(parts)), (NUMBER, Some(part)), (TENSORS, tensors)];
            for (key, expected) in expected {
                let Some(expected) = expected else { continue };
                if other.find::<u64>(key).ok().flatten() == Some(expected) {
                    continue;
                }
                let found = other.get(key).map_or("missing".to_owned(), |value| value.to_string());
                let part = part.saturating_add(1);
                return Err(PartError::Foreign { key, found, expected, part }.at(path));
            }
            named.extend(other.tensors().map(|tensor| (tensor.name, path.as_path())));
        }
        let found = named.len() as u64;
        if found > MAX_TENSORS {
            return Err(fail(PartError::TooLarge { what: "tensors", found, max: MAX_TENSORS }));
        }
        named.sort_unstable();
        for pair in named.windows(2) {
            if let [(first, other), (second, path)] = pair
                && first == second
            {
                let (tensor, other) = ((*first).to_owned(), other.to_path_buf());
                return Err(PartError::Duplicate { tensor, other }.at(path));
            }
        }
        if let Some(expected) = tensors.filter(|&expected| expected != found) {
            return Err(fail(PartError::Tensors { parts, found, expected }));
        }
        let others = others.into_iter().map(|(_, other)| other).collect();
        Ok(Self { others, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts() {
        let name = PartName::parse("a-b-00002-of-00013.gguf").unwrap();
        assert_eq!(name, PartName { stem: "a-b", part: 2, parts: 13 });
        assert_eq!(name.of(1), "a-b-00001-of-00013.gguf");
        assert_eq!(PartName::parse("-00001-of-00002.gguf").map(|name| name.stem), Some(""));
        for other in [
            "model.gguf",
            "a-00001-of-00002",
            "a-00001-of-00002.GGUF",
            "a-1-of-2.gguf",
            "a-0000x-of-00002.gguf",
            "a-00001-00002.gguf",
            "a00001-of-00002.gguf",
            "a-+0001-of-00002.gguf",
            "a-99999999999999999999-of-00002.gguf",
        ] {
            assert_eq!(PartName::parse(other), None, "{other}");
        }
    }
}

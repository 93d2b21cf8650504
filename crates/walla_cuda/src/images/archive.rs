use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::Read;

use lzma_rust2::LzipReader;

use super::{Kind, Target};

/// Largest size of an unpacked image.
const MAX_ARCHIVE_BYTES: u64 = 64 << 20;

/// Bytes of the header of a 64-bit ELF file.
const ELF_HEADER_BYTES: usize = 64;

/// One kernel file, compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// PTX, zero-terminated.
    Ptx(CString),
    /// An ELF file whose tables are within it.
    Machine(Vec<u8>),
}

impl Code {
    /// The bytes in the form that the driver accepts.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Ptx(text) => text.as_bytes_with_nul(),
            Self::Machine(bytes) => bytes,
        }
    }
}

/// An unpacked image.
#[derive(Clone, Debug)]
pub(crate) struct Archive {
    pub(crate) target: Target,
    /// The interface that it was compiled for.
    pub(crate) interface: String,
    /// Keyed by the name of the kernel file.
    pub(crate) codes: BTreeMap<String, Code>,
}

impl Archive {
    /// Unpacks an image written by `xtask kernels`: lzip, which has a checksum.
    ///
    /// # Errors
    /// A description of the damaged or missing part.
    pub(crate) fn unpack(packed: &[u8]) -> Result<Self, String> {
        let mut archive = Vec::new();
        LzipReader::new(packed)
            .take(MAX_ARCHIVE_BYTES + 1)
            .read_to_end(&mut archive)
            .map_err(|error| format!("no packed image ({error})"))?;
        if archive.len() as u64 > MAX_ARCHIVE_BYTES {
            return Err(format!("an image larger than {MAX_ARCHIVE_BYTES} bytes"));
        }
        Self::parse(&archive)
    }

    /// Whether it has kernel files of a family, whose names begin with the family's.
    pub(crate) fn has_family(&self, family: &str) -> bool {
        let is_of = |file: &String| file.strip_prefix(family).is_some_and(|ty| ty.starts_with('_'));
        self.codes.keys().any(is_of)
    }

    pub(super) fn parse(mut bytes: &[u8]) -> Result<Self, String> {
        let (name, manifest) = record(&mut bytes).ok_or("cut short")?;
        let manifest = std::str::from_utf8(manifest).ok().filter(|_| name == "manifest");
        let manifest = manifest.ok_or("it has no manifest")?;
        let line =
            |key: &str| manifest.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        let kind = match line("kind") {
            Some("ptx") => Kind::Ptx,
            Some("cubin") => Kind::Machine,
            other => return Err(format!("of unknown kind {other:?}")),
        };
        let name = line("target").unwrap_or_default();
        let target =
            Target::parse(name, kind).ok_or_else(|| format!("for unknown target {name:?}"))?;
        let interface = line("interface").unwrap_or("none").to_owned();
        let mut codes = BTreeMap::new();
        while !bytes.is_empty() {
            let (name, content) = record(&mut bytes).ok_or("cut short")?;
            let code = match kind {
                Kind::Ptx => CString::from_vec_with_nul(content.to_vec()).ok().map(Code::Ptx),
                Kind::Machine => is_whole_elf(content).then(|| Code::Machine(content.to_vec())),
            };
            codes.insert(name.to_owned(), code.ok_or_else(|| format!("{name} is damaged"))?);
        }
        Ok(Self { target, interface, codes })
    }
}

/// The next name and content. Each is a 32-bit little-endian length followed by that many bytes.
fn record<'a>(bytes: &mut &'a [u8]) -> Option<(&'a str, &'a [u8])> {
    Some((std::str::from_utf8(part(bytes)?).ok()?, part(bytes)?))
}

fn part<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *bytes = rest;
    Some(part)
}

/// Whether the program and section tables of a 64-bit ELF file are within it. The driver receives
/// no length and trusts the tables.
fn is_whole_elf(bytes: &[u8]) -> bool {
    let field = |at: usize, width: usize| {
        let bytes = bytes.get(at..at + width)?;
        Some(bytes.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte)))
    };
    let is_inside = |offset: Option<u64>, size: Option<u64>, count: Option<u64>| {
        let end = offset
            .zip(size)
            .zip(count)
            .and_then(|((offset, size), count)| offset.checked_add(size.checked_mul(count)?));
        end.is_some_and(|end| end <= bytes.len() as u64)
    };
    bytes.len() >= ELF_HEADER_BYTES
        && bytes.starts_with(b"\x7fELF\x02\x01")
        && is_inside(field(32, 8), field(54, 2), field(56, 2))
        && is_inside(field(40, 8), field(58, 2), field(60, 2))
}

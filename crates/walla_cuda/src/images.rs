//! Kernel images: PTX compiled ahead of time from `kernels/`, packed into the crate by `xtask kernels`.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

/// An image set: code for devices of at least one compute capability.
struct Packed {
    /// For example `sm_90`.
    variant: &'static str,
    capability: (u32, u32),
    bytes: &'static [u8],
}

const PACKED: [Packed; 3] = [
    Packed { variant: "sm_90", capability: (9, 0), bytes: include_bytes!("../images/sm_90.bin") },
    Packed { variant: "sm_80", capability: (8, 0), bytes: include_bytes!("../images/sm_80.bin") },
    Packed { variant: "sm_75", capability: (7, 5), bytes: include_bytes!("../images/sm_75.bin") },
];

/// Largest size that an image set unpacks to.
const ARCHIVE_BYTES_MAX: usize = 64 << 20;

/// The variant that a device of this compute capability runs, if walla has one.
pub(crate) fn variant(capability: (u32, u32)) -> Option<&'static str> {
    best(capability).map(|packed| packed.variant)
}

fn best(capability: (u32, u32)) -> Option<&'static Packed> {
    PACKED.iter().find(|packed| packed.capability <= capability)
}

/// One unpacked image set: the PTX of each kernel file by its name.
#[derive(Debug)]
pub(crate) struct Images {
    texts: BTreeMap<String, CString>,
}

impl Images {
    /// Unpacks the set for a device.
    ///
    /// # Errors
    /// In words: no set for such a device, or a damaged set (a defect of the build).
    pub(crate) fn unpack(capability: (u32, u32)) -> Result<Self, String> {
        let (major, minor) = capability;
        let packed = best(capability)
            .ok_or_else(|| format!("compute capability {major}.{minor} (7.5 or later needed)"))?;
        let damaged = |why: &str| format!("kernel images {} are damaged: {why}", packed.variant);
        let archive = miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(
            packed.bytes,
            ARCHIVE_BYTES_MAX,
        )
        .map_err(|error| damaged(&error.to_string()))?;
        let texts = parse(&archive).ok_or_else(|| damaged("cut short"))?;
        Ok(Self { texts })
    }

    /// The PTX of `kernels/<name>.cu`.
    pub(crate) fn text(&self, name: &str) -> Option<&CStr> {
        self.texts.get(name).map(CString::as_c_str)
    }
}

fn parse(mut archive: &[u8]) -> Option<BTreeMap<String, CString>> {
    let mut texts = BTreeMap::new();
    while !archive.is_empty() {
        let name = String::from_utf8(take(&mut archive)?.to_vec()).ok()?;
        let text = CString::from_vec_with_nul(take(&mut archive)?.to_vec()).ok()?;
        texts.insert(name, text);
    }
    Some(texts)
}

fn take<'a>(archive: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = archive.split_first_chunk::<4>()?;
    let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *archive = rest;
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_unpacks_and_holds_the_same_kernels() {
        let names = |capability| {
            let images = Images::unpack(capability).unwrap();
            images.texts.keys().cloned().collect::<Vec<_>>()
        };
        let expected = names((9, 0));
        assert!(expected.iter().any(|name| name == "embed"), "{expected:?}");
        assert_eq!(names((8, 0)), expected);
        assert_eq!(names((7, 5)), expected);
    }

    #[test]
    fn a_device_takes_the_highest_set_that_is_not_above_it() {
        assert_eq!(variant((7, 0)), None);
        assert_eq!(variant((7, 5)), Some("sm_75"));
        assert_eq!(variant((8, 9)), Some("sm_80"));
        assert_eq!(variant((12, 0)), Some("sm_90"));
    }

    #[test]
    fn cut_archives_are_refused() {
        assert!(parse(&[3, 0, 0, 0, b'a']).is_none());
        assert!(parse(&[1, 0]).is_none());
        assert!(parse(&[1, 0, 0, 0, b'a', 1, 0, 0, 0, b'x']).is_none(), "no zero at the end");
    }
}

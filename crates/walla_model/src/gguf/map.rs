//! The map of a file: the crate's only `unsafe`.

use std::{fs::File, io};

use memmap2::Mmap;

/// Maps the whole of `file` for reading.
///
/// The map stays valid after `file` is closed, renamed or deleted.
#[expect(unsafe_code, reason = "only the kernel can share the page cache with us")]
pub(super) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: a map is sound as long as nobody changes the file's bytes or cuts it shorter while it is mapped. No
    // system can promise that for a file that others may write, so it is a requirement on the caller that
    // `Gguf::open` documents; `Gguf::open_copied` is the way without it. What lies behind the map is never trusted:
    // offsets and lengths were copied out and checked when it was read, and text is checked again at each access, so
    // changed bytes give wrong numbers, and only a shortened file can stop the process.
    unsafe { Mmap::map(file) }
}

use walla_device::{CacheCommand, CopyDirection};

use crate::cache::image::Part;

/// One command of a stream. Ids were checked when the command was created.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    Upload { host: u32, buffer: u32, bytes: usize },
    Download { buffer: u32, buffer_offset: usize, host: u32, host_offset: usize, bytes: usize },
    Launch { graph: u32 },
    Maintain { cache: u32, command: CacheCommand },
    CopyPart { cache: u32, part: Part, host: u32, host_offset: usize, direction: CopyDirection },
    Record { event: u32, serial: u64 },
}

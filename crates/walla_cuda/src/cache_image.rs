//! Copies of cache contents in host memory.

use walla_device::{CacheDesc, CacheImage, CacheLayer, CachePart, CopyDirection, DeviceError};
use walla_types::MAX_PENALTY_WINDOW;

use crate::driver::{Context, DeviceMemory, PinnedMemory, Stream};
use crate::lower::DeltaState;
use crate::resources::Cache;

/// Bytes of a sequence's recent tokens.
const RECENT_BYTES: usize = 4 * MAX_PENALTY_WINDOW as usize;

/// Layout of an image.
pub(crate) fn layout(desc: &CacheDesc) -> CacheImage {
    CacheImage::new("cuda 1", desc, false, state_bytes)
}

/// Bytes of the state of one sequence in a recurrent layer.
fn state_bytes(layer: &CacheLayer) -> Option<usize> {
    let numbers = match *layer {
        CacheLayer::Kv { .. } => return None,
        CacheLayer::ShortConv { width, taps } => taps.saturating_sub(1) as usize * width as usize,
        CacheLayer::DeltaNet(shape) => DeltaState::of(shape)?.numbers as usize,
    };
    Some(4 * numbers)
}

/// A copy between a block of the cache and the image.
struct Copy<'a> {
    context: &'a Context,
    stream: Stream,
    host: &'a PinnedMemory,
    direction: CopyDirection,
}

impl Copy<'_> {
    fn enqueue(
        &self,
        cache: (&DeviceMemory, usize),
        image: usize,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let image = (self.host, image);
        match self.direction {
            _ if bytes == 0 => Ok(()),
            CopyDirection::FromCache => self.context.download(self.stream, cache, image, bytes),
            CopyDirection::ToCache => self.context.upload(self.stream, image, cache, bytes),
        }
    }

    /// Copies a block of each page. `image` is its place in the image; it becomes the place behind
    /// the block. Consecutive pages are one copy.
    fn pages(
        &self,
        pages: &[u32],
        memory: &DeviceMemory,
        page_bytes: usize,
        image: &mut usize,
    ) -> Result<(), DeviceError> {
        for run in pages.chunk_by(|page, next| page.checked_add(1) == Some(*next)) {
            let first = run.first().map_or(0, |page| *page as usize);
            let bytes = run.len() * page_bytes;
            self.enqueue((memory, first * page_bytes), *image, bytes)?;
            *image += bytes;
        }
        Ok(())
    }
}

/// Enqueues the copies of a part. Allocates nothing.
pub(crate) fn copy_part(
    (context, stream): (&Context, Stream),
    cache: &Cache,
    part: &CachePart<'_>,
    (host, offset): (&PinnedMemory, usize),
    direction: CopyDirection,
) -> Result<(), DeviceError> {
    let (copy, desc) = (Copy { context, stream, host, direction }, &cache.desc);
    let outside = || DeviceError::Invalid(format!("{part:?} reaches outside the cache"));
    let mut image = offset;
    match *part {
        CachePart::Pages(pages) => {
            if pages.iter().any(|page| *page >= desc.pages) {
                return Err(outside());
            }
            for (layer, blocks) in desc.layers.iter().zip(&cache.layers) {
                let CacheLayer::Kv { kv_heads, head_dim, .. } = *layer else { continue };
                let cells = kv_heads as usize * desc.page_tokens as usize;
                let numbers = cells * head_dim as usize * desc.kv_type.bytes();
                let scales = cells * desc.kv_type.scale_bytes();
                for (memory, page_bytes) in blocks.iter().zip([numbers, numbers, scales, scales]) {
                    copy.pages(pages, memory, page_bytes, &mut image)?;
                }
            }
            Ok(())
        }
        CachePart::State { sequence, index } => {
            let layers = desc.layers.iter().zip(&cache.layers);
            let mut states =
                layers.filter_map(|(layer, blocks)| Some((state_bytes(layer)?, blocks.first()?)));
            let state = states.nth(index as usize).filter(|_| sequence < desc.max_sequences);
            let (bytes, states) = state.ok_or_else(outside)?;
            copy.enqueue((states, sequence as usize * bytes), image, bytes)
        }
        CachePart::Recent { sequence } if sequence < desc.max_sequences => {
            copy.enqueue((&cache.recent, sequence as usize * RECENT_BYTES), image, RECENT_BYTES)
        }
        CachePart::Recent { .. } => Err(outside()),
    }
}

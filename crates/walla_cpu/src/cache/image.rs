//! Copies of cache contents in host memory.

use std::ops::Range;
use std::sync::PoisonError;

use walla_device::{CacheDesc, CacheImage, CachePart, CopyDirection};
use walla_types::MAX_PENALTY_WINDOW;

use super::kv::KvLayer;
use super::{Cache, CacheLayer, ConvLayer, DeltaLayer, Layer, RECENT};

/// Bytes of a sequence's recent tokens.
pub(crate) const RECENT_BYTES: usize = RECENT * size_of::<u32>();

/// A part of a cache that one command copies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// Page `page`, which is number `index` of the `of` pages of an image.
    Page { page: u32, index: u32, of: u32 },
    /// As [`CachePart::State`].
    State { sequence: u32, index: u32 },
    /// As [`CachePart::Recent`].
    Recent { sequence: u32 },
}

/// Commands that copy a part.
pub(crate) fn parts<'a>(part: &'a CachePart<'_>) -> impl ExactSizeIterator<Item = Part> + 'a {
    let (count, pages): (usize, &[u32]) = match part {
        CachePart::Pages(pages) => (pages.len(), pages),
        _ => (1, &[]),
    };
    (0..count).map(move |index| match *part {
        CachePart::Pages(_) => {
            Part::Page { page: pages[index], index: index as u32, of: pages.len() as u32 }
        }
        CachePart::State { sequence, index } => Part::State { sequence, index },
        CachePart::Recent { sequence } => Part::Recent { sequence },
    })
}

/// Layout of an image.
pub(crate) fn layout(desc: &CacheDesc) -> CacheImage {
    CacheImage::new("cpu 1", desc, true, state_bytes)
}

/// Bytes of the state of one sequence in a recurrent layer.
fn state_bytes(layer: &CacheLayer) -> Option<usize> {
    match *layer {
        CacheLayer::Kv { .. } => None,
        CacheLayer::ShortConv { width, taps } => {
            Some(taps.saturating_sub(1) as usize * width as usize * 4)
        }
        CacheLayer::DeltaNet(shape) => Some(DeltaLayer::bytes_of(shape, 1) as usize),
    }
}

/// Bytes of a part in a host buffer; `None` if it does not exist. Allocates nothing.
pub(crate) fn bytes_of(desc: &CacheDesc, part: &CachePart<'_>) -> Option<usize> {
    match *part {
        CachePart::Pages(pages) => {
            let exist = pages.iter().all(|page| *page < desc.pages);
            exist.then(|| pages.len() * desc.page_bytes() as usize)
        }
        CachePart::State { sequence, index } => {
            let bytes = desc.layers.iter().filter_map(state_bytes).nth(index as usize)?;
            (sequence < desc.max_sequences).then_some(bytes)
        }
        CachePart::Recent { sequence } => (sequence < desc.max_sequences).then_some(RECENT_BYTES),
    }
}

/// Copies between equally long parts.
fn copy(cache: &mut [u8], image: &mut [u8], direction: CopyDirection) {
    match direction {
        CopyDirection::FromCache => image.copy_from_slice(cache),
        CopyDirection::ToCache => cache.copy_from_slice(image),
    }
}

impl Cache {
    /// Copies a part that [`bytes_of`] knows to or from `image`, which has at least those bytes.
    pub(crate) fn copy_part(&mut self, part: Part, image: &mut [u8], direction: CopyDirection) {
        match part {
            Part::Page { page, index, of } => {
                let (page, index, of) = (page as usize, index as usize, of as usize);
                let mut rest = image;
                for layer in &mut self.layers {
                    if let Layer::Kv(kv) = layer {
                        rest = kv.copy_page_image(page, (index, of), rest, direction);
                    }
                }
            }
            Part::State { sequence, index } => {
                let is_state = |layer: &&mut Layer| !matches!(layer, Layer::Kv(_));
                match self.layers.iter_mut().filter(is_state).nth(index as usize) {
                    Some(Layer::Conv(conv)) => conv.copy_image(sequence as usize, image, direction),
                    Some(Layer::Delta(delta)) => {
                        delta.copy_image(sequence as usize, image, direction);
                    }
                    _ => {}
                }
            }
            Part::Recent { sequence } => {
                let recent = &mut self.recent[sequence as usize * RECENT..][..RECENT];
                let bytes = bytemuck::cast_slice_mut(recent);
                copy(bytes, &mut image[..RECENT_BYTES], direction);
            }
        }
    }
}

const _: () = assert!(RECENT_BYTES == MAX_PENALTY_WINDOW as usize * 4);

impl KvLayer {
    /// Copies page `page` to or from place `index` of an image of `of` pages, which begins with
    /// this layer. Returns the image behind this layer.
    fn copy_page_image<'a>(
        &mut self,
        page: usize,
        (index, of): (usize, usize),
        image: &'a mut [u8],
        direction: CopyDirection,
    ) -> &'a mut [u8] {
        let (number, dim, cells) = (self.kv_type.bytes(), self.head_dim, self.page_tokens);
        let (heads, pages) = (self.kv_heads, self.pages);
        // The bytes of one head's page in the cache: rows of `stride` bytes, of which `row` are
        // used.
        let block = |head: usize, rows: usize, stride: usize| -> Range<usize> {
            let start = (head * pages + page) * rows * stride;
            start..start + rows * stride
        };
        let scale = self.kv_type.scale_bytes();
        let stride = self.stride;
        let [key_scales, value_scales] = &mut self.scales;
        let all = [
            (self.keys.bytes_mut(), dim, cells * number, stride * number),
            (self.values.bytes_mut(), cells, dim * number, dim * number),
            (key_scales.bytes_mut(), 1, cells * scale, cells * scale),
            (value_scales.bytes_mut(), 1, cells * scale, cells * scale),
        ];
        let mut rest = image;
        for (bytes, rows, row, stride) in all {
            let part = heads * rows * row;
            if part == 0 {
                continue;
            }
            let (of_part, behind) = rest.split_at_mut(of * part);
            rest = behind;
            let mut to = of_part[index * part..][..part].chunks_exact_mut(row);
            for head in 0..heads {
                for from in bytes[block(head, rows, stride)].chunks_exact_mut(stride) {
                    let Some(to) = to.next() else { return rest };
                    copy(&mut from[..row], to, direction);
                }
            }
        }
        rest
    }
}

impl ConvLayer {
    fn copy_image(&mut self, sequence: usize, image: &mut [u8], direction: CopyDirection) {
        let state = bytemuck::cast_slice_mut(self.state_mut(sequence));
        copy(state, &mut image[..state.len()], direction);
    }
}

impl DeltaLayer {
    /// The inputs of the convolution, then the strips.
    fn copy_image(&mut self, sequence: usize, image: &mut [u8], direction: CopyDirection) {
        let inputs = self.conv.numbers() * 4;
        let (of_conv, mut rest) = image.split_at_mut(inputs);
        self.conv.copy_image(sequence, of_conv, direction);
        let bytes = Self::strip(self.shape) * 4;
        for strip in &mut self.strips {
            let strip = strip.get_mut().unwrap_or_else(PoisonError::into_inner);
            let (of_strip, behind) = rest.split_at_mut(bytes);
            rest = behind;
            copy(&mut strip.bytes_mut()[sequence * bytes..][..bytes], of_strip, direction);
        }
    }
}

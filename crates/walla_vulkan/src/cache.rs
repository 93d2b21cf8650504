//! Memory of caches.

use walla_device::{
    CacheDesc, CacheImage, CacheLayer, DeltaShape, DeviceError, ImageNumber, KvType,
};
use walla_types::{MAX_PENALTY_WINDOW, RopePairs};

use crate::driver::Memory;
use crate::params::{CacheParams, KvParams, LayerParams};
use crate::resources::{Cache, Resources};

/// Bytes of a cache's parts.
#[derive(Debug)]
pub(crate) struct Sizes {
    /// Of each layer: keys, values and their scales, if any; or a state.
    pub(crate) layers: Vec<Vec<usize>>,
    pub(crate) last_sampled: usize,
    pub(crate) recent: usize,
}

impl Sizes {
    pub(crate) fn total(&self) -> usize {
        self.layers.iter().flatten().sum::<usize>() + self.last_sampled + self.recent
    }
}

/// Code of a type in `kernels/vulkan/kv.slang`.
pub(crate) fn kv_code(ty: KvType) -> Option<u32> {
    match ty {
        KvType::F32 => Some(0),
        KvType::F16 => Some(1),
        KvType::Q8 => Some(2),
        _ => None,
    }
}

/// Numbers of a cell come in units of this many (`UNIT` of attention.slang).
const UNIT: u32 = 8;

/// Words of one head's key or value.
pub(crate) fn cell_words(ty: KvType, head_dim: u32) -> u32 {
    let numbers = u64::from(head_dim).next_multiple_of(u64::from(UNIT)) as usize;
    (numbers * ty.bytes() / 4) as u32
}

/// The sizes of a cache.
///
/// # Errors
/// The layer that is not supported, or too large for the shaders' indices.
pub(crate) fn sizes(
    desc: &CacheDesc,
    resources: &Resources,
    device: &str,
) -> Result<Sizes, DeviceError> {
    if desc.pages == 0 || desc.page_tokens == 0 || desc.max_sequences == 0 {
        return Err(DeviceError::Invalid("a cache needs pages, cells and sequences".to_owned()));
    }
    let unsupported = |what: String| DeviceError::Unsupported { device: device.to_owned(), what };
    kv_code(desc.kv_type)
        .ok_or_else(|| unsupported(format!("keys and values of {:?}", desc.kv_type)))?;
    // Shaders count words with 32 bits.
    let product = |factors: &[u32]| {
        let words = factors.iter().try_fold(1_u32, |words, factor| words.checked_mul(*factor));
        let bytes = words.map(|words| words as usize * 4);
        bytes.ok_or_else(|| unsupported("a layer of a cache beyond 16 GiB".to_owned()))
    };
    let mut layers = Vec::new();
    for layer in &desc.layers {
        layers.push(match *layer {
            CacheLayer::Kv { kv_heads, head_dim, rope } => {
                if let Some(rope) = rope {
                    resources.rope(rope)?;
                }
                let cells = [desc.pages, kv_heads, desc.page_tokens];
                let [pages, heads, tokens] = cells;
                let numbers = product(&[pages, heads, tokens, cell_words(desc.kv_type, head_dim)])?;
                match desc.kv_type {
                    KvType::Q8 => vec![numbers, numbers, product(&cells)?, product(&cells)?],
                    _ => vec![numbers, numbers],
                }
            }
            CacheLayer::ShortConv { width, taps } => {
                vec![product(&[desc.max_sequences, taps.saturating_sub(1), width])?]
            }
            CacheLayer::DeltaNet(shape) => {
                let numbers =
                    delta_numbers(shape).ok_or_else(|| unsupported(format!("{shape:?}")))?;
                vec![product(&[desc.max_sequences, numbers])?]
            }
        });
    }
    Ok(Sizes {
        layers,
        last_sampled: product(&[desc.max_sequences])?,
        recent: product(&[desc.max_sequences, MAX_PENALTY_WINDOW])?,
    })
}

/// Addresses and sizes of the keys and values of a layer.
pub(crate) fn kv_params(desc: &CacheDesc, heads: [u32; 2], memory: &[Memory]) -> KvParams {
    let address = |block: usize| memory.get(block).map_or(0, Memory::address);
    let [kv_heads, head_dim] = heads;
    KvParams {
        keys: address(0),
        values: address(1),
        key_scales: address(2),
        value_scales: address(3),
        ty: kv_code(desc.kv_type).unwrap_or_default(),
        kv_heads,
        head_dim,
        cell_words: cell_words(desc.kv_type, head_dim),
    }
}

/// Bytes of the table of a cache.
pub(crate) fn table_bytes(desc: &CacheDesc) -> usize {
    size_of::<CacheParams>() + desc.layers.len() * size_of::<LayerParams>()
}

/// The table that operations of a cache read: the cache, then its layers.
pub(crate) fn table(cache: &Cache, resources: &Resources) -> Result<Vec<u8>, DeviceError> {
    let params = CacheParams {
        layers: cache.table.address() + size_of::<CacheParams>() as u64,
        last_sampled: cache.last_sampled.address(),
        recent: cache.recent.address(),
        layer_count: cache.desc.layers.len() as u32,
        page_tokens: cache.desc.page_tokens,
    };
    let mut bytes = bytemuck::bytes_of(&params).to_vec();
    for (layer, memory) in cache.desc.layers.iter().zip(&cache.layers) {
        let mut params: LayerParams = bytemuck::Zeroable::zeroed();
        match *layer {
            CacheLayer::Kv { kv_heads, head_dim, rope } => {
                params.kv = kv_params(&cache.desc, [kv_heads, head_dim], memory);
                if let Some(rope) = rope {
                    let rope = resources.rope(rope)?;
                    params.frequencies = rope.frequencies.address();
                    params.pairs = rope.pairs_count;
                    params.interleaved = u32::from(rope.pairs == RopePairs::Interleaved);
                }
            }
            CacheLayer::ShortConv { width, taps } => {
                params.state = memory.first().map_or(0, Memory::address);
                params.state_numbers = width * taps.saturating_sub(1);
            }
            CacheLayer::DeltaNet(shape) => {
                params.state = memory.first().map_or(0, Memory::address);
                params.state_numbers = delta_numbers(shape).unwrap_or_default();
            }
        }
        bytes.extend(bytemuck::bytes_of(&params));
    }
    Ok(bytes)
}

/// Layout of images of a cache. `None` if a head's cell is not a whole number of units.
pub(crate) fn image(desc: &CacheDesc) -> Option<CacheImage> {
    let is_whole = |layer: &CacheLayer| match *layer {
        CacheLayer::Kv { head_dim, .. } => head_dim.is_multiple_of(UNIT),
        _ => true,
    };
    let mut image = desc
        .layers
        .iter()
        .all(is_whole)
        .then(|| CacheImage::new("vulkan 1", desc, false, state_bytes))?;
    // Scales are f32 numbers here.
    for part in &mut image.parts {
        if desc.kv_type == KvType::Q8 && part.numbers == 1 {
            part.number = ImageNumber::F32;
        }
    }
    Some(image)
}

/// Bytes of the state of one sequence in a recurrent layer.
pub(crate) fn state_bytes(layer: &CacheLayer) -> Option<usize> {
    match *layer {
        CacheLayer::ShortConv { width, taps } => {
            Some(4 * taps.saturating_sub(1) as usize * width as usize)
        }
        CacheLayer::DeltaNet(shape) => Some(4 * delta_numbers(shape)? as usize),
        CacheLayer::Kv { .. } => None,
    }
}

/// Largest heads of DeltaNet, and most taps (`HEAD_MAX`, `TAPS_MAX`).
const DELTA_HEAD_MAX: u32 = 256;
const DELTA_TAPS_MAX: u32 = 8;

/// Numbers of a DeltaNet state: matrices, then inputs of the convolution. `None`: not supported.
pub(crate) fn delta_numbers(shape: DeltaShape) -> Option<u32> {
    let DeltaShape { key_heads, value_heads, head_dim, taps } = shape;
    let has_heads = key_heads > 0 && value_heads > 0 && value_heads.is_multiple_of(key_heads);
    let has_size = head_dim > 0 && head_dim <= DELTA_HEAD_MAX && head_dim.is_multiple_of(16);
    if !has_heads || !has_size || taps == 0 || taps > DELTA_TAPS_MAX {
        return None;
    }
    let matrices = shape.values().checked_mul(head_dim)?;
    matrices.checked_add(shape.channels().checked_mul(taps - 1)?)
}

//! Caches: their memory and their upkeep.

use walla_device::{CacheCommand, CacheDesc, CacheLayer, DeviceError};
use walla_types::PENALTY_WINDOW_MAX;

use crate::driver::{Context, DeviceMemory, Stream};
use crate::kernels::Kernels;
use crate::resources::{Cache, LayerMemory, Resources};

/// Allocates a cache; answers it with its bytes.
pub(crate) fn create(
    desc: &CacheDesc,
    resources: &Resources,
    context: &Context,
    zeroed: impl Fn(&str, usize) -> Result<DeviceMemory, DeviceError>,
) -> Result<(Cache, u64), DeviceError> {
    let bytes_of = |layer: &CacheLayer| layer_bytes(desc, layer);
    let sizes: Option<Vec<_>> = desc.layers.iter().map(bytes_of).collect();
    let sequences = desc.sequences_max as usize;
    let recent_bytes = sequences.checked_mul(4 * PENALTY_WINDOW_MAX as usize);
    let (Some(sizes), Some(recent_bytes)) = (sizes, recent_bytes) else {
        return Err(DeviceError::Invalid("a cache larger than the address space".to_owned()));
    };
    for layer in &desc.layers {
        if let CacheLayer::Kv { rope: Some(rope), .. } = layer {
            resources.rope(*rope)?;
        }
    }
    // Refused as a whole before any part of it is allocated.
    let wanted: usize = sizes.iter().map(|(count, bytes)| count * bytes).sum();
    let free_bytes = context.memory_free_bytes()?;
    if (wanted + recent_bytes) as u64 > free_bytes {
        let wanted_bytes = (wanted + recent_bytes) as u64;
        let what = "the cache".to_owned();
        return Err(DeviceError::OutOfMemory { what, wanted_bytes, free_bytes });
    }
    let mut layers = Vec::with_capacity(sizes.len());
    for (layer, (_, bytes)) in desc.layers.iter().zip(sizes) {
        layers.push(match layer {
            CacheLayer::Kv { .. } => {
                LayerMemory::Kv { keys: zeroed("keys", bytes)?, values: zeroed("values", bytes)? }
            }
            CacheLayer::ShortConv { .. } => {
                LayerMemory::ShortConv { state: zeroed("convolution states", bytes)? }
            }
        });
    }
    let last_sampled = zeroed("last sampled tokens", 4 * sequences)?;
    let recent = zeroed("recent tokens", recent_bytes)?;
    let bytes = (wanted + recent_bytes + 4 * sequences) as u64;
    Ok((Cache { desc: desc.clone(), layers, last_sampled, recent }, bytes))
}

/// How many blocks of memory a layer has, and the bytes of each.
fn layer_bytes(desc: &CacheDesc, layer: &CacheLayer) -> Option<(usize, usize)> {
    let product = |factors: &[u32]| {
        factors.iter().try_fold(1_usize, |product, f| product.checked_mul(*f as usize))
    };
    match *layer {
        CacheLayer::Kv { kv_heads, head_dim, .. } => {
            let numbers = product(&[desc.pages, kv_heads, desc.page_tokens, head_dim])?;
            Some((2, numbers.checked_mul(desc.kv_type.bytes())?))
        }
        CacheLayer::ShortConv { width, taps } => {
            let numbers = product(&[desc.sequences_max, taps.saturating_sub(1), width])?;
            Some((1, numbers.checked_mul(4)?))
        }
    }
}

/// Enqueues upkeep, one small kernel a command.
pub(crate) fn maintain(
    _context: &Context,
    _kernels: &mut Kernels,
    _stream: Stream,
    _cache: &Cache,
    _resources: &Resources,
    commands: &[CacheCommand],
) -> Result<(), DeviceError> {
    match commands {
        [] => Ok(()),
        _ => Err(DeviceError::Unsupported {
            device: "cuda".to_owned(),
            what: "cache maintenance".to_owned(),
        }),
    }
}

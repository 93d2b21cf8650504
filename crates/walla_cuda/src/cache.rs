//! Cache memory and cache operations.

use walla_device::{CacheCommand, CacheDesc, CacheLayer, DeviceError, KvType};
use walla_types::{MAX_PENALTY_WINDOW, RopePairs};

use crate::driver::{Blocks, Context, DeviceMemory, Launch, Resized, Stream};
use crate::enqueue::enqueue;
use crate::kernels::Kernels;
use crate::lower::DeltaState;
use crate::params::{CacheParams, LayerRef};
use crate::resources::{Cache, Resources, scales};

/// Name of the allocation in errors.
const WHAT: &str = "the cache";

/// Allocates a cache; returns it and its bytes. The layers share one arena, the rest is plain
/// memory.
pub(crate) fn create(
    desc: &CacheDesc,
    resources: &Resources,
    context: &Context,
    zeroed: &dyn Fn(DeviceMemory) -> Result<DeviceMemory, DeviceError>,
) -> Result<(Cache, u64), DeviceError> {
    let bytes_of = |layer: &CacheLayer| layer_bytes(desc, layer);
    let sizes: Option<Vec<_>> = desc.layers.iter().map(bytes_of).collect();
    let sequences = desc.max_sequences as usize;
    let recent_bytes = sequences.checked_mul(4 * MAX_PENALTY_WINDOW as usize);
    let (Some(sizes), Some(recent_bytes)) = (sizes, recent_bytes) else {
        return Err(DeviceError::Invalid("a cache larger than the address space".to_owned()));
    };
    // Check before any allocation: the attention and cache kernels support no other formats.
    if !matches!(desc.kv_type, KvType::F32 | KvType::F16 | KvType::Q8) {
        let what = format!("keys and values of {:?}", desc.kv_type);
        return Err(DeviceError::Unsupported { device: "cuda".to_owned(), what });
    }
    // An unknown rope is refused before memory is allocated, since memory is never freed.
    for layer in &desc.layers {
        if let CacheLayer::Kv { rope: Some(rope), .. } = layer {
            resources.rope(*rope)?;
        }
    }
    // Check the total before any part is allocated.
    let blocks: Vec<usize> = sizes.iter().flatten().map(|bytes| aligned(*bytes)).collect();
    let wanted: usize = blocks.iter().sum();
    let free_bytes = context.memory_left_bytes()?;
    if (wanted + recent_bytes) as u64 > free_bytes {
        let wanted_bytes = (wanted + recent_bytes) as u64;
        let what = "the cache".to_owned();
        return Err(DeviceError::OutOfMemory { what, wanted_bytes, free_bytes });
    }
    let Blocks { whole, blocks, arena } = context.allocate_blocks(WHAT, &blocks)?;
    zeroed(whole)?;
    let mut blocks = blocks.into_iter();
    let layer = |bytes: &Vec<usize>| blocks.by_ref().take(bytes.len()).collect();
    let layers: Vec<Vec<_>> = sizes.iter().map(layer).collect();
    let last_sampled = zeroed(context.allocate("last sampled tokens", 4 * sequences)?)?;
    let recent = zeroed(context.allocate("recent tokens", recent_bytes)?)?;
    let table_bytes = layers.len() * size_of::<LayerRef>();
    let table = zeroed(context.allocate("the table of layers", table_bytes)?)?;
    let bytes = (whole.bytes() + recent_bytes + 4 * sequences + table_bytes) as u64;
    Ok((Cache { desc: desc.clone(), layers, arena, table, last_sampled, recent }, bytes))
}

/// Unmaps memory above `pages`; returns the mapped and unmapped ranges. The caller guarantees that
/// no enqueued work touches pages above, and fills new memory with zeros.
pub(crate) fn resize(context: &Context, cache: &Cache, pages: u32) -> Result<Resized, DeviceError> {
    let Some(arena) = cache.arena else { return Ok(Resized::default()) };
    let desc = &cache.desc;
    let shorter = CacheDesc { pages: pages.clamp(1, desc.pages), ..desc.clone() };
    let kept: Vec<usize> =
        desc.layers.iter().filter_map(|layer| layer_bytes(&shorter, layer)).flatten().collect();
    context.resize_arena(arena, WHAT, &kept)
}

/// Every block of memory begins at a multiple of 256 bytes.
fn aligned(bytes: usize) -> usize {
    bytes.max(1).next_multiple_of(256)
}

/// Bytes of a layer's blocks: keys and values, with their scales if any; or a state. `None` on
/// overflow.
fn layer_bytes(desc: &CacheDesc, layer: &CacheLayer) -> Option<Vec<usize>> {
    let product = |factors: &[u32]| {
        factors.iter().try_fold(1_usize, |product, f| product.checked_mul(*f as usize))
    };
    match *layer {
        CacheLayer::Kv { kv_heads, head_dim, .. } => {
            let cells = product(&[desc.pages, kv_heads, desc.page_tokens])?;
            let numbers = cells.checked_mul(head_dim as usize)?;
            let numbers = numbers.checked_mul(desc.kv_type.bytes())?;
            let scales = cells.checked_mul(desc.kv_type.scale_bytes())?;
            Some(match scales {
                0 => vec![numbers; 2],
                _ => vec![numbers, numbers, scales, scales],
            })
        }
        CacheLayer::ShortConv { width, taps } => {
            let numbers = product(&[desc.max_sequences, taps.saturating_sub(1), width])?;
            Some(vec![numbers.checked_mul(4)?])
        }
        CacheLayer::DeltaNet(shape) => {
            let numbers = DeltaState::of(shape)?.numbers as usize;
            let numbers = numbers.checked_mul(desc.max_sequences as usize)?;
            Some(vec![numbers.checked_mul(4)?])
        }
    }
}

/// The cache kernels; `move_cells` has one per KV format.
const KERNELS: [&str; 7] = [
    "copy_page",
    "move_cells_f32",
    "move_cells_f16",
    "move_cells_q8",
    "shift_recent",
    "copy_sequence",
    "clear_sequence",
];

/// Loads (and compiles) the cache kernels at load time.
pub(crate) fn load_kernels(kernels: &mut Kernels, context: &Context) -> Result<(), DeviceError> {
    KERNELS.iter().try_for_each(|name| kernels.get(context, "cache_ops", name, 0).map(|_| ()))
}

/// The layer table that the cache kernels read.
pub(crate) fn layer_table(
    desc: &CacheDesc,
    layers: &[Vec<DeviceMemory>],
    resources: &Resources,
) -> Result<Vec<LayerRef>, DeviceError> {
    let layer = |(desc, blocks): (&CacheLayer, &Vec<DeviceMemory>)| {
        let mut layer = LayerRef::default();
        match (*desc, &blocks[..]) {
            (CacheLayer::Kv { kv_heads, head_dim, rope }, [keys, values, ..]) => {
                (layer.keys, layer.values) = (keys.address(), values.address());
                [layer.key_scales, layer.value_scales] = scales(blocks);
                (layer.kv_heads, layer.head_dim) = (kv_heads, head_dim);
                if let Some(rope) = rope {
                    let rope = resources.rope(rope)?;
                    layer.frequencies = rope.frequencies.address();
                    layer.pairs = rope.pairs_count;
                    layer.interleaved = u32::from(rope.pairs == RopePairs::Interleaved);
                }
            }
            (CacheLayer::ShortConv { width, taps }, [states]) => {
                layer.state = states.address();
                layer.state_numbers = width * taps.saturating_sub(1);
            }
            (CacheLayer::DeltaNet(shape), [states]) => {
                layer.state = states.address();
                layer.state_numbers = DeltaState::of(shape).map_or(0, |state| state.numbers);
            }
            _ => return Err(DeviceError::Invalid("a layer of another kind".to_owned())),
        }
        Ok(layer)
    };
    desc.layers.iter().zip(layers).map(layer).collect()
}

/// Enqueues cache operations, one small kernel per command. Allocates nothing.
pub(crate) fn run_cache_ops(
    context: &Context,
    kernels: &mut Kernels,
    stream: Stream,
    cache: &Cache,
    commands: &[CacheCommand],
) -> Result<(), DeviceError> {
    if let Some(command) = commands.iter().find(|command| !cache.desc.allows(command)) {
        return Err(DeviceError::Invalid(format!("{command:?} reaches outside the cache")));
    }
    for command in commands {
        let (name, grid, threads, params) = lower(cache, command);
        let function = kernels.get(context, "cache_ops", name, 0)?;
        enqueue(context, stream, &[Launch::new(function, grid, threads, &params)])?;
    }
    Ok(())
}

/// Blocks that copy the state of one layer: a state of DeltaNet has up to some megabytes.
fn state_blocks(cache: &Cache) -> u32 {
    let is_large = |layer: &CacheLayer| matches!(layer, CacheLayer::DeltaNet(_));
    if cache.desc.layers.iter().any(is_large) { 32 } else { 1 }
}

/// Kernel, grid, threads and parameters of a command.
fn lower(cache: &Cache, command: &CacheCommand) -> (&'static str, [u32; 3], u32, CacheParams) {
    let layers = cache.layers.len() as u32;
    let mut params = CacheParams {
        layers: cache.table.address(),
        last_sampled: cache.last_sampled.address(),
        recent: cache.recent.address(),
        layer_count: layers,
        page_tokens: cache.desc.page_tokens,
        number_bytes: cache.desc.kv_type.bytes() as u32,
        ..CacheParams::default()
    };
    match *command {
        CacheCommand::CopyPage { from, to } => {
            (params.from, params.to) = (from, to);
            ("copy_page", [8, layers.max(1), 2], 256, params)
        }
        CacheCommand::MoveCells { from_page, from_cell, to_page, to_cell, cells, turn } => {
            (params.from, params.from_cell) = (from_page, from_cell);
            (params.to, params.to_cell) = (to_page, to_cell);
            (params.cells, params.position_shift) = (cells, turn);
            let heads = cache.desc.layers.iter().map(|layer| match layer {
                CacheLayer::Kv { kv_heads, .. } => *kv_heads,
                CacheLayer::ShortConv { .. } | CacheLayer::DeltaNet(_) => 0,
            });
            let name = match cache.desc.kv_type {
                KvType::F32 => "move_cells_f32",
                KvType::Q8 => "move_cells_q8",
                _ => "move_cells_f16",
            };
            (name, [heads.max().unwrap_or(1).max(1), layers.max(1), 1], 128, params)
        }
        CacheCommand::ShiftRecent { sequence, from, end, turn } => {
            (params.from, params.from_cell, params.to) = (from, end, sequence);
            params.position_shift = turn;
            ("shift_recent", [1, 1, 1], MAX_PENALTY_WINDOW, params)
        }
        CacheCommand::CopySequence { from, to } => {
            (params.from, params.to) = (from, to);
            ("copy_sequence", [state_blocks(cache), layers + 1, 1], 256, params)
        }
        CacheCommand::ClearSequence { sequence } => {
            params.to = sequence;
            ("clear_sequence", [state_blocks(cache), layers + 1, 1], 256, params)
        }
    }
}

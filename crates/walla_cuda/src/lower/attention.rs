//! Token mixers: query, key and value, attention, short convolution.

use walla_device::{CacheLayer, DeviceError, HeadShape, KvType, Op, Program, op};
use walla_types::RopePairs;

use super::attention_tiling::{Chosen, Form};
use super::operands::Part;
use super::product::Epilogue;
use super::{Area, Lowering, same};
use crate::params::{
    Address, AppendParams, AttendParams, AttentionParams, DeferredSplits, HeadRef, KvRef, PagesRef,
    ShortConvParams,
};
use crate::resources::scales;

/// Cells per attention block (`CHUNK` in attention.cu).
const CHUNK: u32 = 128;
/// Maximum head dimension of the kernels.
const MAX_HEAD_DIM: u32 = 512;
/// Largest heads for which a lane of attention.cu has eight numbers; of larger ones it has sixteen.
const HEAD_DIM_OF_WARP: u32 = 256;
/// Warps of a block of append.cu (`APPEND_WARPS`).
const APPEND_WARPS: u32 = 4;
/// Rows up to which each warp of append.cu takes one head.
const APPEND_ROWS: u32 = 256;
/// Pages of the next layer may take one part in this number of L2. Twice as much is not retained
/// until it is read.
const NEXT_PAGES_SHARE: u64 = 3;
/// Maximum taps of a convolution (`MAX_TAPS` in short_conv.cu).
const MAX_TAPS: u32 = 8;

/// Bytes of the partial results of the plain kernels.
pub(super) fn partials_bytes(program: &Program, shape: HeadShape, window: Option<u32>) -> usize {
    let chunks = program.max_rows as usize * max_chunks(program, window) as usize;
    4 * chunks * shape.heads as usize * (shape.head_dim as usize + 2)
}

/// Chunks of the longest row.
fn max_chunks(program: &Program, window: Option<u32>) -> u32 {
    let cells = window.map_or(program.max_context, |window| window.min(program.max_context));
    cells.div_ceil(CHUNK).max(1)
}

/// `2^32 / page_tokens`, rounded up: a position times this, shifted right by 32, is the index of
/// its page. 0 for pages of one token.
fn page_magic(page_tokens: u32) -> u32 {
    let magic = (1_u64 << 32).div_ceil(u64::from(page_tokens.max(1)));
    u32::try_from(magic).unwrap_or(0)
}

impl Lowering<'_> {
    pub(super) fn qkv(&mut self, op: &op::Qkv, later: &[Op]) -> Result<(), DeviceError> {
        // Of the attention that reads these queries.
        let position_scale = later.iter().find_map(|later| match later {
            Op::Attention(attention) if attention.q == op.q => attention.position_scale,
            _ => None,
        });
        let attends_next = matches!(
            later.first(),
            Some(Op::Attention(next)) if (next.q, next.layer) == (op.q, op.layer)
        ) && op.keys.is_some()
            && position_scale.is_none();
        let keys = op.keys.as_ref();
        let HeadShape { heads, head_dim, .. } = op.shape;
        let (mut kv, name) = self.pages(op.layer, op.shape)?;
        // Without keys the kernels see queries only.
        kv.kv_heads = if keys.is_some() { op.shape.kv_heads } else { 0 };
        let kv_heads = kv.kv_heads;
        let input = self.input(op.x, Some(&op.norm))?;
        // Attention itself finishes and appends the heads of a row, if each row attends only to its
        // own cell among the cells that a step writes.
        let appends_later =
            attends_next && self.program.pure_decode && self.form(op.shape)?.is_some();
        let deferred = if appends_later { self.deferred_splits(op, &input)? } else { None };
        let all_heads = heads + 2 * kv_heads;
        let stride = all_heads * head_dim;
        let products = self.products(deferred.map_or(1, |deferred| deferred.count) * stride);
        let mut parts = Vec::with_capacity(3);
        let mut first = 0;
        let linears = keys.map(|keys| [(&keys.key, kv_heads), (&keys.value, kv_heads)]);
        for (linear, count) in
            std::iter::once((&op.query, heads)).chain(linears.into_iter().flatten())
        {
            let rows = self.resources.matrix(linear.matrix)?.rows;
            same("rows of a query, key or value matrix", rows, count * head_dim)?;
            let out = products + 4 * u64::from(first * head_dim);
            parts.push(Part { linear, out, stride });
            first += count;
        }
        let epilogue =
            deferred.map_or(Epilogue::Store, |deferred| Epilogue::Defer(deferred.stride));
        self.linears(&input, &parts, epilogue)?;
        if let (Some(norm), Some(values)) = (keys.and_then(|its| its.value_norm), parts.get(2)) {
            let values = (values.out, values.stride);
            self.norm_heads(values, (kv_heads, head_dim), &norm)?;
        }
        let (q, width) = self.slot(op.q)?;
        same("query slot", width, heads * head_dim)?;
        let head = self.heads(op)?;
        if appends_later {
            self.unappended = Some((op.q, products, head, deferred.unwrap_or_default()));
            return Ok(());
        }
        let growth = position_scale.filter(|scale| scale.period_tokens > 0);
        let params = AppendParams {
            step: self.step()?,
            kv,
            products,
            q,
            head,
            position_slope: growth.map_or(0.0, |scale| scale.slope),
            position_period: growth.map_or(1, |scale| scale.period_tokens),
        };
        let blocks = all_heads.div_ceil(APPEND_WARPS);
        // With many rows, warps take several heads of a row.
        let blocks_each = (APPEND_ROWS * blocks).div_ceil(self.program.max_rows).clamp(1, blocks);
        let grid = [blocks_each, self.program.max_rows, 1];
        self.launch(("append", &format!("append_{name}")), grid, 32 * APPEND_WARPS, &params)
    }

    /// Norms and rotary embedding of the heads.
    fn heads(&self, op: &op::Qkv) -> Result<HeadRef, DeviceError> {
        let HeadShape { heads, head_dim, .. } = op.shape;
        let mut head = HeadRef { heads, sincos_scale: 1.0, ..HeadRef::default() };
        // Without keys the key's norm is not used.
        let head_norms = [op.query_norm, op.keys.map_or(op.query_norm, |keys| keys.key_norm)];
        if head_norms[0].is_some() != head_norms[1].is_some() {
            return Err(self.unsupported("a norm of queries or keys alone".to_owned()));
        }
        if let [Some(query), Some(key)] = head_norms {
            head.query_norm = self.vector("head norm", query.weight, head_dim)?;
            head.key_norm = self.vector("head norm", key.weight, head_dim)?;
            (head.query_eps, head.key_eps) = (query.eps, key.eps);
        }
        if let Some(rope) = op.rope {
            let rope = self.resources.rope(rope)?;
            if 2 * rope.pairs_count > head_dim {
                return Err(DeviceError::Invalid("a rotation wider than the head".to_owned()));
            }
            head.frequencies = rope.frequencies.address();
            head.pairs = rope.pairs_count;
            head.sincos_scale = rope.magnitude;
            head.interleaved = u32::from(rope.pairs == RopePairs::Interleaved);
        }
        Ok(head)
    }

    /// The tensor-core form of attention, if supported.
    fn form(&self, shape: HeadShape) -> Result<Option<Form>, DeviceError> {
        let cache = &self.resources.cache(self.program.cache)?.desc;
        Ok(Form::of(&self.context.gpu().facts, cache, self.program, shape))
    }

    /// The pages of a layer, and the name of their number format.
    fn pages(&self, layer: u32, shape: HeadShape) -> Result<(KvRef, &'static str), DeviceError> {
        let cache = self.resources.cache(self.program.cache)?;
        let HeadShape { heads, kv_heads, head_dim } = shape;
        if kv_heads == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(DeviceError::Invalid(format!("{heads} heads over {kv_heads} KV heads")));
        }
        if head_dim > MAX_HEAD_DIM || !head_dim.is_multiple_of(8) {
            return Err(self.unsupported(format!("heads of {head_dim} numbers")));
        }
        let name = match cache.desc.kv_type {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Q8 => "q8",
            other => return Err(self.unsupported(format!("keys and values of {other:?}"))),
        };
        match cache.layer(layer) {
            Some((
                CacheLayer::Kv { kv_heads: has_heads, head_dim: has_dim, .. },
                blocks @ [keys, values, ..],
            )) if (*has_heads, *has_dim) == (kv_heads, head_dim) => {
                let [key_scales, value_scales] = scales(blocks);
                let kv = KvRef {
                    keys: keys.address(),
                    values: values.address(),
                    key_scales,
                    value_scales,
                    kv_heads,
                    head_dim,
                    page_tokens: cache.desc.page_tokens,
                    page_magic: page_magic(cache.desc.page_tokens),
                };
                Ok((kv, name))
            }
            _ => Err(DeviceError::Invalid(format!("layer {layer} of the cache has other heads"))),
        }
    }

    /// Address of the states of a recurrent layer.
    pub(super) fn states(&self, layer: u32, wanted: CacheLayer) -> Result<Address, DeviceError> {
        match self.resources.cache(self.program.cache)?.layer(layer) {
            Some((desc, [states])) if *desc == wanted => Ok(states.address()),
            _ => Err(DeviceError::Invalid(format!("layer {layer} of the cache is no {wanted:?}"))),
        }
    }

    /// The pages that the next attention of a program reads, if it reads a row's pages only once,
    /// as in decode.
    pub(super) fn next_pages(&self, later: &[Op]) -> Result<PagesRef, DeviceError> {
        let next = later.iter().find_map(|op| match op {
            Op::Attention(op::Attention { shape, layer, window, .. }) => {
                Some((*shape, *layer, *window))
            }
            _ => None,
        });
        let Some((shape, layer, window)) = next.filter(|_| self.program.pure_decode) else {
            return Ok(PagesRef::default());
        };
        let cache = self.resources.cache(self.program.cache)?;
        let (kv, _) = self.pages(layer, shape)?;
        let kv_type = cache.desc.kv_type;
        let numbers = shape.kv_heads * kv.page_tokens * shape.head_dim;
        let page_bytes = numbers * kv_type.bytes() as u32;
        let most = self.context.gpu().facts.l2_bytes / NEXT_PAGES_SHARE;
        let pages_most = most.checked_div(2 * u64::from(page_bytes)).unwrap_or(0);
        // Not measured with f32 pages. A copy has a multiple of 16 bytes.
        let is_worth_it = kv_type != KvType::F32 && pages_most > 0;
        if !is_worth_it || kv.page_magic == 0 || !page_bytes.is_multiple_of(16) {
            return Ok(PagesRef::default());
        }
        Ok(PagesRef {
            keys: kv.keys,
            values: kv.values,
            page_bytes,
            page_magic: kv.page_magic,
            pages_most: u32::try_from(pages_most).unwrap_or(u32::MAX),
            window: window.unwrap_or_default(),
        })
    }

    pub(super) fn attention(
        &mut self,
        op: &op::Attention,
        later: &[Op],
    ) -> Result<(), DeviceError> {
        // The queries have their position's scale.
        let op::Attention { q: q_slot, shape, layer, scale, window, out: out_slot, .. } = *op;
        let is_packed = self.is_packed(later, out_slot)?;
        let (kv, name) = self.pages(layer, shape)?;
        let (q, q_width) = self.slot(q_slot)?;
        let (out, out_width) = self.slot(out_slot)?;
        same("query slot", q_width, shape.heads * shape.head_dim)?;
        same("attention slot", out_width, shape.heads * shape.head_dim)?;
        let packed = is_packed.then(|| self.packed_rows(Area::PackedAttention, out_width, false));
        self.packed = packed.map(|rows| (out_slot, rows));
        // Of another slot it is stale: queries that no attention has read.
        let unappended = self.unappended.take().filter(|(slot, ..)| *slot == q_slot);
        let rows = self.program.max_rows;
        let arrivals_bytes = 4 * rows as usize * shape.heads as usize;
        let arrivals = self.workspace.at(Area::Arrivals, arrivals_bytes);
        if let Some(form) = self.form(shape)? {
            let (input, head, deferred, chosen) = match unappended {
                Some((_, products, head, deferred)) => {
                    (products, head, deferred, self.decode_kernel(&form, window)?)
                }
                None => {
                    let head = HeadRef { heads: shape.heads, ..HeadRef::default() };
                    (q, head, DeferredSplits::default(), form.mixed(self.program))
                }
            };
            let params = AttendParams {
                step: self.step()?,
                kv,
                input,
                out,
                packed: packed.unwrap_or_default(),
                head,
                partials: self.workspace.at(Area::Partials, form.partials_bytes(self.program)),
                arrivals,
                window: window.unwrap_or(0),
                scale,
                max_slots: form.max_slots(self.program),
                max_rows: rows,
                deferred,
            };
            let Chosen { file, ref name, grid, threads, shared_bytes } = chosen;
            let shared = (shared_bytes, shared_bytes);
            return self.launch_shared((file, name), grid, threads, shared, &params);
        }
        let per_kv = shape.heads / shape.kv_heads;
        // Shared memory holds the sums of four large heads.
        let is_large = shape.head_dim > HEAD_DIM_OF_WARP;
        let group = per_kv.next_power_of_two().min(if is_large { 4 } else { 8 });
        let max_chunks = max_chunks(self.program, window);
        let partials_bytes = partials_bytes(self.program, shape, window);
        let params = AttentionParams {
            step: self.step()?,
            kv,
            q,
            out,
            packed: packed.unwrap_or_default(),
            partials: self.workspace.at(Area::Partials, partials_bytes),
            arrivals,
            heads: shape.heads,
            window: window.unwrap_or(0),
            scale,
            max_chunks,
        };
        let grid = [shape.kv_heads * per_kv.div_ceil(group), max_chunks, rows];
        let lanes = (shape.head_dim / 8).next_power_of_two().max(8);
        let kernel = format!("attention_{name}_{group}x{lanes}");
        self.launch(("attention", &kernel), grid, 128, &params)
    }

    /// The decode kernel: in clusters, if that is faster and the image in use has it.
    fn decode_kernel(&mut self, form: &Form, window: Option<u32>) -> Result<Chosen, DeviceError> {
        if let Some(chosen) = form.decode_in_clusters(self.program, window) {
            let Chosen { file, ref name, shared_bytes, .. } = chosen;
            if self.kernels.find(self.context, file, name, shared_bytes)?.is_some() {
                return Ok(chosen);
            }
        }
        Ok(form.decode(self.program))
    }

    pub(super) fn short_conv(&mut self, op: &op::ShortConv) -> Result<(), DeviceError> {
        let op::ShortConv { x, ref norm, input: ref inputs, kernel, taps, layer, out } = *op;
        let (out, width) = self.slot(out)?;
        let state = self.states(layer, CacheLayer::ShortConv { width, taps })?;
        if taps == 0 || taps > MAX_TAPS {
            return Err(self.unsupported(format!("convolutions of {taps} taps")));
        }
        let kernel = self.vector("convolution kernel", kernel, width * taps)?;
        let products = self.products(3 * width);
        for linear in inputs {
            same("convolution width", self.resources.matrix(linear.matrix)?.rows, width)?;
        }
        let part = |i: u32| Part {
            linear: &inputs[i as usize],
            out: products + 4 * u64::from(i * width),
            stride: 3 * width,
        };
        let input = self.input(x, Some(norm))?;
        self.linears(&input, &[part(0), part(1), part(2)], Epilogue::Store)?;
        let params =
            ShortConvParams { step: self.step()?, products, kernel, state, out, width, taps };
        let grid = [width.div_ceil(256), self.program.max_rows, 1];
        self.launch(("short_conv", "short_conv"), grid, 256, &params)?;
        if taps > 1 {
            self.launch(("short_conv", "short_conv_state"), grid, 256, &params)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{APPEND_WARPS, CHUNK, MAX_HEAD_DIM, MAX_TAPS, page_magic};
    use crate::kernel_source::KernelSource;

    #[test]
    fn constants_match_the_kernels() {
        let of = |path: &str, name: &str| KernelSource::read(&[path]).constant(name);
        assert_eq!(of("attention/attention.cu", "CHUNK"), CHUNK);
        assert_eq!(of("attention/append.cu", "HEAD_DIM_MAX"), MAX_HEAD_DIM);
        assert_eq!(of("attention/append.cu", "APPEND_WARPS"), APPEND_WARPS);
        assert_eq!(of("attention/cache_ops.cu", "HEAD_DIM_MAX"), MAX_HEAD_DIM);
        assert_eq!(of("layer/short_conv.cu", "TAPS_MAX"), MAX_TAPS);
    }

    #[test]
    fn magic_number_division_is_exact() {
        for page_tokens in [2_u32, 3, 7, 16, 24, 32, 100, 255, 256] {
            let magic = u64::from(page_magic(page_tokens));
            for position in (0..300_000).chain([1_000_000, 16_000_000]) {
                let index = (u64::from(position) * magic) >> 32;
                assert_eq!(index, u64::from(position / page_tokens), "{position} / {page_tokens}");
            }
        }
        assert_eq!(page_magic(1), 0);
    }
}

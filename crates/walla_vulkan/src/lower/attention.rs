//! Query, key and value; attention.

use walla_device::{CacheLayer, DeviceError, HeadShape, op};
use walla_types::RopePairs;

use super::workspace::Area;
use super::{Lowering, Source, Target, same};
use crate::cache::kv_params;
use crate::params;

/// Cells of a span, and query heads of a workgroup (`SPAN`, `HEADS` of attention.slang).
const SPAN: u32 = 256;
const HEADS: u32 = 8;
/// Largest head of attention (`HEAD_MAX`).
const HEAD_MAX: u32 = 512;

impl Lowering<'_> {
    pub(super) fn qkv(&mut self, op: &op::Qkv) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (q, q_width) = self.slot(op.q)?;
        let HeadShape { heads, kv_heads, head_dim } = op.shape;
        same("query slot", q_width, heads.saturating_mul(head_dim))?;
        same("rows of the query matrix", self.rows_of(op.query.matrix)?, q_width)?;
        let mut matrices = vec![op.query.matrix];
        let kv_width = kv_heads.saturating_mul(head_dim);
        if let Some(keys) = &op.keys {
            for linear in [keys.key, keys.value] {
                same("rows of a key or value matrix", self.rows_of(linear.matrix)?, kv_width)?;
                matrices.push(linear.matrix);
            }
        }
        let norm = Some(op.norm);
        let source = Source::of(x, width, norm);
        let input = self.pack(&source, &matrices)?;
        let stride = q_width + op.keys.map_or(0, |_| 2 * kv_width);
        let products = self.area(Area::Products, stride);
        let mut linears = vec![(op.query, products)];
        if let Some(keys) = &op.keys {
            let of_keys = products + u64::from(q_width) * 4;
            linears.push((keys.key, of_keys));
            linears.push((keys.value, of_keys + u64::from(kv_width) * 4));
        }
        self.products(&linears, &input, &Target { out: products, stride, adds: None })?;
        let kv = self.kv(op.layer, op.shape)?;
        let (key_norm, value_norm) =
            op.keys.as_ref().map_or((None, None), |keys| (keys.key_norm, keys.value_norm));
        let (query_norm, query_eps) = self.norm(op.query_norm, head_dim)?;
        let (key_norm, key_eps) = self.norm(key_norm, head_dim)?;
        let (value_norm, value_eps) = self.norm(value_norm, head_dim)?;
        let mut head = params::HeadParams {
            kv,
            query_norm,
            key_norm,
            value_norm,
            query_eps,
            key_eps,
            value_eps,
            ..bytemuck::Zeroable::zeroed()
        };
        if let Some(rope) = op.rope {
            let rope = self.resources.rope(rope)?;
            if 2 * rope.pairs_count > head_dim {
                return Err(DeviceError::Invalid(format!("a rope beyond heads of {head_dim}")));
            }
            head.frequencies = rope.frequencies.address();
            head.pairs = rope.pairs_count;
            head.magnitude = rope.magnitude;
            head.interleaved = u32::from(rope.pairs == RopePairs::Interleaved);
        }
        let head = self.constant(&head);
        let push = params::Append { program: self.head, head, products, q, stride, reserved: 0 };
        let appended = op.keys.map_or(0, |_| 2 * kv_heads);
        let groups = [self.program.max_rows, heads + appended, 1];
        let constants = [kv.ty, head_dim, heads, kv_heads, self.page_tokens()?];
        self.specialized("append", &constants, groups, &push)
    }

    fn page_tokens(&self) -> Result<u32, DeviceError> {
        Ok(self.resources.cache(self.program.cache)?.desc.page_tokens)
    }

    /// A layer of the cache.
    pub(super) fn kv(&self, layer: u32, shape: HeadShape) -> Result<params::KvParams, DeviceError> {
        let cache = self.resources.cache(self.program.cache)?;
        let HeadShape { heads, kv_heads, head_dim } = shape;
        let is_its = |its: &CacheLayer| {
            matches!(its, CacheLayer::Kv { kv_heads: heads, head_dim: dim, .. }
                if (*heads, *dim) == (kv_heads, head_dim))
        };
        let Some((_, memory)) = cache.layer(layer).filter(|(its, _)| is_its(its)) else {
            return Err(DeviceError::Invalid(format!(
                "layer {layer} of the cache has other heads"
            )));
        };
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(DeviceError::Invalid(format!("{heads} heads over {kv_heads}")));
        }
        if head_dim > HEAD_MAX {
            return Err(self.unsupported(format!("heads of {head_dim}")));
        }
        Ok(kv_params(&cache.desc, [kv_heads, head_dim], memory))
    }

    pub(super) fn attention(&mut self, op: &op::Attention) -> Result<(), DeviceError> {
        let growth = op.position_scale.filter(|its| !its.is_one_within(self.program.max_context));
        let HeadShape { heads, kv_heads, head_dim } = op.shape;
        let (q, q_width) = self.slot(op.q)?;
        let (out, out_width) = self.slot(op.out)?;
        same("query slot", q_width, heads.saturating_mul(head_dim))?;
        same("output slot", out_width, q_width)?;
        let kv = self.kv(op.layer, op.shape)?;
        let kv = self.constant(&kv);
        let rows = self.program.max_rows;
        let spans = self.program.max_context.div_ceil(SPAN).max(1);
        // Indices of shaders have 32 bits.
        let numbers = [heads, spans, head_dim + 2]
            .iter()
            .fold(u64::from(rows), |product, its| product.saturating_mul(u64::from(*its)));
        if spans > 1 && numbers > u64::from(u32::MAX) {
            return Err(self.unsupported(format!("attention of {rows} rows over {spans} spans")));
        }
        let partials = match spans {
            1 => 0,
            _ => self.area(Area::Partials, heads * spans * (head_dim + 2)),
        };
        let (program, window) = (self.head, op.window.unwrap_or(0));
        let group = heads / kv_heads;
        let heads_of_group = group.next_power_of_two().min(HEADS);
        let groups = kv_heads * group.div_ceil(heads_of_group);
        let packed = match head_dim.is_multiple_of(32) {
            true => self.packed_for_next(op.out, out_width),
            false => None,
        };
        let (words, factors) = packed.map_or((0, 0), |its| (its.input.words, its.input.factors));
        let out = if packed.is_some() { 0 } else { out };
        let push = params::Attention {
            program,
            kv,
            q,
            out,
            partials,
            words,
            factors,
            window,
            scale: op.scale,
            spans,
            slope: growth.map_or(0.0, |its| its.slope),
            period: growth.map_or(0, |its| its.period_tokens),
            reserved: 0,
        };
        let ty = self.resources.cache(self.program.cache)?.desc.kv_type;
        let shader = format!("attention TYPE=KV_{ty:?} HEADS={heads_of_group}");
        let constants = [head_dim, kv_heads, group, self.page_tokens()?];
        self.specialized(&shader, &constants, [rows, groups, spans], &push)?;
        if spans == 1 {
            return Ok(());
        }
        let dim = head_dim;
        let push = params::AttentionSum {
            program,
            partials,
            out,
            words,
            factors,
            heads,
            dim,
            window,
            spans,
        };
        self.dispatch("attention_sum", [rows, heads, 1], &push)
    }
}

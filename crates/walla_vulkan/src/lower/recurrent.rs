//! Convolutions and DeltaNet.

use walla_device::{CacheLayer, DeviceError, op};

use super::workspace::Area;
use super::{Lowering, Source, Target, same};
use crate::cache::delta_numbers;
use crate::params;

/// Columns of DeltaNet's states in a workgroup (`COLUMNS`).
const DELTA_COLUMNS: u32 = 32;
/// Most taps of a convolution (`TAPS_MAX`).
const TAPS_MAX: u32 = 8;

impl Lowering<'_> {
    pub(super) fn short_conv(&mut self, op: &op::ShortConv) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (out, out_width) = self.slot(op.out)?;
        same("output slot", out_width, width)?;
        let kernel = self.vector("kernel", op.kernel, width.saturating_mul(op.taps))?;
        let wanted = CacheLayer::ShortConv { width, taps: op.taps };
        let cache = self.resources.cache(self.program.cache)?;
        let state = match cache.layer(op.layer) {
            Some((its, [state])) if *its == wanted => state.address(),
            _ => return Err(DeviceError::Invalid(format!("layer {} of the cache", op.layer))),
        };
        if op.taps > TAPS_MAX {
            return Err(self.unsupported(format!("convolutions of {} taps", op.taps)));
        }
        let norm = Some(op.norm);
        let source = Source::of(x, width, norm);
        let matrices = op.input.map(|linear| linear.matrix);
        let input = self.pack(&source, &matrices)?;
        let stride = 3 * width;
        let products = self.area(Area::Products, stride);
        let mut linears = Vec::new();
        for (first, linear) in (0..).zip(&op.input) {
            same("rows of a matrix", self.rows_of(linear.matrix)?, width)?;
            linears.push((*linear, products + u64::from(first * width) * 4));
        }
        self.products(&linears, &input, &Target { out: products, stride, adds: None })?;
        let (program, taps) = (self.head, op.taps);
        let push = params::ShortConv { program, products, kernel, state, out, width, taps };
        let groups = [width.div_ceil(128), self.program.max_rows, 1];
        self.dispatch("short_conv STATE=0", groups, &push)?;
        self.dispatch("short_conv STATE=1", groups, &push)
    }

    pub(super) fn delta_net(&mut self, op: &op::DeltaNet) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (out, out_width) = self.slot(op.out)?;
        let shape = op.shape;
        let (channels, heads) = (shape.channels(), shape.value_heads);
        same("output slot", out_width, shape.values())?;
        let cache = self.resources.cache(self.program.cache)?;
        let state = match cache.layer(op.layer) {
            Some((CacheLayer::DeltaNet(its), [state])) if *its == shape => state.address(),
            _ => return Err(DeviceError::Invalid(format!("layer {} of the cache", op.layer))),
        };
        let state_numbers = delta_numbers(shape).unwrap_or_default();
        let linears = [&op.input, &op.alpha, &op.beta];
        let source = Source::of(x, width, Some(op.norm));
        let input = self.pack(&source, &linears.map(|linear| linear.matrix))?;
        let stride = channels + 2 * heads;
        let products = self.area(Area::Products, stride);
        let (mut first, mut all) = (0, Vec::new());
        for (linear, rows) in linears.into_iter().zip([channels, heads, heads]) {
            same("rows of a matrix", self.rows_of(linear.matrix)?, rows)?;
            all.push((*linear, products + u64::from(first) * 4));
            first += rows;
        }
        self.products(&all, &input, &Target { out: products, stride, adds: None })?;
        let convolved = self.area(Area::Convolved, channels);
        let (program, max_rows) = (self.head, self.program.max_rows);
        let push = params::DeltaConv {
            program,
            products,
            kernel: self.vector("kernel", op.kernel, channels.saturating_mul(shape.taps))?,
            state,
            out: convolved,
            channels,
            stride,
            taps: shape.taps,
            state_numbers,
            inputs: shape.values() * shape.head_dim,
            reserved: 0,
        };
        let groups = [channels.div_ceil(128), max_rows, 1];
        self.dispatch("delta_conv STATE=0", groups, &push)?;
        self.dispatch("delta_conv STATE=1", groups, &push)?;
        let push = params::DeltaRule {
            program,
            convolved,
            products,
            decay: self.vector("decays", op.decay, heads)?,
            step_bias: self.vector("step biases", op.step_bias, heads)?,
            state,
            out,
            key_heads: shape.key_heads,
            value_heads: heads,
            head_dim: shape.head_dim,
            stride,
            alpha: channels,
            state_numbers,
            eps: op.eps,
            reserved: 0,
        };
        let strips = shape.head_dim.div_ceil(DELTA_COLUMNS);
        self.dispatch("delta_rule", [max_rows, heads, strips], &push)?;
        let push = params::HeadNorm {
            program,
            x: out,
            weight: self.vector("head norm", op.head_norm.weight, shape.head_dim)?,
            heads,
            dim: shape.head_dim,
            eps: op.head_norm.eps,
            reserved: 0,
        };
        self.dispatch("head_norm", [max_rows, heads, 1], &push)
    }
}

//! Embeddings of each layer, and bounded logits (kernels/layer/layer_inputs.cu, bound_logits.cu).

use walla_device::{DeviceError, op};

use super::operands::Part;
use super::product::Epilogue;
use super::{Lowering, same};
use crate::params::{BoundLogitsParams, LayerInputsParams};

/// As in layer_inputs.cu.
const LAYER_INPUTS_WARPS: u32 = 8;
const MAX_PART: u32 = 1024;
/// As in bound_logits.cu.
const MAX_SUPPRESSED: usize = 64;
const BOUND_THREADS: u32 = 256;
const BOUND_LOGITS: u32 = 4 * BOUND_THREADS;

impl Lowering<'_> {
    pub(super) fn layer_inputs(&mut self, op: &op::LayerInputs) -> Result<(), DeviceError> {
        let op::LayerInputs { x, table, table_scale, ref projection, norm, e } = *op;
        let (e, width) = self.slot(e)?;
        let table = self.resources.matrix(table)?;
        if !table.usage.gather {
            return Err(DeviceError::Invalid(format!("{} is not to look up", table.name)));
        }
        same("columns of the layers' table", table.cols, width)?;
        same("layer inputs", self.resources.matrix(projection.matrix)?.rows, width)?;
        let weight = self.resources.vector(norm.weight)?;
        let part = weight.len;
        if part == 0 || !width.is_multiple_of(part) {
            return Err(DeviceError::Invalid(format!("parts of {part} numbers of {width}")));
        }
        if part > MAX_PART {
            return Err(self.unsupported(format!("layer inputs of {part} numbers")));
        }
        let products = self.products(width);
        let mut params = LayerInputsParams {
            step: self.step()?,
            table: table.weight,
            products,
            norm: weight.memory.address(),
            last_sampled: self.resources.cache(self.program.cache)?.last_sampled.address(),
            e,
            width,
            part,
            table_scale,
            eps: norm.eps,
        };
        params.table_scale *= table.weight.scale;
        let input = self.input(x, None)?;
        let product = Part { linear: projection, out: products, stride: width };
        self.linears(&input, &[product], Epilogue::Store)?;
        let grid = [(width / part).div_ceil(LAYER_INPUTS_WARPS), self.program.max_rows, 1];
        let kernel = ("layer_inputs", "layer_inputs");
        self.launch(kernel, grid, 32 * LAYER_INPUTS_WARPS, &params)
    }

    /// Bounds the logits, and suppresses tokens.
    pub(super) fn bound_logits(
        &mut self,
        soft_cap: Option<f32>,
        suppressed: &[u32],
    ) -> Result<(), DeviceError> {
        if let Some(token) = suppressed.iter().find(|token| **token >= self.program.vocab) {
            let why = format!("suppressed token {token} of {}", self.program.vocab);
            return Err(DeviceError::Invalid(why));
        }
        let mut params = BoundLogitsParams {
            step: self.step()?,
            logits: self.resources.buffer(self.program.logits)?.address(),
            vocab: self.program.vocab,
            cap: soft_cap.unwrap_or(0.0),
            count: 0,
            reserved: 0,
            suppressed: [0; MAX_SUPPRESSED],
        };
        let grid = [self.program.vocab.div_ceil(BOUND_LOGITS), self.program.max_outputs.max(1), 1];
        let mut rest = suppressed;
        while params.cap > 0.0 || !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(MAX_SUPPRESSED));
            params.count = now.len() as u32;
            params.suppressed[..now.len()].copy_from_slice(now);
            let kernel = ("bound_logits", "bound_logits");
            self.launch(kernel, grid, BOUND_THREADS, &params)?;
            params.cap = 0.0;
            rest = later;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_source::KernelSource;

    #[test]
    fn constants_match_the_kernels() {
        let inputs = KernelSource::read(&["layer/layer_inputs.cu"]);
        assert_eq!(inputs.constant("LAYER_INPUTS_WARPS"), LAYER_INPUTS_WARPS);
        assert_eq!(inputs.constant("PART_MAX"), MAX_PART);
        let bounds = KernelSource::read(&["layer/bound_logits.cu"]);
        assert_eq!(bounds.constant("SUPPRESSED_MAX"), MAX_SUPPRESSED as u32);
        assert_eq!(bounds.constant("BOUND_THREADS"), BOUND_THREADS);
        assert_eq!(bounds.constant("BOUND_LOGITS"), BOUND_LOGITS);
    }
}

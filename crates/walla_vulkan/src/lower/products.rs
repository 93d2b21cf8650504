//! Products of packed rows with matrices.

use walla_device::step::StepHeader;
use walla_device::{DeviceError, Linear, MatrixId};

use super::{Input, Lowering, same};
use crate::params::{self, Address};
use crate::repack::Kind;
use crate::resources::Matrix;

/// Rows of W in a workgroup of a product.
pub(super) const PRODUCT_ROWS: u32 = 16;
/// Flags of products (product_params.slang).
const FLAG_ADDS: u32 = 1;
const FLAG_BY_OUTPUT: u32 = 2;
pub(super) const FLAG_ACTIVATION: u32 = 4;
/// Matrix units are used for more rows of x than this.
const MATRIX_ROWS_MIN: u32 = 8;
/// Rows of W of a workgroup of matrix units.
const MATRIX_GROUP: u32 = 32;
/// Tiles of prompts (product_tiles.slang) are used for this many workgroups and more, which fill a
/// large GPU; rows of x and of W of each.
const PROMPT_GROUPS_MIN: u32 = 96;
const PROMPT_GROUP: [u32; 2] = [64, 128];
/// Matrices of a dispatch of products.
const MAX_PARTS: usize = 3;

/// How products are computed.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// The shader, with `?` for the kind.
    pub(super) name: String,
    /// Rows of W in a workgroup, and workgroups for the rows of x.
    pub(super) rows: u32,
    pub(super) groups: u32,
}

impl Shape {
    pub(super) fn shader(&self, kind: Kind) -> String {
        self.name.replace('?', &format!("{kind:?}"))
    }
}

/// Where the rows of a product go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) out: Address,
    pub(super) stride: u32,
    /// `Some(scale)`: they are added, and the sum is multiplied.
    pub(super) adds: Option<f32>,
}

impl Lowering<'_> {
    /// A product of packed rows.
    pub(super) fn product(
        &mut self,
        linear: &Linear,
        input: &Input,
        target: &Target,
    ) -> Result<(), DeviceError> {
        self.products(&[(*linear, target.out)], input, target)
    }

    /// Products of the same rows with matrices, each to its own address.
    pub(super) fn products(
        &mut self,
        linears: &[(Linear, Address)],
        input: &Input,
        target: &Target,
    ) -> Result<(), DeviceError> {
        let mut rest = linears;
        while let Some((first, out)) = rest.first() {
            let kind = self.multiplied(first.matrix, input)?.kind;
            if !kind.is_quantized() {
                self.product_float(first, input, &Target { out: *out, ..*target })?;
                rest = &rest[1..];
                continue;
            }
            let mut count = 0;
            for (linear, _) in rest.iter().take(MAX_PARTS) {
                if self.multiplied(linear.matrix, input)?.kind != kind {
                    break;
                }
                count += 1;
            }
            let (same, others) = rest.split_at(count);
            let is_first = rest.len() == linears.len();
            rest = others;
            self.product_quantized(same, input, target)?;
            // The others do not wait for each other.
            if let Some(dispatch) = self.dispatches.last_mut().filter(|_| !is_first) {
                dispatch.waits = false;
            }
        }
        Ok(())
    }

    /// The matrix of a product with these rows.
    pub(super) fn multiplied(
        &self,
        matrix: MatrixId,
        input: &Input,
    ) -> Result<&Matrix, DeviceError> {
        let matrix = self.resources.matrix(matrix)?;
        if !matrix.usage.multiply {
            return Err(DeviceError::Invalid(format!("{} is not to be multiplied", matrix.name)));
        }
        same("columns of a matrix", matrix.cols, input.width)?;
        Ok(matrix)
    }

    /// Most rows of the input.
    fn rows_of_input(&self, input: &Input) -> u32 {
        if input.by_output { self.program.max_outputs } else { self.program.max_rows }
    }

    fn product_float(
        &mut self,
        linear: &Linear,
        input: &Input,
        target: &Target,
    ) -> Result<(), DeviceError> {
        let matrix = self.resources.matrix(linear.matrix)?;
        let rows = self.rows_of_input(input);
        let columns = columns_for(rows);
        let groups = [matrix.rows.div_ceil(PRODUCT_ROWS), rows.div_ceil(columns), 1];
        let push = params::ProductFloat {
            program: self.head,
            weights: matrix.weights.address(),
            bias: self.bias(linear, matrix.rows)?,
            x: input.plain,
            out: target.out,
            kind: matrix.kind as u32,
            rows: matrix.rows,
            cols: matrix.cols,
            stride: target.stride,
            adds: u32::from(target.adds.is_some()),
            sum_scale: target.adds.unwrap_or(1.0),
            by_output: u32::from(input.by_output),
            reserved: 0,
        };
        self.dispatch(&format!("product_float COLUMNS={columns}"), groups, &push)
    }

    /// Products with matrices of one quantised kind.
    fn product_quantized(
        &mut self,
        linears: &[(Linear, Address)],
        input: &Input,
        target: &Target,
    ) -> Result<(), DeviceError> {
        let (mut push, kind) = self.product_params(linears, input)?;
        let shape = self.shape_for(input, push.rows.iter().sum(), false);
        push.stride = target.stride;
        push.flags |= if target.adds.is_some() { FLAG_ADDS } else { 0 };
        push.sum_scale = target.adds.unwrap_or(1.0);
        let groups = push.rows.iter().map(|rows| rows.div_ceil(shape.rows)).sum();
        let groups = [groups, shape.groups, 1];
        self.specialized(&shape.shader(kind), &[input.blocks()], groups, &push)
    }

    /// The parameters of products with these rows, and the kind of the matrices.
    pub(super) fn product_params(
        &mut self,
        linears: &[(Linear, Address)],
        input: &Input,
    ) -> Result<(params::Product, Kind), DeviceError> {
        let step = self.resources.buffer(self.program.step)?.address();
        let count = if input.by_output {
            std::mem::offset_of!(StepHeader, outputs)
        } else {
            std::mem::offset_of!(StepHeader, rows)
        };
        let mut push = params::Product {
            count: step + count as u64,
            x: input.words,
            x_factors: input.factors,
            ..bytemuck::Zeroable::zeroed()
        };
        let mut kind = Kind::Q8;
        for (index, (linear, out)) in linears.iter().enumerate() {
            let matrix = self.resources.matrix(linear.matrix)?;
            push.weights[index] = matrix.weights.address();
            push.out[index] = *out;
            push.bias[index] = self.bias(linear, matrix.rows)?;
            push.rows[index] = matrix.rows;
            kind = matrix.kind;
        }
        if let Some(norm) = input.norm {
            (push.x, push.x_factors, push.eps) = (norm.x, norm.weight, norm.eps);
            if input.by_output {
                push.flags = FLAG_BY_OUTPUT;
                push.bias[2] = step + self.program.layout.outputs_offset() as u64;
            }
        }
        Ok((push, kind))
    }

    /// The shader and the grid for products with these rows and matrices of `height` rows together;
    /// with `gate`, of two matrices of this height.
    pub(super) fn shape_for(&self, input: &Input, height: u32, gate: bool) -> Shape {
        let rows = self.rows_of_input(input);
        let gpu = self.context.gpu();
        let gate_code = u32::from(gate);
        let [of_x, of_w] = PROMPT_GROUP;
        let of_w = if gate { of_w / 2 } else { of_w };
        let groups = rows.div_ceil(of_x);
        if gpu.has_matrices
            && rows > of_x / 2
            && height.div_ceil(of_w).saturating_mul(groups) >= PROMPT_GROUPS_MIN
        {
            let name = format!("product_tiles KIND=KIND_? GATE={gate_code}");
            return Shape { name, rows: of_w, groups };
        }
        if gpu.has_matrices && rows > MATRIX_ROWS_MIN {
            let tiles = rows.div_ceil(16).next_power_of_two().min(2);
            let name = format!("product_matrix KIND=KIND_? TILES={tiles} GATE={gate_code}");
            return Shape { name, rows: MATRIX_GROUP, groups: rows.div_ceil(16 * tiles) };
        }
        let columns = columns_for(rows);
        let dot = u32::from(gpu.has_dot_product);
        if input.norm.is_some() {
            let name = format!("product_norm KIND=KIND_? DOT={dot} GATE={gate_code}");
            return Shape { name, rows: PRODUCT_ROWS * if gate { 2 } else { 1 }, groups: rows };
        }
        let name = format!("product KIND=KIND_? COLUMNS={columns} DOT={dot} GATE={gate_code}");
        let of_group = PRODUCT_ROWS * if gate || columns >= 4 { 2 } else { 1 };
        Shape { name, rows: of_group, groups: rows.div_ceil(columns) }
    }
}

/// Rows of x that share a read of the weights.
fn columns_for(rows: u32) -> u32 {
    match rows {
        1 => 1,
        2 => 2,
        3..=4 => 4,
        _ => 8,
    }
}

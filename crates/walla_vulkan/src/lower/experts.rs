//! Mixtures of experts.

use walla_device::{DeviceError, Linear, MatrixId, op};
use walla_types::ExpertScore;

use super::workspace::Area;
use super::{Input, Lowering, PRODUCT_ROWS, Source, Target, same};
use crate::params::{self, Address};
use crate::repack::Kind;

/// Most experts, and most of them that a row uses (`EXPERTS_MAX`, `USED_MAX`).
const MAX_EXPERTS: u32 = 512;
const MAX_USED: u32 = 32;

impl Lowering<'_> {
    pub(super) fn experts(&mut self, op: &op::Experts) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (experts, used) = (self.rows_of(op.router)?, op.used);
        if experts > MAX_EXPERTS || used == 0 || used > experts.min(MAX_USED) {
            return Err(self.unsupported(format!("{used} of {experts} experts")));
        }
        let hidden = self.rows_of(op.gate)? / experts;
        for (what, matrix, rows) in [
            ("rows of the gates", op.gate, experts.saturating_mul(hidden)),
            ("rows of the second gate", op.up, experts.saturating_mul(hidden)),
            ("rows of the results", op.down, experts.saturating_mul(width)),
        ] {
            same(what, self.rows_of(matrix)?, rows)?;
        }
        let source = Source { by_products: false, ..Source::of(x, width, Some(op.norm)) };
        let input = self.pack(&source, &[op.router, op.gate, op.up])?;
        let router = Linear { matrix: op.router, bias: None };
        let products = self.area(Area::Products, experts);
        self.product(&router, &input, &Target { out: products, stride: experts, adds: None })?;
        let choices = self.area(Area::Choices, 2 * used);
        let bias = match op.selection_bias {
            Some(bias) => self.vector("selection bias", bias, experts)?,
            None => 0,
        };
        let push = params::ExpertsChoose {
            program: self.head,
            products,
            bias,
            choices,
            experts,
            used,
            is_sigmoid: u32::from(op.score == ExpertScore::Sigmoid),
            reserved: 0,
        };
        self.dispatch("experts_choose", [self.program.max_rows, 1, 1], &push)?;
        let gate = self.area(Area::ExpertsGate, used * hidden.max(width));
        let up = self.area(Area::ExpertsUp, used * hidden);
        let choice = (choices, used);
        self.experts_product(op.gate, &input, choice, used, (gate, hidden))?;
        self.experts_product(op.up, &input, choice, used, (up, hidden))?;
        let source = Source {
            gate: Some((gate, op.activation)),
            multiple: used,
            ..Source::of(up, hidden, None)
        };
        let input = self.pack(&source, &[op.down])?;
        // The gates are packed.
        self.experts_product(op.down, &input, choice, 1, (gate, width))?;
        let push = params::ExpertsAdd { program: self.head, choices, y: gate, x, width, used };
        self.dispatch("experts_add", [width.div_ceil(128), self.program.max_rows, 1], &push)
    }

    /// Products of the chosen experts' matrices. `each`: choices that share a row of the input.
    pub(super) fn experts_product(
        &mut self,
        matrix: MatrixId,
        input: &Input,
        (choices, used): (Address, u32),
        each: u32,
        (out, rows): (Address, u32),
    ) -> Result<(), DeviceError> {
        let matrix = self.multiplied(matrix, input)?;
        let [factors, scales] = matrix.factors();
        let is_quantized = matrix.kind.is_quantized();
        let push = params::ExpertsProduct {
            program: self.head,
            choices,
            weights: matrix.weights.address(),
            factors,
            scales,
            x: if is_quantized { input.words } else { input.plain },
            x_factors: input.factors,
            out,
            kind: matrix.kind as u32,
            rows,
            cols: matrix.cols,
            used,
            each,
            reserved: 0,
        };
        let dot = u32::from(self.context.gpu().has_dot_product);
        let kind = if is_quantized { matrix.kind } else { Kind::F32 };
        let shader = format!("experts_product KIND=KIND_{kind:?} DOT={dot}");
        let groups = [rows.div_ceil(PRODUCT_ROWS), self.program.max_rows * used, 1];
        self.dispatch(&shader, groups, &push)
    }
}

//! Gates and inputs of layers.

use walla_device::{DeviceError, op};
use walla_types::Activation;

use super::workspace::Area;
use super::{FLAG_ACTIVATION, Input, Lowering, Source, Target, code, same};
use crate::params::{self, Address};
use crate::repack::BLOCK;

impl Lowering<'_> {
    pub(super) fn gate_up(&mut self, op: &op::GateUp) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (h, hidden) = self.slot(op.h)?;
        for linear in [&op.gate, &op.up] {
            same("rows of a matrix", self.rows_of(linear.matrix)?, hidden)?;
        }
        let norm = Some(op.norm);
        let source = Source::of(x, width, norm);
        let input = self.pack(&source, &[op.gate.matrix, op.up.matrix])?;
        let kinds = [
            self.multiplied(op.gate.matrix, &input)?.kind,
            self.multiplied(op.up.matrix, &input)?.kind,
        ];
        if kinds[0].is_quantized() && kinds[0] == kinds[1] {
            return self.gate_up_at_once(op, &input, (h, hidden));
        }
        let gate = self.area(Area::Products, hidden);
        let target = |out| Target { out, stride: hidden, adds: None };
        self.product(&op.gate, &input, &target(gate))?;
        self.product(&op.up, &input, &target(h))?;
        self.gate_rows((gate, hidden), (h, hidden), (h, hidden), op.activation)
    }

    /// Both products, and their product, in one dispatch.
    fn gate_up_at_once(
        &mut self,
        op: &op::GateUp,
        input: &Input,
        (h, hidden): (Address, u32),
    ) -> Result<(), DeviceError> {
        let packed = self.packed_for_next(op.h, hidden);
        let out = if packed.is_some() { 0 } else { h };
        let shape = self.shape_for(input, hidden, true);
        let (mut push, kind) = self.product_params(&[(op.gate, out), (op.up, 0)], input)?;
        push.stride = hidden;
        push.flags |= code(op.activation) * FLAG_ACTIVATION;
        push.out[1] = packed.map_or(0, |its| its.input.words);
        push.out[2] = packed.map_or(0, |its| its.input.factors);
        let groups = [hidden.div_ceil(shape.rows), shape.groups, 1];
        self.specialized(&shape.shader(kind), &[input.blocks()], groups, &push)
    }

    pub(super) fn gate(&mut self, op: &op::Gate) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (y, gated) = self.slot(op.y)?;
        let rows = self.rows_of(op.linear.matrix)?;
        if rows != 1 {
            same("rows of a gate", rows, gated)?;
        }
        let norm = Some(op.norm);
        let source = Source::of(x, width, norm);
        let input = self.pack(&source, &[op.linear.matrix])?;
        let gate = self.area(Area::Products, rows);
        self.product(&op.linear, &input, &Target { out: gate, stride: rows, adds: None })?;
        self.gate_rows((gate, rows), (y, gated), (y, gated), op.activation)
    }

    /// `out = activation(gate) * input`, with the width of `out`. Pairs are addresses and strides.
    pub(super) fn gate_rows(
        &mut self,
        (gate, gate_stride): (Address, u32),
        (input, input_stride): (Address, u32),
        (out, width): (Address, u32),
        activation: Activation,
    ) -> Result<(), DeviceError> {
        let push = params::GateRows {
            program: self.head,
            gate,
            input,
            out,
            width,
            gate_stride,
            gate_step: u32::from(gate_stride != 1),
            input_stride,
            activation: code(activation),
            reserved: 0,
        };
        self.dispatch("gate_rows", [width.div_ceil(128), self.program.max_rows, 1], &push)
    }

    pub(super) fn layer_inputs(&mut self, op: &op::LayerInputs) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (e, numbers) = self.slot(op.e)?;
        let part = self.resources.vector(op.norm.weight)?.len;
        if part == 0 || !numbers.is_multiple_of(part) {
            return Err(DeviceError::Invalid(format!("{numbers} inputs in parts of {part}")));
        }
        same("rows of the projection", self.rows_of(op.projection.matrix)?, numbers)?;
        let source = Source::of(x, width, None);
        let input = self.pack(&source, &[op.projection.matrix])?;
        let products = self.area(Area::Products, numbers);
        let target = Target { out: products, stride: numbers, adds: None };
        self.product(&op.projection, &input, &target)?;
        let table = self.resources.matrix(op.table)?;
        same("columns of the table", table.cols, numbers)?;
        let whole = if table.kind.is_quantized() { BLOCK as u32 } else { 2 };
        if !table.usage.gather || !part.is_multiple_of(whole) {
            return Err(self.unsupported(format!("{} in parts of {part}", table.name)));
        }
        let [factors, scales] = table.factors();
        let layers = numbers / part;
        let push = params::LayerInputs {
            program: self.head,
            products,
            norm: self.vector("norm", op.norm.weight, part)?,
            weights: table.weights.address(),
            factors,
            scales,
            e,
            kind: table.kind as u32,
            vocab: table.rows,
            width: part,
            layers,
            eps: op.norm.eps,
            table_scale: op.table_scale,
        };
        self.dispatch("layer_inputs", [self.program.max_rows, layers, 1], &push)
    }

    pub(super) fn gate_input(&mut self, op: &op::GateInput) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (h, gated) = self.slot(op.h)?;
        let (e, numbers) = self.slot(op.e)?;
        same("rows of a gate", self.rows_of(op.linear.matrix)?, gated)?;
        if op.first.checked_add(gated).is_none_or(|end| end > numbers) {
            let why = format!("{gated} inputs from {} on, of {numbers}", op.first);
            return Err(DeviceError::Invalid(why));
        }
        let source = Source::of(x, width, None);
        let input = self.pack(&source, &[op.linear.matrix])?;
        let gate = self.area(Area::Products, gated);
        self.product(&op.linear, &input, &Target { out: gate, stride: gated, adds: None })?;
        let inputs = e + u64::from(op.first) * 4;
        self.gate_rows((gate, gated), (inputs, numbers), (h, gated), op.activation)
    }
}

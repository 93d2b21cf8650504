//! Checks a program against the device's resources once, when it is prepared, so that the executor
//! can trust every id and width. Pure.

use walla_device::step::mask_words;
use walla_device::{DeviceError, HeadShape, Linear, MatrixId, Norm, Op, Program, RopeId, Slot, op};

use crate::cache::{Cache, Layer};
use crate::experts;
use crate::forward::attention::{MAX_GROUP, QUERIES};
use crate::matrix::Matrix;
use crate::memory::Bytes;
use crate::operands::{PANEL, ROWS};
use crate::quantize::GROUP;
use crate::workspace::{ExpertSizes, Rope, Sizes};

/// The resources that programs refer to.
#[derive(Clone, Copy)]
pub(crate) struct Resources<'a> {
    pub matrices: &'a [Matrix],
    pub vectors: &'a [Vec<f32>],
    pub ropes: &'a [Rope],
    pub caches: &'a [Cache],
    pub buffers: &'a [Bytes],
}

type Checked<T = ()> = Result<T, String>;

/// Checks the program and returns the memory that it needs.
///
/// # Errors
/// [`DeviceError::Invalid`] names the op and the mismatch.
pub(crate) fn check(program: &Program, resources: Resources<'_>) -> Result<Sizes, DeviceError> {
    let run = || -> Checked<Sizes> {
        let cache = resources
            .caches
            .get(program.cache.0 as usize)
            .ok_or_else(|| format!("cache {} is unknown", program.cache.0))?;
        check_buffers(program, resources.buffers)?;
        let mut checker = Checker { program, resources, cache, sizes: Sizes::default() };
        checker.start()?;
        for (i, op) in program.ops.iter().enumerate() {
            checker.op(op).map_err(|why| format!("op {i}: {why}"))?;
        }
        Ok(checker.sizes)
    };
    let sizes =
        run().map_err(|why| DeviceError::Invalid(format!("program {}: {why}", program.name)))?;
    // Last: it indexes the matrices that the checks above found.
    check_experts(program, resources.matrices)?;
    Ok(sizes)
}

/// Every expert must have whole panels, of a program that is valid otherwise.
fn check_experts(program: &Program, matrices: &[Matrix]) -> Result<(), DeviceError> {
    for op in &program.ops {
        let Op::Experts(op) = op else { continue };
        let [router, gate, down] = [op.router, op.gate, op.down].map(|id| &matrices[id.0 as usize]);
        for rows in [gate.rows / router.rows, down.rows / router.rows] {
            if !rows.is_multiple_of(PANEL) {
                let what = format!("experts of {rows} rows, which is no multiple of {PANEL}");
                return Err(DeviceError::Unsupported { device: "cpu".to_owned(), what });
            }
        }
    }
    Ok(())
}

fn check_buffers(program: &Program, buffers: &[Bytes]) -> Checked {
    let (layout, vocab) = (&program.layout, program.vocab as usize);
    let logits = vocab.saturating_mul(program.max_outputs as usize).saturating_mul(4);
    let tables = (layout.max_sequences as usize).checked_mul(layout.pages_per_sequence as usize);
    if tables.is_none_or(|tables| tables > u32::MAX as usize) || layout.pages_per_sequence == 0 {
        return Err("page tables without pages, or too many".to_owned());
    }
    if program.max_rows > layout.max_rows || program.max_outputs > layout.max_outputs {
        return Err("more rows or outputs than the step block has".to_owned());
    }
    if program.max_rows == 0 || program.vocab == 0 {
        return Err("no rows or no vocabulary".to_owned());
    }
    let wanted = [
        ("step block", program.step, layout.bytes()),
        ("result block", program.results, layout.result_bytes()),
        ("logits", program.logits, logits),
    ];
    for (what, id, bytes) in wanted {
        let held = buffers.get(id.0 as usize).map(Bytes::len);
        if held.is_none_or(|held| held < bytes) {
            return Err(format!("{what} in buffer {}: {bytes} bytes wanted, {held:?} there", id.0));
        }
    }
    if program.step == program.results
        || program.step == program.logits
        || program.results == program.logits
    {
        return Err("step block, result block and logits share a buffer".to_owned());
    }
    if let Some(masks) = program.masks {
        let held = buffers.get(masks.0 as usize).map_or(0, Bytes::len);
        let bytes = mask_words(program.vocab) * size_of::<u32>();
        if held < bytes || [program.step, program.results, program.logits].contains(&masks) {
            return Err(format!("masks in buffer {}: {bytes} bytes wanted, {held} there", masks.0));
        }
    }
    Ok(())
}

struct Checker<'a> {
    program: &'a Program,
    resources: Resources<'a>,
    cache: &'a Cache,
    sizes: Sizes,
}

impl<'a> Checker<'a> {
    fn start(&mut self) -> Checked {
        let rows = self.program.max_rows as usize;
        let numbers = |width: u32| rows.checked_mul(width as usize).filter(|_| width > 0);
        let slots = self.program.slots.iter().map(|slot| numbers(slot.width));
        self.sizes.slots =
            slots.collect::<Option<_>>().ok_or("a slot without width, or too large")?;
        self.sizes.rows = rows;
        self.sizes.vocab = self.program.vocab as usize;
        self.sizes.tables = self.program.layout.max_sequences as usize;
        Ok(())
    }

    fn op(&mut self, op: &Op) -> Checked {
        match op {
            Op::Embed(op::Embed { table, x, .. }) => {
                let width = self.slot(*x)?;
                self.gathered(*table, width)
            }
            Op::LayerInputs(op::LayerInputs { x, table, projection, norm, e, .. }) => {
                let (width, inputs) = (self.slot(*x)?, self.slot(*e)?);
                self.distinct(&[*x, *e])?;
                self.gathered(*table, inputs)?;
                self.linear(projection, inputs, width)?;
                self.joined(&[projection])?;
                let part = self.vector(norm.weight.0)?.len();
                self.sizes.row = self.sizes.row.max(part);
                if part == 0 || !inputs.is_multiple_of(part) {
                    return Err(format!("{inputs} inputs in parts of {part}"));
                }
                Ok(())
            }
            Op::GateInput(op::GateInput { x, linear, e, first, h, .. }) => {
                let (width, gated, inputs) = (self.slot(*x)?, self.slot(*h)?, self.slot(*e)?);
                self.distinct(&[*x, *h])?;
                self.distinct(&[*e, *h])?;
                self.linear(linear, gated, width)?;
                if (*first as usize).saturating_add(gated) > inputs {
                    return Err(format!("{gated} inputs from {first} on, of {inputs}"));
                }
                self.joined(&[linear])
            }
            Op::Qkv(op::Qkv { x, norm, query, query_norm, keys, rope, shape, layer, q }) => {
                let width = self.slot(*x)?;
                self.distinct(&[*x, *q])?;
                self.normed(norm, width)?;
                let (heads, kv_heads, head_dim) = self.heads(*shape, *layer)?;
                self.linear(query, heads * head_dim, width)?;
                let mut norms = [query_norm.as_ref(), None, None];
                match keys {
                    Some(keys) => {
                        self.linear(&keys.key, kv_heads * head_dim, width)?;
                        self.linear(&keys.value, kv_heads * head_dim, width)?;
                        self.joined(&[query, &keys.key, &keys.value])?;
                        (norms[1], norms[2]) = (keys.key_norm.as_ref(), keys.value_norm.as_ref());
                    }
                    None => self.joined(&[query])?,
                }
                for norm in norms.into_iter().flatten() {
                    same("head norm", self.vector(norm.weight.0)?.len(), head_dim)?;
                }
                self.rope(*rope, head_dim)?;
                same("query slot", self.slot(*q)?, heads * head_dim)
            }
            Op::Attention(op) => {
                let (heads, kv_heads, head_dim) = self.heads(op.shape, op.layer)?;
                self.distinct(&[op.q, op.out])?;
                same("query slot", self.slot(op.q)?, heads * head_dim)?;
                same("output slot", self.slot(op.out)?, heads * head_dim)?;
                if op.window == Some(0) {
                    return Err("a window of no tokens".to_owned());
                }
                if op.position_scale.is_some_and(|scale| scale.period_tokens == 0) {
                    return Err("a scale with a period of no tokens".to_owned());
                }
                let group = heads / kv_heads;
                if group > MAX_GROUP {
                    return Err(format!(
                        "{group} query heads over one key head, at most {MAX_GROUP}"
                    ));
                }
                let page = self.cache.desc.page_tokens as usize;
                // Windows begin and end within pages, so up to two more pages hold their cells.
                let context = (self.program.max_context as usize).next_multiple_of(page) + 2 * page;
                let queries = group.max(QUERIES);
                self.sizes.scores = self.sizes.scores.max(context.next_multiple_of(64) * queries);
                let row = (queries * head_dim).max(page.next_multiple_of(64));
                self.sizes.row = self.sizes.row.max(row);
                Ok(())
            }
            Op::Project(op::Project { y, linear, post_norm, x, .. }) => {
                let (cols, width) = (self.slot(*y)?, self.slot(*x)?);
                self.distinct(&[*x, *y])?;
                self.linear(linear, width, cols)?;
                self.joined(&[linear])?;
                self.sizes.row = self.sizes.row.max(width);
                post_norm.iter().try_for_each(|norm| {
                    same("post norm", self.vector(norm.weight.0)?.len(), width)
                })
            }
            Op::GateUp(op::GateUp { x, norm, gate, up, h, .. }) => {
                let (width, hidden) = (self.slot(*x)?, self.slot(*h)?);
                self.distinct(&[*x, *h])?;
                self.normed(norm, width)?;
                self.linear(gate, hidden, width)?;
                self.linear(up, hidden, width)?;
                self.joined(&[gate, up])
            }
            Op::Experts(op) => {
                let width = self.slot(op.x)?;
                self.normed(&op.norm, width)?;
                let router = self.matrix(op.router.0)?;
                let (count, used) = (router.rows, op.used as usize);
                let hidden = self.matrix(op.gate.0)?.rows / count;
                if router.ty.is_quantized() {
                    return Err("the router is quantised".to_owned());
                }
                if used == 0 || used > count {
                    return Err(format!("{used} of {count} experts are chosen"));
                }
                let plain = |matrix| Linear { matrix, bias: None };
                self.linear(&plain(op.router), count, width)?;
                self.joined(&[&plain(op.router)])?;
                self.linear(&plain(op.gate), count * hidden, width)?;
                self.linear(&plain(op.up), count * hidden, width)?;
                self.linear(&plain(op.down), count * width, hidden)?;
                if let Some(bias) = op.selection_bias {
                    same("selection bias", self.vector(bias.0)?.len(), count)?;
                }
                self.experts(count, used, width, hidden);
                Ok(())
            }
            Op::ShortConv(op::ShortConv { x, norm, input, kernel, taps, layer, out }) => {
                let width = self.slot(*x)?;
                self.distinct(&[*x, *out])?;
                self.normed(norm, width)?;
                input.iter().try_for_each(|linear| self.linear(linear, width, width))?;
                self.joined(&input.each_ref())?;
                let taps = *taps as usize;
                same("kernel", self.vector(kernel.0)?.len(), width.saturating_mul(taps))?;
                same("output slot", self.slot(*out)?, width)?;
                match self.cache.layers.get(*layer as usize) {
                    Some(Layer::Conv(conv)) if (conv.width, conv.taps) == (width, taps) => Ok(()),
                    _ => Err(format!("layer {layer} of the cache is no such convolution")),
                }
            }
            Op::DeltaNet(op) => self.delta_net(op),
            Op::Gate(op::Gate { x, norm, linear, y, .. }) => {
                let (width, gated) = (self.slot(*x)?, self.slot(*y)?);
                self.distinct(&[*x, *y])?;
                self.normed(norm, width)?;
                let rows = self.matrix(linear.matrix.0)?.rows;
                self.linear(linear, if rows == 1 { 1 } else { gated }, width)?;
                self.joined(&[linear])
            }
            Op::Head(op::Head { x, norm, linear, soft_cap, suppressed }) => {
                let width = self.slot(*x)?;
                self.normed(norm, width)?;
                if soft_cap.is_some_and(|cap| !(cap > 0.0 && cap.is_finite())) {
                    return Err(format!("a cap of {soft_cap:?}"));
                }
                if suppressed.iter().any(|token| *token >= self.program.vocab) {
                    return Err("a suppressed token beyond the vocabulary".to_owned());
                }
                self.linear(linear, self.program.vocab as usize, width)
            }
            Op::Hidden(op::Hidden { x, norm }) => {
                let width = self.slot(*x)?;
                self.normed(norm, width)?;
                same("elements of a result", self.program.vocab as usize, width)
            }
            Op::Sample => Ok(()),
        }
    }

    /// A table whose rows are looked up into a slot of `width`.
    fn gathered(&self, table: MatrixId, width: usize) -> Checked {
        let table = self.matrix(table.0)?;
        if !table.usage.gather {
            return Err("the table was not loaded to be looked up".to_owned());
        }
        same("table columns and slot", table.cols, width)
    }

    fn delta_net(&mut self, op: &op::DeltaNet) -> Checked {
        let (shape, layer) = (op.shape, op.layer);
        match self.cache.layers.get(layer as usize) {
            Some(Layer::Delta(delta)) if delta.shape == shape => {}
            _ => return Err(format!("layer {layer} of the cache is no such DeltaNet layer")),
        }
        let width = self.slot(op.x)?;
        self.distinct(&[op.x, op.out])?;
        self.normed(&op.norm, width)?;
        let (channels, heads) = (shape.channels() as usize, shape.value_heads as usize);
        self.linear(&op.input, channels, width)?;
        self.linear(&op.alpha, heads, width)?;
        self.linear(&op.beta, heads, width)?;
        self.joined(&[&op.input, &op.alpha, &op.beta])?;
        let vectors = [
            ("kernel", op.kernel, channels.saturating_mul(shape.taps as usize)),
            ("decays", op.decay, heads),
            ("step biases", op.step_bias, heads),
            ("head norm", op.head_norm.weight, shape.head_dim as usize),
        ];
        for (what, vector, len) in vectors {
            same(what, self.vector(vector.0)?.len(), len)?;
        }
        self.sizes.convolved = self.sizes.convolved.max(self.sizes.rows.saturating_mul(channels));
        same("output slot", self.slot(op.out)?, shape.values() as usize)
    }

    fn slot(&self, slot: Slot) -> Checked<usize> {
        let desc = self.program.slots.get(slot.0 as usize);
        desc.map(|desc| desc.width as usize).ok_or_else(|| format!("slot {} is unknown", slot.0))
    }

    fn distinct(&self, slots: &[Slot; 2]) -> Checked {
        if slots[0] == slots[1] {
            return Err(format!("slot {} is both read and written", slots[0].0));
        }
        Ok(())
    }

    fn matrix(&self, id: u32) -> Checked<&'a Matrix> {
        self.resources.matrices.get(id as usize).ok_or_else(|| format!("matrix {id} is unknown"))
    }

    fn vector(&self, id: u32) -> Checked<&'a [f32]> {
        let vector = self.resources.vectors.get(id as usize);
        vector.map(Vec::as_slice).ok_or_else(|| format!("vector {id} is unknown"))
    }

    /// A norm whose result is the input of matrix products.
    fn normed(&mut self, norm: &Norm, width: usize) -> Checked {
        self.sizes.normed =
            self.sizes.normed.max(self.sizes.rows.max(self.program.max_outputs as usize) * width);
        same("norm", self.vector(norm.weight.0)?.len(), width)
    }

    fn linear(&mut self, linear: &Linear, rows: usize, cols: usize) -> Checked {
        let matrix = self.matrix(linear.matrix.0)?;
        if !matrix.usage.multiply {
            return Err(format!("matrix {} was not loaded to be multiplied", linear.matrix.0));
        }
        same("matrix rows", matrix.rows, rows)?;
        same("matrix columns", matrix.cols, cols)?;
        self.sizes.row = self.sizes.row.max(cols);
        if matrix.takes_groups() {
            let rows = self.sizes.rows.max(self.program.max_outputs as usize);
            self.sizes.groups = self.sizes.groups.max(rows * cols / GROUP);
        }
        let bias = linear.bias.map(|bias| self.vector(bias.0)).transpose()?;
        bias.map_or(Ok(()), |bias| same("bias", bias.len(), rows))
    }

    /// Products stored next to each other, each padded to whole panels.
    fn joined(&mut self, linears: &[&Linear]) -> Checked {
        let mut width = 0;
        for linear in linears {
            width += self.matrix(linear.matrix.0)?.rows.next_multiple_of(PANEL);
        }
        self.sizes.product = self.sizes.product.max(width * self.sizes.rows);
        Ok(())
    }

    /// Memory for `used` of `count` experts for each row.
    fn experts(&mut self, count: usize, used: usize, width: usize, hidden: usize) {
        let choices = self.sizes.rows.saturating_mul(used);
        let blocks = experts::max_blocks(choices, count);
        let padded = blocks.saturating_mul(ROWS);
        self.sizes.experts.union(&ExpertSizes {
            choices,
            counts: count,
            blocks,
            inputs: padded.saturating_mul(width),
            hidden: padded.saturating_mul(hidden),
        });
        let groups = padded.saturating_mul(width.max(hidden)) / GROUP;
        self.sizes.groups = self.sizes.groups.max(groups);
    }

    fn heads(&self, shape: HeadShape, layer: u32) -> Checked<(usize, usize, usize)> {
        let HeadShape { heads, kv_heads, head_dim } = shape;
        if kv_heads == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(format!("{heads} heads over {kv_heads} key and value heads"));
        }
        let (kv_heads, head_dim) = (kv_heads as usize, head_dim as usize);
        match self.cache.layers.get(layer as usize) {
            Some(Layer::Kv(kv)) if (kv.kv_heads, kv.head_dim) == (kv_heads, head_dim) => {
                Ok((heads as usize, kv_heads, head_dim))
            }
            _ => Err(format!("layer {layer} of the cache has other heads")),
        }
    }

    fn rope(&mut self, rope: Option<RopeId>, head_dim: usize) -> Checked {
        let Some(RopeId(id)) = rope else { return Ok(()) };
        let rope = self.resources.ropes.get(id as usize);
        let pairs = rope.ok_or_else(|| format!("rope {id} is unknown"))?.frequencies.len();
        if 2 * pairs > head_dim {
            return Err(format!("rope {id} rotations {pairs} pairs of a head of {head_dim}"));
        }
        let rotations = &mut self.sizes.rotations;
        rotations.resize(rotations.len().max(id as usize + 1), 0);
        rotations[id as usize] = self.sizes.rows * pairs * 2;
        Ok(())
    }
}

fn same(what: &str, is: usize, wanted: usize) -> Checked {
    if is == wanted { Ok(()) } else { Err(format!("{what}: {is} where {wanted} were expected")) }
}

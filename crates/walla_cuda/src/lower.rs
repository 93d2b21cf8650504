//! From a program to kernel launches: which kernel, which grid, which addresses. Nothing here runs anything.

use bytemuck::Pod;
use walla_device::{DeviceError, Linear, Norm, Op, Program, Slot};

use crate::driver::{Context, Launch, Stream};
use crate::kernels::Kernels;
use crate::params::{
    Address, EmbedParams, LinearMode, LinearParams, ResultRef, SampleParams, Segment, StepRef,
};
use crate::repack;
use crate::resources::{Matrix, Resources, unknown};

/// Where the parts of the workspace lie, shared by programs that are prepared together.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    slots: Vec<usize>,
    end: usize,
}

impl Workspace {
    /// Bytes of all parts.
    pub(crate) fn bytes(&self) -> usize {
        self.end
    }

    fn take(&mut self, bytes: usize) -> usize {
        let start = self.end;
        self.end += bytes.next_multiple_of(256);
        start
    }
}

/// Lowers programs.
pub(crate) struct Lowering<'a> {
    pub(crate) device: &'a str,
    pub(crate) context: &'a Context,
    pub(crate) kernels: &'a mut Kernels,
    pub(crate) resources: &'a Resources,
    pub(crate) workspace: &'a Workspace,
    /// Where the workspace lies.
    pub(crate) base: Address,
}

impl Lowering<'_> {
    /// Lays out a workspace that every one of the programs fits.
    pub(crate) fn workspace(
        _device: &str,
        _resources: &Resources,
        programs: &[Program],
    ) -> Result<Workspace, DeviceError> {
        let mut workspace = Workspace::default();
        let slots = programs.iter().map(|p| p.slots.len()).max().unwrap_or_default();
        for slot in 0..slots {
            let bytes = |p: &Program| {
                let width = p.slots.get(slot).map_or(0, |s| s.width as usize);
                4 * width * p.rows_max as usize
            };
            let bytes = programs.iter().map(bytes).max().unwrap_or_default();
            let offset = workspace.take(bytes);
            workspace.slots.push(offset);
        }
        Ok(workspace)
    }

    /// Lowers one program.
    pub(crate) fn program(&mut self, program: &Program) -> Result<Vec<Launch>, DeviceError> {
        let mut launches = Vec::new();
        for op in &program.ops {
            match op {
                Op::Embed { table, scale, x } => {
                    let table = self.resources.matrix(*table)?;
                    launches.push(self.embed(program, table, *scale, *x)?);
                }
                Op::Head { x, norm, linear } => {
                    launches.push(self.head(program, *x, norm, linear)?);
                }
                Op::Sample => launches.push(self.sample(program)?),
                other => return Err(self.unsupported(format!("{other:?}"))),
            }
        }
        Ok(launches)
    }

    fn unsupported(&self, what: String) -> DeviceError {
        DeviceError::Unsupported { device: self.device.to_owned(), what }
    }

    fn slot(&self, program: &Program, slot: Slot) -> Result<(Address, u32), DeviceError> {
        let index = slot.0 as usize;
        let desc = program.slots.get(index).ok_or_else(|| unknown(&slot))?;
        let offset = self.workspace.slots.get(index).ok_or_else(|| unknown(&slot))?;
        Ok((self.base + *offset as u64, desc.width))
    }

    fn step(&self, program: &Program) -> Result<StepRef, DeviceError> {
        let layout = &program.layout;
        Ok(StepRef {
            block: self.resources.buffer(program.step)?.address(),
            rows_offset: layout.rows_offset() as u32,
            outputs_offset: layout.outputs_offset() as u32,
            biases_offset: layout.biases_offset() as u32,
            tables_offset: layout.tables_offset() as u32,
            pages_per_sequence: layout.pages_per_sequence,
            reserved: 0,
        })
    }

    fn launch<P: Pod>(
        &mut self,
        (file, name): (&str, &str),
        grid: [u32; 3],
        threads: u32,
        shared_bytes: u32,
        params: &P,
    ) -> Result<Launch, DeviceError> {
        let function = self.kernels.get(self.context, file, name, shared_bytes)?;
        let overlap = self.context.gpu().facts.programmatic_launch;
        let mut words = vec![0_u64; size_of::<P>().div_ceil(8)];
        bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..size_of::<P>()]
            .copy_from_slice(bytemuck::bytes_of(params));
        Ok(Launch { function, grid, threads, overlap, shared_bytes, params: words })
    }

    fn embed(
        &mut self,
        program: &Program,
        table: &Matrix,
        scale: f32,
        x: Slot,
    ) -> Result<Launch, DeviceError> {
        let (x, width) = self.slot(program, x)?;
        same("embedding width", table.cols, width)?;
        let cache = self.resources.cache(program.cache)?;
        let params = EmbedParams {
            step: self.step(program)?,
            table: table.weight,
            x,
            last_sampled: cache.last_sampled.address(),
            recent: cache.recent.address(),
            width,
            scale,
        };
        self.launch(("embed", "embed"), [program.rows_max, 1, 1], 128, 0, &params)
    }

    fn head(
        &mut self,
        program: &Program,
        x: Slot,
        norm: &Norm,
        linear: &Linear,
    ) -> Result<Launch, DeviceError> {
        let out = self.resources.buffer(program.logits)?.address();
        let mut call = self.linear_call(program, x, Some(norm))?;
        call.rows = program.outputs_max;
        call.by_output = true;
        self.linear(program, &call, &[(linear, out, program.vocab)], LinearMode::Store)
    }

    fn linear_call(
        &self,
        program: &Program,
        x: Slot,
        norm: Option<&Norm>,
    ) -> Result<LinearCall, DeviceError> {
        let (x, width) = self.slot(program, x)?;
        let norm = match norm {
            Some(norm) => {
                let weight = self.resources.vector(norm.weight)?;
                same("norm width", weight.len, width)?;
                Some((weight.memory.address(), norm.eps))
            }
            None => None,
        };
        Ok(LinearCall { x, width, norm, rows: program.rows_max, by_output: false })
    }

    /// One launch over matrices of one type.
    fn linear(
        &mut self,
        program: &Program,
        call: &LinearCall,
        parts: &[(&Linear, Address, u32)],
        mode: LinearMode,
    ) -> Result<Launch, DeviceError> {
        let gated = matches!(mode, LinearMode::GateSilu | LinearMode::GateGelu);
        let (norm, eps) = call.norm.unwrap_or((0, 0.0));
        let mut params = LinearParams {
            step: self.step(program)?,
            x: call.x,
            norm,
            x_stride: call.width,
            width: call.width,
            eps,
            mode: mode as u32,
            by_output: u32::from(call.by_output),
            segments: parts.len() as u32,
            ..LinearParams::default()
        };
        let mut pairs = 0;
        let mut ty = None;
        for (segment, (linear, out, stride)) in params.segment.iter_mut().zip(parts) {
            let matrix = self.resources.matrix(linear.matrix)?;
            same("input width", matrix.cols, call.width)?;
            ty = Some(matrix.ty);
            *segment = Segment {
                weight: matrix.weight,
                bias: match linear.bias {
                    Some(bias) => {
                        let bias = self.resources.vector(bias)?;
                        same("bias", bias.len, matrix.rows)?;
                        bias.memory.address()
                    }
                    None => 0,
                },
                out: *out,
                out_stride: *stride,
                first_pair: pairs,
            };
            pairs += if gated { 0 } else { matrix.rows.div_ceil(2) };
            if gated {
                pairs = matrix.rows;
            }
        }
        let Some(ty) = ty else {
            return Err(DeviceError::Invalid("a linear without a matrix".to_owned()));
        };
        let group = match call.rows {
            0 | 1 => 1,
            2 => 2,
            3 | 4 => 4,
            _ => 8,
        };
        let name = repack::kernel_name(ty);
        let grid = [pairs.div_ceil(LINEAR_WARPS), call.rows.div_ceil(group).max(1), 1];
        let shared = group * LINEAR_STAGED_BYTES;
        let names = (format!("linear_{name}"), format!("linear_{name}_{group}"));
        self.launch((&names.0, &names.1), grid, 32 * LINEAR_WARPS, shared, &params)
    }

    fn sample(&mut self, program: &Program) -> Result<Launch, DeviceError> {
        let layout = &program.layout;
        let cache = self.resources.cache(program.cache)?;
        let params = SampleParams {
            step: self.step(program)?,
            results: ResultRef {
                ring: self.resources.buffer(program.results)?.address(),
                block_bytes: layout.result_bytes() as u32,
                rows_offset: layout.result_rows_offset() as u32,
                candidates_offset: layout.candidates_offset() as u32,
                reserved: 0,
            },
            logits: self.resources.buffer(program.logits)?.address(),
            last_sampled: cache.last_sampled.address(),
            vocab: program.vocab,
            reserved: 0,
        };
        self.launch(("sample", "sample"), [program.outputs_max.max(1), 1, 1], 1024, 0, &params)
    }
}

/// Warps of a block of the linear kernels (`LINEAR_WARPS` in linear.cuh).
const LINEAR_WARPS: u32 = 8;
/// Bytes that one row of x takes in shared memory: `padded(LINEAR_COLS)` floats.
const LINEAR_STAGED_BYTES: u32 = 4 * (2048 + 2048 / 32 * 4);

/// What a linear kernel reads.
struct LinearCall {
    x: Address,
    width: u32,
    norm: Option<(Address, f32)>,
    rows: u32,
    by_output: bool,
}

fn same(what: &str, found: u32, wanted: u32) -> Result<(), DeviceError> {
    if found == wanted {
        return Ok(());
    }
    Err(DeviceError::Invalid(format!("{what} is {found}, expected {wanted}")))
}

/// Puts launches on a stream, in order.
#[expect(unsafe_code, reason = "kernels are launched here and nowhere else")]
pub(crate) fn enqueue(
    context: &Context,
    stream: Stream,
    launches: &[Launch],
) -> Result<(), DeviceError> {
    for launch in launches {
        // SAFETY: a `Launch` is made by `Lowering` (or the cache's upkeep) alone, which pairs each kernel with its own parameter
        // struct and takes addresses from live memory of this device, none of which is freed before the device is dropped.
        unsafe { context.launch(stream, launch) }?;
    }
    Ok(())
}

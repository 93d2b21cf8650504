// Study v2 (README.md), the host's side: crates/walla_cuda/src/lower/mlp.rs. Its own tests passed.
//! Gate, up and down for few rows in one launch (kernels/mlp.cuh).
//!
//! Blocks of that launch wait for each other, so all of them have to be on the chip at once. That holds where the context is the device's own and no other process works on the chip at the same time
//! (contexts take turns, each with the whole chip), and the driver says that so many clusters fit. Elsewhere the same is two launches, with the same bits.

use walla_device::{DeviceError, GpuFacts, Linear, Norm, Op, Program, Slot};
use walla_types::Activation;

use super::linear::Part;
use super::order::Order;
use super::product::{Normed, Then, on_tensor_cores, packed, shared_bytes_max};
use super::tiling::{SHARED_OF_DRIVER, SHARED_STATIC};
use super::{Lowering, next_norm, same};
use crate::driver::{Function, Launch};
use crate::params::{LinearMode, MatmulParams, PairParams, Stages};
use crate::repack::{self, Layout};
use crate::resources::Matrix;

/// Most rows of x (`MLP_ROWS_MAX`): where latency counts.
const ROWS_MAX: u32 = 4;
/// Warps of a block (`MLP_WARPS`), of which a multiprocessor has two.
const WARPS: u32 = 8;
const RESIDENT: u32 = 2;
/// Splits of a share of down (`SHARE_SPLITS`).
const SHARE_SPLITS: u32 = 4;
/// Most shares: blocks of a cluster of which the chip has no place too few, however its multiprocessors are arranged.
const SHARES_MAX: u32 = 2;
/// Stages of a warp's ring. More of them keep rows of x waiting.
const DEPTH: u32 = 3;
/// Segments of a stage, and bytes of half a stage at most: longer copies bring nothing.
const CHUNK: u32 = 2;
const COPY_BYTES_MAX: u32 = 2_560;
/// Numbers of a row of sums (`SUM_STRIDE`).
const SUM_STRIDE: u32 = 20;
/// Rows of W in a tile, and columns of h that a tile of gate and up makes.
const TILE_ROWS: u32 = repack::TILE_ROWS as u32;
const TILE_COLUMNS: u32 = TILE_ROWS / 2;
const SEGMENT: u32 = repack::SEGMENT as u32;

/// Places for what blocks tell each other: a launch has one and clears the other two.
const PLACES: usize = 3;

/// Bytes of all places for h of so many columns.
pub(super) fn exchange_bytes(rows_max: u32, hidden: u32) -> usize {
    if rows_max > ROWS_MAX { 0 } else { PLACES * place_bytes(hidden) }
}

/// Bytes of a place.
fn place_bytes(hidden: u32) -> usize {
    2 * ROWS_MAX as usize * hidden.next_multiple_of(SEGMENT) as usize
}

/// A gated layer and the projection that follows.
pub(super) struct Mlp<'a> {
    x: Slot,
    norm: &'a Norm,
    gate: &'a Linear,
    up: &'a Linear,
    activation: Activation,
    h: Slot,
    down: &'a Linear,
    to: Slot,
    next_norm: Option<Norm>,
}

impl<'a> Mlp<'a> {
    /// What an op and those after it begin with.
    pub(super) fn of(op: &'a Op, later: &'a [Op]) -> Option<Self> {
        let Op::GateUp { x, norm, gate, up, activation, h } = op else { return None };
        let (next, later) = later.split_first()?;
        let Op::Project { y, linear: down, post_norm: None, x: to } = next else { return None };
        let activation = *activation;
        let (x, h, to) = (*x, *h, *to);
        let next_norm = next_norm(later, to);
        (*y == h).then_some(Self { x, norm, gate, up, activation, h, down, to, next_norm })
    }
}

/// What there is to multiply, of gate and up and of down.
#[derive(Clone, Copy, Debug)]
struct Products {
    tiles: [u32; 2],
    segments: [u32; 2],
    record_bytes: [u32; 2],
    rows: u32,
}

impl Products {
    /// `None` if they are not for this kernel.
    fn of([gate, up, down]: [&Matrix; 3], rows: u32) -> Option<Self> {
        let is_whole = |columns: u32| columns.is_multiple_of(SEGMENT);
        let fits = gate.ty == up.ty
            && [gate, down].iter().all(|matrix| on_tensor_cores(matrix.ty) && is_whole(matrix.cols))
            && (gate.rows, up.rows) == (down.cols, down.cols)
            && rows <= ROWS_MAX;
        let layout = |matrix: &Matrix| Layout::of(matrix.ty, matrix.cols as usize);
        let (of_gate, of_down) = (layout(gate)?, layout(down)?);
        fits.then_some(Self {
            tiles: [gate.rows.div_ceil(TILE_COLUMNS), down.rows.div_ceil(TILE_ROWS)],
            segments: [of_gate, of_down].map(|layout| layout.segments as u32),
            record_bytes: [of_gate, of_down].map(|layout| layout.record_bytes() as u32),
            rows,
        })
    }
}

/// How a block makes one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Half {
    order: Order,
    /// Tiles of a block.
    tiles: u32,
    /// Tasks of a warp: runs of a split of a tile.
    tasks: u32,
    /// Segments of a stage.
    chunk: u32,
    record_bytes: u32,
}

impl Half {
    /// With so many splits of each tile a block.
    fn of(order: Order, tiles: u32, splits: u32, record_bytes: u32) -> Self {
        let chunk = CHUNK.min(COPY_BYTES_MAX / record_bytes).clamp(1, order.run);
        let tasks = (tiles * splits).div_ceil(WARPS / order.runs);
        Self { order, tiles, tasks, chunk, record_bytes }
    }

    fn stages_of_task(&self) -> u32 {
        self.order.run.div_ceil(self.chunk)
    }

    /// Stages of a warp.
    fn stages(&self) -> u32 {
        self.tasks * self.stages_of_task()
    }
}

/// How a launch is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    gate: Half,
    down: Half,
    /// Blocks of a cluster, each with a share of down's columns.
    shares: u32,
    /// Blocks of a share.
    blocks: u32,
    /// Stages of a warp's ring.
    depth: u32,
    /// Dynamic shared memory of a block.
    shared_bytes: u32,
}

impl Cut {
    /// `None` if the products are not for this kernel, or two blocks do not fit a multiprocessor.
    fn of(products: &Products, gpu: &GpuFacts) -> Option<Self> {
        let &Products { tiles, segments, record_bytes, rows } = products;
        let [gate, down] = [0, 1].map(|i| Order::of(tiles[i], segments[i], gpu));
        let shares = down.splits.div_ceil(SHARE_SPLITS);
        if gate.splits != 1 || shares > SHARES_MAX {
            return None;
        }
        let share_segments = SHARE_SPLITS * down.split_segments;
        let share_tiles = share_segments * (SEGMENT / TILE_COLUMNS);
        let gate_tiles = share_tiles.div_ceil((RESIDENT * gpu.multiprocessors / shares).max(1));
        let blocks = share_tiles.div_ceil(gate_tiles);
        let gate = Half::of(gate, gate_tiles, 1, record_bytes[0]);
        let down = Half::of(down, tiles[1].div_ceil(blocks), SHARE_SPLITS, record_bytes[1]);
        // Each of a block's tiles of down has a block of the cluster that adds it up.
        if down.tiles > shares {
            return None;
        }
        let depth = DEPTH.min(gate.stages() + down.stages());
        let stage = 2 * (gate.chunk * gate.record_bytes).max(down.chunk * down.record_bytes);
        let runs = gate.tiles * gate.order.runs + down.tiles * SHARE_SPLITS * down.order.runs;
        // Rings; x and h; sums of runs, and of splits.
        let shared_bytes = WARPS * depth * stage
            + (segments[0] + share_segments) * rows * 2 * SEGMENT
            + runs * rows * SUM_STRIDE * 4
            + down.order.splits * rows * TILE_ROWS * 4;
        let each = u64::from(shared_bytes + SHARED_STATIC + SHARED_OF_DRIVER);
        let room = gpu.shared_bytes_per_block_optin + u64::from(SHARED_OF_DRIVER);
        let fits = u64::from(RESIDENT) * each <= room;
        fits.then_some(Self { gate, down, shares, blocks, depth, shared_bytes })
    }

    /// A launch with parameters.
    fn launch(&self, function: Function, params: &PairParams) -> Launch {
        Launch {
            overlap: true,
            cluster: self.shares,
            shared_bytes: self.shared_bytes,
            ..Launch::new(function, [self.shares * self.blocks, 1, 1], 32 * WARPS, params)
        }
    }

    /// Parameters of one of the products, cut.
    fn params(&self, half: &Half, params: MatmulParams) -> MatmulParams {
        let stages = Stages {
            of_task: half.stages_of_task(),
            tasks: half.tasks,
            passes: 1,
            all: self.gate.stages() + self.down.stages(),
            by: [half.stages_of_task(), half.tasks, 1, 1].map(Stages::divisor),
        };
        let teams = WARPS / half.order.runs;
        let (depth, chunk, turn_tiles) = (self.depth, half.chunk, half.tiles);
        MatmulParams { depth, chunk, teams, turn_tiles, stages, ..params }
    }

    /// The first stage of each warp, of gate and up (`MatmulParams::first`).
    fn first_stages(&self, segments: u32) -> [u32; 16] {
        let Half { order, tiles, chunk, .. } = self.gate;
        std::array::from_fn(|warp| {
            let (tile, run) = (warp as u32 / order.runs, warp as u32 % order.runs);
            let begin = run * order.run;
            let end = (begin + order.run).min(segments);
            let is_there = tile < WARPS / order.runs && tile < tiles;
            let count = if is_there { end.saturating_sub(begin).min(chunk) } else { 0 };
            if count > 0 { tile | count << 8 | begin << 16 } else { 0 }
        })
    }
}

impl Lowering<'_> {
    /// Whether a program's gated layers are made in one launch each, where they can be. Not if there is but one: it would meet what its last launch has left.
    pub(super) fn makes_mlps(&mut self, program: &Program) -> Result<bool, DeviceError> {
        let mut count = 0;
        for (i, op) in program.ops.iter().enumerate() {
            if let Some(mlp) = Mlp::of(op, &program.ops[i + 1..])
                && self.cut_mlp(program, &mlp)?.is_some()
            {
                count += 1;
            }
        }
        Ok(count > 1)
    }

    /// The matrices of gate, up and down.
    fn mlp_matrices(&self, mlp: &Mlp<'_>) -> Result<[&Matrix; 3], DeviceError> {
        let matrix = |linear: &Linear| self.resources.matrix(linear.matrix);
        Ok([matrix(mlp.gate)?, matrix(mlp.up)?, matrix(mlp.down)?])
    }

    /// How it is cut, and the kernel; `None` if it is not for one, the image in use has none, or blocks that wait for each other might not be there at once.
    fn cut_mlp(
        &mut self,
        program: &Program,
        mlp: &Mlp<'_>,
    ) -> Result<Option<(Cut, Function)>, DeviceError> {
        let context = self.context;
        if !self.warpgroups || !context.gpu().facts.programmatic_launch || !context.is_alone() {
            return Ok(None);
        }
        let matrices = self.mlp_matrices(mlp)?;
        let products = Products::of(matrices, program.rows_max);
        let facts = &context.gpu().facts;
        let Some(cut) = products.and_then(|its| Cut::of(&its, facts)) else { return Ok(None) };
        let [gate, _, down] = matrices.map(|matrix| repack::kernel_name(matrix.ty));
        let name = format!("mlp_{gate}_{down}");
        let found = self.kernels.find(context, &name, &name, shared_bytes_max(facts))?;
        let Some(function) = found else { return Ok(None) };
        let clusters = context.clusters_at_once(&cut.launch(function, &PairParams::default()))?;
        Ok((clusters >= cut.blocks).then_some((cut, function)))
    }

    /// Gate, up and down in one launch; `None` if they are not for it.
    pub(super) fn mlp(
        &mut self,
        program: &Program,
        mlp: &Mlp<'_>,
    ) -> Result<Option<Vec<Launch>>, DeviceError> {
        let Some((cut, function)) = self.cut_mlp(program, mlp)? else { return Ok(None) };
        let [gate, _, down] = self.mlp_matrices(mlp)?;
        let (h, hidden) = self.slot(program, mlp.h)?;
        let (to, width) = self.slot(program, mlp.to)?;
        same("hidden width", gate.rows, hidden)?;
        same("projected width", down.rows, width)?;
        let tiles = [hidden.div_ceil(TILE_COLUMNS), width.div_ceil(TILE_ROWS)];

        // The first launch of a program has a place of its own, the others have two in turn: none has that of the launch before, in the program ahead either.
        let place = if self.mlps == 0 { 2 } else { self.mlps % 2 };
        self.mlps += 1;
        let at = |place: usize| {
            let offset = self.workspace.exchange + place % PLACES * place_bytes(hidden);
            self.base + offset as u64
        };
        let others = [at(place + 1), at(place + 2)];
        let exchanged = packed(at(place), (program.rows_max, hidden), false);

        let mut launches = Vec::new();
        let input = self.input(program, mlp.x, Some(mlp.norm))?;
        let x = self.operand(program, &input, &mut launches)?;
        let mode = match mlp.activation {
            Activation::Silu => LinearMode::GateSilu,
            Activation::GeluTanh => LinearMode::GateGelu,
        };
        let parts = [mlp.gate, mlp.up].map(|linear| Part { linear, out: h, stride: hidden });
        let then = Then::Gate(mode, Some(exchanged));
        let cut_of = (tiles[0], &cut.gate.order);
        let first = self.matmul_params(program, &input, &x, &parts, &then, cut_of)?;
        let first = MatmulParams {
            partials: others[0],
            first: cut.first_stages(first.x.segments),
            ..cut.params(&cut.gate, first)
        };
        self.leave_factors(&input);

        let next = self.next_of_projection(program, mlp.to, mlp.next_norm)?;
        let input = self.input(program, mlp.h, None)?;
        let x = Normed { slot: mlp.h, norm: 0, rows: exchanged, used: 0, squares: None };
        let part = Part { linear: mlp.down, out: to, stride: width };
        let cut_of = (tiles[1], &cut.down.order);
        let second =
            self.matmul_params(program, &input, &x, &[part], &Then::Add(next), cut_of)?;
        let second =
            MatmulParams { partials: others[1], ..cut.params(&cut.down, second) };
        self.normed = next;

        let params = PairParams {
            first,
            second,
            first_blocks: cut.shares,
            by_first_blocks: Stages::divisor(cut.shares),
        };
        launches.push(cut.launch(function, &params));
        Ok(Some(launches))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::product::records;

    fn gpu(multiprocessors: u32) -> GpuFacts {
        GpuFacts { multiprocessors, shared_bytes_per_block_optin: 232_448, ..GpuFacts::default() }
    }

    fn cut(hidden: u32, width: u32, record_bytes: [u32; 2], rows: u32) -> Option<Cut> {
        let products = Products {
            tiles: [hidden / TILE_COLUMNS, width / TILE_ROWS],
            segments: [width / SEGMENT, hidden / SEGMENT],
            record_bytes,
            rows,
        };
        Cut::of(&products, &gpu(132))
    }

    #[test]
    fn blocks_are_there_at_once_and_make_each_tile_once() {
        // Llama 3.2 1B, Qwen 3 4B, Llama 3.1 8B and their like, and small ones with ends that divide nothing.
        for (hidden, width) in [(8_192, 2_048), (9_728, 2_560), (14_336, 4_096), (8_960, 256), (4_224, 640)] {
            for first in records() {
                for second in records() {
                    for rows in 1..=ROWS_MAX {
                        let Some(cut) = cut(hidden, width, [first, second], rows) else {
                            continue;
                        };
                        let Cut { gate, down, shares, blocks, .. } = cut;
                        assert!(shares * blocks <= RESIDENT * 132);
                        assert!(2 * (cut.shared_bytes + SHARED_STATIC + SHARED_OF_DRIVER) <= 233_472);
                        // All tiles, and none is left to a block that is not there.
                        let share = SHARE_SPLITS * down.order.split_segments * SEGMENT / TILE_COLUMNS;
                        assert!(blocks * gate.tiles >= share && (blocks - 1) * gate.tiles < share);
                        assert!(blocks * down.tiles >= width / TILE_ROWS && down.tiles <= shares);
                        assert!(shares * SHARE_SPLITS >= down.order.splits);
                        for (half, splits) in [(gate, 1), (down, SHARE_SPLITS)] {
                            assert!(half.tasks * (WARPS / half.order.runs) >= half.tiles * splits);
                            assert!(half.chunk >= 1 && half.chunk <= half.order.run);
                        }
                    }
                }
            }
        }
        let small = cut(8_192, 2_048, [640, 848], 1).unwrap();
        assert_eq!((small.shares, small.blocks, small.gate.tiles, small.down.tiles), (2, 128, 4, 1));
        assert_eq!((small.gate.tasks, small.down.tasks, small.depth), (1, 1, 3));
    }

    #[test]
    fn products_of_few_tiles_and_of_many_rows_are_left_to_others() {
        assert_eq!(cut(3_072, 1_024, [1_088, 1_088], 1), None, "gate and up in splits");
        let products = |rows| Products { tiles: [1_024, 128], segments: [16, 64], record_bytes: [640, 640], rows };
        assert_eq!(Cut::of(&products(4), &gpu(20)), None, "a chip with too few places");
    }

    #[test]
    fn places_lie_apart() {
        assert_eq!(exchange_bytes(ROWS_MAX, 8_192), 3 * 65_536);
        assert_eq!(exchange_bytes(ROWS_MAX + 1, 8_192), 0);
    }
}

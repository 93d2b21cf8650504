// Study v1 (README.md), the host's side as it was measured: crates/walla_cuda/src/lower/mlp.rs of then, with variables of the environment to try depths by.
//! Gate, up and down for a few rows in one launch (kernels/mlp.cuh), and what adds the splits (kernels/fold.cu).

use walla_device::{DeviceError, GpuFacts, Linear, Norm, Op, Program, Slot};
use walla_types::Activation;

use super::linear::Part;
use super::order::Order;
use super::product::{Normed, Then, on_tensor_cores, packed};
use super::tiling::{SHARED_OF_DRIVER, SHARED_STATIC};
use super::{Lowering, next_norm, same};
use crate::driver::Launch;
use crate::params::{LinearMode, MatmulParams, PairParams, Stages};
use crate::repack::{self, Layout};

/// Most rows of x: where latency counts.
pub(super) const ROWS_MAX: u32 = 4;
/// Warps of a block (`MLP_WARPS`), of which a multiprocessor has two.
const WARPS: u32 = 8;
const RESIDENT: u32 = 2;
/// Most stages of a ring (`DEPTH_MAX`).
const DEPTH_MAX: u32 = 8;
/// Numbers of a row of sums (`SUM_STRIDE`).
const SUM_STRIDE: u32 = 20;
/// Most splits of down (`FOLD_SPLITS_MAX`).
pub(super) const SPLITS_MAX: u32 = 8;
/// Threads of a block that adds splits, at most.
const FOLD_THREADS: u32 = 128;
/// Bytes of half a stage, at most.
const COPY_BYTES_MAX: u32 = 2_560;

/// One of the two products, for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Half {
    order: Order,
    /// Tiles of a block.
    tiles: u32,
    teams: u32,
    tasks: u32,
    chunk: u32,
    record_bytes: u32,
}

impl Half {
    fn of(order: Order, tiles: u32, record_bytes: u32) -> Self {
        let teams = WARPS / order.runs;
        let tasks = tiles.div_ceil(teams);
        let most = COPY_BYTES_MAX / record_bytes;
        let chunk = if most >= 2 { 2 } else { 1 }.min(order.run);
        Self { order, tiles, teams, tasks, chunk, record_bytes }
    }

    fn of_task(&self) -> u32 {
        self.order.run.div_ceil(self.chunk)
    }

    fn stages(&self) -> u32 {
        self.tasks * self.of_task()
    }
}

/// How both are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    gate: Half,
    down: Half,
    /// Blocks of a split of down.
    group: u32,
    depth: u32,
    slot_bytes: u32,
    shared_bytes: u32,
}

/// What is multiplied: tiles, segments of a row and bytes of a record of gate and up, and of down.
#[derive(Clone, Copy, Debug)]
struct Shape {
    tiles: [u32; 2],
    segments: [u32; 2],
    record_bytes: [u32; 2],
    rows: u32,
}

impl Cut {
    fn of(shape: &Shape, gpu: &GpuFacts) -> Option<Self> {
        let orders = [0, 1].map(|i| Order::of(shape.tiles[i], shape.segments[i], gpu));
        let [gate, down] = orders;
        if gate.splits != 1 || down.splits > SPLITS_MAX || shape.rows > ROWS_MAX {
            return None;
        }
        // Eight columns of h a tile.
        let of_split = down.split_segments * (repack::SEGMENT as u32 / 8);
        let most = RESIDENT * gpu.multiprocessors / down.splits;
        let tiles = of_split.div_ceil(most.max(1));
        let group = of_split.div_ceil(tiles);
        let gate = Half::of(gate, tiles, shape.record_bytes[0]);
        let down = Half::of(down, shape.tiles[1].div_ceil(group), shape.record_bytes[1]);
        let slot_bytes =
            2 * (gate.chunk * gate.record_bytes).max(down.chunk * down.record_bytes);
        let rows = shape.rows;
        let x = (shape.segments[0] + down.order.split_segments) * rows * 256;
        let sums = |half: &Half| half.tiles * half.order.runs * rows * SUM_STRIDE * 4;
        let rest = x + sums(&gate) + sums(&down);
        let all = gate.stages() + down.stages();
        let most: u32 = std::env::var("WALLA_MLP").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
        let cut = |depth| Self {
            gate,
            down,
            group,
            depth,
            slot_bytes,
            shared_bytes: WARPS * depth * slot_bytes + rest,
        };
        (2..=most.min(all).min(DEPTH_MAX)).rev().map(cut).find(|cut| {
            let each = u64::from(cut.shared_bytes + SHARED_STATIC + SHARED_OF_DRIVER);
            let room = gpu.shared_bytes_per_block_optin + u64::from(SHARED_OF_DRIVER);
            each * u64::from(RESIDENT) <= room
        })
    }

    /// Parameters of one of the products, cut.
    fn cut(&self, half: &Half, params: MatmulParams) -> MatmulParams {
        let by = [half.of_task(), 1, 1, 1].map(Stages::divisor);
        MatmulParams {
            depth: self.depth,
            chunk: half.chunk,
            teams: half.teams,
            turn_tiles: half.tiles,
            stages: Stages {
                of_task: half.of_task(),
                tasks: half.tasks,
                passes: 1,
                all: self.gate.stages() + self.down.stages(),
                by,
            },
            ..params
        }
    }

    /// The first stage of each warp (`MatmulParams::first`).
    fn first_stages(&self, segments: u32) -> [u32; 16] {
        let Half { order, teams, tiles, chunk, .. } = self.gate;
        std::array::from_fn(|warp| {
            let (team, run) = (warp as u32 / order.runs, warp as u32 % order.runs);
            let begin = run * order.run;
            let end = (begin + order.run).min(segments);
            let is_there = team < teams && team < tiles;
            let count = if is_there { end.saturating_sub(begin).min(chunk) } else { 0 };
            if count > 0 { team | count << 8 | begin << 16 } else { 0 }
        })
    }
}

/// A gated layer and the projection that follows.
pub(super) struct Mlp<'a> {
    x: Slot,
    norm: &'a Norm,
    gate: &'a Linear,
    up: &'a Linear,
    activation: Activation,
    down: &'a Linear,
    to: Slot,
    next: Option<Norm>,
    hidden: Slot,
}

impl<'a> Mlp<'a> {
    /// What an op and those after it begin with.
    pub(super) fn of(op: &'a Op, later: &'a [Op]) -> Option<Self> {
        let Op::GateUp { x, norm, gate, up, activation, h } = op else { return None };
        let Some(Op::Project { y, linear, post_norm: None, x: to }) = later.first() else {
            return None;
        };
        let next = next_norm(later.get(1..).unwrap_or_default(), *to);
        (y == h).then_some(Self {
            x: *x,
            norm,
            gate,
            up,
            activation: *activation,
            down: linear,
            to: *to,
            next,
            hidden: *h,
        })
    }
}

impl Lowering<'_> {
    /// Two launches for both; `None` if they are not for these kernels.
    pub(super) fn mlp(
        &mut self,
        program: &Program,
        mlp: &Mlp<'_>,
    ) -> Result<Option<Vec<Launch>>, DeviceError> {
        let resources = self.resources;
        let matrix = |linear: &Linear| resources.matrix(linear.matrix);
        let (gate, up, down) = (matrix(mlp.gate)?, matrix(mlp.up)?, matrix(mlp.down)?);
        let rows = program.rows_max;
        let is_off = std::env::var("WALLA_MLP").is_ok_and(|n| n == "0");
        let fits = self.warpgroups && !is_off && rows <= ROWS_MAX
            && gate.ty == up.ty
            && on_tensor_cores(gate.ty)
            && on_tensor_cores(down.ty)
            && down.cols.is_multiple_of(repack::SEGMENT as u32)
            && gate.cols.is_multiple_of(repack::SEGMENT as u32)
            && gate.rows == down.cols;
        if !fits {
            return Ok(None);
        }
        let layouts = [gate, down].map(|m| Layout::of(m.ty, m.cols as usize));
        let [Some(of_gate), Some(of_down)] = layouts else { return Ok(None) };
        let tile_rows = repack::TILE_ROWS as u32;
        let shape = Shape {
            tiles: [gate.rows.div_ceil(tile_rows / 2), down.rows.div_ceil(tile_rows)],
            segments: [of_gate.segments as u32, of_down.segments as u32],
            record_bytes: [of_gate.record_bytes() as u32, of_down.record_bytes() as u32],
            rows,
        };
        let Some(cut) = Cut::of(&shape, &self.context.gpu().facts) else { return Ok(None) };
        let names = [gate.ty, down.ty].map(repack::kernel_name);
        let name = format!("mlp_{}_{}", names[0], names[1]);
        let most = self.context.gpu().facts.shared_bytes_per_block_optin as u32 - SHARED_STATIC;
        let Some(function) = self.kernels.find(self.context, &name, &name, most)? else {
            return Ok(None);
        };

        let mut launches = Vec::new();
        let input = self.input(program, mlp.x, Some(mlp.norm))?;
        let x = self.operand(program, &input, &mut launches)?;
        let (h, hidden) = self.slot(program, mlp.hidden)?;
        same("hidden width", gate.rows, hidden)?;
        let mode = match mlp.activation {
            Activation::Silu => LinearMode::GateSilu,
            Activation::GeluTanh => LinearMode::GateGelu,
        };
        let exchanged = packed(self.base + self.workspace.exchanged as u64, (rows, hidden), false);
        let parts = [mlp.gate, mlp.up].map(|linear| Part { linear, out: h, stride: hidden });
        let then = Then::Gate(mode, Some(exchanged));
        let of_gate = (shape.tiles[0], &cut.gate.order);
        let first = self.matmul_params(program, &input, &x, &parts, &then, of_gate)?;
        self.leave_factors(&input);

        let near = self.normed.take().filter(|normed| normed.slot == mlp.to);
        let next = match (near, mlp.next) {
            (Some(_), Some(norm)) => Some(self.next_normed(program, mlp.to, &norm)?),
            _ => None,
        };
        let (to, width) = self.slot(program, mlp.to)?;
        same("projected width", down.rows, width)?;
        let input = self.input(program, mlp.hidden, None)?;
        let x = Normed { slot: mlp.hidden, norm: 0, rows: exchanged, used: 0, squares: None };
        let part = Part { linear: mlp.down, out: to, stride: width };
        let of_down = (shape.tiles[1], &cut.down.order);
        let second =
            self.matmul_params(program, &input, &x, &[part], &Then::Add(next), of_down)?;
        self.normed = next;

        let second = MatmulParams {
            partials: self.base + self.workspace.split_results as u64,
            ..cut.cut(&cut.down, second)
        };
        let first = MatmulParams {
            first: cut.first_stages(shape.segments[0]),
            ..cut.cut(&cut.gate, first)
        };
        let params = PairParams {
            first,
            second,
            first_blocks: cut.group,
            reserved: Stages::divisor(cut.group),
        };
        let grid = [cut.down.order.splits * cut.group, 1, 1];
        launches.push(Launch {
            overlap: true,
            shared_bytes: cut.shared_bytes,
            ..Launch::new(function, grid, 32 * WARPS, &params)
        });
        let tiles = FOLD_THREADS / (tile_rows * rows);
        let fold = MatmulParams { turn_tiles: tiles, ..second };
        let grid = [shape.tiles[1].div_ceil(tiles), 1, 1];
        let threads = (tile_rows * tiles * rows).next_multiple_of(32);
        launches.push(self.launch(("fold", "fold"), grid, threads, &fold)?);
        Ok(Some(launches))
    }
}

use super::gemm_skinny::MAX_DEPTH;
use super::*;
use crate::kernel_source::KernelSource;
use crate::lower::kernel::SHARED_STATIC;
use crate::lower::product::records;

fn gpu(multiprocessors: u32, shared_bytes_per_block_optin: u64) -> GpuFacts {
    GpuFacts { multiprocessors, shared_bytes_per_block_optin, ..GpuFacts::default() }
}

/// A product and its tiling.
fn cut(
    gpu: &GpuFacts,
    (tiles, segments): (u32, u32),
    rows: u32,
    record_bytes: u32,
) -> (Product, Tiling) {
    let product = Product {
        record_bytes,
        segments,
        tiles,
        tiles_of_op: tiles,
        rows,
        group_rows: rows.min(8),
    };
    let order = Order::of(tiles, segments, gpu);
    let tiling = Tiling::of(&product, &order, gpu);
    let tiling = tiling.unwrap_or_else(|| panic!("{product:?}, {gpu:?}"));
    (product, tiling)
}

// Up to the widest rows of Llama 3.1 70B and 405B.
const SEGMENTS: [u32; 12] = [1, 5, 8, 12, 16, 20, 24, 64, 76, 112, 224, 416];
// Up to heads of 262,208 rows.
const TILES: [u32; 8] = [1, 4, 33, 192, 1_024, 1_792, 3_584, 16_388];

/// Products of all model sizes, on a large and on small GPUs.
fn all(mut check: impl FnMut(&Product, &Tiling, &GpuFacts)) {
    for gpu in [gpu(132, 232_448), gpu(24, 101_376), gpu(40, 65_536)] {
        for record_bytes in records() {
            for segments in SEGMENTS {
                for tiles in TILES {
                    for rows in [1, 2, 3, 6, 8, 12, 16, 24, 48, 128, 512] {
                        let (product, tiling) = cut(&gpu, (tiles, segments), rows, record_bytes);
                        check(&product, &tiling, &gpu);
                    }
                }
            }
        }
    }
}

#[test]
fn records_match_tensor_types() {
    // Q4_0, Q4_1 and Q4_K, Q5_0, Q5_1 and Q5_K, Q6_K, Q8_0, F16 and BF16.
    assert_eq!(records(), [576, 640, 704, 768, 848, 1_088, 2_048]);
}

#[test]
fn every_product_fits_every_chip() {
    all(|product, tiling, gpu| {
        let bytes = u64::from(tiling.shared_bytes + SHARED_STATIC);
        assert!(bytes <= gpu.shared_bytes_per_block_optin, "{product:?}: {tiling:?}");
        let warps = tiling.warps();
        // Blocks for one group of rows always have one of two sizes.
        let is_skinny = tiling.groups == 1;
        let is_right = if is_skinny {
            warps == SKINNY_WARPS || warps == SKINNY_WARPS_LARGE
        } else {
            warps <= MAX_WARPS
        };
        assert!(is_right, "{tiling:?}");
        assert!((1..=2).contains(&tiling.order.runs));
        assert!((1..=MAX_DEPTH).contains(&tiling.depth));
        assert!((1..=tiling.order.run).contains(&tiling.stage_segments));
    });
}

#[test]
fn columns_rows_and_tiles_are_covered_once() {
    all(|product, tiling, _| {
        let Order { splits, split_segments, runs, run } = tiling.order;
        let covered = splits * split_segments;
        assert!((product.segments..product.segments + split_segments).contains(&covered));
        assert!((split_segments..split_segments + run).contains(&(runs * run)));
        let rows = tiling.grid[1] * 8 * tiling.groups;
        assert!(rows >= product.rows && rows < product.rows + 8 * tiling.groups);
        assert!(tiling.grid[2] == 1 || tiling.grid[2] == splits);
        // Blocks of more than one group make one split.
        assert!(tiling.groups == 1 || tiling.grid[2] == splits);
    });
}

#[test]
fn waves_of_few_rows_fill_the_chip() {
    let gpu = gpu(132, 232_448);
    let cut = |tiles, segments, rows, record_bytes| {
        let (_, cut) = cut(&gpu, (tiles, segments), rows, record_bytes);
        (cut.grid[0], cut.wave_tiles, cut.teams, cut.stage_segments * cut.depth)
    };
    // Llama 3.2 1B: query, key and value; output; down; gate and up; head. The segments that a warp
    // multiplies in a wave are in flight before x is; three quarters of them if two blocks share a
    // multiprocessor.
    assert_eq!(cut(192, 16, 1, 640), (192, 1, 8, 2));
    assert_eq!(cut(128, 16, 1, 640), (128, 1, 8, 2));
    assert_eq!(cut(128, 64, 1, 640), (128, 1, 8, 4));
    assert_eq!(cut(1_024, 16, 1, 640), (256, 4, 4, 6));
    let (blocks, wave_tiles, teams, _) = cut(8_016, 16, 1, 848);
    assert_eq!((blocks, wave_tiles, teams), (251, 8, 4));
    // Gate and up of bf16, whose segments arrive one by one, and of Llama 3.1 8B, whose warps have
    // many segments: rows of x are loaded before more of them.
    assert_eq!(cut(1_024, 16, 1, 2_048), (256, 4, 4, 2));
    assert_eq!(cut(1_792, 32, 1, 640), (256, 7, 4, 4));
    // Qwen 3 0.6B: gate and up, two tiles of four splits for eight teams.
    assert_eq!(cut(384, 8, 1, 1_088), (192, 2, 8, 2));
}

#[test]
fn stages_start_early_unless_the_predecessor_needs_the_memory() {
    let gpu = gpu(132, 232_448);
    let cut = |tiles, segments, rows, record_bytes| {
        let (product, cut) = cut(&gpu, (tiles, segments), rows, record_bytes);
        (cut.depth, cut.early_stages(&product))
    };
    // Llama 3.2 1B: down of Q8_0, of bf16, and of Q4_K, whose runs are a stage.
    assert_eq!(cut(128, 64, 1, 1_088), (2, 1));
    assert_eq!(cut(128, 64, 1, 2_048), (3, 2));
    assert_eq!(cut(128, 64, 1, 640), (1, 1));
    // Gate and up; query, key and value.
    assert_eq!(cut(1_024, 16, 1, 640), (3, 3));
    assert_eq!(cut(1_024, 16, 8, 640), (3, 2));
    assert_eq!(cut(192, 16, 1, 1_088), (1, 1));
}

#[test]
fn more_rows_fill_the_chip() {
    // On an RTX 4090 and an H100, Llama 3.2 1B: query, key and value; output; gate and up; down;
    // head.
    for gpu in [gpu(128, 101_376), gpu(132, 232_448)] {
        for matrix in [(192, 16), (128, 16), (1_024, 16), (128, 64), (8_016, 16)] {
            for rows in [9, 16, 32, 48, 64, 128, 512] {
                let (product, tiling) = cut(&gpu, matrix, rows, 640);
                let warps = tiling.grid.iter().product::<u32>() * tiling.warps();
                assert!(warps >= 4 * gpu.multiprocessors, "{product:?}: {tiling:?}");
                assert!(tiling.groups > 1, "{tiling:?}");
            }
        }
    }
}

#[test]
fn stages_of_few_rows_are_every_segment_once() {
    // As kernels/gemm/gemm_skinny_scheduler.cuh computes a warp's next stage.
    let fast_divide =
        |n: u32, reciprocal: u32| ((2 * u64::from(n) * u64::from(reciprocal)) >> 32) as u32;
    all(|product, tiling, _| {
        if tiling.groups > 1 || product.tiles > 200 {
            return;
        }
        let Order { splits, split_segments, runs, run } = tiling.order;
        let of = tiling.stages(product.tiles);
        assert!((1..=tiling.depth).contains(&tiling.early_stages(product)), "{tiling:?}");
        let [by_stages, by_tasks, by_passes, by_splits] = of.reciprocals;
        let mut seen = vec![0_u8; (product.tiles * product.segments) as usize];
        for (block, warp) in
            (0..tiling.grid[0]).flat_map(|b| (0..tiling.warps()).map(move |w| (b, w)))
        {
            let (team, its_run) = (warp >> (runs - 1), warp & (runs - 1));
            let first = tiling.first_stages(product.segments)[warp as usize];
            let tile = block * tiling.wave_tiles + (first & 0xff);
            for segment in (first >> 16)..(first >> 16) + (first >> 8 & 0xff) {
                if tile < product.tiles {
                    seen[(tile * product.segments + segment) as usize] += 1;
                }
            }
            for stage in 1..of.all {
                let task = fast_divide(stage, by_stages);
                let pass = fast_divide(task, by_tasks);
                let wave = fast_divide(pass, by_passes);
                let index = team + (task - pass * of.tasks) * tiling.teams;
                let at = fast_divide(index, by_splits);
                let split =
                    (pass - wave * of.passes) * tiling.x_splits + index - at * tiling.x_splits;
                let tile = (block + wave * tiling.grid[0]) * tiling.wave_tiles + at;
                if at >= tiling.wave_tiles || tile >= product.tiles {
                    continue;
                }
                let run_begin = split * split_segments + its_run * run;
                let end = (run_begin + run).min((split + 1) * split_segments);
                let begin = run_begin + (stage - task * of.of_task) * tiling.stage_segments;
                for segment in begin..(begin + tiling.stage_segments).min(end).min(product.segments)
                {
                    seen[(tile * product.segments + segment) as usize] += 1;
                }
            }
        }
        // Blocks with other rows of x compute the same.
        assert!(seen.iter().all(|n| *n == 1), "{product:?}: {tiling:?}, {splits} splits");
    });
}

#[test]
fn activations_in_parts_use_waves_of_one_tile() {
    all(|_, tiling, _| {
        if tiling.groups == 1 {
            let splits = tiling.order.splits;
            assert!((1..=splits).contains(&tiling.x_splits));
            let is_in_parts = tiling.x_splits < splits;
            assert!(!is_in_parts || tiling.wave_tiles == 1);
        }
    });
}

#[test]
fn summation_order_depends_only_on_the_matrix() {
    // Neither rows nor the size of records change it.
    all(|product, tiling, gpu| {
        assert_eq!(tiling.order, Order::of(product.tiles, product.segments, gpu));
    });
}

#[test]
fn constants_and_shared_memory_match_the_kernels() {
    let kernels = KernelSource::read(&[
        "common/walla.cuh",
        "gemm/weight.cuh",
        "gemm/gemm_common.cuh",
        "gemm/gemm_skinny_config.cuh",
        "gemm/gemm_sm80_config.cuh",
    ]);
    for (name, host) in [
        ("DEPTH_MAX", MAX_DEPTH),
        ("SUM_STRIDE", SUM_STRIDE),
        ("SKINNY_WARPS", SKINNY_WARPS),
        ("SKINNY_WARPS_LARGE", SKINNY_WARPS_LARGE),
        ("SM80_WARPS_MAX", MAX_WARPS),
        ("RUNS_MAX", 2),
    ] {
        assert_eq!(kernels.constant(name), host, "{name}");
    }
    let of = |name: &str, arguments: &[u32]| kernels.call(name, arguments)[0];
    for record_bytes in records() {
        for (tiles, segments) in [(192, 16), (1_024, 16), (1_792, 32), (128, 64), (3_584, 224)] {
            for rows in [1, 3, 8, 16, 64] {
                let (product, tiling) =
                    cut(&gpu(132, 232_448), (tiles, segments), rows, record_bytes);
                let Order { splits, split_segments, runs, .. } = tiling.order;
                let Tiling { depth, stage_segments, wave_tiles, x_splits, .. } = tiling;
                let expected = if tiling.groups == 1 {
                    let x_segments = segments.min(x_splits * split_segments);
                    let group_rows = product.group_rows;
                    let waves = product.tiles.div_ceil(wave_tiles * tiling.grid[0]);
                    let buffers = if waves > 1 || x_splits < splits { 2 } else { 1 };
                    let sums = of("skinny_sums", &[wave_tiles, x_splits, runs, group_rows]);
                    let totals = if x_splits < splits { 8 * 16 * 8 } else { 0 };
                    tiling.warps() * of("skinny_ring_bytes", &[depth, stage_segments, record_bytes])
                        + of("skinny_x_bytes", &[x_segments, group_rows])
                        + 4 * buffers * sums
                        + totals
                } else {
                    let groups = tiling.groups;
                    tiling.warps() * of("sm80_ring_bytes", &[depth, stage_segments, record_bytes])
                        + groups * of("sm80_group_bytes", &[segments.min(split_segments)])
                        + tiling.warps() * 4 * of("sm80_sums", &[groups])
                };
                assert_eq!(tiling.shared_bytes, expected, "{product:?}: {tiling:?}");
            }
        }
    }
}
